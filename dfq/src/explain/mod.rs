//! `dfq explain`: runs a query and draws its plan as a tree, with the rows and the time of each operator.

mod tree;

use std::io::Write;
use std::time::{Duration, Instant};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SQLOptions;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use self::tree::{Measures, tree};
use crate::console::{End, make_room, say};
use crate::profile::figures::count;
use crate::sql::{Progress, SessionArgs, add_table, check_endless};

/// Columns of lines where the output is no terminal.
const COLUMNS: usize = 120;

/// Fewest columns of lines.
const LEAST_COLUMNS: usize = 40;

/// Runs a query and draws its plan, with the rows and the time of each operator.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The query runs to its end, and its rows are counted, not shown. Times are of all processors together: an operator's bar is \
        its part of the longest. Below an operator stand those of its measures that are not 0.\n\n\
        Examples:\n  \
        dfq explain \"SELECT exact_quantiles(fare, [0.5, 0.99]) FROM trips\" trips.parquet\n  \
        dfq explain \"SELECT city, median(fare) FROM 'trips.parquet' GROUP BY city\" --memory-limit 512MB\n  \
        dfq explain --plan-only \"SELECT * FROM 'trips.parquet' ORDER BY fare LIMIT 10\""
)]
pub(crate) struct ExplainArgs {
    /// The query
    #[arg(value_name = "SQL")]
    query: String,

    /// Files, folders, patterns or URLs to name as tables: FILE by its name without its ending, or NAME=FILE
    #[arg(value_name = "[NAME=]FILE")]
    files: Vec<String>,

    /// Draw the plan without running the query
    #[arg(long)]
    plan_only: bool,

    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

/// Runs `dfq explain`.
pub(crate) async fn run(args: ExplainArgs) -> End {
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            say("Interrupted");
            End::Interrupted
        }
        result = explain(&args) => match result {
            Ok(()) => End::Success,
            Err(error) => error.into(),
        },
    }
}

async fn explain(args: &ExplainArgs) -> Result<()> {
    let ctx = args.session.build()?;
    for file in &args.files {
        add_table(&ctx, file).await?;
    }
    let text = drawn(&ctx, &args.query, args.plan_only, columns()).await?;
    make_room();
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader went away.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written
            .map_err(|error| DataFusionError::IoError(error).context("cannot write to standard output")),
    }
}

fn columns() -> usize {
    let size = ::console::Term::stdout().size_checked();
    let columns = size.map_or(COLUMNS, |(_, columns)| columns.into());
    columns.max(LEAST_COLUMNS)
}

/// The plan of a query in lines of this width, and what it did, unless the plan is wanted only.
///
/// # Errors
/// A statement that is no query, and the query's own errors.
async fn drawn(ctx: &SessionContext, query: &str, plan_only: bool, columns: usize) -> Result<String> {
    let queries_only = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let frame = ctx.sql_with_options(query, queries_only).await?;
    let plan = frame.create_physical_plan().await?;
    check_endless(plan.as_ref())?;
    if plan_only {
        return Ok(tree(plan.as_ref(), Measures::None, columns));
    }
    let progress = Progress::on();
    let bar = progress.start_plan(&plan);
    let started = Instant::now();
    let mut stream = execute_stream(std::sync::Arc::clone(&plan), ctx.task_ctx())?;
    let mut rows = 0;
    while let Some(batch) = stream.next().await.transpose()? {
        rows += batch.num_rows() as u64;
    }
    let elapsed = started.elapsed();
    drop((stream, bar));
    let plural = if rows == 1 { "" } else { "s" };
    let summary = format!("{} row{plural} in {}\n\n", count(rows), time(elapsed));
    Ok(summary + &tree(plan.as_ref(), Measures::All, columns))
}

/// A time in the unit that suits it, with three digits.
fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (number, unit) = match seconds {
        0.0..1e-3 => (seconds * 1e6, "µs"),
        1e-3..1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    match number {
        0.0..10.0 => format!("{number:.2} {unit}"),
        10.0..100.0 => format!("{number:.1} {unit}"),
        _ => format!("{number:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn explained(sql: &str, plan_only: bool, columns: usize) -> Result<String> {
        let ctx = SessionContext::new_with_config(
            datafusion::prelude::SessionConfig::new().with_target_partitions(2),
        );
        datafusion_quantiles::register_all(&ctx)?;
        ctx.sql("CREATE TABLE t AS SELECT value % 7 AS g, value AS v FROM range(0, 10000)")
            .await?
            .collect()
            .await?;
        drawn(&ctx, sql, plan_only, columns).await
    }

    const SQL: &str = "SELECT exact_quantiles(v, [0.25, 0.5, 0.75]) AS quartiles FROM t WHERE g < 5";

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn operators_have_their_rows_and_times() {
        let text = explained(SQL, false, 100).await.unwrap();
        assert!(text.starts_with("1 row in "), "{text}");
        let line = |name: &str| {
            let line = text.lines().find(|line| line.contains(name));
            line.unwrap_or_else(|| panic!("{name}: {text}"))
        };
        let first = |name: &str| line(name).split_whitespace().next().unwrap().to_owned();
        assert_eq!(first("QuantilesExec"), "1", "{text}");
        assert_eq!(first("FilterExec"), "7,144", "{text}");
        assert!(
            text.contains('█')
                && text.contains("rounds 1")
                && line("input_rows").contains("input_rows 7,144"),
            "{text}"
        );
        assert!(text.contains("└─ "), "{text}");
        for columns in [40, 60, 100] {
            let text = explained(SQL, false, columns).await.unwrap();
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}: {widest:?}\n{text}");
            assert!(text.contains("QuantilesExec"), "{columns}: {text}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_plan_alone_is_not_run() {
        let text = explained("SELECT 1 / (g - g) FROM t", true, 100).await.unwrap();
        assert!(
            text.starts_with("ProjectionExec: ") && !text.contains("rows"),
            "{text}"
        );
        let failed = explained("SELECT 1 / (g - g) FROM t", false, 100)
            .await
            .unwrap_err();
        assert!(failed.to_string().contains("Divide by zero"), "{failed}");
        for other in ["DROP TABLE t", "SET quantiles.topk = false", "COPY t TO 'x.csv'"] {
            let error = explained(other, false, 100).await.unwrap_err();
            assert!(error.to_string().contains("not supported"), "{other}: {error}");
        }
    }

    #[test]
    fn times_have_three_digits() {
        for (nanoseconds, text) in [
            (0, "0.00 µs"),
            (12_300, "12.3 µs"),
            (1_234_000, "1.23 ms"),
            (999_000_000, "999 ms"),
            (61_000_000_000, "61.0 s"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(time(Duration::from_nanos(nanoseconds)), text);
        }
    }
}
