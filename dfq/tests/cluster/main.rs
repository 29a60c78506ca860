//! A cluster of processes: one shared by most tests, and some that are there to lose a machine.
//!
//! Every test has a time limit of its own: what hangs is a failure that names itself.

#[path = "../../../tests/it/patterns.rs"]
mod patterns;
#[path = "../../../tests/it/scripts.rs"]
mod scripts;
#[path = "../../../tests/it/support.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of one process, which use all of it"
)]
mod support;

mod answers;
mod commands;
mod doors;
mod faults;
mod kills;
mod machines;
mod outputs;
mod plans;
mod s3;
mod trouble;
mod unions;
