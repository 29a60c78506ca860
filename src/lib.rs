//! Exact order statistics in Apache DataFusion.
pub mod kernel;
pub mod key;
pub mod select;
