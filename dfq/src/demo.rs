//! `dfq demo`: the main job on TPC-H lineitem, timed beside DataFusion's built-in function.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use datafusion::arrow::util::display::FormatOptions;
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::error::Result;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

use crate::args::parse_scale;
use crate::console::{End, say};
use crate::generate::tpch::Table;
use crate::generate::{Work, perform};
use crate::sql::SessionArgs;

const QUANTILES: [f64; 5] = [0.01, 0.25, 0.5, 0.75, 0.99];
const COLUMN: &str = "l_extendedprice";

/// A statement runs this often and its best time counts ...
const RUNS: usize = 3;
/// ... unless one run takes this long.
const LONG: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The data is made on the first run and kept. Everything printed is computed on the spot: the \
        best of three runs of each statement, the built-in's five calls in one statement (one scan for it too)."
)]
pub(crate) struct DemoArgs {
    /// TPC-H scale factor: 1 gives 6 million rows
    #[arg(short, long, value_name = "SCALE", default_value = "0.1", value_parser = parse_scale)]
    scale: f64,

    /// Folder for the data [default: dfq in the user's cache folder]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

/// Runs `dfq demo`.
pub(crate) async fn run(args: DemoArgs) -> End {
    let folder = args
        .output
        .unwrap_or_else(|| dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("dfq"))
        .join(format!("tpch-{}", args.scale));
    let file = folder.join("lineitem.parquet");
    if !file.exists() {
        say(format_args!(
            "Writing TPC-H lineitem at scale {} (kept for the next run) ...",
            args.scale
        ));
        let jobs = Table::Lineitem.jobs(args.scale, 1, &folder);
        match perform(Work { jobs, force: false }).await {
            End::Success => {}
            end => return end,
        }
    }
    let mut demo = match Demo::open(&args.session, &file.to_string_lossy()).await {
        Ok(demo) => demo,
        Err(error) => return error.into(),
    };
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => End::Interrupted,
        result = demo.show() => match result {
            Ok(()) => End::Success,
            Err(_) if demo.closed => End::Success,
            Err(error) => error.into(),
        },
    }
}

struct Demo {
    ctx: SessionContext,
    file: String,
    /// The reader of standard output went away.
    closed: bool,
}

/// A statement's answer as a table, and its best time.
struct Answer {
    table: String,
    /// Type of its last column.
    kind: String,
    best: Duration,
}

impl Demo {
    async fn open(session: &SessionArgs, file: &str) -> Result<Self> {
        let ctx = session.build()?;
        ctx.register_parquet("lineitem", file, ParquetReadOptions::default())
            .await?;
        Ok(Self {
            ctx,
            file: file.to_string(),
            closed: false,
        })
    }

    async fn show(&mut self) -> Result<()> {
        let rows = self.ctx.table("lineitem").await?.count().await?;
        let partitions = self.ctx.copied_config().target_partitions();
        self.print(&format!(
            "lineitem: {rows} rows in {}, {partitions} partitions",
            self.file
        ))?;
        if cfg!(debug_assertions) {
            self.print("This is a debug build: for real times build with --release.")?;
        }
        let list = QUANTILES.map(|q| q.to_string()).join(", ");
        let built_in = QUANTILES
            .map(|q| format!("percentile_cont({COLUMN}, {q}) AS \"{q}\""))
            .join(", ");
        let ours = format!("SELECT exact_quantiles({COLUMN}, [{list}]) AS quantiles FROM lineitem");
        let theirs = format!("SELECT {built_in} FROM lineitem");
        self.print("\n== 1. Quantiles of a column: a value of the column itself, in its own type ==")?;
        self.compare(&ours, &theirs).await?;
        let ours = format!(
            "SELECT l_returnflag, exact_quantiles({COLUMN}, [{list}]) AS quantiles FROM lineitem \
             GROUP BY l_returnflag ORDER BY l_returnflag"
        );
        let theirs = format!(
            "SELECT l_returnflag, {built_in} FROM lineitem GROUP BY l_returnflag ORDER BY l_returnflag"
        );
        self.print("\n== 2. For each group ==")?;
        self.compare(&ours, &theirs).await?;
        self.print("\n== 3. The plan ==")?;
        let sql = format!("EXPLAIN SELECT exact_quantiles({COLUMN}, [{list}]) AS quantiles FROM lineitem");
        let plan = self.measure(&sql, 1).await?;
        self.print(&format!("{sql}\n{}", plan.table))
    }

    /// Shows both statements, their answers, and how long the second took beside the first.
    async fn compare(&mut self, ours: &str, theirs: &str) -> Result<()> {
        let our = self.measure(ours, RUNS).await?;
        self.print(&format!("{ours}\n{}\n{}", our.table, line(&our)))?;
        let their = self.measure(theirs, RUNS).await?;
        self.print(&format!(
            "\nBeside it, DataFusion's built-in (it interpolates between neighbours):\n{theirs}"
        ))?;
        self.print(&format!("{}\n{}", their.table, line(&their)))?;
        let ratio = their.best.as_secs_f64() / our.best.as_secs_f64();
        self.print(&format!(
            "percentile_cont took {ratio:.2} times as long as exact_quantiles."
        ))
    }

    async fn measure(&self, sql: &str, runs: usize) -> Result<Answer> {
        let mut best = Duration::MAX;
        let mut answer = None;
        for _ in 0..runs {
            let started = Instant::now();
            let frame = self.ctx.sql(sql).await?;
            let schema = frame.schema().clone();
            let batches = frame.collect().await?;
            let took = started.elapsed();
            best = best.min(took);
            answer = Some((schema, batches));
            if took > LONG {
                break;
            }
        }
        let (schema, batches) = answer.unwrap_or_else(|| (datafusion::common::DFSchema::empty(), Vec::new()));
        let options = FormatOptions::default().with_null("NULL");
        let kind = schema
            .fields()
            .last()
            .map(|field| field.data_type().to_string())
            .unwrap_or_default();
        Ok(Answer {
            table: pretty_format_batches_with_options(&batches, &options)?.to_string(),
            kind,
            best,
        })
    }

    fn print(&mut self, text: &str) -> Result<()> {
        writeln!(std::io::stdout(), "{text}").map_err(|error| {
            self.closed |= error.kind() == std::io::ErrorKind::BrokenPipe;
            error.into()
        })
    }
}

fn line(answer: &Answer) -> String {
    format!("{:.4} seconds, as {}", answer.best.as_secs_f64(), answer.kind)
}
