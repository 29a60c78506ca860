//! The memory that a query works in on a device. It is kept from one query to the next, and locked by the query that uses it.

use std::sync::{Arc, MutexGuard};

use datafusion::common::{Result, internal_err};

use super::buffer::{DeviceBuffer, PageLocked};
use super::device::Device;
use super::idle::{IdleWatch, IdleWorkspace};

/// The memory that a query works in.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) device: DeviceBuffer,
    /// Page-locked memory for requests on their way to the device and answers on their way back.
    pub(super) host: PageLocked,
}

/// The right of one query to the workspace of a device. Other queries wait until it is dropped.
#[derive(Debug)]
pub(super) struct WorkspaceLease<'a> {
    device: &'a Arc<Device>,
    idle: MutexGuard<'a, Option<IdleWorkspace>>,
    workspace: Option<Workspace>,
}

impl<'a> WorkspaceLease<'a> {
    /// Waits for the query that has the workspace of the device.
    pub(super) fn lock(device: &'a Arc<Device>) -> Self {
        let mut idle = device.lock_workspace();
        let workspace = idle.take().map(|idle| Workspace {
            device: DeviceBuffer::over(device, idle.slice, idle.bytes),
            host: PageLocked::over(device, idle.host),
        });
        Self {
            device,
            idle,
            workspace,
        }
    }

    /// The workspace, with at least `bytes` bytes of device memory and `host_bytes` bytes of page-locked memory. Its content is
    /// undefined. Fails if this crate would then hold more than `limit` bytes of the device's memory.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub(super) fn reserve(
        &mut self,
        bytes: usize,
        host_bytes: usize,
        limit: Option<u64>,
    ) -> Result<&mut Workspace> {
        match &mut self.workspace {
            Some(workspace) if workspace.device.len() >= bytes => workspace.host.grow(host_bytes)?,
            _ => {
                // The old one goes first: there need not be memory for both.
                self.workspace = None;
                let device = self.device.allocate(bytes, limit)?;
                let host = PageLocked::try_new(self.device, host_bytes)?;
                self.workspace = Some(Workspace { device, host });
            }
        }
        self.get()
    }

    /// The workspace as the last call of [`Self::reserve`] has left it.
    ///
    /// # Errors
    /// An internal error if there is none.
    pub(super) fn get(&mut self) -> Result<&mut Workspace> {
        match &mut self.workspace {
            Some(workspace) => Ok(workspace),
            None => internal_err!("no workspace on the device"),
        }
    }
}

impl Drop for WorkspaceLease<'_> {
    fn drop(&mut self) {
        let Some(Workspace { device, host }) = self.workspace.take() else {
            return;
        };
        *self.idle = device.into_memory().map(|(slice, bytes)| IdleWorkspace {
            slice,
            bytes,
            host: host.into_memory(),
        });
        IdleWatch::used(self.device);
    }
}

/// Lays out ranges of bytes one after the other, each aligned to 256 bytes.
#[derive(Debug, Default)]
pub(super) struct Places(usize);

impl Places {
    /// First byte of the next range, which has `bytes` bytes.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let start = self.0;
        self.0 = (start + bytes).next_multiple_of(256);
        start
    }

    /// Bytes of all ranges together.
    pub(super) fn end(&self) -> usize {
        self.0
    }
}
