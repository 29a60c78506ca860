//! Writes several files at once, with one progress bar, on all cores.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use datafusion::arrow::array::{RecordBatch, RecordBatchReader};
use datafusion::arrow::error::ArrowError;
use datafusion::common::{exec_err, internal_datafusion_err};
use datafusion::error::Result;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

use super::parquet_file::ParquetFile;
use crate::console::say;

/// Batches that wait between a generator and its writer.
const AHEAD: usize = 4;

/// Rows to be generated. Made on the thread that reads them: making one can be costly.
pub(crate) type Reader = Box<dyn RecordBatchReader + Send>;

/// One file to write.
pub(crate) struct Job {
    pub(crate) target: PathBuf,
    /// Rows to expect, for the progress bar; may be an estimate.
    pub(crate) rows: u64,
    pub(crate) open: Box<dyn FnOnce() -> Result<Reader> + Send>,
}

/// Files to write.
pub(crate) struct Work {
    pub(crate) jobs: Vec<Job>,
    /// Replace files that exist.
    pub(crate) force: bool,
}

impl Work {
    /// Writes all files; the first error, or `stop`, ends all of them.
    ///
    /// # Errors
    /// A target that exists (unless `force`), data that cannot be generated or written.
    pub(crate) fn perform(self, stop: &AtomicBool) -> Result<()> {
        if let Some(job) = self.jobs.iter().find(|job| !self.force && job.target.exists()) {
            return exec_err!("'{}' exists already; --force replaces it", job.target.display());
        }
        let bar = progress_bar(self.jobs.iter().map(|job| job.rows).sum());
        let workers = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(self.jobs.len());
        let queue = Mutex::new(VecDeque::from(self.jobs));
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let result = thread::scope(|scope| {
            let work = || {
                while let Some(job) = next() {
                    job.write(stop, &bar)
                        .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                }
                Ok(())
            };
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let results = workers.into_iter().map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err(internal_datafusion_err!("a generator thread panicked")))
            });
            // Wait for all, and tell the cause rather than its consequences.
            let mut errors: Vec<_> = results.filter_map(Result::err).collect();
            errors.sort_by_key(|error| error.to_string().contains(STOPPED));
            errors.into_iter().next().map_or(Ok(()), Err)
        });
        bar.finish_and_clear();
        result
    }
}

/// The error of a job that was told to stop.
const STOPPED: &str = "generation stopped";

impl Job {
    /// Generates on one thread and encodes on another.
    fn write(self, stop: &AtomicBool, bar: &ProgressBar) -> Result<()> {
        let (sender, receiver) = mpsc::sync_channel::<Result<RecordBatch, ArrowError>>(AHEAD);
        let reader = (self.open)()?;
        let mut file = ParquetFile::create(&self.target, reader.schema())?;
        let rows = thread::scope(|scope| {
            // The receiver must end with this closure, or a failed write would leave the sender waiting.
            let receiver = receiver;
            scope.spawn(move || {
                for batch in reader {
                    if sender.send(batch).is_err() {
                        break;
                    }
                }
            });
            let mut rows = 0;
            for batch in receiver {
                if stop.load(Ordering::Relaxed) {
                    return exec_err!("{STOPPED}");
                }
                let batch = batch?;
                file.write(&batch)?;
                rows += batch.num_rows() as u64;
                bar.inc(batch.num_rows() as u64);
            }
            Ok(rows)
        })?;
        let size = file.finish()?;
        bar.suspend(|| {
            say(format_args!(
                "{}: {} rows, {}",
                self.target.display(),
                HumanCount(rows),
                HumanBytes(size)
            ));
        });
        Ok(())
    }
}

/// Drawn on standard error, and only if that is a terminal.
fn progress_bar(rows: u64) -> ProgressBar {
    let bar = ProgressBar::new(rows);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} rows, {eta} left") {
        bar.set_style(style);
    }
    bar
}
