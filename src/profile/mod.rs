//! Profiles of tables: what each column holds, exactly, by one read of all columns.
//!
//! ```
//! # use datafusion::prelude::*;
//! # async fn example() -> datafusion::error::Result<()> {
//! # let ctx = SessionContext::new();
//! # datafusion_quantiles::register_all(&ctx)?;
//! let trips = ctx.read_parquet("trips.parquet", ParquetReadOptions::default()).await?;
//! let profile = datafusion_quantiles::profile::profile(trips).await?;
//! for column in &profile.columns {
//!     println!("{}: {} NULLs, median {:?}", column.name, column.nulls, column.percentile(50));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A column with more distinct values than [`MOST_DISTINCT`] is read a second time, by a count alone: for its histogram, for the values
//! beyond its fences, and for how often its most frequent values occur. `SUMMARIZE t` is the same in SQL ([`SummarizeStatement`]).

mod answer;
mod counted;
mod fences;
mod frequencies;
mod measures;
mod questions;
mod read;
mod statement;
mod types;

pub use fences::position;
pub use read::{profile, profile_by};
pub use statement::{SummarizeStatement, text};
pub use types::{
    BINS, Bin, ColumnProfile, Distinct, Fences, GroupProfile, Lengths, MOST_DISTINCT, MOST_GROUPS,
    PERCENTAGES, TOP_VALUES, TableProfile,
};
