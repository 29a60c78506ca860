//! Device memory, and page-locked host memory.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::sys::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DevicePtr, PinnedHostSlice};
use datafusion::common::{Result, internal_err};

use super::device::Device;

/// Memory of one device, aligned to 256 bytes. The device counts its bytes as held.
#[derive(Debug)]
pub struct DeviceBuffer {
    slice: Option<CudaSlice<u8>>,
    bytes: usize,
    device: Arc<Device>,
}

/// Bytes that were copied from the device, as numbers.
pub(super) fn numbers<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut numbers = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
    numbers
}

impl Device {
    /// A buffer of `bytes` bytes with undefined content. Fails if this crate would then hold more than `limit` bytes of the device's
    /// memory. If memory is short, the workspace and other idle memory of the device is given up first.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the bytes wanted, held and allowed; an execution error if the device does not answer.
    pub fn allocate(self: &Arc<Self>, bytes: usize, limit: Option<u64>) -> Result<DeviceBuffer> {
        let slice = self.take_memory(bytes, limit)?;
        Ok(DeviceBuffer::over(self, slice, bytes))
    }
}

impl DeviceBuffer {
    /// A buffer over memory from [`Device::take_memory`], for which the device counts `bytes` bytes as held.
    pub(super) fn over(device: &Arc<Device>, slice: CudaSlice<u8>, bytes: usize) -> Self {
        Self {
            slice: Some(slice),
            bytes,
            device: Arc::clone(device),
        }
    }

    /// The memory of the buffer and its bytes, which the device counts as held from now on until [`Device::give_back`].
    pub(super) fn into_memory(mut self) -> Option<(CudaSlice<u8>, usize)> {
        let bytes = std::mem::take(&mut self.bytes);
        self.slice.take().map(|slice| (slice, bytes))
    }

    /// Bytes that were asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device that the buffer is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Address of the first byte on the device.
    pub(super) fn address(&self) -> u64 {
        // One stream and no events: there is nothing to wait for.
        self.slice
            .as_ref()
            .map_or(0, |slice| slice.device_ptr(&self.device.stream).0)
    }

    pub(super) fn view(&self, from: usize, to: usize) -> Option<CudaView<'_, u8>> {
        self.slice.as_ref().and_then(|slice| slice.try_slice(from..to))
    }

    pub(super) fn view_mut(&mut self, from: usize, to: usize) -> Option<CudaViewMut<'_, u8>> {
        self.slice
            .as_mut()
            .and_then(|slice| slice.try_slice_mut(from..to))
    }

    /// Puts on the stream that a range of bytes is zeroed.
    pub(super) fn zero(&mut self, range: Range<usize>) -> Result<()> {
        let device = Arc::clone(&self.device);
        let Some(mut view) = self.view_mut(range.start, range.end) else {
            return internal_err!("{range:?} of a buffer of {} bytes", self.bytes);
        };
        let zeroed = device.stream.memset_zeros(&mut view);
        zeroed.map_err(|error| device.failed("zeroing device memory", error))
    }

    /// Puts on the stream that the first `bytes` bytes of another buffer of the same device are copied to the byte `at` of this one.
    /// Returns `bytes`.
    pub(super) fn copy_from(&mut self, at: usize, other: &DeviceBuffer, bytes: usize) -> Result<usize> {
        let device = Arc::clone(&self.device);
        let views = other.view(0, bytes).zip(self.view_mut(at, at + bytes));
        let Some((from, mut to)) = views else {
            return internal_err!("{bytes} bytes at {at} of a buffer of {}", self.bytes);
        };
        let copied = device.stream.memcpy_dtod(&from, &mut to);
        copied.map_err(|error| device.failed("copying on the device", error))?;
        Ok(bytes)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(slice) = self.slice.take() {
            self.device.keep_memory(slice);
        }
        self.device.give_back(self.bytes);
    }
}

/// Page-locked host memory, which a device reads and writes by itself.
#[derive(Debug)]
pub(super) struct PageLocked {
    memory: PinnedHostSlice<u8>,
    device: Arc<Device>,
}

impl PageLocked {
    /// Memory of `bytes` bytes that the processor reads too, and that kernels of all devices can access.
    pub(super) fn try_new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        Self::with_flags(
            device,
            bytes,
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
        )
    }

    /// Memory of `bytes` bytes, allocated with these flags of `cuMemHostAlloc`.
    #[allow(unsafe_code, reason = "memory that nothing was written to")]
    pub(super) fn with_flags(device: &Arc<Device>, bytes: usize, flags: u32) -> Result<Self> {
        // SAFETY: bytes have no invalid value: what is read without having been written is any bytes.
        let memory = unsafe { device.context.alloc_pinned_with_flags(bytes, flags) };
        let memory = memory.map_err(|error| device.failed("allocating page-locked memory", error))?;
        Ok(Self::over(device, memory))
    }

    /// Memory that was allocated in the context of the device before.
    pub(super) fn over(device: &Arc<Device>, memory: PinnedHostSlice<u8>) -> Self {
        Self {
            memory,
            device: Arc::clone(device),
        }
    }

    /// The memory without its device.
    pub(super) fn into_memory(self) -> PinnedHostSlice<u8> {
        self.memory
    }

    /// Replaces the memory by new memory if it has fewer than `bytes` bytes. Its content is lost then.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<()> {
        if self.memory.len() < bytes {
            *self = Self::try_new(&self.device, bytes)?;
        }
        Ok(())
    }

    /// Address for kernels of all devices. It is that of the host: with the oldest driver that is supported, host and devices share
    /// one address space.
    pub(super) fn address(&self) -> Result<u64> {
        Ok(self.bytes()?.as_ptr() as u64)
    }

    /// The bytes. The caller has waited for copies to this memory.
    pub(super) fn bytes(&self) -> Result<&[u8]> {
        let bytes = self.memory.as_slice();
        bytes.map_err(|error| self.device.failed("reading page-locked memory", error))
    }

    /// The bytes, to write to. The caller has waited for copies from this memory.
    pub(super) fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let device = Arc::clone(&self.device);
        let bytes = self.memory.as_mut_slice();
        bytes.map_err(|error| device.failed("writing page-locked memory", error))
    }

    /// Puts on the stream that a range of this memory is copied to the byte `at` of a buffer. The caller leaves the range as it is
    /// until it has waited for the stream.
    #[allow(unsafe_code, reason = "a copy that ends later")]
    pub(super) fn send(&self, range: Range<usize>, to: &DeviceBuffer, at: usize) -> Result<()> {
        let device = &self.device;
        let failed = |error| device.failed("copying to the device", error);
        let Some(host) = self
            .bytes()?
            .get(range)
            .filter(|host| at + host.len() <= to.bytes)
        else {
            return internal_err!("a copy beyond a buffer of {} bytes on the device", to.bytes);
        };
        device.context.bind_to_thread().map_err(failed)?;
        // SAFETY: the target lies within the buffer, which is freed on the same stream; the caller neither writes nor frees
        // the page-locked memory before it has waited for the stream.
        unsafe { memcpy_htod_async(to.address() + at as u64, host, device.stream.cu_stream()) }
            .map_err(failed)
    }

    /// Puts on the stream that a range of a buffer is copied to the front of this memory. The caller reads it after it has waited for
    /// the stream.
    #[allow(unsafe_code, reason = "a copy that ends later")]
    pub(super) fn fetch(&mut self, from: &DeviceBuffer, range: Range<usize>) -> Result<()> {
        let device = Arc::clone(&self.device);
        let failed = |error| device.failed("copying from the device", error);
        let stream = device.stream.cu_stream();
        if range.end > from.bytes || range.len() > self.memory.len() {
            return internal_err!("{range:?} of {} bytes on the device", from.bytes);
        }
        device.context.bind_to_thread().map_err(failed)?;
        let host = &mut self.bytes_mut()?[..range.len()];
        // SAFETY: the source lies within the buffer, which is freed on the same stream; the caller waits for the stream
        // before it reads or frees the page-locked memory.
        unsafe { memcpy_dtoh_async(host, from.address() + range.start as u64, stream) }.map_err(failed)
    }
}
