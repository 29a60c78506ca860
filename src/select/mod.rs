//! The coordinator: it narrows brackets around the target ranks, round by round.
//!
//! A [`Strategy`] is pure: it gets the merged reply to its last request, and gives the next request or the end. It knows neither
//! threads nor machines; [`Shards`] hide where the shards are. `solve` runs a strategy over shards.
//!
//! Every strategy collects candidates in the end, but only once there is memory for them
//! ([`MemoryBudget`](crate::memory::MemoryBudget)). Until then it counts inside its brackets. With memory for no candidates at all,
//! each strategy ends as DIBMS does, whose counts alone find any rank.
//!
//! | strategy | rounds | source |
//! | --- | --- | --- |
//! | [`SampleSelect`](sample_select::SampleSelect) | sample, count (the cells of all keys are written down), extract | Ribizel and Anzt 2020, section IV |
//! | [`SampleSelect`](sample_select::SampleSelect), around few ranks | sample, count and extract in one read | Floyd and Rivest's idea, with counts that prove it |
//! | [`DistributedBms`](bms::DistributedBms) | sample, count, extract | DIBMS, section II-A |
//! | [`Dibms`](bms::Dibms) | sample, count, count ... until resolved, then single keys | DIBMS, section II-B |
//! | [`GkSelect`](gk_select::GkSelect) | sketch, count and extract in one read | GK Select, sections IV and V |

pub(crate) mod below;
pub mod bms;
pub(crate) mod byte_strings;
pub(crate) mod candidates;
pub mod choose;
pub(crate) mod distinct;
pub(crate) mod frequent;
pub mod gk_select;
pub mod local;
mod named;
pub(crate) mod ordered;
pub mod progress;
pub(crate) mod requests;
pub mod sample_select;
mod sampled;
mod solve;
pub mod splitters;
mod strategy;
pub(crate) mod weighted;
pub(crate) mod while_reading;

pub use local::LocalShards;
pub(crate) use progress::countable;
pub use solve::{RoundTrace, Solution, solve, solve_ranks};
pub(crate) use solve::{Wanted, solve_by, solve_wanted, wanted_ranks};
pub use strategy::{Found, NextStep, Shards, Strategy};
