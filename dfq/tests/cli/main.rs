//! Tests of `dfq` as a program: what it prints, what it takes of memory and disk, and that the documents are true.

mod documents;
mod faults;
mod memory;
#[cfg(target_os = "linux")]
mod memory_table;
mod statements;
#[path = "../../../tests/it/support.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the library, which use all of it"
)]
mod support;
