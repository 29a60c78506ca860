//! Integration tests, in one binary.

#[cfg(feature = "cli")]
mod cli;
mod embedding;
mod exec;
mod functions;
mod grouped;
mod patterns;
mod planner;
mod property;
#[cfg(feature = "cli")]
mod readme;
mod select;
mod slt;
mod support;
mod types;
