//! Kernels on the stream of a device, one after the other, and how long they took.

use std::time::Duration;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;
use datafusion::common::{DataFusionError, Result};

use super::device::Device;
use super::launch::{KernelArgument, Launch};
use super::report::Report;

/// Events on the stream: before and after all of a sequence, or after each kernel too.
pub(super) struct Timeline<'a> {
    device: &'a Device,
    each: bool,
    kernels: Vec<&'static str>,
    events: Vec<CudaEvent>,
}

impl<'a> Timeline<'a> {
    /// Starts now, as the stream has it.
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

    /// Starts anew if no kernel was launched: what came before was the host's.
    pub(super) fn restart(&mut self) -> Result<()> {
        match self.kernels.is_empty() {
            true => {
                self.events.clear();
                self.record()
            }
            false => Ok(()),
        }
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

    /// Puts a kernel on the stream, and after it an event where each kernel is timed.
    ///
    /// # Errors
    /// As [`Launch::run`].
    pub(super) fn launch<A: KernelArgument>(&mut self, launch: &Launch, argument: &A) -> Result<()> {
        launch.run(self.device, argument)?;
        self.kernels.push(launch.name);
        match self.each {
            true => self.record(),
            false => Ok(()),
        }
    }

    /// The last one was.
    pub(super) fn end(&mut self) -> Result<()> {
        match self.each {
            true => Ok(()),
            false => self.record(),
        }
    }

    /// Adds kernels and times, once the stream was waited for.
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
