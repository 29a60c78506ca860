//! Logs of the cluster's processes, by Ballista's options.

use ballista_core::config::LogRotationPolicy;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::EnvFilter;

/// Where a process logs to, and what.
pub(super) struct Logs<'a> {
    /// What is logged, unless `RUST_LOG` says it.
    pub(super) filter: &'a str,
    /// Whether lines name their thread.
    pub(super) threads: bool,
    /// Standard error if there is none.
    pub(super) folder: Option<&'a str>,
    /// How names of files in the folder start.
    pub(super) file: String,
    pub(super) rotation: &'a LogRotationPolicy,
}

impl Logs<'_> {
    pub(super) fn start(self) {
        let filter = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| self.filter.to_string());
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_thread_names(self.threads)
            .with_thread_ids(self.threads)
            .with_env_filter(EnvFilter::new(filter));
        match self.folder {
            None => lines.with_writer(std::io::stderr).init(),
            Some(folder) => {
                let rotation = match self.rotation {
                    LogRotationPolicy::Minutely => Rotation::MINUTELY,
                    LogRotationPolicy::Hourly => Rotation::HOURLY,
                    LogRotationPolicy::Daily => Rotation::DAILY,
                    LogRotationPolicy::Never => Rotation::NEVER,
                };
                let file = RollingFileAppender::new(rotation, folder, self.file);
                lines.with_writer(file).init();
            }
        }
    }
}
