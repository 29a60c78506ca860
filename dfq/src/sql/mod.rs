//! `dfq sql`: runs statements from the command line, files, standard input, or a prompt.

mod config;
mod execute;
mod files;
mod labels;
mod output;
mod plot;
mod progress;
mod prompt;
mod remote;
mod script;
mod session;
mod split;
mod statement;
mod stores;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;

use self::config::{Config, ConfigArgs};
pub(crate) use self::execute::Runner;
pub(crate) use self::execute::check_endless;
#[cfg(feature = "serve")]
pub(crate) use self::files::enable as enable_files;
pub(crate) use self::files::{add_table, file_table};
pub(crate) use self::output::{Format, Output, OutputFile};
pub(crate) use self::progress::Progress;
pub(crate) use self::session::SessionArgs;
#[cfg(feature = "serve")]
pub(crate) use self::split::{Piece, split, tokenize};
#[cfg(feature = "serve")]
pub(crate) use self::statement::{Statement, dialect};
use crate::args::{parse_rows_shown, parse_seconds};
use crate::console::{End, say};

/// Rows of a table on a terminal, unless --maxrows says otherwise.
const TERMINAL_ROWS: usize = 40;

/// Runs SQL with DataFusion and exact quantiles.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Statements end with a semicolon (the last one may go without). Without -c and -f they are read \
        from standard input, or from a prompt if that is a terminal. The first statement that fails ends the run \
        with exit code 1. Answers go to standard output; times and errors to standard error.\n\n\
        Examples:\n  \
        dfq sql -c \"SELECT exact_quantiles(fare, [0.5, 0.99]) FROM 'trips.parquet'\"\n  \
        dfq sql -f setup.sql -c \"SELECT * FROM report\" --format csv --quiet > report.csv\n  \
        echo \"SELECT 1\" | dfq sql --format json"
)]
pub(crate) struct SqlArgs {
    /// Statements to run; can be given several times, and runs in turn with -f
    #[arg(short, long, value_name = "SQL", allow_hyphen_values = true)]
    command: Vec<String>,

    /// File of statements to run (- is standard input); can be given several times
    #[arg(short, long, value_name = "FILE")]
    file: Vec<String>,

    /// Format of the answers [default: table]
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Draw each answer with bars: a list of numbers, a histogram, or rows of a label and a number
    #[arg(long, conflicts_with_all = ["format", "maxrows"])]
    plot: bool,

    /// File for the answers, in place of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Most rows of a table to show, or 'inf' [default: 40 on a terminal, inf elsewhere; other formats give all]
    #[arg(long, value_name = "N", value_parser = parse_rows_shown)]
    maxrows: Option<usize>,

    /// Print neither the time after each statement nor, on a terminal, how far a long one is
    #[arg(short, long)]
    quiet: bool,

    /// Seconds after which a statement is cancelled, such as 60 or 0.5 [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,

    /// Run the statements on the cluster of this scheduler, such as df://localhost:50050
    #[cfg(feature = "ballista")]
    #[arg(long, value_name = "URL", conflicts_with_all = ["memory_limit", "spill_dir"])]
    cluster: Option<String>,

    #[cfg(feature = "ballista")]
    #[command(flatten)]
    credentials: crate::cluster::CredentialArgs,

    #[command(flatten)]
    config_args: ConfigArgs,

    #[command(flatten)]
    pub(crate) session: SessionArgs,

    /// What the configuration file says.
    #[arg(skip)]
    config: Config,
}

impl SqlArgs {
    /// Takes from the configuration file what the command line does not tell.
    ///
    /// # Errors
    /// A file that is named and cannot be read; one with mistakes.
    pub(crate) fn complete(&mut self) -> Result<()> {
        self.config = self.config_args.read()?;
        self.format = self.format.or(self.config.format);
        if matches!(self.format, None | Some(Format::Table)) {
            self.maxrows = self.maxrows.or(self.config.maxrows);
        }
        self.timeout = self.timeout.or(self.config.timeout);
        self.session.complete(&self.config);
        Ok(())
    }

    /// Whether something is told that is no answer, by what the configuration file says of it.
    fn tells(&self, is_told: Option<bool>) -> bool {
        !self.quiet && is_told.unwrap_or(true)
    }

    async fn connect(&self) -> Result<SessionContext> {
        #[cfg(feature = "ballista")]
        if let Some(url) = &self.cluster {
            return self
                .session
                .connect(url, self.credentials.identity()?.as_ref())
                .await;
        }
        self.session.build()
    }

    fn remote(&self) -> Option<String> {
        #[cfg(feature = "ballista")]
        return self.cluster.clone();
        #[cfg(not(feature = "ballista"))]
        None
    }
}

/// Runs a file of statements in a session. Answers go to standard output, as CSV.
#[cfg(feature = "serve")]
pub(crate) async fn run_setup(ctx: &SessionContext, path: &str) -> End {
    let output = Output::new(Format::Csv);
    script::run_file(&mut Runner::new(ctx.clone(), output), path).await
}

/// Makes the stores that a plan names.
///
/// # Errors
/// A location or an option that cannot be understood, or credentials that cannot be loaded.
#[cfg(feature = "serve")]
pub(crate) async fn register_stores(
    ctx: &SessionContext,
    plan: &datafusion::logical_expr::LogicalPlan,
) -> Result<()> {
    stores::register(ctx, plan, stores::Region::Configured).await
}

/// Where statements come from.
#[derive(Debug)]
enum Source {
    Command(String),
    File(String),
}

/// Runs `dfq sql`. `matches` tells in which order -c and -f were given.
pub(crate) async fn run(args: SqlArgs, matches: &ArgMatches) -> End {
    let format = args.format.unwrap_or(Format::Table);
    if format != Format::Table && args.maxrows.is_some_and(|rows| rows < usize::MAX) {
        crate::usage_error(
            "sql",
            "--maxrows shortens tables only; with another --format put a LIMIT into the query",
        );
    }
    #[cfg(feature = "ballista")]
    if args.cluster.is_none() && args.credentials.are_given() {
        crate::usage_error(
            "sql",
            "certificates and tokens are shown to a cluster: name one by --cluster",
        );
    }
    let ctx = match args.connect().await {
        Ok(ctx) => ctx,
        Err(error) => return error.into(),
    };
    if let Err(error) = args.config.set(&ctx).await {
        return error.into();
    }
    let on_terminal = args.output.is_none() && std::io::stdout().is_terminal();
    if format.is_binary() && on_terminal {
        crate::usage_error(
            "sql",
            "a terminal cannot show --format parquet or arrow: name a file by --output, or a pipe",
        );
    }
    let file = match args.output.clone().map(OutputFile::create).transpose() {
        Ok(file) => file,
        Err(error) => return error.into(),
    };
    let max_rows = args.maxrows.unwrap_or(match on_terminal {
        true => TERMINAL_ROWS,
        false => usize::MAX,
    });
    let terminal = on_terminal.then(::console::Term::stdout);
    let output = Output {
        file,
        width: terminal
            .and_then(|terminal| terminal.size_checked())
            .map(|(_, columns)| columns.into()),
        max_rows,
        plots: args.plot,
        ..Output::new(format)
    };
    let mut runner = Runner::new(ctx, output);
    (runner.timeout, runner.remote) = (args.timeout, args.remote());
    runner.timing = args.tells(args.config.timing);
    runner.progress.is_on = args.tells(args.config.progress);
    if runner.remote.is_none() {
        runner.progress.observe(&runner.ctx);
    }
    let sources = in_order(args.command, args.file, matches);
    let end = if sources.is_empty() && std::io::stdin().is_terminal() {
        prompt::run(&mut runner).await
    } else {
        // One watcher for the whole run: a Ctrl-C between two statements counts too.
        // Polled first, so that the signal is caught before the first row is out.
        let end = tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => {
                say("Interrupted");
                End::Interrupted
            }
            end = run_sources(&mut runner, sources) => end,
        };
        runner.cancel().await;
        end
    };
    match (runner.output.file.take(), end) {
        (Some(file), End::Success) => file.finish().map_or_else(End::from, |()| End::Success),
        (Some(file), end) => {
            file.remove();
            end
        }
        (None, end) => end,
    }
}

async fn run_sources(runner: &mut Runner, sources: Vec<Source>) -> End {
    if sources.is_empty() {
        return script::run_stdin(runner).await;
    }
    for source in sources {
        let end = match source {
            Source::Command(text) => script::run_text(runner, &text, None).await,
            Source::File(path) if path == "-" => script::run_stdin(runner).await,
            Source::File(path) => script::run_file(runner, &path).await,
        };
        if !matches!(end, End::Success) || runner.output.closed {
            return end;
        }
    }
    End::Success
}

fn in_order(commands: Vec<String>, files: Vec<String>, matches: &ArgMatches) -> Vec<Source> {
    let places = |id| matches.indices_of(id).into_iter().flatten();
    let mut sources: Vec<_> = places("command")
        .zip(commands.into_iter().map(Source::Command))
        .chain(places("file").zip(files.into_iter().map(Source::File)))
        .collect();
    sources.sort_by_key(|(place, _)| *place);
    sources.into_iter().map(|(_, source)| source).collect()
}
