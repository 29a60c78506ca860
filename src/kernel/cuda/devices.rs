//! The devices that a session uses.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::execution::config::SessionConfig;

use super::Device;
use crate::config::DeviceChoice;

/// Devices of this machine by their numbers, or devices that are open.
#[derive(Debug, Clone)]
pub(crate) enum Devices {
    /// Numbers of devices, as this machine counts them from 0.
    Numbered(Vec<usize>),
    /// Devices that the session was given.
    Given(Vec<Arc<Device>>),
}

/// The devices of one session, in place of all devices of the machine.
#[derive(Debug)]
struct SessionDevices(Vec<Arc<Device>>);

impl Devices {
    /// Has sessions of this configuration use `devices` alone.
    pub(crate) fn give(config: &mut SessionConfig, devices: Vec<Arc<Device>>) {
        config.set_extension(Arc::new(SessionDevices(devices)));
    }

    /// All devices for `cuda:all`, device N for `cuda:N`, and the first device for other choices.
    pub(crate) fn of(device: DeviceChoice, config: &SessionConfig) -> Self {
        if let Some(given) = config.get_extension::<SessionDevices>() {
            let devices = given.0.iter();
            return Self::Given(match device {
                DeviceChoice::CudaAll => devices.cloned().collect(),
                DeviceChoice::Cuda(Some(number)) => devices.skip(number).take(1).cloned().collect(),
                DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(None) => {
                    devices.take(1).cloned().collect()
                }
            });
        }
        Self::Numbered(match device {
            // If they cannot be counted, opening the first one says why.
            DeviceChoice::CudaAll => (0..Device::count().unwrap_or(1).max(1)).collect(),
            DeviceChoice::Cuda(Some(number)) => vec![number],
            DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(None) => vec![0],
        })
    }

    /// Whether `device`, which the user calls `cuda:ordinal`, is one of these devices.
    pub(crate) fn has(&self, device: &Arc<Device>, ordinal: usize) -> bool {
        match self {
            Self::Numbered(_) => device.ordinal() == ordinal,
            Self::Given(devices) => devices.iter().any(|own| Arc::ptr_eq(own, device)),
        }
    }

    /// The devices, at least one.
    ///
    /// # Errors
    /// An execution error that says why one of them cannot be used.
    pub(crate) fn open(&self) -> Result<Vec<Arc<Device>>> {
        match self {
            Self::Numbered(numbers) => numbers.iter().map(|number| Device::get(*number)).collect(),
            Self::Given(devices) if devices.is_empty() => exec_err!("the session was given no such device"),
            Self::Given(devices) => Ok(devices.clone()),
        }
    }
}

impl Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<usize> = match self {
            Self::Numbered(numbers) => numbers.clone(),
            Self::Given(devices) => devices.iter().map(|device| device.ordinal()).collect(),
        };
        let shown: Vec<_> = numbers.iter().map(|number| format!("cuda:{number}")).collect();
        f.write_str(&shown.join("+"))
    }
}
