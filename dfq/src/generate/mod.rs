//! `dfq generate`: writes Parquet files to try things on.

mod parquet_file;
mod synthetic;
pub(crate) mod tpch;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Subcommand;
use datafusion::error::DataFusionError;

use self::synthetic::SyntheticArgs;
use self::tpch::TpchArgs;
pub(crate) use self::work::Work;
use crate::console::{End, say};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file appears under its name when it is complete, never before.\n\n\
        Examples:\n  \
        dfq generate tpch --scale 1 --tables lineitem --output data\n  \
        dfq generate synthetic --rows 3e7 --output data"
)]
pub(crate) struct GenerateArgs {
    #[command(subcommand)]
    data: Data,
}

#[derive(Debug, Subcommand)]
enum Data {
    /// The tables of the TPC-H benchmark
    Tpch(TpchArgs),
    /// One table of random columns: skewed, uniform, money-like and with heavy duplicates
    Synthetic(SyntheticArgs),
}

/// Where files go; shared by all kinds of data.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// Folder to write into, made if missing
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,

    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,
}

/// Runs `dfq generate`.
pub(crate) async fn run(args: GenerateArgs) -> End {
    let started = Instant::now();
    let work = match args.data {
        Data::Tpch(args) => args.work(),
        Data::Synthetic(args) => args.work(),
    };
    match perform(work).await {
        End::Success => {
            say(format_args!(
                "Elapsed {:.3} seconds.",
                started.elapsed().as_secs_f64()
            ));
            End::Success
        }
        end => end,
    }
}

/// Writes the files. Ctrl-C ends it, and nothing unfinished stays behind.
pub(crate) async fn perform(work: Work) -> End {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut task = None;
    // Polled first, so that the signal is caught before the first file is there.
    let result = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            stop.store(true, Ordering::Relaxed);
            // Its end removes the unfinished files.
            if let Some(task) = task {
                let _ = task.await;
            }
            say("Interrupted");
            return End::Interrupted;
        }
        result = async { task.insert(tokio::task::spawn_blocking(move || work.perform(&flag))).await } => result,
    };
    match result {
        Ok(Ok(())) => End::Success,
        Ok(Err(error)) => error.into(),
        Err(error) => DataFusionError::ExecutionJoin(Box::new(error)).into(),
    }
}
