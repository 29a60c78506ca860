//! `dfq cuda`: the kernels of this machine's GPUs.

use std::time::Instant;

use clap::{Args, Subcommand};
use datafusion_quantiles::config::DeviceChoice;
use datafusion_quantiles::pinned::compile_kernels;

use crate::args::parse_device;
use crate::console::{End, say};

#[derive(Debug, Args)]
pub(crate) struct CudaArgs {
    #[command(subcommand)]
    command: CudaCommand,
}

#[derive(Debug, Subcommand)]
enum CudaCommand {
    /// Compile the kernels that queries are likely to need, and keep them on disk, so that no first query waits for the compiler
    Warm {
        /// The GPU: cuda, cuda:N (counted from 0), or cuda:all
        #[arg(long, default_value = "cuda", value_parser = parse_device)]
        device: DeviceChoice,
    },
}

pub(crate) async fn run(args: CudaArgs) -> End {
    let CudaCommand::Warm { device } = args.command;
    let start = Instant::now();
    match compile_kernels(device).await {
        Ok(files) => {
            let seconds = start.elapsed().as_secs_f64();
            say(format_args!(
                "{files} files of kernels for {device} are on disk ({seconds:.1} seconds)."
            ));
            End::Success
        }
        Err(error) => error.into(),
    }
}
