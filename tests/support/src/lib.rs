//! What the tests and benchmarks share: sessions, tables, scripts, and the answers of naive evaluations.
//!
//! | module | has |
//! | --- | --- |
//! | [`answers`] | rows, errors and plans of statements; the answer of a sort |
//! | [`fixed_width`] | values of each type of fixed width |
//! | [`kinds`] | values of each type without a key of fixed width |
//! | [`numbers`] | values of rows, made by many threads |
//! | [`patterns`] | sequences of words that are sorted, repeat, cluster ... |
//! | [`rounds`] | shards and strategies without a session |
//! | [`samples`] | a small table, and what its quantiles are |
//! | [`scripts`] | the runner of `sql/*.slt`, and the tables that they read |
//! | [`sessions`] | sessions with limits of memory, in stages, without the extension |
//! | [`tables`] | batches of columns as tables of several partitions |
//! | [`topk`] | a table of many types, and expressions over it |

pub mod answers;
pub mod fixed_width;
pub mod hyndman_fan;
pub mod kinds;
pub mod numbers;
pub mod patterns;
pub mod rounds;
pub mod samples;
pub mod scripts;
pub mod sessions;
pub mod tables;
pub mod topk;

pub use answers::*;
pub use sessions::*;
pub use tables::*;
