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
//! Where a column has more distinct values than [`MOST_DISTINCT`], and some may be among the most frequent ones, a second read counts those. By
//! groups it is read a second time for its histograms and the values beyond its fences too. `SUMMARIZE t` is the same in SQL
//! ([`SummarizeStatement`]).

mod answer;
mod counted;
mod frequencies;
mod measures;
mod position;
mod questions;
mod read;
mod statement;
mod types;

pub use position::position;
pub use read::{profile, profile_by};
pub use statement::{SummarizeStatement, text};
pub use types::{
    BINS, Bin, ColumnProfile, Distinct, Fences, GroupProfile, Lengths, MOST_DISTINCT, MOST_GROUPS,
    PERCENTAGES, TOP_VALUES, TableProfile,
};
