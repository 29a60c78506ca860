//! Tests of `dfq` as a program: what it prints, what it takes of memory and disk, and that the documents are true.

mod documents;
mod faults;
mod formats;
mod generated;
mod memory;
#[cfg(target_os = "linux")]
mod memory_table;
mod profile;
#[cfg(unix)]
mod prompt;
#[cfg(feature = "serve")]
mod serve;
mod statements;
mod support;
