//! The way of bytes between a device and host memory.
//!
//! The driver copies to and from ordinary memory at 4 GB/s on the host of an H200, and to and from page-locked memory at the speed of the
//! bus. So many bytes go through page-locked memory, in stages of half a MiB: the device copies with one while the host copies with another.
//! What comes from the device goes to new memory, whose pages the system clears when they are first written to, at 4 GB/s too. So several
//! threads copy at a time.

use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use bytemuck::{NoUninit, Pod};
use cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::idle::{IdleStage, IdleWatch};
use super::report::Report;
use super::stage::Stage;
use crate::threads::{Stop, scoped_map};

/// Bytes of a stage. To allocate all of them takes about a millisecond.
const STAGE: usize = 512 << 10;
/// Least number of bytes for which the stages are worth while.
const LEAST: usize = 1 << 20;
/// Least number of bytes from the device for each thread.
const LEAST_PART: usize = 1 << 20;
/// Most threads that copy at a time. Each has two stages.
const MOST_THREADS: usize = 4;

/// The right of one copy to the stages of a device. Other copies wait until it is dropped: they share one stream.
struct Stages<'a> {
    device: &'a Arc<Device>,
    idle: MutexGuard<'a, Vec<IdleStage>>,
    /// The stages of each thread.
    stages: Vec<[Stage; 2]>,
}

impl<'a> Stages<'a> {
    /// The stages for so many threads.
    fn lock(device: &'a Arc<Device>, threads: usize) -> Result<Self> {
        let mut idle = device.lock_transfer_stages();
        let stage = |idle: Option<IdleStage>| match idle {
            Some(idle) => Ok(Stage::over(device, idle)),
            None => Stage::try_new(device, STAGE, CU_MEMHOSTALLOC_PORTABLE),
        };
        let mut stages = Vec::with_capacity(threads);
        for _ in 0..threads {
            stages.push([stage(idle.pop())?, stage(idle.pop())?]);
        }
        Ok(Self { device, idle, stages })
    }

    /// Copies the bytes of `from` from the byte `at` on to all of `host`.
    fn read(&mut self, from: &DeviceBuffer, at: usize, host: &mut [u8]) -> Result<()> {
        let share = host.len().div_ceil(self.stages.len());
        let parts = host.chunks_mut(share).zip(&mut self.stages).enumerate();
        let parts: Vec<_> = parts.collect();
        scoped_map(
            parts.len(),
            parts,
            &Stop::default(),
            |(index, (host, stages)), _| read_part(stages, from, at + index * share, host),
        )?;
        Ok(())
    }

    /// Copies `host` to the front of `to`, and waits for the copy.
    fn write(&mut self, host: &[u8], to: &DeviceBuffer) -> Result<()> {
        let Some(stages) = self.stages.first_mut() else {
            return internal_err!("a copy without stages");
        };
        for (index, chunk) in host.chunks(STAGE).enumerate() {
            let stage = &mut stages[index % 2];
            if index >= 2 {
                stage.wait(self.device)?;
            }
            stage.memory.bytes_mut()?[..chunk.len()].copy_from_slice(chunk);
            stage.memory.send(0..chunk.len(), to, index * STAGE)?;
            stage.mark(self.device)?;
        }
        self.device.synchronize("copying to the device")
    }
}

impl Drop for Stages<'_> {
    fn drop(&mut self) {
        // After a failure copies with the stages can be under way. A fault here is reported by another call.
        if self.device.stream.synchronize().is_ok() {
            let stages = self.stages.drain(..).flatten();
            self.idle.extend(stages.map(Stage::into_idle));
            IdleWatch::used(self.device);
        }
    }
}

/// Copies the bytes of `from` from the byte `at` on to all of `host`.
fn read_part(stages: &mut [Stage; 2], from: &DeviceBuffer, mut at: usize, host: &mut [u8]) -> Result<()> {
    let device = from.device();
    let mut fetched: Option<(usize, &mut [u8])> = None;
    for (index, chunk) in host.chunks_mut(STAGE).enumerate() {
        let stage = &mut stages[index % 2];
        stage.memory.fetch(from, at..at + chunk.len())?;
        stage.mark(device)?;
        at += chunk.len();
        if let Some((other, chunk)) = fetched.replace((index % 2, chunk)) {
            stages[other].empty_to(device, chunk)?;
        }
    }
    match fetched {
        Some((last, chunk)) => stages[last].empty_to(device, chunk),
        None => Ok(()),
    }
}

impl Stage {
    /// Waits for the copy to the stage, and copies its first bytes to all of `host`.
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
            return Stages::lock(device, threads)?.read(self, at, host);
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
            return Stages::lock(&device, 1)?.write(host, self);
        }
        let Some(mut to) = self.view_mut(0, host.len()) else {
            return internal_err!("a buffer of {} bytes without memory", self.len());
        };
        let copied = device.stream.memcpy_htod(host, &mut to);
        copied.map_err(|error| device.failed("copying to the device", error))?;
        device.synchronize("copying to the device")
    }
}
