//! What queries did on devices, as numbers.

use std::time::Duration;

/// What queries did on the device.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Kernels launched.
    pub kernels: usize,
    /// Bytes of columns and bitmaps, each once for each read.
    pub bytes_read: u64,
    /// Bytes copied to the device: ranks, or rows.
    pub bytes_to_device: u64,
    /// Bytes copied back: keys or values, and how it went.
    pub bytes_from_device: u64,
    /// Time between the first and the last event on the device.
    pub device_time: Duration,
    /// Sequences of launches in which the first read missed what was asked.
    pub second_reads: usize,
    /// Those that counted narrower intervals.
    pub deepened: usize,
    /// Time of each kernel, if it was asked for; with about 5 microseconds of measuring in each.
    pub kernel_times: Vec<(&'static str, Duration)>,
}

impl Report {
    /// What others did, too.
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
