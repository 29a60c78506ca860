//! `dfq`: exact quantiles from the command line.
//!
//! `dfq sql` runs SQL with DataFusion and this crate's functions over local files and object stores,
//! `dfq profile` shows what the columns of files hold, `dfq explain` draws what a query did, `dfq generate` writes data to try it on, and `dfq demo` shows the main job with times beside
//! DataFusion's built-in function. Data goes to standard output alone; times, progress and errors go to
//! standard error. Exit codes: 0 success, 1 a failed statement or job, 2 a wrong option, 130 interrupted.

mod allocator;
mod args;
#[cfg(feature = "ballista")]
mod cluster;
mod console;
#[cfg(feature = "cuda")]
mod cuda;
mod demo;
mod explain;
mod generate;
mod profile;
#[cfg(feature = "serve")]
mod serve;
mod sql;

use std::io::Write;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use futures::FutureExt;

use crate::console::End;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long running tasks get to end after the last statement or an interrupt.
const SHUTDOWN: Duration = Duration::from_millis(500);

/// The version. A program that is built together with tests says so, since all its threads lock the registry of failpoints.
const VERSION: &str = if fail::has_failpoints() {
    concat!(env!("CARGO_PKG_VERSION"), " (with failpoints for tests, slower)")
} else {
    env!("CARGO_PKG_VERSION")
};

#[derive(Debug, Parser)]
#[command(
    name = "dfq",
    version = VERSION,
    about = "Exact quantiles in SQL, at the cost of one read of the data",
    after_help = "Examples:\n  \
        dfq sql -c \"SELECT exact_quantiles(fare, [0.01, 0.5, 0.99]) FROM 'trips.parquet'\"\n  \
        dfq generate tpch --scale 1 --output data\n  \
        dfq demo",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run SQL statements: from the command line, from files, from standard input, or at a prompt
    Sql(sql::SqlArgs),
    /// Show what each column of a file holds: exact percentiles, distinct and frequent values, a histogram
    Profile(profile::ProfileArgs),
    /// Run a query and draw its plan as a tree, with the rows and the time of each operator
    Explain(explain::ExplainArgs),
    /// Write Parquet files to try things on
    Generate(generate::GenerateArgs),
    /// Show exact quantiles of TPC-H lineitem, timed beside DataFusion's built-in percentile_cont
    Demo(demo::DemoArgs),
    /// Prepare the GPUs of this machine
    #[cfg(feature = "cuda")]
    Cuda(cuda::CudaArgs),
    /// Print a script that completes dfq's commands and options: source it, or put it where the shell looks for it
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Serve tables to PostgreSQL's clients: psql, drivers, dashboards
    #[cfg(feature = "serve")]
    Serve(serve::ServeArgs),
    /// Start a local cluster: a scheduler and executors on this machine
    #[cfg(feature = "ballista")]
    Cluster(cluster::ClusterArgs),
    /// Start the scheduler of a cluster
    #[cfg(feature = "ballista")]
    Scheduler(cluster::SchedulerArgs),
    /// Start an executor of a cluster
    #[cfg(feature = "ballista")]
    Executor(cluster::ExecutorArgs),
}

impl Command {
    /// Whether queries are to hold so much memory at most.
    fn limits_memory(&self) -> bool {
        match self {
            Command::Sql(args) => args.session.limits_memory(),
            Command::Demo(args) => args.session.limits_memory(),
            Command::Profile(args) => args.session.limits_memory(),
            Command::Explain(args) => args.session.limits_memory(),
            Command::Generate(_) | Command::Completions { .. } => false,
            #[cfg(feature = "cuda")]
            Command::Cuda(_) => false,
            #[cfg(feature = "serve")]
            Command::Serve(args) => args.limits_memory(),
            #[cfg(feature = "ballista")]
            Command::Executor(args) => args.limits_memory(),
            // Queries run in executors, which are processes of their own.
            #[cfg(feature = "ballista")]
            Command::Cluster(_) | Command::Scheduler(_) => false,
        }
    }

    /// Threads that queries are to run on, where their memory has a limit and they run in fewer partitions than there are cores: each thread
    /// keeps memory for itself that others freed. `None`: one for each core.
    fn threads(&self) -> Option<usize> {
        let session = match self {
            Command::Sql(args) => &args.session,
            Command::Demo(args) => &args.session,
            Command::Profile(args) => &args.session,
            Command::Explain(args) => &args.session,
            _ => return None,
        };
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let wanted = session.limited_partitions()?.get().max(FEWEST_THREADS);
        (wanted < cores && std::env::var_os("TOKIO_WORKER_THREADS").is_none()).then_some(wanted)
    }
}

/// Fewest threads of a runtime: one that waits must not hold up all others.
const FEWEST_THREADS: usize = 2;

/// Stack of each thread: plans of many joins, and chains of thousands of operators, are planned and decoded recursively.
const STACK: usize = 64 << 20;

fn command() -> clap::Command {
    let command = Cli::command();
    #[cfg(feature = "ballista")]
    let command = cluster::with_own_defaults(command);
    command
}

fn main() -> ExitCode {
    console::quiet_panics();
    // The system's stack of the first thread is of any size.
    let program = std::thread::Builder::new()
        .name("dfq".to_owned())
        .stack_size(STACK);
    let ended = match program.spawn(run_command) {
        Ok(program) => program.join(),
        Err(error) => return End::error(format!("cannot start a thread: {error}")).report(),
    };
    ended.unwrap_or_else(|panic| End::from(console::panicked(panic)).report())
}

/// Runs the command that the program's arguments give.
fn run_command() -> ExitCode {
    let matches = command().get_matches();
    let mut cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if let Command::Sql(args) = &mut cli.command
        && let Err(error) = args.complete()
    {
        return End::from(error).report();
    }
    if cli.command.limits_memory() {
        allocator::hold_little();
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = cli.command.threads() {
        builder.worker_threads(threads);
    }
    let runtime = match builder.enable_all().thread_stack_size(STACK).build() {
        Ok(runtime) => runtime,
        Err(error) => return End::error(format!("cannot start the runtime: {error}")).report(),
    };
    let end = runtime.block_on(async {
        survive_full_files();
        match AssertUnwindSafe(run(cli, &matches)).catch_unwind().await {
            Ok(end) => end,
            Err(panic) => console::panicked(panic).into(),
        }
    });
    let code = end.report();
    // A scan that is still busy must not hold the process back.
    runtime.shutdown_timeout(SHUTDOWN);
    code
}

/// Has a write past `ulimit -f` fail with an error that says so. Unhandled, its signal would end the process in silence
/// and leave the files there that it spilled to.
#[cfg(all(unix, not(any(target_arch = "mips", target_arch = "mips64"))))]
fn survive_full_files() {
    use tokio::signal::unix::{SignalKind, signal};

    /// The same number on every system but those on MIPS.
    const SIGXFSZ: i32 = 25;
    // Once there is a handler it stays. Without one the write ends as it always did.
    drop(signal(SignalKind::from_raw(SIGXFSZ)));
}

#[cfg(not(all(unix, not(any(target_arch = "mips", target_arch = "mips64")))))]
fn survive_full_files() {}

/// Ends the process with a usage error of a subcommand.
fn usage_error(subcommand: &str, message: &str) -> ! {
    let mut cli = command();
    cli.build();
    match cli.find_subcommand_mut(subcommand) {
        Some(command) => command
            .error(clap::error::ErrorKind::ArgumentConflict, message)
            .exit(),
        None => cli
            .error(clap::error::ErrorKind::ArgumentConflict, message)
            .exit(),
    }
}

/// Prints the completions of a shell.
fn completions(shell: clap_complete::Shell) -> End {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "dfq", &mut script);
    // A reader that went away has seen enough.
    match std::io::stdout().write_all(&script) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            End::error(format!("cannot write to standard output: {error}"))
        }
        _ => End::Success,
    }
}

async fn run(cli: Cli, matches: &ArgMatches) -> End {
    match cli.command {
        // The order of -c and -f among each other is only in the raw matches.
        Command::Sql(args) => match matches.subcommand_matches("sql") {
            Some(matches) => sql::run(args, matches).await,
            None => End::error("the sql subcommand has no arguments".to_string()),
        },
        Command::Profile(args) => profile::run(args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Generate(args) => generate::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Completions { shell } => completions(shell),
        #[cfg(feature = "cuda")]
        Command::Cuda(args) => cuda::run(args).await,
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args).await,
        #[cfg(feature = "ballista")]
        Command::Cluster(args) => cluster::run_cluster(args).await,
        #[cfg(feature = "ballista")]
        Command::Scheduler(args) => cluster::run_scheduler(args).await,
        #[cfg(feature = "ballista")]
        Command::Executor(args) => cluster::run_executor(args).await,
    }
}
