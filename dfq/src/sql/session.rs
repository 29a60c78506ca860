//! Builds the session: memory, spilling, parallelism, files as tables, and this crate's functions.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use datafusion_quantiles::session::SessionLimits;

use super::config::Config;
use super::files;
use crate::args::{parse_bytes, parse_partitions};

/// Options of the session, shared by the commands that run SQL.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SessionArgs {
    /// Most memory that queries may hold, such as 512MB or 2g (units are powers of 1024) [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory_limit: Option<usize>,

    /// Number of partitions that queries run in, from 1 to 65536 [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = parse_partitions)]
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

    /// The number of partitions of queries whose memory has a limit, where it is told.
    pub(crate) fn limited_partitions(&self) -> Option<NonZeroUsize> {
        self.partitions.filter(|_| self.limits_memory())
    }

    /// Takes from a configuration file what the command line does not tell.
    pub(super) fn complete(&mut self, config: &Config) {
        self.memory_limit = self.memory_limit.or(config.memory_limit);
        self.partitions = self.partitions.or(config.partitions);
        if self.spill_dir.is_none() {
            self.spill_dir = config.spill_dir.clone();
        }
    }

    /// A session with these options.
    ///
    /// # Errors
    /// A spill folder that cannot be written, or a wrong `DATAFUSION_*` environment variable.
    pub(crate) fn build(&self) -> Result<SessionContext> {
        let ctx = self.build_without_files()?;
        files::enable(&ctx);
        Ok(ctx)
    }

    /// A session with these options, in which files are no tables.
    ///
    /// # Errors
    /// A spill folder that cannot be written, or a wrong `DATAFUSION_*` environment variable.
    pub(crate) fn build_without_files(&self) -> Result<SessionContext> {
        let limits = self.limits();
        let state = SessionStateBuilder::new()
            .with_config(limits.config()?)
            .with_runtime_env(limits.runtime()?)
            .with_default_features()
            .build();
        let ctx = SessionContext::new_with_state(state);
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

    fn limits(&self) -> SessionLimits {
        SessionLimits {
            memory: self.memory_limit,
            partitions: self.partitions,
            spill_dir: self.spill_dir.clone(),
        }
    }
}
