//! Tests.

#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
mod readme;
