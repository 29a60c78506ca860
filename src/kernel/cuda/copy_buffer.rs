//! Page-locked memory that bytes go through on their way to a device or back, in turns with another such piece.

use std::sync::Arc;

use cudarc::driver::CudaEvent;
use datafusion::common::Result;

use super::buffer::PageLocked;
use super::device::Device;
use super::idle::IdleCopyBuffer;

/// A piece of page-locked memory, and the event that follows the copies to it or from it.
#[derive(Debug)]
pub(super) struct CopyBuffer {
    pub(super) memory: PageLocked,
    copied: CudaEvent,
}

impl CopyBuffer {
    /// A buffer of `bytes` bytes, whose memory is allocated with these flags of `cuMemHostAlloc`.
    pub(super) fn try_new(device: &Arc<Device>, bytes: usize, flags: u32) -> Result<Self> {
        let copied = device.context.new_event(None);
        Ok(Self {
            memory: PageLocked::with_flags(device, bytes, flags)?,
            copied: copied.map_err(|error| device.failed("making an event", error))?,
        })
    }

    /// A buffer that was idle.
    pub(super) fn over(device: &Arc<Device>, IdleCopyBuffer { memory, copied }: IdleCopyBuffer) -> Self {
        Self {
            memory: PageLocked::over(device, memory),
            copied,
        }
    }

    /// The buffer without its device.
    pub(super) fn into_idle(self) -> IdleCopyBuffer {
        IdleCopyBuffer {
            memory: self.memory.into_memory(),
            copied: self.copied,
        }
    }

    /// Marks this point of the stream as the end of the copies to the buffer or from it.
    pub(super) fn mark(&self, device: &Device) -> Result<()> {
        let marked = self.copied.record(&device.stream);
        marked.map_err(|error| device.failed("copying with a device", error))
    }

    /// Waits for the marked point of the stream.
    pub(super) fn wait(&self, device: &Device) -> Result<()> {
        let waited = self.copied.synchronize();
        waited.map_err(|error| device.failed("copying with a device", error))
    }
}
