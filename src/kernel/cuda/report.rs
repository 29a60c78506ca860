//! Numbers about the work of queries on devices.

use std::time::Duration;

/// Numbers about the work of queries on devices: launches, bytes and times.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of kernels launched.
    pub kernels: usize,
    /// Bytes of columns and bitmaps that kernels read, counted once for each read.
    pub bytes_read: u64,
    /// Bytes copied to devices, such as ranks or row numbers.
    pub bytes_to_device: u64,
    /// Bytes copied from devices, such as keys, values and outcomes.
    pub bytes_from_device: u64,
    /// Time between the first and the last event of each sequence of launches, added up.
    pub device_time: Duration,
    /// Number of sequences of launches whose first read missed a rank, so that there was another one.
    pub second_reads: usize,
    /// Number of sequences of launches that counted narrower intervals.
    pub deepened: usize,
    /// Name and time of each kernel, if that was asked for. Each time includes about 5 microseconds of measuring.
    pub kernel_times: Vec<(&'static str, Duration)>,
}

impl Report {
    /// Adds the reports of devices that worked at the same time: of their times the longest counts.
    pub(crate) fn add_together(&mut self, reports: Vec<Report>) {
        let mut longest = Duration::ZERO;
        for mut report in reports {
            longest = longest.max(std::mem::take(&mut report.device_time));
            self.add(&report);
        }
        self.device_time += longest;
    }

    /// Adds the numbers of another report.
    pub(crate) fn add(&mut self, other: &Report) {
        self.kernels += other.kernels;
        self.bytes_read += other.bytes_read;
        self.bytes_to_device += other.bytes_to_device;
        self.bytes_from_device += other.bytes_from_device;
        self.device_time += other.device_time;
        self.second_reads += other.second_reads;
        self.deepened += other.deepened;
        self.kernel_times.extend_from_slice(&other.kernel_times);
    }
}
