//! The device of an executor, on which its rounds run. The client's option `quantiles.device` is about the client's own device, and
//! does not matter here.

#[cfg(feature = "cuda")]
use std::sync::{Arc, Mutex, MutexGuard};

use datafusion::common::{Result, config_err};
use datafusion::execution::TaskContext;
use datafusion::execution::config::SessionConfig;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
#[cfg(feature = "cuda")]
use datafusion::physical_plan::metrics::MetricBuilder;

use crate::config::DeviceChoice;
#[cfg(feature = "cuda")]
use crate::config::QuantilesOptions;
#[cfg(feature = "cuda")]
use crate::kernel::cuda::{CudaBackend, Device, DeviceColumn, OverflowBackend};
use crate::kernel::{Backend, CpuBackend, Shard};
use crate::key::KeySpec;
use crate::threads::locked;

/// The device of a process that runs the rounds of staged plans, such as an executor of a cluster.
///
/// With devices, the keys of a partition lie on one of them while its task runs; partitions take turns. A round's reply is that of
/// the CPU. `auto` goes on with the CPU where a device has no memory left or stops working before anything is on it, with a
/// warning in the log and the metric `cuda_fallback`; `cuda` makes that the task's error. A partition is given the device that works
/// on the fewest partitions of the process, whatever their tasks. Memory of a device is limited by the client's
/// `quantiles.cuda_memory_limit`, and by [`Self::with_memory_limit`].
#[derive(Debug, Clone)]
pub struct RoundDevice {
    #[cfg(feature = "cuda")]
    devices: Vec<Arc<Device>>,
    /// The number of partitions that each device works on.
    #[cfg(feature = "cuda")]
    slots: Arc<DeviceSlots>,
    /// Most bytes of each device's memory, whatever clients allow; `None`: no limit.
    #[cfg(feature = "cuda")]
    limit: Option<u64>,
    /// Whether the CPU takes over where a device fails.
    #[cfg(feature = "cuda")]
    falls_back: bool,
}

impl RoundDevice {
    /// The device that `choice` names. `cuda` and `cuda:all` are all devices of this machine, `cuda:N` is one of them. `auto` is all
    /// of them, or the CPU where there are none.
    ///
    /// # Errors
    /// For `cuda` and `cuda:N` an execution error that says why there is no such device; a configuration error where this program
    /// was built without the feature `cuda`.
    pub fn try_new(choice: DeviceChoice) -> Result<Self> {
        match choice {
            DeviceChoice::Cpu => Ok(Self::cpu()),
            choice => Self::with_devices(choice),
        }
    }

    #[cfg(feature = "cuda")]
    fn cpu() -> Self {
        Self::on(Vec::new(), true)
    }

    #[cfg(not(feature = "cuda"))]
    fn cpu() -> Self {
        Self {}
    }

    #[cfg(not(feature = "cuda"))]
    fn with_devices(choice: DeviceChoice) -> Result<Self> {
        match choice {
            DeviceChoice::Auto => Ok(Self::cpu()),
            choice => config_err!("device {choice}: this program was built without the feature 'cuda'"),
        }
    }

    #[cfg(feature = "cuda")]
    fn with_devices(choice: DeviceChoice) -> Result<Self> {
        let open = || match choice {
            DeviceChoice::Cuda(Some(number)) => Ok(vec![Device::get(number)?]),
            _ => match Device::count()? {
                0 => config_err!("device {choice}: this machine has no device"),
                count => (0..count).map(Device::get).collect(),
            },
        };
        let falls_back = choice == DeviceChoice::Auto;
        match open() {
            Err(error) if falls_back => {
                log::warn!("rounds run on the CPU: {error}");
                Ok(Self::cpu())
            }
            Err(error) => Err(error),
            Ok(devices) => Ok(Self::on(devices, falls_back)),
        }
    }

    /// These devices; no devices mean the CPU. `falls_back`: the CPU takes over where a device fails.
    #[cfg(feature = "cuda")]
    pub fn on(devices: Vec<Arc<Device>>, falls_back: bool) -> Self {
        Self {
            slots: Arc::new(DeviceSlots::new(devices.len())),
            devices,
            limit: None,
            falls_back,
        }
    }

    /// This device with a limit: the process holds at most `limit` bytes of each device's memory, even where a client allows more.
    pub fn with_memory_limit(self, limit: Option<u64>) -> Self {
        #[cfg(feature = "cuda")]
        return Self { limit, ..self };
        #[cfg(not(feature = "cuda"))]
        {
            // There are no devices.
            let _ = limit;
            self
        }
    }

    /// Gives the device to a configuration: tasks of its sessions then run on the device.
    pub fn give(self, config: &mut SessionConfig) {
        config.set_extension(std::sync::Arc::new(self));
    }
}

/// The number of partitions that each device works on, by the device's index.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct DeviceSlots(Mutex<Vec<usize>>);

#[cfg(feature = "cuda")]
impl DeviceSlots {
    fn new(devices: usize) -> Self {
        Self(Mutex::new(vec![0; devices]))
    }

    fn running(&self) -> MutexGuard<'_, Vec<usize>> {
        // A poisoned lock is fine: numbers change in one step.
        locked(&self.0)
    }

    /// A slot on the device with the fewest partitions; of several, on the one with the least burden. `None` if there are no devices.
    fn take<B: Ord>(self: &Arc<Self>, burden: impl Fn(usize) -> B) -> Option<DeviceSlot> {
        let mut running = self.running();
        let devices = 0..running.len();
        let device = devices.min_by_key(|device| (running[*device], burden(*device)))?;
        running[device] += 1;
        let slots = Arc::clone(self);
        Some(DeviceSlot { slots, device })
    }
}

/// A partition's slot on a device, until it is dropped.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct DeviceSlot {
    slots: Arc<DeviceSlots>,
    device: usize,
}

#[cfg(feature = "cuda")]
impl Drop for DeviceSlot {
    fn drop(&mut self) {
        self.slots.running()[self.device] -= 1;
    }
}

/// The lesser of two limits; `None` means no limit.
#[cfg(feature = "cuda")]
fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// The backend of one partition's shards: a device, a device with the CPU behind it, or the CPU.
#[derive(Debug)]
pub(super) struct RoundBackend {
    cpu: CpuBackend,
    #[cfg(feature = "cuda")]
    device: Option<OnDevice>,
    #[cfg(feature = "cuda")]
    _slot: Option<DeviceSlot>,
}

#[cfg(feature = "cuda")]
#[derive(Debug)]
enum OnDevice {
    Only(CudaBackend),
    First(OverflowBackend<CpuBackend>),
}

impl RoundBackend {
    /// The backend for one partition of a task, on the executor's device if it has one.
    #[cfg(feature = "cuda")]
    pub(super) fn of(context: &TaskContext, cpu: CpuBackend) -> Self {
        let given = context.session_config().get_extension::<RoundDevice>();
        let given = given.and_then(|executor| {
            // Partitions are numbered from 0 in each task, so that their numbers do not tell which device is free.
            let held = |device: usize| {
                let device = &executor.devices[device];
                (device.check().is_err(), device.held_bytes())
            };
            let slot = executor.slots.take(held)?;
            Some((executor, slot))
        });
        let Some((executor, slot)) = given else {
            return Self::cpu(cpu);
        };
        let client = QuantilesOptions::of(context.session_config().options()).cuda_memory_limit;
        let limit = least(client, executor.limit);
        let device = CudaBackend::new(Arc::clone(&executor.devices[slot.device]), limit);
        let device = if executor.falls_back {
            OnDevice::First(OverflowBackend::new(device, cpu.clone()))
        } else {
            OnDevice::Only(device)
        };
        Self {
            cpu,
            device: Some(device),
            _slot: Some(slot),
        }
    }

    /// Whether a partition's input may have to be read a second time, for the CPU after a device failed.
    #[cfg(feature = "cuda")]
    pub(super) fn may_read_again(context: &TaskContext) -> bool {
        let device = context.session_config().get_extension::<RoundDevice>();
        device.is_some_and(|device| device.falls_back && !device.devices.is_empty())
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn may_read_again(_context: &TaskContext) -> bool {
        false
    }

    /// The backend of the CPU alone.
    pub(super) fn cpu(cpu: CpuBackend) -> Self {
        Self {
            cpu,
            #[cfg(feature = "cuda")]
            device: None,
            #[cfg(feature = "cuda")]
            _slot: None,
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn of(_context: &TaskContext, cpu: CpuBackend) -> Self {
        Self { cpu }
    }

    /// Whether values go to a device. Calls then block the thread.
    #[cfg(feature = "cuda")]
    pub(super) fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Whether a device failed, and the CPU is to take over: the input must be read again.
    #[cfg(feature = "cuda")]
    pub(super) fn has_failed(&self) -> bool {
        matches!(&self.device, Some(OnDevice::First(device)) if device.has_failed())
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn has_failed(&self) -> bool {
        false
    }

    /// An empty shard for keys of this specification, as [`Backend::open`] gives it.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn open(&self, spec: &KeySpec, memory: MemoryReservation) -> Result<Box<dyn Shard>> {
        #[cfg(feature = "cuda")]
        if DeviceColumn::supports(spec.data_type()) {
            match &self.device {
                Some(OnDevice::Only(device)) => return device.open(spec, memory),
                Some(OnDevice::First(device)) => return device.open(spec, memory),
                None => {}
            }
        }
        self.cpu.open(spec, memory)
    }

    /// Adds the work of the device to the metrics.
    #[cfg(feature = "cuda")]
    pub(super) fn record(&self, metrics: &ExecutionPlanMetricsSet) {
        let (report, fallbacks) = match &self.device {
            None => return,
            Some(OnDevice::Only(device)) => (device.report(), 0),
            Some(OnDevice::First(device)) => (device.report(), usize::from(device.has_overflowed())),
        };
        super::super::on_device::record(&report, metrics);
        MetricBuilder::new(metrics)
            .counter("cuda_fallback", 0)
            .add(fallbacks);
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn record(&self, _metrics: &ExecutionPlanMetricsSet) {}
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_all_tasks_are_spread_over_the_devices() {
        let slots = Arc::new(DeviceSlots::new(3));
        let take = || slots.take(|_| 0).unwrap();
        // Six tasks of one partition each.
        let mut taken: Vec<_> = (0..6).map(|_| take()).collect();
        let devices: Vec<_> = taken.iter().map(|slot| slot.device).collect();
        assert_eq!(devices, [0, 1, 2, 0, 1, 2]);
        // A partition that ends frees its slot on its device.
        drop(taken.remove(4));
        assert_eq!(take().device, 1);
        drop(taken);
        assert_eq!(*slots.running(), [0, 0, 0]);
        // Of idle devices the one with the least burden.
        assert_eq!(slots.take(|device| [7, 5, 6][device]).unwrap().device, 1);
        assert!(Arc::new(DeviceSlots::new(0)).take(|_| 0).is_none());
    }

    #[test]
    fn the_lesser_limit_counts() {
        for (client, own, expected) in [
            (None, None, None),
            (Some(5), None, Some(5)),
            (None, Some(7), Some(7)),
            (Some(5), Some(7), Some(5)),
            (Some(9), Some(7), Some(7)),
        ] {
            assert_eq!(least(client, own), expected);
        }
    }
}
