//! The memory that queries of a device work in, kept from one to the next.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};

use super::buffer::{DeviceBuffer, PageLocked};
use super::device::Device;

/// Memory that queries of a device work in, kept from one to the next.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) device: DeviceBuffer,
    /// Questions on their way there, answers on their way back.
    pub(super) host: PageLocked,
}

/// Places in a workspace, one after the other, each aligned to 256 bytes.
#[derive(Debug, Default)]
pub(super) struct Places(usize);

impl Places {
    /// Where the next `bytes` start.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let start = self.0;
        self.0 = (start + bytes).next_multiple_of(256);
        start
    }

    /// The end of all.
    pub(super) fn end(&self) -> usize {
        self.0
    }
}

impl Workspace {
    /// Makes what is held at least so large; what was there goes first, as it need not fit beside.
    pub(super) fn reserve(
        held: &mut Option<Workspace>,
        device: &Arc<Device>,
        bytes: usize,
        host_bytes: usize,
        limit: Option<u64>,
    ) -> Result<()> {
        match held {
            Some(held) if held.device.len() >= bytes => held.host.grow(host_bytes),
            _ => {
                held.take();
                let buffer = device.allocate(bytes, limit)?;
                let host = PageLocked::try_new(device, host_bytes)?;
                *held = Some(Workspace { device: buffer, host });
                Ok(())
            }
        }
    }

    /// What is held.
    ///
    /// # Errors
    /// An internal error if that is nothing.
    pub(super) fn of(held: &mut Option<Workspace>) -> Result<&mut Workspace> {
        match held {
            Some(workspace) => Ok(workspace),
            None => internal_err!("no workspace on the device"),
        }
    }
}
