//! The tables of the literature, measured with this crate: `cargo bench --bench literature -- --output DIR`.
//!
//! | table | what it shows | beside |
//! | --- | --- | --- |
//! | `sorts` | the cost of the baselines' local sort | `sort_unstable` |
//! | `shards` | time, rounds and bytes of every method over numbers of values and shards | GK Select, Figure 2 and Table V |
//! | `dibms` | values sent, by counted messages | DIBMS, Table 3 |
//! | `sample` | throughput over sizes and distinct values; error of the approximate form over buckets | SampleSelect, Figures 8 and 10 |
//! | `model` | rounds and bytes as times, for clusters of up to 10 000 shards | GK Select, section VI |
//!
//! Shards are partitions of one process: their messages are written to bytes, counted and read again. Every method must
//! give the same keys, or the run fails. `DIR` gets a CSV and plots for each table.

mod dibms;
mod methods;
mod model;
mod output;
mod sample;
mod shards;
mod sorts;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use datafusion::common::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    Sorts,
    Shards,
    Dibms,
    Sample,
    Model,
}

#[derive(Debug, Parser)]
#[command(about = "The literature's tables over this crate")]
struct Arguments {
    /// Most values of the tables over sizes, in steps of 10
    #[arg(long, default_value_t = 1e7)]
    rows: f64,
    /// Least values of the table over shards
    #[arg(long, default_value_t = 1e4)]
    from: f64,
    /// Numbers of shards
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 120, 128])]
    shards: Vec<u64>,
    /// Methods of the table over shards; all if not given. psrs is always among them
    #[arg(long, value_delimiter = ',')]
    methods: Vec<String>,
    /// Keys of 32 bits in that table, for half the memory
    #[arg(long)]
    narrow: bool,
    /// log2 of the values of DIBMS's table
    #[arg(long, value_delimiter = ',', default_values_t = [26, 28])]
    dibms_log: Vec<u32>,
    /// log2 of the most values of SampleSelect's sweep, which begins with 2^16
    #[arg(long, default_value_t = 24)]
    sample_log: u32,
    /// Threads that play the shards
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Repetitions, of which the fastest counts, up to 1e7 values; half as many for ten times as many
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Tables to make; all if not given
    #[arg(long, value_delimiter = ',')]
    tables: Vec<Table>,
    /// Where the CSV files and plots go
    #[arg(long, default_value = "target/literature")]
    output: PathBuf,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.output)?;
    let wants = |table| arguments.tables.is_empty() || arguments.tables.contains(&table);
    if wants(Table::Sorts) {
        sorts::table(&arguments)?;
    }
    if wants(Table::Shards) {
        shards::tables(&arguments)?;
    }
    if wants(Table::Dibms) {
        dibms::table(&arguments)?;
    }
    if wants(Table::Sample) {
        sample::tables(&arguments)?;
    }
    if wants(Table::Model) {
        model::table(&arguments)?;
    }
    Ok(())
}
