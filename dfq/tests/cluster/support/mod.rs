//! What the tests of a cluster share: its processes, clients and tables.

pub(crate) mod clients;
pub(crate) mod machines;
pub(crate) mod tables;
#[cfg(unix)]
#[path = "../../cli/support/terminal.rs"]
pub(crate) mod terminal;
