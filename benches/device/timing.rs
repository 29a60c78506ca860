//! How often things are timed, and what is said of the times.

use datafusion_quantiles::kernel::cuda::Report;

/// Runs that are timed.
pub(crate) const RUNS: usize = 20;

/// The median of some times.
pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Both ends of `n`, and ranks at even steps between; at least 2.
pub(crate) fn even_ranks(n: u64, count: u64) -> Vec<u64> {
    (0..count).map(|rank| 1 + rank * (n - 1) / (count - 1)).collect()
}

/// What each kernel took, if `QUANTILES_KERNELS` is set.
pub(crate) fn print_kernels(report: &Report) {
    if std::env::var_os("QUANTILES_KERNELS").is_some() {
        println!(
            "{:?}, second reads {}, deepened {}",
            report.kernel_times, report.second_reads, report.deepened
        );
    }
}
