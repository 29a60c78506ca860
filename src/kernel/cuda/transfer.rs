//! The way of bytes between a device and host memory.
//!
//! The driver copies to and from ordinary memory at 4 GB/s on the host of an H200, and to and from page-locked memory at the speed of the
//! bus. So many bytes go through page-locked memory, in buffers of half a MiB: the device copies with one while the host copies with another.
//! What comes from the device goes to new memory, whose pages the system clears when they are first written to, at 4 GB/s too. So several
//! threads copy at a time.

use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use bytemuck::{NoUninit, Pod};
use cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::copy_buffer::CopyBuffer;
use super::device::Device;
use super::idle::{IdleCopyBuffer, IdleWatch};
use super::report::Report;
use crate::threads::{Stop, scoped_map};

/// Bytes of a buffer. To allocate all of them takes about a millisecond.
const BUFFER: usize = 512 << 10;
/// Least number of bytes for which the buffers are worth while.
const LEAST: usize = 1 << 20;
/// Least number of bytes from the device for each thread.
const LEAST_PART: usize = 1 << 20;
/// Most threads that copy at a time. Each has two buffers.
const MOST_THREADS: usize = 4;

/// The right of one copy to the buffers of a device. Other copies wait until it is dropped: they share one stream.
struct CopyBuffers<'a> {
    device: &'a Arc<Device>,
    idle: MutexGuard<'a, Vec<IdleCopyBuffer>>,
    /// The buffers of each thread.
    buffers: Vec<[CopyBuffer; 2]>,
}

impl<'a> CopyBuffers<'a> {
    /// The buffers for so many threads.
    fn lock(device: &'a Arc<Device>, threads: usize) -> Result<Self> {
        let mut idle = device.lock_transfer_buffers();
        let buffer = |idle: Option<IdleCopyBuffer>| match idle {
            Some(idle) => Ok(CopyBuffer::over(device, idle)),
            None => CopyBuffer::try_new(device, BUFFER, CU_MEMHOSTALLOC_PORTABLE),
        };
        let mut buffers = Vec::with_capacity(threads);
        for _ in 0..threads {
            buffers.push([buffer(idle.pop())?, buffer(idle.pop())?]);
        }
        Ok(Self {
            device,
            idle,
            buffers,
        })
    }

    /// Copies the bytes of `from` from the byte `at` on to all of `host`.
    fn read(&mut self, from: &DeviceBuffer, at: usize, host: &mut [u8]) -> Result<()> {
        let share = host.len().div_ceil(self.buffers.len());
        let parts = host.chunks_mut(share).zip(&mut self.buffers).enumerate();
        let parts: Vec<_> = parts.collect();
        scoped_map(
            parts.len(),
            parts,
            &Stop::default(),
            |(index, (host, buffers)), _| read_part(buffers, from, at + index * share, host),
        )?;
        Ok(())
    }

    /// Copies `host` to the front of `to`, and waits for the copy.
    fn write(&mut self, host: &[u8], to: &DeviceBuffer) -> Result<()> {
        let Some(buffers) = self.buffers.first_mut() else {
            return internal_err!("a copy without buffers");
        };
        for (index, chunk) in host.chunks(BUFFER).enumerate() {
            let buffer = &mut buffers[index % 2];
            if index >= 2 {
                buffer.wait(self.device)?;
            }
            buffer.memory.bytes_mut()?[..chunk.len()].copy_from_slice(chunk);
            buffer.memory.send(0..chunk.len(), to, index * BUFFER)?;
            buffer.mark(self.device)?;
        }
        self.device.synchronize("copying to the device")
    }
}

impl Drop for CopyBuffers<'_> {
    fn drop(&mut self) {
        // After a failure copies with the buffers can be under way. A fault here is reported by another call.
        if self.device.stream.synchronize().is_ok() {
            let buffers = self.buffers.drain(..).flatten();
            self.idle.extend(buffers.map(CopyBuffer::into_idle));
            IdleWatch::used(self.device);
        }
    }
}

/// Copies the bytes of `from` from the byte `at` on to all of `host`.
fn read_part(
    buffers: &mut [CopyBuffer; 2],
    from: &DeviceBuffer,
    mut at: usize,
    host: &mut [u8],
) -> Result<()> {
    let device = from.device();
    let mut fetched: Option<(usize, &mut [u8])> = None;
    for (index, chunk) in host.chunks_mut(BUFFER).enumerate() {
        let buffer = &mut buffers[index % 2];
        buffer.memory.fetch(from, at..at + chunk.len())?;
        buffer.mark(device)?;
        at += chunk.len();
        if let Some((other, chunk)) = fetched.replace((index % 2, chunk)) {
            buffers[other].empty_to(device, chunk)?;
        }
    }
    match fetched {
        Some((last, chunk)) => buffers[last].empty_to(device, chunk),
        None => Ok(()),
    }
}

impl CopyBuffer {
    /// Waits for the copy to the buffer, and copies its first bytes to all of `host`.
    fn empty_to(&self, device: &Device, host: &mut [u8]) -> Result<()> {
        self.wait(device)?;
        host.copy_from_slice(&self.memory.bytes()?[..host.len()]);
        Ok(())
    }
}

impl DeviceBuffer {
    /// Waits for the stream, and copies the bytes from the byte `at` on to all of `host`.
    pub(super) fn read(&self, at: usize, host: &mut [u8]) -> Result<()> {
        let device = self.device();
        let failed = |error| device.failed("copying from the device", error);
        if host.is_empty() {
            return Ok(());
        }
        let Some(view) = self.view(at, at + host.len()) else {
            return internal_err!("{} bytes at {at} of a buffer of {}", host.len(), self.len());
        };
        if host.len() >= LEAST {
            let threads = (host.len() / LEAST_PART).clamp(1, MOST_THREADS);
            return CopyBuffers::lock(device, threads)?.read(self, at, host);
        }
        device.stream.memcpy_dtoh(&view, host).map_err(failed)?;
        device.synchronize("copying from the device")
    }

    /// Waits for the stream, and returns a range of bytes.
    pub(super) fn to_host(&self, range: Range<usize>) -> Result<Vec<u8>> {
        self.to_numbers(range)
    }

    /// Waits for the stream, and returns the numbers in a range of bytes.
    pub(super) fn to_numbers<T: Pod>(&self, range: Range<usize>) -> Result<Vec<T>> {
        let mut numbers = vec![T::zeroed(); range.len() / size_of::<T>()];
        self.read(range.start, bytemuck::cast_slice_mut(&mut numbers))?;
        Ok(numbers)
    }

    /// Waits for the stream, and returns the number of 64 bits at the byte `at`.
    pub(super) fn number(&self, at: usize) -> Result<u64> {
        let numbers = self.to_host(at..at + size_of::<u64>())?;
        Ok(numbers
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// A new buffer with these numbers. Fails if this crate would then hold more than `limit` bytes of the device's memory. Waits for
    /// the device.
    pub(super) fn from_numbers<T: NoUninit>(
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

    /// Copies `host` to the front of the buffer, and waits for the copy.
    pub(super) fn fill(&mut self, host: &[u8]) -> Result<()> {
        let device = Arc::clone(self.device());
        if host.len() > self.len() {
            return internal_err!("{} bytes for a buffer of {}", host.len(), self.len());
        }
        if host.len() >= LEAST {
            return CopyBuffers::lock(&device, 1)?.write(host, self);
        }
        let Some(mut to) = self.view_mut(0, host.len()) else {
            return internal_err!("a buffer of {} bytes without memory", self.len());
        };
        let copied = device.stream.memcpy_htod(host, &mut to);
        copied.map_err(|error| device.failed("copying to the device", error))?;
        device.synchronize("copying to the device")
    }
}
