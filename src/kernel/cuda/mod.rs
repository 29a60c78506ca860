//! NVIDIA devices: the only module that uses CUDA.
//!
//! The driver and the compiler of kernels (NVRTC) are loaded at run time, so that one binary runs with and without them.
//! [`Device::get`] opens a device, or says why there is none. Kernels are embedded as text ([`source`]), compiled for the device at
//! hand, and kept on disk ([`cache`]).
//!
//! | type | what it does |
//! | --- | --- |
//! | [`DeviceColumn`] | holds the values of a column |
//! | [`RowMask`] | holds the rows where a [`Predicate`] is true |
//! | [`Selection`] | finds exact ranks of a column, or of some of its rows |
//! | [`SpreadSelection`] | finds exact ranks of a column that lies on several devices |
//! | [`TopSelection`] | finds the rows with the greatest or least keys |
//! | [`SpreadGroups`] | finds exact ranks in every group |
//! | [`GroupTopSelection`] | finds the best rows of every group |
//! | [`Gather`] | fetches the values of some rows |
//! | [`CudaBackend`] | opens shards that answer the rounds of [`crate::select`] |
//! | [`NearestSelection`] | finds the vectors of a column that are nearest to a point, at most 1024, by `f32` |

mod bracket_plan;
mod buffer;
pub mod cache;
mod column;
mod copy_buffer;
mod device;
mod devices;
mod distance_bound;
mod distances;
mod driver;
mod fault;
mod filter;
mod gather;
mod group;
mod group_brackets;
mod group_ranks;
mod group_records;
mod group_select;
mod group_spread;
mod group_top;
mod idle;
mod launch;
mod likely;
mod loading;
mod modules;
mod near_chunks;
mod near_pairs;
mod near_rows;
mod nearest;
mod nvrtc;
mod overflow;
mod pair_kernels;
mod pass;
mod pass_cells;
mod picked_keys;
mod report;
mod run_starts;
mod runs;
mod select;
mod shape;
mod shard;
mod shard_rounds;
mod shares;
mod sort;
mod sort_groups;
pub mod source;
mod spread;
mod timeline;
mod top;
mod transfer;
mod upload;
mod workspace;

pub use buffer::DeviceBuffer;
pub(crate) use column::ColumnUpload;
pub use column::DeviceColumn;
pub use device::Device;
pub(crate) use devices::Devices;
pub use filter::{Predicate, RowMask};
pub use gather::Gather;
pub use group::Groups;
pub use group_ranks::GroupRanks;
pub use group_records::{OtherShare, TopAnswer};
pub use group_spread::SpreadGroups;
pub use group_top::{GroupTop, GroupTopSelection};
pub(crate) use likely::likely_programs;
pub(crate) use near_pairs::{NearPairs, PairList};
pub(crate) use near_rows::{NearRows, Order};
pub use nearest::{NearestSelection, Neighbour, squared_distance};
pub use nvrtc::{NVRTC_VARIABLE, Nvrtc};
pub(crate) use overflow::OverflowBackend;
pub use picked_keys::PickedKeys;
pub use report::Report;
pub use select::Selection;
pub use shape::Shape;
pub use shard::CudaBackend;
pub use shares::TopMethod;
pub use sort::Segments;
pub use spread::SpreadSelection;
pub use top::{Top, TopSelection};
pub(crate) use upload::{SharedStaging, Staging};
