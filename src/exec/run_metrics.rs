//! The metrics of one execution of quantiles without groups.

use std::time::Instant;

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, Time,
};

use crate::select::Solution;
use crate::select::byte_strings::ByteStringSolution;

/// Metrics of one execution. Their names are stable: users may rely on them.
pub(super) struct RunMetrics {
    pub(super) set: ExecutionPlanMetricsSet,
    pub(super) baseline: BaselineMetrics,
    /// Rows read from the input.
    pub(super) input_rows: Count,
    /// Values that are not NULL and not filtered out, added up over all key columns.
    pub(super) values_kept: Count,
    /// Bytes of keys and values in memory after the scan.
    pub(super) bytes_held: Gauge,
    /// Files that keys and values were written to.
    pub(super) spill_count: Count,
    /// Bytes in these files.
    pub(super) spilled_bytes: Count,
    /// Rounds over the keys, added up over all columns.
    rounds: Count,
    /// Processor time of taking batches in, added up over all partitions.
    scan_time: Time,
    /// Elapsed time of the rounds.
    pub(super) select_time: Time,
    /// Reads of the input, without that of a sample.
    input_reads: Count,
}

impl RunMetrics {
    pub(super) fn new(set: &ExecutionPlanMetricsSet) -> Self {
        let builder = || MetricBuilder::new(set);
        Self {
            set: set.clone(),
            baseline: BaselineMetrics::new(set, 0),
            input_rows: builder().counter("input_rows", 0),
            values_kept: builder().counter("values_kept", 0),
            bytes_held: builder().gauge("bytes_held", 0),
            spill_count: builder().spill_count(0),
            spilled_bytes: builder().spilled_bytes(0),
            rounds: builder().counter("rounds", 0),
            scan_time: builder().subset_time("scan_time", 0),
            select_time: builder().subset_time("select_time", 0),
            input_reads: builder().counter("input_reads", 0),
        }
    }

    /// Adds the strategy that ran for a column, its rounds, and the candidates that each round left.
    pub(super) fn record(&self, solution: &Solution) {
        self.count(strategy_metric(solution.strategy), 1);
        self.rounds.add(solution.rounds.len());
        for (number, round) in solution.rounds.iter().enumerate() {
            self.count(
                format!("candidates_after_round_{}", number + 1),
                round.candidates as usize,
            );
            let name = format!("{}_time", round.request);
            let time = MetricBuilder::new(&self.set).subset_time(name, 0);
            time.add_duration(round.elapsed);
        }
    }

    /// Adds the rounds of a column of byte strings, its levels of prefixes, and the values that were refined.
    pub(super) fn record_levels(&self, solution: &ByteStringSolution) {
        solution.rounds.iter().for_each(|rounds| self.record(rounds));
        self.count("levels".to_owned(), solution.levels);
        self.count("refined_values".to_owned(), solution.refined as usize);
    }

    /// Adds the elapsed time of a sample that was read before the scan.
    pub(super) fn sampled(&self, start: Instant) {
        MetricBuilder::new(&self.set)
            .subset_time("sample_time", 0)
            .add_elapsed(start);
    }

    /// Adds rows that a read left out, because their statistics answered for them.
    pub(super) fn rows_left_out(&self, rows: u64) {
        if rows > 0 {
            self.count("rows_left_out".to_owned(), rows as usize);
        }
    }

    /// Notes another read of the input.
    pub(super) fn read_again(&self) {
        self.input_reads.add(1);
    }

    /// The metrics that count the processor time of a scan.
    pub(super) fn scan_times(&self) -> [Time; 2] {
        [self.scan_time.clone(), self.baseline.elapsed_compute().clone()]
    }

    fn count(&self, name: String, n: usize) {
        MetricBuilder::new(&self.set).counter(name, 0).add(n);
    }
}

/// The character as part of a metric name, which is a single word: `sample_select (brackets)` becomes `sample_select__brackets`.
fn word_char(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}

/// Name of the metric that counts the columns which the strategy of this label selected.
pub(super) fn strategy_metric(label: &str) -> String {
    let name: String = label.chars().map(word_char).collect();
    format!("strategy_{}", name.trim_matches('_'))
}
