//! Where the rounds of an executor run: on its own device, whatever the client's `quantiles.device` says of the client's.

#[cfg(feature = "cuda")]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Partitions that each device works on.
    #[cfg(feature = "cuda")]
    places: Arc<Places>,
    /// Most bytes of a device's memory, whatever clients allow.
    #[cfg(feature = "cuda")]
    limit: Option<u64>,
    /// Whether the CPU takes over.
    #[cfg(feature = "cuda")]
    falls_back: bool,
}

impl RoundDevice {
    /// The device that `choice` names: `cuda` and `cuda:all` are all devices of this machine, `cuda:N` is one of them, `auto` all, or
    /// the CPU where there are none.
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

    /// On these devices.
    #[cfg(feature = "cuda")]
    pub fn on(devices: Vec<Arc<Device>>, falls_back: bool) -> Self {
        Self {
            places: Arc::new(Places::new(devices.len())),
            devices,
            limit: None,
            falls_back,
        }
    }

    /// This device with a limit: the process holds `limit` bytes of each device's memory at most, also where a client allows more.
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

    /// Has tasks of sessions of this configuration run on this device.
    pub fn give(self, config: &mut SessionConfig) {
        config.set_extension(std::sync::Arc::new(self));
    }
}

/// How many partitions each device works on.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct Places(Mutex<Vec<usize>>);

#[cfg(feature = "cuda")]
impl Places {
    fn new(devices: usize) -> Self {
        Self(Mutex::new(vec![0; devices]))
    }

    fn running(&self) -> MutexGuard<'_, Vec<usize>> {
        // A number is changed in one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place on the device with the fewest partitions, of these the one with the least burden; `None`: there are no devices.
    fn take<B: Ord>(self: &Arc<Self>, burden: impl Fn(usize) -> B) -> Option<Place> {
        let mut running = self.running();
        let devices = 0..running.len();
        let device = devices.min_by_key(|device| (running[*device], burden(*device)))?;
        running[device] += 1;
        let places = Arc::clone(self);
        Some(Place { places, device })
    }
}

/// A partition's place on a device, until it is dropped.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    device: usize,
}

#[cfg(feature = "cuda")]
impl Drop for Place {
    fn drop(&mut self) {
        self.places.running()[self.device] -= 1;
    }
}

/// The less of two limits; `None`: there is none.
#[cfg(feature = "cuda")]
fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Where the shards of one partition are.
#[derive(Debug)]
pub(super) struct RoundBackend {
    cpu: CpuBackend,
    #[cfg(feature = "cuda")]
    device: Option<OnDevice>,
    #[cfg(feature = "cuda")]
    _place: Option<Place>,
}

#[cfg(feature = "cuda")]
#[derive(Debug)]
enum OnDevice {
    Only(CudaBackend),
    First(OverflowBackend<CpuBackend>),
}

impl RoundBackend {
    /// For a partition of a task.
    #[cfg(feature = "cuda")]
    pub(super) fn of(context: &TaskContext, cpu: CpuBackend) -> Self {
        let placed = context.session_config().get_extension::<RoundDevice>();
        let placed = placed.and_then(|executor| {
            // Numbers of partitions begin anew in each task: they say nothing of which device is free.
            let held = |device: usize| {
                let device = &executor.devices[device];
                (device.check().is_err(), device.held_bytes())
            };
            let place = executor.places.take(held)?;
            Some((executor, place))
        });
        let Some((executor, place)) = placed else {
            return Self::cpu(cpu);
        };
        let client = QuantilesOptions::of(context.session_config().options()).cuda_memory_limit;
        let limit = least(client, executor.limit);
        let device = CudaBackend::new(Arc::clone(&executor.devices[place.device]), limit);
        let device = if executor.falls_back {
            OnDevice::First(OverflowBackend::new(device, cpu.clone()))
        } else {
            OnDevice::Only(device)
        };
        Self {
            cpu,
            device: Some(device),
            _place: Some(place),
        }
    }

    /// Whether a partition's input may be read twice, the second time for the CPU.
    #[cfg(feature = "cuda")]
    pub(super) fn may_read_again(context: &TaskContext) -> bool {
        let device = context.session_config().get_extension::<RoundDevice>();
        device.is_some_and(|device| device.falls_back && !device.devices.is_empty())
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn may_read_again(_context: &TaskContext) -> bool {
        false
    }

    /// Without a device.
    pub(super) fn cpu(cpu: CpuBackend) -> Self {
        Self {
            cpu,
            #[cfg(feature = "cuda")]
            device: None,
            #[cfg(feature = "cuda")]
            _place: None,
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn of(_context: &TaskContext, cpu: CpuBackend) -> Self {
        Self { cpu }
    }

    /// Whether values go to a device, which means calls that wait.
    #[cfg(feature = "cuda")]
    pub(super) fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Whether a device failed whose work the CPU takes over: the input is to be read again.
    #[cfg(feature = "cuda")]
    pub(super) fn has_failed(&self) -> bool {
        matches!(&self.device, Some(OnDevice::First(device)) if device.has_failed())
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn has_failed(&self) -> bool {
        false
    }

    /// A shard, as [`Backend::open`].
    ///
    /// # Errors
    /// The device's own.
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

    /// What a device did, as metrics.
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
        let places = Arc::new(Places::new(3));
        let take = || places.take(|_| 0).unwrap();
        // Tasks of one partition each.
        let mut taken: Vec<_> = (0..6).map(|_| take()).collect();
        let devices: Vec<_> = taken.iter().map(|place| place.device).collect();
        assert_eq!(devices, [0, 1, 2, 0, 1, 2]);
        // What ends makes room, wherever it was.
        drop(taken.remove(4));
        assert_eq!(take().device, 1);
        drop(taken);
        assert_eq!(*places.running(), [0, 0, 0]);
        // Of devices with nothing to do, that which holds least.
        assert_eq!(places.take(|device| [7, 5, 6][device]).unwrap().device, 1);
        assert!(Arc::new(Places::new(0)).take(|_| 0).is_none());
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
