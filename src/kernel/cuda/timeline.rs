//! Kernels on the stream of a device, one after the other, with their times.

use std::time::Duration;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;
use datafusion::common::{DataFusionError, Result};

use super::device::Device;
use super::launch::{KernelArgument, Launch};
use super::report::Report;

/// Measures a sequence of kernels by events on the stream: one before and one after the sequence, and, if wanted, one after each kernel.
pub(super) struct Timeline<'a> {
    device: &'a Device,
    /// Whether each kernel is measured.
    each: bool,
    kernels: Vec<&'static str>,
    events: Vec<CudaEvent>,
}

impl<'a> Timeline<'a> {
    /// Starts a sequence at this point of the stream. `each`: whether to measure each kernel.
    pub(super) fn start(device: &'a Device, each: bool) -> Result<Self> {
        let mut timeline = Self {
            device,
            each,
            kernels: Vec::new(),
            events: Vec::new(),
        };
        timeline.record()?;
        Ok(timeline)
    }

    /// Moves the start to this point of the stream if no kernel was launched yet, so that work of the host does not count.
    pub(super) fn restart(&mut self) -> Result<()> {
        if self.kernels.is_empty() {
            self.events.clear();
            self.record()?;
        }
        Ok(())
    }

    fn record(&mut self) -> Result<()> {
        let event = self
            .device
            .stream
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let event = event.map_err(|error| self.device.failed("timing kernels", error))?;
        self.events.push(event);
        Ok(())
    }

    /// Puts a kernel on the stream, and an event after it if each kernel is measured.
    ///
    /// # Errors
    /// As [`Launch::run`].
    pub(super) fn launch<A: KernelArgument>(&mut self, launch: &Launch, argument: &A) -> Result<()> {
        launch.run(self.device, argument)?;
        self.kernels.push(launch.name);
        if self.each { self.record() } else { Ok(()) }
    }

    /// Ends the sequence.
    pub(super) fn end(&mut self) -> Result<()> {
        if self.each { Ok(()) } else { self.record() }
    }

    /// Adds the number of kernels and their times to the report. The caller has waited for the stream.
    pub(super) fn report(&self, report: &mut Report) -> Result<()> {
        let between = |from: &CudaEvent, to: &CudaEvent| {
            let time = from.elapsed_ms(to);
            let time = time.map_err(|error| self.device.failed("timing kernels", error))?;
            Ok::<_, DataFusionError>(Duration::from_secs_f64(f64::from(time.max(0.0)) / 1e3))
        };
        report.kernels += self.kernels.len();
        if let [first, .., last] = self.events.as_slice() {
            report.device_time += between(first, last)?;
        }
        if self.each {
            for (kernel, pair) in self.kernels.iter().zip(self.events.windows(2)) {
                report.kernel_times.push((kernel, between(&pair[0], &pair[1])?));
            }
        }
        Ok(())
    }
}
