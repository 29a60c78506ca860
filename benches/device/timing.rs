//! Repetition of measurements, and the summary of their times.

use datafusion_quantiles::kernel::cuda::Report;

/// Number of runs that are timed.
pub(crate) const RUNS: usize = 20;

/// The median of some times.
pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// `count` ranks of `n` values, at least 2: both ends, and even steps between.
pub(crate) fn even_ranks(n: u64, count: u64) -> Vec<u64> {
    (0..count).map(|rank| 1 + rank * (n - 1) / (count - 1)).collect()
}

/// The time of each kernel, if `QUANTILES_KERNELS` is set.
pub(crate) fn print_kernels(report: &Report) {
    if std::env::var_os("QUANTILES_KERNELS").is_some() {
        println!(
            "{:?}, second reads {}, deepened {}",
            report.kernel_times, report.second_reads, report.deepened
        );
    }
}
