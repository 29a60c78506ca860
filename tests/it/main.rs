//! Integration tests, in one binary.

mod approx;
mod builtins;
mod constants;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_devices;
#[cfg(feature = "cuda")]
mod cuda_group_topk;
#[cfg(feature = "cuda")]
mod cuda_groups;
#[cfg(feature = "cuda")]
mod cuda_kernels;
#[cfg(feature = "cuda")]
mod cuda_lanes;
#[cfg(feature = "cuda")]
mod cuda_papers;
#[cfg(feature = "cuda")]
mod cuda_repeats;
#[cfg(feature = "cuda")]
mod cuda_speed;
#[cfg(feature = "cuda")]
mod cuda_stream;
#[cfg(feature = "cuda")]
mod cuda_table;
#[cfg(feature = "cuda")]
mod cuda_topk;
#[cfg(feature = "cuda")]
mod cuda_trouble;
mod edges;
mod embedding;
mod exec;
mod failures;
mod float_statistics;
mod functions;
mod grouped;
mod grouped_values;
mod layers;
mod memory;
mod memory_plans;
mod memory_values;
mod names;
mod patterns;
mod planner;
mod property;
mod scripts;
mod select;
mod select_edges;
mod slt;
mod staged;
mod streams;
mod support;
mod top;
mod topk;
mod topk_rows;
mod types;
mod windows;
