//! Physical operators.
//!
//! ```text
//! partition 0 ─ scan task ─┬─ shard of column 0 ──┐
//!                          ├─ shard of column 1 ──┼─┐
//!                          └─ plain accumulators ┼─┼─┐
//! partition 1 ─ scan task ─┬─ shard of column 0 ──┤ │ │
//!                          ├─ shard of column 1 ──┼─┤ │
//!                          └─ plain accumulators ┼─┼─┤
//!                                                │ │ └─ states are merged
//!                                  rounds over column 0, then over column 1 ─> one row
//! ```

mod aggregate;
#[cfg(feature = "ballista")]
mod boundary;
mod build_side;
mod collected;
#[cfg(feature = "cuda")]
mod device_shards;
mod expressions;
mod extents;
mod files;
mod give_way;
mod group_engine;
mod grouped;
mod grouped_topk;
mod kept_views;
mod long_batches;
mod mode;
mod moving;
mod nearest_join;
mod numbered;
#[cfg(feature = "cuda")]
mod on_device;
mod operator;
#[cfg(feature = "cuda")]
mod pinned;
mod plain;
#[cfg(feature = "ballista")]
mod planned_types;
mod quantiles;
mod replaced_window;
mod reread;
mod restored_types;
mod round_memory;
#[cfg(feature = "parquet")]
mod row_source;
mod run;
mod run_metrics;
mod sample_then_read;
mod scan;
mod selection;
mod shared_state;
mod sort_limit;
pub mod staged;
#[cfg(feature = "parquet")]
mod statistics;
mod while_reading;
mod window;
#[cfg(feature = "ballista")]
pub(crate) mod wire;

pub(crate) use aggregate::{ExecAggregate, PlainAggregate, QuantilesCall};
#[cfg(feature = "ballista")]
pub use boundary::{BoundaryExec, BoundaryWork, BranchExec};
pub use build_side::BuildSideExec;
pub(crate) use files::{file_scan, stored_bytes, with_file_scans};
pub use give_way::GiveWayExec;
pub use grouped::GroupedQuantilesExec;
pub use grouped_topk::GroupedTopKExec;
pub(crate) use grouped_topk::{Answer, Numbering, OutputColumn, SortBy, TopKSpec};
pub use kept_views::KeptViewsExec;
pub use long_batches::ShortBatchesExec;
pub(crate) use long_batches::short_batch;
pub(crate) use mode::{Mode, by_key};
pub use moving::MovingQuantilesExec;
pub use nearest_join::NearestJoinExec;
pub(crate) use nearest_join::{EqualPairs, NearestJoinSpec, PairColumn};
#[cfg(feature = "cuda")]
pub(crate) use on_device::UploadChoice;
pub use operator::Operator;
pub(crate) use operator::comma_separated;
#[cfg(feature = "cuda")]
pub use pinned::PinnedExec;
#[cfg(feature = "cuda")]
pub(crate) use pinned::{
    FilteredColumn, PinnedCalls, PinnedCount, PinnedGroupRows, PinnedGroupTopK, PinnedGroups, PinnedNearest,
    PinnedQuantiles, PinnedQuery, PinnedRows, PinnedScan, PinnedScanExec, PinnedShare, PinnedSource,
    PinnedTable, PinnedTables, PinnedTopK, PinnedTopKCall, PlanFallback, full_name,
};
#[cfg(feature = "ballista")]
pub use planned_types::PlannedTypesExec;
pub use quantiles::QuantilesExec;
pub(crate) use reread::is_worth_two_reads;
pub use restored_types::RestoredTypesExec;
pub use sample_then_read::SampleThenReadExec;
pub(crate) use sample_then_read::{MOST_COUNTED_BINS, RowsQuestion};
#[cfg(feature = "parquet")]
pub use sort_limit::LateFetchExec;
pub use sort_limit::SortLimitExec;
pub(crate) use sort_limit::distance_call;
pub use window::ReservingWindowExec;
