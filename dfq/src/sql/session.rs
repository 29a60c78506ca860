//! Builds the session: memory, spilling, parallelism, files as tables, and this crate's functions.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::common::plan_datafusion_err;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::files;
use crate::args::{parse_bytes, parse_count};

/// Bytes of a batch of each partition, together, with a memory limit of no more than a GiB and rows of [`WIDE_ROW_BYTES`]. A scan
/// reserves nothing for what it decodes.
const BATCHES_BYTES: usize = 32 << 20;

/// Bytes of a row that is long.
const WIDE_ROW_BYTES: usize = 8 << 10;

/// Fewest and most rows of a batch with a memory limit; the most are DataFusion's default.
const BATCH_ROWS: RangeInclusive<usize> = 512..=8192;

/// How many memory consumers a failed reservation names.
const TOP_CONSUMERS: NonZeroUsize = NonZeroUsize::new(3).expect("3 is not 0");

/// Options of the session, shared by the commands that run SQL.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SessionArgs {
    /// Most memory that queries may hold, such as 512MB or 2g (units are powers of 1024) [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory_limit: Option<usize>,

    /// Number of partitions that queries run in, at least 1 [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    partitions: Option<NonZeroUsize>,

    /// Folder for data that does not fit in memory, made if missing [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
}

impl SessionArgs {
    /// Whether queries are to hold so much memory at most.
    pub(crate) fn limits_memory(&self) -> bool {
        self.memory_limit.is_some()
    }

    /// A session with these options.
    ///
    /// # Errors
    /// A spill folder that cannot be written, or a wrong `DATAFUSION_*` environment variable.
    pub(crate) fn build(&self) -> Result<SessionContext> {
        let state = SessionStateBuilder::new()
            .with_config(self.config()?)
            .with_runtime_env(self.runtime()?)
            .with_default_features()
            .build();
        let ctx = SessionContext::new_with_state(state);
        files::enable(&ctx);
        datafusion_quantiles::register_all(&ctx)?;
        Ok(ctx)
    }

    /// A session on the cluster of the scheduler at `url`, for a caller with this identity.
    ///
    /// # Errors
    /// An address where no scheduler is ready, or one that does not know the identity.
    #[cfg(feature = "ballista")]
    pub(crate) async fn connect(
        &self,
        url: &str,
        identity: Option<&datafusion_quantiles::ballista::Identity>,
    ) -> Result<SessionContext> {
        let mut config = datafusion_quantiles::ballista::session_config();
        if std::env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
            config.options_mut().format.null = "NULL".to_string();
        }
        if let Some(partitions) = self.partitions {
            config = config.with_target_partitions(partitions.get());
        }
        if let Some(identity) = identity {
            config = datafusion_quantiles::ballista::with_identity(config, identity);
        }
        let ctx = datafusion_quantiles::ballista::connect_with_config(url, config).await?;
        files::enable(&ctx);
        Ok(ctx)
    }

    fn config(&self) -> Result<SessionConfig> {
        let mut options = ConfigOptions::from_env()?;
        if std::env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
            options.format.null = "NULL".to_string();
        }
        // Where batches that RepartitionExec deals out do not fit, DataFusion 55.2 may wait for ever
        // (https://github.com/apache/datafusion/issues/24883). Files are read in partitions without it.
        let chosen = std::env::var_os("DATAFUSION_OPTIMIZER_ENABLE_ROUND_ROBIN_REPARTITION").is_some();
        if self.memory_limit.is_some() && !chosen {
            options.optimizer.enable_round_robin_repartition = false;
        }
        let mut config = SessionConfig::from(options).with_information_schema(true);
        if let Some(partitions) = self.partitions {
            config = config.with_target_partitions(partitions.get());
        }
        if let Some(limit) = self.memory_limit
            && std::env::var_os("DATAFUSION_EXECUTION_BATCH_SIZE").is_none()
        {
            let rows = batch_rows(limit, config.target_partitions());
            config = config.with_batch_size(rows);
        }
        Ok(config)
    }

    fn runtime(&self) -> Result<Arc<RuntimeEnv>> {
        let mut builder = RuntimeEnvBuilder::new();
        if let Some(limit) = self.memory_limit {
            let pool = TrackConsumersPool::new(FairSpillPool::new(limit), TOP_CONSUMERS);
            builder = builder.with_memory_pool(Arc::new(pool));
        }
        if let Some(folder) = &self.spill_dir {
            check_writable(folder)?;
            let mode = DiskManagerMode::Directories(vec![folder.clone()]);
            builder = builder.with_disk_manager_builder(DiskManagerBuilder::default().with_mode(mode));
        }
        builder.build_arc()
    }
}

/// Rows of a batch where queries may hold `limit` bytes.
fn batch_rows(limit: usize, partitions: usize) -> usize {
    let bytes = BATCHES_BYTES.max(limit / 32).min(limit / 4);
    let rows = bytes / WIDE_ROW_BYTES / partitions.max(1);
    rows.clamp(*BATCH_ROWS.start(), *BATCH_ROWS.end())
}

/// Makes the folder if it is missing and proves that files can be written in it, so that a mistake shows at
/// once and not in the middle of a long query.
fn check_writable(folder: &Path) -> Result<()> {
    let probe = folder.join(format!(".dfq-probe-{}", std::process::id()));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&probe, b""))
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(|error| {
            plan_datafusion_err!("cannot write in the spill folder '{}': {error}", folder.display())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_all_partitions_are_small_beside_the_limit() {
        assert_eq!(batch_rows(16 << 20, 2), 512);
        assert_eq!(batch_rows(64 << 20, 2), 1024);
        assert_eq!(batch_rows(256 << 20, 2), 2048);
        assert_eq!(batch_rows(1 << 30, 16), 512);
        assert_eq!(batch_rows(1 << 30, 2), 2048);
        assert_eq!(batch_rows(64 << 30, 16), 8192);
        assert_eq!(batch_rows(1, 0), 512);
    }
}
