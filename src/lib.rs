//! Exact order statistics in Apache DataFusion.
