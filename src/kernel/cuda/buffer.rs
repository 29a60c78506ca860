//! Device memory, and page-locked host memory.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{NoUninit, Pod};
use cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::sys::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DevicePtr, PinnedHostSlice};
use datafusion::common::{Result, internal_err};

use super::device::Device;
use super::report::Report;

/// Bytes that a buffer has beyond those asked for: kernels read bitmaps in words of 8 bytes.
const SLACK: usize = 16;

/// Memory of a device, accounted to it. 256-byte aligned.
#[derive(Debug)]
pub struct DeviceBuffer {
    slice: Option<CudaSlice<u8>>,
    bytes: usize,
    device: Arc<Device>,
}

/// Bytes of the device as the numbers that they are.
pub(super) fn numbers<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut numbers = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
    numbers
}

/// Bytes of memory that a buffer for `bytes` takes.
pub(super) fn taken(bytes: usize) -> usize {
    bytes + SLACK
}

impl DeviceBuffer {
    /// Use [`Device::allocate`], which accounts for it. `slice` is memory of the device's stream, of [`taken`] bytes or more.
    pub(super) fn over(device: &Arc<Device>, slice: CudaSlice<u8>, bytes: usize) -> Self {
        Self {
            slice: Some(slice),
            bytes,
            device: Arc::clone(device),
        }
    }

    /// Use [`Device::allocate`], which accounts for it.
    #[allow(unsafe_code, reason = "memory that nothing was written to")]
    pub(super) fn try_new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        // SAFETY: bytes have no invalid value; what reads them writes them first, or is a kernel that drops what it reads
        // beyond the end.
        let slice = unsafe { device.stream.alloc::<u8>(taken(bytes)) };
        let slice = slice.map_err(|error| device.failed("allocating device memory", error))?;
        Ok(Self::over(device, slice, bytes))
    }

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether none were asked for.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device that it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Address on the device.
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

    /// Zeroes a range of bytes, when the stream comes to it.
    pub(super) fn zero(&mut self, range: Range<usize>) -> Result<()> {
        let device = Arc::clone(&self.device);
        let Some(mut part) = self.view_mut(range.start, range.end) else {
            return internal_err!("{range:?} of a buffer of {} bytes", self.bytes);
        };
        let zeroed = device.stream.memset_zeros(&mut part);
        zeroed.map_err(|error| device.failed("zeroing device memory", error))
    }

    /// Copies the first `bytes` bytes of another buffer of the same device here, from the byte `at` on, when the stream comes to it;
    /// how many.
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

    /// A range of bytes, once all is done that was asked of the device.
    pub(super) fn to_host(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let device = &self.device;
        let failed = |error| device.failed("copying from the device", error);
        let Some(view) = self.view(range.start, range.end) else {
            return internal_err!("{range:?} of a buffer of {} bytes", self.bytes);
        };
        let bytes = device.stream.clone_dtoh(&view).map_err(failed)?;
        device.synchronize("copying from the device")?;
        Ok(bytes)
    }

    /// The number at the byte `at`, once all is done that was asked of the device.
    pub(super) fn number(&self, at: usize) -> Result<u64> {
        let numbers = self.to_host(at..at + size_of::<u64>())?;
        Ok(numbers
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// A buffer with these numbers; this crate may then hold `limit` bytes of the device's memory. Waits for the device.
    pub(super) fn sent<T: NoUninit>(
        device: &Arc<Device>,
        numbers: &[T],
        limit: Option<u64>,
        report: &mut Report,
    ) -> Result<Self> {
        let bytes: &[u8] = bytemuck::cast_slice(numbers);
        let mut buffer = device.allocate(bytes.len(), limit)?;
        if !bytes.is_empty() {
            buffer.fill(bytes)?;
        }
        report.bytes_to_device += bytes.len() as u64;
        Ok(buffer)
    }

    /// Copies `host` to the buffer's front; when this returns, `host` is free again.
    pub(super) fn fill(&mut self, host: &[u8]) -> Result<()> {
        let device = Arc::clone(&self.device);
        let Some(mut to) = self.view_mut(0, host.len()) else {
            return internal_err!("{} bytes for a buffer of {}", host.len(), self.bytes);
        };
        let copied = device.stream.memcpy_htod(host, &mut to);
        copied.map_err(|error| device.failed("copying to the device", error))?;
        device.synchronize("copying to the device")
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(slice) = self.slice.take() {
            self.device.keep_memory(slice);
        }
        self.device.give_back(self.bytes as u64);
    }
}

/// Host memory that the device reads and writes itself.
#[derive(Debug)]
pub(super) struct PageLocked {
    memory: PinnedHostSlice<u8>,
    device: Arc<Device>,
}

impl PageLocked {
    /// To be read by the processor too, and by kernels of all devices.
    pub(super) fn try_new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        Self::with_flags(
            device,
            bytes,
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
        )
    }

    #[allow(unsafe_code, reason = "memory that nothing was written to")]
    pub(super) fn with_flags(device: &Arc<Device>, bytes: usize, flags: u32) -> Result<Self> {
        // SAFETY: bytes have no invalid value: what is read without having been written is any bytes.
        let memory = unsafe { device.context.alloc_pinned_with_flags(bytes, flags) };
        Ok(Self {
            memory: memory.map_err(|error| device.failed("allocating page-locked memory", error))?,
            device: Arc::clone(device),
        })
    }

    /// At least `bytes` bytes, whatever is in them.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<()> {
        if self.memory.len() < bytes {
            *self = Self::try_new(&self.device, bytes)?;
        }
        Ok(())
    }

    /// Where kernels of all devices find it: where it is, as the oldest driver has one space of addresses.
    pub(super) fn address(&self) -> Result<u64> {
        Ok(self.bytes()?.as_ptr() as u64)
    }

    /// What is there. The caller has waited for the stream.
    pub(super) fn bytes(&self) -> Result<&[u8]> {
        let bytes = self.memory.as_slice();
        bytes.map_err(|error| self.device.failed("reading page-locked memory", error))
    }

    /// The same, to write to.
    pub(super) fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let device = Arc::clone(&self.device);
        let bytes = self.memory.as_mut_slice();
        bytes.map_err(|error| device.failed("writing page-locked memory", error))
    }

    /// Has a range copied to the buffer, from its byte `at` on. Until the stream was waited for, the range stays as it is.
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

    /// Has a range of the buffer copied to the front. Not to be looked at until the stream was waited for.
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
