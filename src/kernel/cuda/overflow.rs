//! A shard on a device with a shard on the CPU behind it. The CPU keeps the values that the device has no memory for, and both answer
//! together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::CudaBackend;
use super::column::DeviceColumn;
use super::shard::CudaShard;
use crate::kernel::round::{Reply, Request};
use crate::kernel::{Backend, Shard};
use crate::key::KeySpec;
use crate::memory::is_exhausted;
use crate::threads::Stop;

/// Opens shards on a device. Their values go to shards of `rest` when device memory ends, or when the device does not work.
#[derive(Debug, Clone)]
pub(crate) struct OverflowBackend<B> {
    device: CudaBackend,
    rest: B,
    overflowed: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
}

impl<B: Backend + Clone> OverflowBackend<B> {
    pub(crate) fn new(device: CudaBackend, rest: B) -> Self {
        Self {
            device,
            rest,
            overflowed: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// Whether the device failed with values on it, so that the answer of a shard is missing.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether values went to shards of the other backend.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// The report on its shards on the device.
    pub(crate) fn report(&self) -> super::Report {
        self.device.report()
    }
}

impl<B: Backend + Clone + 'static> Backend for OverflowBackend<B> {
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Shard>> {
        if !DeviceColumn::supports(spec.data_type()) {
            return self.rest.open(spec, reservation);
        }
        let mut shard = OverflowShard {
            device: None,
            rest: None,
            backend: self.clone(),
            spec: spec.clone(),
            reservation: reservation.new_empty(),
        };
        match self.device.open_shard(spec, reservation) {
            Ok(device) => shard.device = Some(device),
            Err(error) => shard.overflow(&error)?,
        }
        Ok(Box::new(shard))
    }
}

/// The values that a device took, and the values that it did not.
struct OverflowShard<B> {
    device: Option<CudaShard>,
    rest: Option<Box<dyn Shard>>,
    backend: OverflowBackend<B>,
    spec: KeySpec,
    /// Host memory for the shard on the CPU.
    reservation: MemoryReservation,
}

impl<B: Backend + Clone> OverflowShard<B> {
    /// Opens a shard on the CPU for the values that the device does not have yet, and for all later ones.
    fn overflow(&mut self, error: &datafusion::common::DataFusionError) -> Result<()> {
        log::warn!("values are selected on the CPU: {error}");
        self.backend.overflowed.store(true, Ordering::Relaxed);
        let mut rest = self.backend.rest.open(&self.spec, self.reservation.new_empty())?;
        if let Some(device) = &mut self.device {
            let (pending, is_empty) = device.take_pending();
            for values in &pending {
                rest.append(values, None)?;
            }
            if is_empty {
                self.device = None;
            }
        }
        self.rest = Some(rest);
        Ok(())
    }

    /// Goes on after a failed copy with a shard on the CPU, if the values on the device are not lost.
    fn recovered(&mut self, error: datafusion::common::DataFusionError) -> Result<()> {
        let Some(device) = &self.device else {
            return Err(error);
        };
        // A device that failed has lost its values.
        if self.rest.is_some() || !(is_exhausted(&error) || device.device_bytes() == 0) {
            self.backend.failed.store(true, Ordering::Relaxed);
            return Err(error);
        }
        self.overflow(&error)
    }
}

impl<B: Backend + Clone> Shard for OverflowShard<B> {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        if let Some(rest) = &mut self.rest {
            return rest.append(values, filter);
        }
        let Some(device) = &mut self.device else {
            return datafusion::common::internal_err!("a shard of nothing");
        };
        if !device.hold(values, filter)? {
            return Ok(());
        }
        // Values that cannot be copied still wait, also those of this call.
        let copied = device.flush();
        copied.or_else(|error| self.recovered(error))
    }

    fn len(&self) -> u64 {
        self.device.as_ref().map_or(0, |device| device.len())
            + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    fn held_bytes(&self) -> usize {
        let device = self.device.as_ref().map_or(0, |device| device.held_bytes());
        device + self.rest.as_ref().map_or(0, |rest| rest.held_bytes())
    }

    fn split(&mut self, _values: u64) -> Option<Box<dyn Shard>> {
        None
    }

    fn spill(&mut self, bytes: usize, stop: &Stop) -> Result<usize> {
        match &mut self.rest {
            Some(rest) => rest.spill(bytes, stop),
            None => Ok(0),
        }
    }

    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply> {
        if let Some(device) = &mut self.device {
            let flushed = device.flush();
            flushed.or_else(|error| self.recovered(error))?;
        }
        let own = self.device.as_mut().map(|device| device.answer(request, stop));
        if let Some(Err(_)) = own {
            self.backend.failed.store(true, Ordering::Relaxed);
        }
        let other = self.rest.as_mut().map(|rest| rest.answer(request, stop));
        match (own.transpose()?, other.transpose()?) {
            (Some(mut own), Some(other)) => {
                own.merge(other)?;
                Ok(own)
            }
            (Some(reply), None) | (None, Some(reply)) => Ok(reply),
            (None, None) => datafusion::common::internal_err!("a shard of nothing"),
        }
    }
}
