//! Integration tests, in one binary.

mod exec;
mod functions;
mod planner;
mod support;
