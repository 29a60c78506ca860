//! What a session of a program may use: memory, disk and threads.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::common::{Result, plan_datafusion_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;

/// Bytes of a batch of each partition, together, with a memory limit of no more than a GiB and rows of [`WIDE_ROW_BYTES`]. A scan
/// reserves nothing for what it decodes.
const BATCHES_BYTES: usize = 32 << 20;

/// Bytes of a row that is long. Rows of unknown length are taken for such.
pub(crate) const WIDE_ROW_BYTES: usize = 8 << 10;

/// Fewest and most rows of a batch with a memory limit; the most are DataFusion's default.
const BATCH_ROWS: RangeInclusive<usize> = 512..=8192;

/// How many memory consumers a failed reservation names.
const TOP_CONSUMERS: NonZeroUsize = NonZeroUsize::new(3).expect("3 is not 0");

/// Limits on what the queries of a session use, as the program `dfq` and the Python package set them.
#[derive(Debug, Clone, Default)]
pub struct SessionLimits {
    /// Most bytes of memory that queries may hold; `None`: no limit.
    pub memory: Option<usize>,
    /// Number of partitions that queries run in; `None`: the number of cores.
    pub partitions: Option<NonZeroUsize>,
    /// Folder for data that does not fit in memory, made if missing; `None`: the system's temporary folder.
    pub spill_dir: Option<PathBuf>,
}

impl SessionLimits {
    /// The configuration of such a session. `DATAFUSION_*` environment variables come first.
    ///
    /// # Errors
    /// An environment variable that DataFusion does not understand.
    pub fn config(&self) -> Result<SessionConfig> {
        let mut options = ConfigOptions::from_env()?;
        if std::env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
            options.format.null = "NULL".to_string();
        }
        // Where batches that RepartitionExec deals out do not fit, DataFusion 55.2 may wait for ever
        // (https://github.com/apache/datafusion/issues/24883). Files are read in partitions without it.
        let chosen = std::env::var_os("DATAFUSION_OPTIMIZER_ENABLE_ROUND_ROBIN_REPARTITION").is_some();
        if self.memory.is_some() && !chosen {
            options.optimizer.enable_round_robin_repartition = false;
        }
        let mut config = SessionConfig::from(options).with_information_schema(true);
        if let Some(partitions) = self.partitions {
            config = config.with_target_partitions(partitions.get());
        }
        if let Some(limit) = self.memory
            && std::env::var_os("DATAFUSION_EXECUTION_BATCH_SIZE").is_none()
        {
            let rows = batch_rows(limit, config.target_partitions(), WIDE_ROW_BYTES);
            config = config.with_batch_size(rows);
        }
        if let Some(limit) = self.memory
            && std::env::var_os("DATAFUSION_EXECUTION_SORT_SPILL_RESERVATION_BYTES").is_none()
        {
            let bytes = sort_reserve(limit, config.target_partitions());
            config = config.with_sort_spill_reservation_bytes(bytes);
        }
        Ok(config)
    }

    /// The memory pool and the disk manager of such a session.
    ///
    /// # Errors
    /// A planning error for a spill folder that cannot be written.
    pub fn runtime(&self) -> Result<Arc<RuntimeEnv>> {
        let mut builder = RuntimeEnvBuilder::new();
        if let Some(limit) = self.memory {
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

/// Rows of a batch where queries may hold `limit` bytes and rows have `row_bytes`.
pub(crate) fn batch_rows(limit: usize, partitions: usize, row_bytes: usize) -> usize {
    let bytes = BATCHES_BYTES.max(limit / 32).min(limit / 4);
    let rows = bytes / row_bytes.max(1) / partitions.max(1);
    rows.clamp(*BATCH_ROWS.start(), *BATCH_ROWS.end())
}

/// Bytes that each sort of DataFusion's reserves to merge what it has spilled, where queries may hold `limit` bytes: its default, or an
/// eighth of the limit for the sorts of all partitions. With the default alone a sort of ten rows fails where 10 MB are too much.
fn sort_reserve(limit: usize, partitions: usize) -> usize {
    (limit / 8 / partitions.max(1)).min(10 << 20)
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
    fn sorts_of_all_partitions_reserve_a_part_of_the_limit() {
        assert_eq!(sort_reserve(8 << 20, 4), 256 << 10);
        assert_eq!(sort_reserve(2 << 30, 16), 10 << 20);
        let of = |memory| {
            let limits = SessionLimits {
                memory,
                partitions: NonZeroUsize::new(2),
                spill_dir: None,
            };
            let config = limits.config().unwrap();
            config.options().execution.sort_spill_reservation_bytes
        };
        assert_eq!(of(Some(16 << 20)), 1 << 20);
        assert_eq!(of(None), 10 << 20);
    }

    #[test]
    fn batches_of_all_partitions_are_small_beside_the_limit() {
        assert_eq!(batch_rows(16 << 20, 2, WIDE_ROW_BYTES), 512);
        assert_eq!(batch_rows(64 << 20, 2, WIDE_ROW_BYTES), 1024);
        assert_eq!(batch_rows(256 << 20, 2, WIDE_ROW_BYTES), 2048);
        assert_eq!(batch_rows(1 << 30, 16, WIDE_ROW_BYTES), 512);
        assert_eq!(batch_rows(1 << 30, 2, WIDE_ROW_BYTES), 2048);
        assert_eq!(batch_rows(64 << 30, 16, WIDE_ROW_BYTES), 8192);
        assert_eq!(batch_rows(1, 0, WIDE_ROW_BYTES), 512);
        // Short rows.
        assert_eq!(batch_rows(200 << 20, 16, 16), 8192);
        assert_eq!(batch_rows(16 << 20, 2, 0), 8192);
        assert_eq!(batch_rows(16 << 20, 16, 64), 4096);
    }
}
