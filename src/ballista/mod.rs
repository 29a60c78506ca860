//! Exact quantiles on a Ballista cluster: the parts that scheduler, executors and clients need.
//!
//! ```text
//! client      register_all(&ctx)         functions by name, SET quantiles.*
//!    │ logical plan
//! scheduler   scheduler_hooks(config)    QuantilesPlanner::staged(), QuantilesCodec
//!    │ stages
//! executors   executor_hooks(config)     QuantilesCodec, the functions
//! ```
//! Quantiles without groups become the stages of [`crate::exec::staged`]: the table stays where it is, and only kilobytes move. Other
//! functions of this crate run as ordinary aggregates. Their partial states are numbered, so that none is merged twice: Ballista 55 can
//! deliver one twice when an executor is lost.
//!
//! ```no_run
//! # async fn example() -> datafusion::error::Result<()> {
//! let ctx = datafusion_quantiles::ballista::connect("df://localhost:50050").await?;
//! ctx.register_parquet("trips", "/data/trips", Default::default()).await?;
//! ctx.sql("SELECT exact_quantiles(fare, [0.5, 0.99]) FROM trips").await?.show().await?;
//! # Ok(())
//! # }
//! ```

mod again;
mod client;
mod codec;
mod endpoint;
mod hooks;
mod identity;
mod job;
mod listener;
mod named;
mod pool;
mod scheduler;
mod serve;
mod session;
mod stores;
mod tasks;
mod watch;

pub use again::{collect, writes};
pub use client::{check_membership, connect, connect_with_config, explained, is_worth_another_try};
pub use codec::QuantilesCodec;
pub use endpoint::{endpoint, http_client};
pub use hooks::{Access, executor_hooks, executor_hooks_with, scheduler_hooks, scheduler_hooks_with};
pub use identity::{Identity, with_identity};
pub use job::cancel;
pub use serve::serve_scheduler;
pub use session::{scheduler_session, session_config};
pub use stores::StoreLimits;
pub use watch::{TaskCounts, Watch};
