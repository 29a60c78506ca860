//! How far a statement is, on the last line of the terminal, from a second on.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_quantiles::progress::{PlanObserver, ProgressReader, ScanProgress};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::console::{begin_last_line, end_last_line, has_last_line, write_last_line};

/// Time that a statement runs before anything is shown.
const FIRST: Duration = Duration::from_secs(1);

/// Time between two looks.
const NEXT: Duration = Duration::from_millis(100);

/// Characters of the bar.
const BAR: usize = 20;

/// Columns of a terminal that does not tell.
const COLUMNS: usize = 80;

/// What runs, of which it is shown how far it is.
#[derive(Clone)]
pub(super) enum Shown {
    /// A plan of this process.
    Plan(Arc<dyn ExecutionPlan>),
    /// The tasks of a cluster.
    #[cfg(feature = "ballista")]
    Cluster(Arc<datafusion_quantiles::ballista::Watch>),
}

/// Shows how far statements are, one after the other.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    /// Whether it does.
    pub(crate) is_on: bool,
    shown: Arc<Mutex<Option<Shown>>>,
}

impl Progress {
    /// One that shows how far statements are.
    pub(crate) fn on() -> Self {
        Self {
            is_on: true,
            ..Self::default()
        }
    }

    /// Shows how far each plan is that the session makes, also those inside of statements such as `CREATE TABLE AS`.
    pub(crate) fn observe(&self, ctx: &SessionContext) {
        if !self.is_on || !has_last_line() {
            return;
        }
        let progress = self.clone();
        let observer = PlanObserver::new(move |plan| progress.show(Shown::Plan(Arc::clone(plan))));
        let state = ctx.state_ref();
        state.write().config_mut().set_extension(Arc::new(observer));
    }

    /// Shows, from now on, how far this plan is, until the bar is dropped.
    pub(crate) fn start_plan(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Bar> {
        let bar = self.start();
        self.show(Shown::Plan(Arc::clone(plan)));
        bar
    }

    /// Shows, from now on, how far the statement that begins is, until the bar is dropped. Nothing is shown where standard error is no
    /// terminal.
    pub(crate) fn start(&self) -> Option<Bar> {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = None;
        (self.is_on && has_last_line()).then(|| Bar::start(Arc::clone(&self.shown)))
    }

    /// What the statement that was started runs from now on.
    pub(super) fn show(&self, shown: Shown) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
    }
}

/// The line of one statement, which a thread of its own writes: those of the runtime may all be busy with the statement.
pub(crate) struct Bar {
    stop: Option<Sender<()>>,
    writer: Option<JoinHandle<()>>,
    shown: Arc<Mutex<Option<Shown>>>,
}

impl Bar {
    fn start(shown: Arc<Mutex<Option<Shown>>>) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let of_statement = Arc::clone(&shown);
        let write = move || {
            let (started, mut pause, mut reader) = (Instant::now(), FIRST, Reader::default());
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                if pause == FIRST {
                    begin_last_line(line_of_terminal());
                    pause = NEXT;
                }
                let shown = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let text = reader.text(shown.as_ref(), started.elapsed());
                if !write_last_line(fitting(&text, columns())) {
                    break;
                }
            }
        };
        // Without a thread nothing is shown.
        let writer = std::thread::Builder::new().name("dfq progress".to_owned());
        Self {
            stop: Some(stop),
            writer: writer.spawn(write).ok(),
            shown: of_statement,
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(writer) = self.writer.take() {
            // A panic of the writer is no matter of the statement.
            let _ = writer.join();
        }
        end_last_line();
        // A plan that has run holds what it read.
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A line that shows its message alone.
fn line_of_terminal() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn columns() -> usize {
    let size = ::console::Term::stderr().size_checked();
    size.map_or(COLUMNS, |(_, columns)| columns.into())
}

/// The start of a text that stands on one line of so many columns. It has characters of one column only.
fn fitting(text: &str, columns: usize) -> String {
    text.chars().take(columns.saturating_sub(1)).collect()
}

/// Reads the progress of a statement's plans, one after the other.
#[derive(Default)]
struct Reader {
    plan: Option<(Arc<dyn ExecutionPlan>, ProgressReader)>,
}

impl Reader {
    /// How far a statement is that has run for this time.
    fn text(&mut self, shown: Option<&Shown>, elapsed: Duration) -> String {
        match shown {
            None => scanned(elapsed, &ScanProgress::default()),
            Some(Shown::Plan(plan)) => {
                let is_new = self
                    .plan
                    .as_ref()
                    .is_none_or(|(read, _)| !Arc::ptr_eq(read, plan));
                if is_new {
                    self.plan = Some((Arc::clone(plan), ProgressReader::default()));
                }
                let read = self.plan.as_mut().map(|(plan, reader)| reader.read(plan));
                scanned(elapsed, &read.unwrap_or_default())
            }
            #[cfg(feature = "ballista")]
            Some(Shown::Cluster(watch)) => match watch.tasks() {
                Some(tasks) => {
                    let (done, running) = (HumanCount(tasks.done as u64), HumanCount(tasks.running as u64));
                    format!("{done} tasks done, {running} running, {}", seconds(elapsed))
                }
                None => scanned(elapsed, &ScanProgress::default()),
            },
        }
    }
}

/// How far a statement is whose scans have read this, in this time.
fn scanned(elapsed: Duration, read: &ScanProgress) -> String {
    let time = seconds(elapsed);
    let Some(rows) = read.rows else {
        return format!("running, {time}");
    };
    let rows = HumanCount(rows as u64);
    let bytes = read.bytes.map(|bytes| format!(", {}", HumanBytes(bytes as u64)));
    let bytes = bytes.unwrap_or_default();
    let Some((fraction, total)) = read.fraction().zip(read.total_rows()) else {
        return format!("{rows} rows read{bytes}, {time}");
    };
    let full = (BAR as f64 * fraction) as usize;
    let mut text = format!("[{}{}] ", "#".repeat(full), ".".repeat(BAR - full));
    if fraction == 1.0 && read.is_exact() {
        return format!("{text}all {rows} rows read{bytes}, computing, {time}");
    }
    // What matters most comes first: narrow terminals cut the end.
    text.push_str(&format!("{} %, ", (100.0 * fraction) as usize));
    if (0.01..1.0).contains(&fraction) {
        let left = elapsed.mul_f64((1.0 - fraction) / fraction);
        text.push_str(&format!("{} left, ", duration(left)));
    }
    let (about, total) = (
        if read.is_exact() { "" } else { "about " },
        HumanCount(total as u64),
    );
    text.push_str(&format!("{rows} of {about}{total} rows read{bytes}, {time}"));
    text
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

/// A time that is estimated: seconds, minutes with seconds, or hours with minutes.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::stats::Precision;

    use super::*;

    #[test]
    fn a_line_says_what_is_known_and_no_more() {
        let of = |seconds: f64, rows, total, bytes| {
            let read = ScanProgress { rows, total, bytes };
            scanned(Duration::from_secs_f64(seconds), &read)
        };
        let (exact, inexact) = (
            |rows| Some(Precision::Exact(rows)),
            |rows| Some(Precision::Inexact(rows)),
        );
        for (text, expected) in [
            (of(1.0, None, None, None), "running, 1.0 s"),
            (of(1.1, Some(1_000_000), None, None), "1,000,000 rows read, 1.1 s"),
            (
                of(2.0, Some(10), exact(40), Some(3 << 20)),
                "[#####...............] 25 %, 6 s left, 10 of 40 rows read, 3.00 MiB, 2.0 s",
            ),
            (
                of(100.0, Some(10), inexact(40), None),
                "[#####...............] 25 %, 5 min 0 s left, 10 of about 40 rows read, 100.0 s",
            ),
            (
                of(1.4, Some(40), exact(40), None),
                "[####################] all 40 rows read, computing, 1.4 s",
            ),
            (
                of(100.0, Some(2), exact(100), None),
                "[....................] 2 %, 1 h 21 min left, 2 of 100 rows read, 100.0 s",
            ),
            // Too little to tell from.
            (
                of(1.0, Some(1), exact(1000), None),
                "[....................] 0 %, 1 of 1,000 rows read, 1.0 s",
            ),
            // More than there should be.
            (of(1.5, Some(41), inexact(40), None), "41 rows read, 1.5 s"),
        ] {
            assert_eq!(text, expected);
        }
        assert_eq!(fitting("[###] 12 rows", 6), "[###]");
    }
}
