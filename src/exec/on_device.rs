//! Uploads of columns: values are copied to a device while they are read, and selected there when all have arrived.
//!
//! Each partition fills page-locked memory of its own. The copies overlap with its reading and with those of other partitions. The
//! device holds the values in pieces, which are joined before the selection. Cost: the scan, and the copy, which runs at up to
//! 55 GB/s if the scan reads nothing but memory. So an upload pays only for values in memory: values that have to be decoded arrive
//! at a tenth of that rate, and the CPU selects faster than they arrive. Therefore `quantiles.device = 'cuda'` uploads, `auto` never.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::{cast, filter};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};

use super::aggregate::KeyColumn;
use super::device_shards::{Limits, Share, solve_on_devices};
use crate::config::StrategyName;
use crate::kernel::cuda::{ColumnUpload, Device, DeviceColumn, Devices, Report, SharedStaging, Staging};
use crate::key::KeySpec;
use crate::quantile::QuantileSpec;
use crate::select::Solution;
use crate::threads::blocking;

/// The devices that columns are sent to; partitions take them in turns.
#[derive(Debug, Clone)]
pub(crate) struct UploadChoice {
    pub(crate) devices: Devices,
    /// Bytes of each device's memory that this crate may hold; `None`: no limit.
    pub(crate) limit: Option<u64>,
}

impl Display for UploadChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.devices.fmt(f)
    }
}

/// Whether the column can be selected on a device: it has keys of fixed width, and its calls are exact and over all values.
pub(super) fn is_for_device(column: &KeyColumn) -> bool {
    column.bytes.is_none()
        && !column.distinct
        && column.buckets.is_none()
        && !column.counts
        && !column.fences
        && DeviceColumn::supports(column.spec.data_type())
}

/// Open devices that columns are sent to.
#[derive(Debug)]
pub(super) struct OpenDevices {
    devices: Vec<Arc<Device>>,
    limit: Option<u64>,
}

impl OpenDevices {
    /// Opens the devices.
    ///
    /// # Errors
    /// An execution error that says why there is no such device.
    pub(super) async fn open(choice: &UploadChoice) -> Result<Self> {
        let (devices, limit) = (choice.devices.clone(), choice.limit);
        let devices = blocking(move || devices.open()).await?;
        Ok(Self { devices, limit })
    }

    /// The page-locked memory through which one partition sends its columns to its device.
    pub(super) fn staging(&self, partition: usize, memory: MemoryReservation) -> SharedStaging {
        Staging::new(&self.devices[partition % self.devices.len()], memory)
    }

    /// An upload of one partition's values of a column, without values yet.
    ///
    /// # Errors
    /// A planning error for a type that a device cannot hold.
    pub(super) fn column(
        &self,
        column: &KeyColumn,
        partition: usize,
        memory: MemoryReservation,
        staging: &SharedStaging,
    ) -> Result<ColumnUpload> {
        let device = &self.devices[partition % self.devices.len()];
        ColumnUpload::try_new(device, column.spec.data_type(), self.limit, memory, staging)
    }
}

/// Sends the values of the rows where `passed` is true; all if it is `None`.
///
/// # Errors
/// `ResourcesExhausted` where memory of the device ends; an execution error if the device fails.
pub(super) fn send(
    upload: &mut ColumnUpload,
    values: &ArrayRef,
    passed: Option<&BooleanArray>,
) -> Result<()> {
    let filtered = passed.map(|passed| filter(values.as_ref(), passed)).transpose()?;
    let values = filtered.as_ref().unwrap_or(values);
    if values.data_type() == upload.data_type() {
        return upload.append(values.as_ref());
    }
    // A dictionary is sent as its values.
    upload.append(cast(values.as_ref(), upload.data_type())?.as_ref())
}

/// Finds the order statistics that `quantile_specs` want of a column that all partitions have sent. Also returns what the devices did.
///
/// # Errors
/// `ResourcesExhausted` where memory of the device ends; an execution error if the device fails.
pub(super) async fn solve(
    uploads: Vec<ColumnUpload>,
    spec: KeySpec,
    quantile_specs: Vec<QuantileSpec>,
    limit: Option<u64>,
    strategy: StrategyName,
    memory: MemoryReservation,
) -> Result<(Solution, Report)> {
    blocking(move || {
        let mut report = Report::default();
        let shares = on_each_device(uploads).into_iter().map(|uploads| {
            let column = Arc::new(ColumnUpload::joined(uploads)?);
            report.bytes_to_device += column.bytes() as u64;
            Ok(Share { column, mask: None })
        });
        let shares = shares.collect::<Result<Vec<_>>>()?;
        let quantile_specs: Vec<&QuantileSpec> = quantile_specs.iter().collect();
        let limits = Limits {
            device: limit,
            memory: &memory,
            timed: false,
        };
        let solution = solve_on_devices(&shares, &spec, strategy, &quantile_specs, limits, &mut report)?;
        Ok((solution, report))
    })
    .await
}

/// The uploads by device.
fn on_each_device(uploads: Vec<ColumnUpload>) -> Vec<Vec<ColumnUpload>> {
    let mut shares: Vec<Vec<ColumnUpload>> = Vec::new();
    for upload in uploads {
        let of_device = |share: &&mut Vec<ColumnUpload>| Arc::ptr_eq(share[0].device(), upload.device());
        match shares.iter_mut().find(of_device) {
            Some(share) => share.push(upload),
            None => shares.push(vec![upload]),
        }
    }
    shares
}

/// Adds what devices did to the metrics of an operator.
pub(super) fn record(report: &Report, metrics: &ExecutionPlanMetricsSet) {
    let count = |name: &'static str, n: usize| MetricBuilder::new(metrics).counter(name, 0).add(n);
    count("kernels", report.kernels);
    count("bytes_read", report.bytes_read as usize);
    count("bytes_to_device", report.bytes_to_device as usize);
    count("bytes_from_device", report.bytes_from_device as usize);
    count("second_reads", report.second_reads);
    count("deepened", report.deepened);
    let time = |name: String, time| {
        MetricBuilder::new(metrics)
            .subset_time(name, 0)
            .add_duration(time)
    };
    time("device_time".to_owned(), report.device_time);
    for (kernel, elapsed) in &report.kernel_times {
        time(format!("{kernel}_time"), *elapsed);
    }
}
