//! What the server counts, as Prometheus reads it.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Server;

/// How a statement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    Error,
    Cancelled,
    Timeout,
    /// The client went away.
    Gone,
    /// Too many waited.
    Refused,
}

impl Outcome {
    const ALL: [(Self, &str); 6] = [
        (Self::Success, "success"),
        (Self::Error, "error"),
        (Self::Cancelled, "cancelled"),
        (Self::Timeout, "timeout"),
        (Self::Gone, "gone"),
        (Self::Refused, "refused"),
    ];
}

/// Upper bounds in seconds of the histogram's buckets; the last bucket has none.
const BOUNDS: [f64; 12] = [
    0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 100.0, 300.0,
];

/// Counters of a server.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
    rows: AtomicU64,
    connections: AtomicU64,
    pub(super) refused_connections: AtomicU64,
    pub(super) failed_logins: AtomicU64,
}

impl Metrics {
    pub(super) fn sent(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&self, outcome: Outcome, took: Duration) {
        let place = Outcome::ALL.iter().position(|(other, _)| *other == outcome);
        if let Some(counter) = place.and_then(|place| self.outcomes.get(place)) {
            Self::count(counter);
        }
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(counter) = self.buckets.get(bucket) {
            Self::count(counter);
        }
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }
}

/// A statement that runs. One that is dropped has lost its client.
#[derive(Debug)]
pub(super) struct Timed {
    metrics: Arc<Metrics>,
    started: Instant,
    outcome: Outcome,
}

impl Timed {
    pub(super) fn start(metrics: &Arc<Metrics>) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            started: Instant::now(),
            outcome: Outcome::Gone,
        }
    }

    pub(super) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.metrics.ended(self.outcome, self.started.elapsed());
    }
}

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Connected(Arc<Metrics>);

impl Connected {
    /// Counts a connection, unless there are `most`.
    pub(super) fn count(metrics: &Arc<Metrics>, most: usize) -> Option<Self> {
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let more = |count| (count < most).then_some(count + 1);
        let counted = metrics
            .connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok().then(|| Self(Arc::clone(metrics)))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All of a server's metrics in Prometheus' text format.
pub(super) fn text(server: &Server) -> String {
    let mut text = Text::default();
    text.counters(&server.metrics);
    text.histogram(&server.metrics);
    for (name, help, value) in [
        (
            "dfq_statements_running",
            "Statements that run.",
            server.admission.running(),
        ),
        (
            "dfq_statements_waiting",
            "Statements that wait for their turn.",
            server.admission.waiting(),
        ),
        (
            "dfq_memory_reserved_bytes",
            "Bytes of the memory pool that statements hold.",
            server.base.reserved(),
        ),
    ] {
        text.value(name, "gauge", help, value as u64);
    }
    text.0
}

#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn value(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        self.line(format_args!("{name} {value}"));
    }

    fn counters(&mut self, metrics: &Metrics) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (refused, failed) = (&metrics.refused_connections, &metrics.failed_logins);
        for (name, kind, help, counter) in [
            (
                "dfq_connections",
                "gauge",
                "Open connections.",
                &metrics.connections,
            ),
            (
                "dfq_connections_refused_total",
                "counter",
                "Connections refused because too many were open.",
                refused,
            ),
            (
                "dfq_logins_failed_total",
                "counter",
                "Connections that did not prove who they are.",
                failed,
            ),
            (
                "dfq_rows_sent_total",
                "counter",
                "Rows sent to clients.",
                &metrics.rows,
            ),
        ] {
            self.value(name, kind, help, read(counter));
        }
        self.head(
            "dfq_statements_total",
            "counter",
            "Statements that ended, by how.",
        );
        for ((_, name), counter) in Outcome::ALL.iter().zip(&metrics.outcomes) {
            self.line(format_args!(
                "dfq_statements_total{{outcome=\"{name}\"}} {}",
                read(counter)
            ));
        }
    }

    fn histogram(&mut self, metrics: &Metrics) {
        const NAME: &str = "dfq_statement_seconds";
        self.head(
            NAME,
            "histogram",
            "Seconds from the start of a statement to its last row, its wait included.",
        );
        let mut below = 0;
        for (counter, bound) in metrics.buckets.iter().zip(BOUNDS) {
            below += counter.load(Ordering::Relaxed);
            self.line(format_args!("{NAME}_bucket{{le=\"{bound}\"}} {below}"));
        }
        let all: u64 = metrics
            .buckets
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum();
        let seconds = metrics.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        self.line(format_args!(
            "{NAME}_bucket{{le=\"+Inf\"}} {all}\n{NAME}_sum {seconds}\n{NAME}_count {all}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_buckets() {
        let metrics = Metrics::default();
        metrics.ended(Outcome::Success, Duration::from_micros(1000));
        metrics.ended(Outcome::Error, Duration::from_secs(2));
        metrics.ended(Outcome::Error, Duration::from_secs(1000));
        let mut text = Text::default();
        text.histogram(&metrics);
        for line in [
            "dfq_statement_seconds_bucket{le=\"0.001\"} 1",
            "dfq_statement_seconds_bucket{le=\"1\"} 1",
            "dfq_statement_seconds_bucket{le=\"2.5\"} 2",
            "dfq_statement_seconds_bucket{le=\"300\"} 2",
            "dfq_statement_seconds_bucket{le=\"+Inf\"} 3",
            "dfq_statement_seconds_sum 1002.001",
            "dfq_statement_seconds_count 3",
        ] {
            assert!(text.0.lines().any(|found| found == line), "{line} in\n{}", text.0);
        }
    }

    #[test]
    fn a_statement_that_is_dropped_has_lost_its_client() {
        let metrics = Arc::new(Metrics::default());
        drop(Timed::start(&metrics));
        Timed::start(&metrics).end(Outcome::Success);
        let counts: Vec<_> = metrics
            .outcomes
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .collect();
        assert_eq!(counts, [1, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn connections_are_counted_up_to_a_limit() {
        let metrics = Arc::new(Metrics::default());
        let first = Connected::count(&metrics, 1).unwrap();
        assert!(Connected::count(&metrics, 1).is_none());
        drop(first);
        assert!(Connected::count(&metrics, 1).is_some());
    }
}
