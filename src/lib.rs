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
//! - [`functions`]: the SQL functions and their accumulators, [`functions::expr_fn`] for the expression API
//! - [`planner`]: plans calls as [`exec::QuantilesExec`] and, with groups, as [`exec::GroupedQuantilesExec`] and
//!   [`exec::GroupedTopKExec`], and sorts with a limit as [`exec::SortLimitExec`]; [`register_all`] puts all of it into a
//!   session
//! - [`exec`]: the operators, which read every partition once, keep the keys and drive the rounds
//! - `select`: the strategies, which find the keys of ranks
//! - `kernel`: the work of one partition in a round, on the CPU or a device
//! - `sketch`: Greenwald-Khanna summaries, of which approximate functions make percentiles and `gk_select` brackets
//! - `memory`: memory of rounds, pages, and files for what does not fit in memory; `threads`: work on threads
//! - `cells`: brackets of keys, and the functions that count keys by intervals
//! - `quantile`: the ranks of quantiles, and answers made of keys
//! - `key`: types as unsigned integers, or byte strings, of the same order
//! - `pinned` (feature `cuda`): tables in the memory of an NVIDIA device, and `PIN TABLE`
//! - [`config`]: the options `quantiles.*`
//! - `ballista` (feature `ballista`): what the scheduler, executors and clients of a cluster need
//! - [`dataframe`], [`compute`]: use without SQL, and without a session; [`session`]: limits of a program's sessions
//! - [`statement`]: the statements that this crate adds to SQL; [`profile`]: what the columns of a table hold;
//!   [`progress`]: how far a plan that runs is
//!
//! `select` and all modules below it are private. The feature `internals` makes them public for this project's tests and
//! benchmarks, without any promise. Each module uses those below it only.

// Items that only tests and benchmarks of this project use are public with the feature `internals`, and look unused without it.
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
mod parsing;
#[cfg(feature = "cuda")]
pub mod pinned;
pub mod planner;
pub mod profile;
pub mod progress;
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
pub mod session;
#[cfg(not(feature = "internals"))]
mod sketch;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod sketch;
pub mod statement;
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
