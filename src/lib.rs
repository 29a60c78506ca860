//! Exact order statistics in Apache DataFusion.
//!
//! ```
//! # use datafusion::prelude::SessionContext;
//! # async fn example() -> datafusion::error::Result<()> {
//! let ctx = SessionContext::new();
//! datafusion_quantiles::register_all(&ctx)?;
//! ctx.sql("SELECT exact_quantiles(value, [0.01, 0.5, 0.99]) FROM generate_series(1, 1000)")
//!     .await?
//!     .show()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! ```text
//! SQL, DataFrame ── functions/ ── planner/ ── exec/   operators of one process
//!                                               └── select/   coordinator: brackets, rounds, strategies
//!                                                     └── kernel/   partition-local work: sample, count, extract
//!                                                           └── sketch/ · memory/ · cells/ · quantile/ · key/
//! ```
//! - [`functions`]: `exact_quantiles` and its accumulators, [`functions::expr_fn`] for the expression API;
//!   [`functions::topk`]: the best values by another column
//! - [`planner`]: turns calls into [`exec::QuantilesExec`] and, with groups, [`exec::GroupedQuantilesExec`] and
//!   [`exec::GroupedTopKExec`], and sorts with a limit into [`exec::SortLimitExec`]; [`register_all`] puts all into a session
//! - [`exec`]: reads every partition once, keeps the keys, drives the rounds
//! - `select`: the strategies that find the values of ranks
//! - `kernel`: what one partition does in a round
//! - `sketch`: Greenwald-Khanna summaries: [`functions::gk`] makes percentiles of them, `gk_select` brackets
//! - `memory`: memory of rounds, pages, and files for what memory is refused; `threads`: work on threads
//! - `cells`: brackets of keys, and the functions that count keys by intervals
//! - `quantile`: quantiles as exact ranks, and keys as answers
//! - `key`: types as unsigned integers, or byte strings, of the same order
//! - `pinned` (feature `cuda`): tables in the memory of an NVIDIA device, and `PIN TABLE`
//! - [`config`]: the options `quantiles.*`
//! - `ballista` (feature `ballista`): a cluster's scheduler, executors and clients
//! - [`dataframe`], [`compute`]: use without SQL, and without a session
//!
//! `select` and all below it are the crate's own: the feature `internals`, which promises nothing, shows them to its tests and
//! benchmarks. Each module uses those below it only.

// What only tests and benchmarks of this project call is public with the feature `internals`, and looks unused without it.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub, unused_imports))]

#[cfg(feature = "ballista")]
pub mod ballista;
#[cfg(not(feature = "internals"))]
mod cells;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod cells;
pub mod compute;
pub mod config;
pub mod dataframe;
pub mod exec;
mod failpoint;
pub mod functions;
#[cfg(not(feature = "internals"))]
mod kernel;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod kernel;
#[cfg(not(feature = "internals"))]
mod key;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod key;
#[cfg(not(feature = "internals"))]
mod memory;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod memory;
#[cfg(test)]
mod mutated;
#[cfg(feature = "cuda")]
pub mod pinned;
pub mod planner;
#[cfg(not(feature = "internals"))]
mod quantile;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod quantile;
#[cfg(not(feature = "internals"))]
mod select;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod select;
#[cfg(not(feature = "internals"))]
mod sketch;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod sketch;
#[cfg(not(feature = "internals"))]
mod threads;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod threads;
#[cfg(not(feature = "internals"))]
mod wire;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod wire;

pub use dataframe::DataFrameQuantilesExt;
pub use functions::expr_fn;
pub use planner::{QuantilesPlanner, SessionStateBuilderExt, register_all};
pub use quantile::Method;

/// The guide's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/embedding.md")]
mod guide {}
