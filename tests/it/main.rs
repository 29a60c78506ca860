//! Integration tests, in one binary.

mod approx;
mod builtins;
mod compute;
mod constants;
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
#[cfg(feature = "cuda")]
mod pinned;
mod planner;
mod property;
mod ranks;
mod refusals;
mod select;
mod select_edges;
mod slt;
mod sort_limit;
mod sort_limit_files;
mod staged;
mod streams;
mod topk;
mod topk_rows;
mod types;
mod weights;
mod while_reading;
mod windows;
