//! The way from SQL to [`QuantilesExec`](crate::exec::QuantilesExec): query planner, logical nodes, registration in a session.
//!
//! ```sql
//! SELECT exact_quantiles(fare, [0.5, 0.99]), count(*) FROM trips WHERE fare > 0
//! ```
//! ```text
//! Aggregate: groupBy=[[]],                            Quantiles: aggr=[[exact_quantiles(..),
//!     aggr=[[exact_quantiles(..), count(..)]]   ->        count(..)]]
//!   Filter: trips.fare > 0                              Filter: trips.fare > 0
//!     TableScan: trips                                    TableScan: trips
//! ```
//! The rewrite happens inside a [`QueryPlanner`](datafusion::execution::context::QueryPlanner), after the optimizer:
//! a query planner runs in one process and on a cluster alike, and it sees constants folded.

mod approx;
#[cfg(feature = "ballista")]
mod boundaries;
mod build_side;
mod builtins;
mod call_spec;
mod check;
#[cfg(feature = "ballista")]
mod client;
mod distances;
mod extension;
mod first_rows;
mod float_statistics;
mod foreign;
mod fresh_names;
mod give_way;
mod grouped_topk;
mod memory;
mod moving;
mod nearest_join;
mod nearest_table;
mod node;
mod physical;
#[cfg(feature = "cuda")]
mod pinned;
mod query_planner;
mod ranks;
mod register;
mod repeatable;
mod rewrite;
mod sample_then_read;
mod sort_limit;
mod sorts;
mod staged;
mod staged_call;
mod staged_node;
mod swap;
mod table_names;
mod windows;

#[cfg(feature = "ballista")]
pub(crate) use boundaries::BoundariesRule;
pub(crate) use build_side::BuildSideRule;
pub use check::CheckQuantiles;
pub use extension::QuantilesExtensionPlanner;
pub use float_statistics::FloatStatisticsRule;
pub use give_way::GiveWayRule;
pub use moving::MovingQuantilesRule;
pub use nearest_join::NearestJoinRule;
use node::QuantilesNode;
pub use query_planner::QuantilesPlanner;
pub(crate) use register::check_no_cluster;
#[cfg(feature = "cuda")]
pub(crate) use register::check_runs_here;
pub use register::{SessionStateBuilderExt, register_all};
pub(crate) use repeatable::is_repeatable;
pub use sort_limit::SortLimitRule;
