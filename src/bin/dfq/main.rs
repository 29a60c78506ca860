//! dfq
fn main() {}
