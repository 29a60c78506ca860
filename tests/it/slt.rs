//! Runs every script with one partition and with four, and with every strategy.

use std::path::Path;

use datafusion::common::Result;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::config::StrategyName;
use sqllogictest::Runner;

use crate::scripts::{Engine, register_tables, scripts, write_tables};

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
