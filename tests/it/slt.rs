//! Runs the scripts: those of `sql` with one partition and with four, and with every strategy; plans of `sql/plans` and statements
//! about pinned tables of `sql/pinned` once.
//!
//! `QUANTILES_UPDATE_PLANS=1` writes the plans that were found into the scripts of `sql/plans`.

use std::path::Path;

use async_trait::async_trait;
use datafusion::common::{DataFusionError, Result};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::config::StrategyName;
use sqllogictest::{
    AsyncDB, DBOutput, DefaultColumnType, Runner, default_column_validator, default_normalizer,
    default_validator,
};

use quantiles_testing::scripts::{Engine, register_tables, scripts, scripts_in, write_tables};
use quantiles_testing::{ordinary, query, session, staged_session, texts};

async fn engine(folder: &Path, partitions: usize, strategy: StrategyName) -> Result<Engine> {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_information_schema(true);
    let ctx = SessionContext::new_with_config(config);
    datafusion_quantiles::register_all(&ctx)?;
    register_tables(&ctx, folder).await?;
    ctx.sql(&format!("SET quantiles.strategy = '{strategy}'"))
        .await?
        .collect()
        .await?;
    Ok(Engine(ctx))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_script_runs() {
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path());
    for script in scripts() {
        for partitions in [1, 4] {
            for strategy in StrategyName::ALL {
                let mut runner = Runner::new(|| engine(folder.path(), partitions, strategy));
                let done = runner.run_file_async(&script).await;
                done.unwrap_or_else(|error| panic!("{partitions} partitions, {strategy}: {error}"));
            }
        }
    }
}

/// Sessions with two partitions that plan the same tables, by the names that scripts have for them.
struct Planners([(&'static str, SessionContext); 3]);

impl Planners {
    /// The plan that a statement's rules find (`logical`) or that runs (`physical`), a line a row, as in DataFusion's own
    /// scripts: `01)--Operator`.
    async fn plan(ctx: &SessionContext, sql: &str, kind: &str) -> Result<Vec<Vec<String>>> {
        let rows = texts(&query(ctx, &format!("EXPLAIN {sql}")).await?).join("\n");
        let physical = rows.find("physical_plan | ").expect("EXPLAIN shows both plans");
        let (logical, physical) = rows.split_at(physical);
        let plan = match kind {
            "LOGICAL" => logical.trim_start_matches("logical_plan | "),
            _ => physical.trim_start_matches("physical_plan | "),
        };
        let lines = plan.trim_end().lines().enumerate().map(|(number, line)| {
            let operator = line.trim_start();
            let indent = "-".repeat(line.len() - operator.len());
            vec![format!("{:02}){indent}{operator}", number + 1)]
        });
        Ok(lines.collect())
    }
}

#[async_trait]
impl AsyncDB for Planners {
    type Error = DataFusionError;
    type ColumnType = DefaultColumnType;

    /// `LOGICAL` or `PHYSICAL`, and the name of a session, ask for the plan of the statement behind them; anything else runs in
    /// all sessions.
    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>> {
        let mut words = sql.splitn(3, ' ');
        let (kind, name, explained) = (words.next(), words.next(), words.next());
        if let (Some(kind @ ("LOGICAL" | "PHYSICAL")), Some(explained)) = (kind, explained) {
            let session = self.0.iter().find(|(session, _)| Some(*session) == name);
            let (_, ctx) = session.unwrap_or_else(|| panic!("which session: {sql}"));
            return Ok(DBOutput::Rows {
                types: vec![DefaultColumnType::Any],
                rows: Self::plan(ctx, explained, kind).await?,
            });
        }
        for (name, ctx) in &self.0 {
            // It does not know this crate's options.
            if *name != "BEFORE" || !sql.contains("quantiles.") {
                query(ctx, sql).await?;
            }
        }
        Ok(DBOutput::StatementComplete(0))
    }

    async fn shutdown(&mut self) {}
}

#[tokio::test]
async fn every_rule_makes_the_plan_of_its_page() {
    let pages = scripts_in("sql/plans");
    assert!(pages.len() >= 6, "few pages: {pages:?}");
    for page in pages {
        let planners = || async {
            Ok(Planners([
                ("BEFORE", ordinary()),
                ("AFTER", session(2)),
                ("STAGED", staged_session(2)),
            ]))
        };
        let mut runner = Runner::new(planners);
        if std::env::var_os("QUANTILES_UPDATE_PLANS").is_some() {
            let updated = runner.update_test_file(
                &page,
                " ",
                default_validator,
                default_normalizer,
                default_column_validator,
            );
            updated.await.unwrap();
        } else {
            runner
                .run_file_async(&page)
                .await
                .unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[cfg(feature = "cuda")]
#[tokio::test]
async fn mistakes_about_pinned_tables_are_said_with_and_without_a_device() {
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path());
    for script in scripts_in("sql/pinned") {
        let mut runner = Runner::new(|| async {
            let ctx = session(2);
            register_tables(&ctx, folder.path()).await?;
            Ok(Engine(ctx))
        });
        let done = runner.run_file_async(&script).await;
        done.unwrap_or_else(|error| panic!("{error}"));
    }
}
