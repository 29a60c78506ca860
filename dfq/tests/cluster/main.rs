//! A cluster of processes: one shared by most tests, and some that are there to lose a machine.
//!
//! Every test has a time limit of its own: what hangs is a failure that names itself.

mod answers;
mod commands;
mod doors;
mod faults;
mod kills;
mod outputs;
mod plans;
mod s3;
mod support;
mod trouble;
mod unions;
