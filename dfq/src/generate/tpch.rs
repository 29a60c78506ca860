//! TPC-H tables, from the `tpchgen` crates.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use tpchgen::generators as rows;
use tpchgen_arrow as arrow;

use super::TargetArgs;
use super::work::{Job, Reader, Work};
use crate::args::{parse_count, parse_scale};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each table is one file, DIR/lineitem.parquet; with --parts N a folder of N files, \
    DIR/lineitem/1.parquet and so on (nation and region stay one file)."
)]
pub(crate) struct TpchArgs {
    /// Scale factor: 1 gives 6 million rows of lineitem
    #[arg(short, long, value_name = "SCALE", default_value = "1", value_parser = parse_scale)]
    scale: f64,

    /// Tables to write, separated by commas [default: all]
    #[arg(short, long, value_name = "TABLES", value_enum, value_delimiter = ',')]
    tables: Vec<Table>,

    /// Files for each table, at most 1000; they are written in parallel
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_parts)]
    parts: i32,

    #[command(flatten)]
    target: TargetArgs,
}

fn parse_parts(text: &str) -> Result<i32, String> {
    const MOST: usize = 1000;
    let parts = parse_count(text).map(NonZeroUsize::get)?;
    if parts > MOST {
        return Err(format!("expected at most {MOST}"));
    }
    i32::try_from(parts).map_err(|error| error.to_string())
}

/// A table of TPC-H.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Table {
    Customer,
    Lineitem,
    Nation,
    Orders,
    Part,
    Partsupp,
    Region,
    Supplier,
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Customer => "customer",
            Self::Lineitem => "lineitem",
            Self::Nation => "nation",
            Self::Orders => "orders",
            Self::Part => "part",
            Self::Partsupp => "partsupp",
            Self::Region => "region",
            Self::Supplier => "supplier",
        })
    }
}

impl TpchArgs {
    /// The files to write.
    pub(crate) fn work(self) -> Work {
        let tables = if self.tables.is_empty() {
            Table::value_variants()
        } else {
            &self.tables
        };
        let mut jobs = Vec::new();
        for (place, &table) in tables.iter().enumerate() {
            if !tables[..place].contains(&table) {
                jobs.extend(table.jobs(self.scale, self.parts, &self.target.output));
            }
        }
        Work {
            jobs,
            force: self.target.force,
        }
    }
}

impl Table {
    /// The files of one table under `folder`.
    pub(crate) fn jobs(self, scale: f64, parts: i32, folder: &Path) -> Vec<Job> {
        // The generators give these whole for any part.
        let parts = if matches!(self, Self::Nation | Self::Region) {
            1
        } else {
            parts
        };
        (1..=parts)
            .map(|part| Job {
                target: self.file(part, parts, folder),
                rows: self.about_rows(scale) / parts as u64,
                open: Box::new(move || Ok(self.open(scale, part, parts))),
            })
            .collect()
    }

    fn file(self, part: i32, parts: i32, folder: &Path) -> PathBuf {
        match parts {
            1 => folder.join(format!("{self}.parquet")),
            _ => folder.join(self.to_string()).join(format!("{part}.parquet")),
        }
    }

    /// About as many rows as the table has.
    fn about_rows(self, scale: f64) -> u64 {
        let at_scale_1 = match self {
            Self::Nation => return 25,
            Self::Region => return 5,
            Self::Customer => 150_000.0,
            Self::Lineitem => 6_001_215.0,
            Self::Orders => 1_500_000.0,
            Self::Part => 200_000.0,
            Self::Partsupp => 800_000.0,
            Self::Supplier => 10_000.0,
        };
        (at_scale_1 * scale) as u64
    }

    fn open(self, scale: f64, part: i32, parts: i32) -> Reader {
        match self {
            Self::Customer => Box::new(arrow::CustomerArrow::new(rows::CustomerGenerator::new(
                scale, part, parts,
            ))),
            Self::Lineitem => Box::new(arrow::LineItemArrow::new(rows::LineItemGenerator::new(
                scale, part, parts,
            ))),
            Self::Nation => Box::new(arrow::NationArrow::new(rows::NationGenerator::new(
                scale, part, parts,
            ))),
            Self::Orders => Box::new(arrow::OrderArrow::new(rows::OrderGenerator::new(
                scale, part, parts,
            ))),
            Self::Part => Box::new(arrow::PartArrow::new(rows::PartGenerator::new(
                scale, part, parts,
            ))),
            Self::Partsupp => Box::new(arrow::PartSuppArrow::new(rows::PartSuppGenerator::new(
                scale, part, parts,
            ))),
            Self::Region => Box::new(arrow::RegionArrow::new(rows::RegionGenerator::new(
                scale, part, parts,
            ))),
            Self::Supplier => Box::new(arrow::SupplierArrow::new(rows::SupplierGenerator::new(
                scale, part, parts,
            ))),
        }
    }
}
