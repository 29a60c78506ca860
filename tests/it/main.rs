//! Integration tests, in one binary.

mod patterns;
mod select;
