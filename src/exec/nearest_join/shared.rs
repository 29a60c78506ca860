//! What the partitions of a join share.

#[cfg(feature = "cuda")]
use super::device::DevicePairs;
use super::queries::{Queries, QueryRows};
use crate::exec::shared_state::SharedState;

/// What the partitions of an execution share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) rows: SharedState<QueryRows>,
    pub(super) queries: SharedState<Queries>,
    /// The pairs that a device has found; `None` if it left them to the CPU.
    #[cfg(feature = "cuda")]
    pub(super) on_device: SharedState<Option<DevicePairs>>,
}
