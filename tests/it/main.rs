//! Integration tests, in one binary.

#[cfg(feature = "cli")]
mod cli;
mod exec;
mod functions;
mod patterns;
mod planner;
mod select;
mod support;
