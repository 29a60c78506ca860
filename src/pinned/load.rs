//! The upload of the columns of a table to devices.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, TableReference, exec_err, internal_err, plan_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream_partitioned};
use datafusion::prelude::{Expr, SessionContext};

use super::columns::{PinnedColumn, all_columns, check, pinnable};
use super::compile::compile_ahead;
use crate::exec::{PinnedShare, PinnedSource, PinnedTable};
use crate::kernel::cuda::{ColumnUpload, Device, Devices, Staging};
use crate::threads::{Batches, fed, partitions_in_order};

/// Reads `columns` of `table`, or all that can be pinned, and uploads them to devices, partition by partition. The other value has all columns of
/// the table.
///
/// # Errors
/// See [`pin_table`](super::pin_table) and [`pin_all_columns`](super::pin_all_columns).
pub(super) async fn load(
    ctx: &SessionContext,
    table: TableReference,
    columns: Option<&[&str]>,
    devices: Devices,
    limit: Option<u64>,
) -> Result<(PinnedTable, Vec<PinnedColumn>)> {
    let frame = ctx.table(table.clone()).await?;
    let source = Arc::new(PinnedSource::find(ctx, table.clone()).await?);
    let schema = frame.schema().as_arrow().clone();
    let mut all = all_columns(&schema);
    let is_whole_table = columns.is_none();
    let mut columns: Vec<String> = match columns {
        Some(columns) => {
            check(&table, &schema, columns)?;
            columns.iter().map(|name| (*name).to_owned()).collect()
        }
        None => pinnable(&table, &all)?,
    };
    let chosen: Vec<_> = columns
        .iter()
        .map(|name| Expr::Column(datafusion::common::Column::from_name(name)))
        .collect();
    let plan = frame.select(chosen)?.create_physical_plan().await?;
    if plan.boundedness().is_unbounded() {
        return plan_err!("table {table} cannot be pinned: it is endless");
    }
    let types: Vec<_> = plan
        .schema()
        .fields()
        .iter()
        .map(|field| field.data_type().clone())
        .collect();
    let (devices, mut parts) = upload(ctx, plan, types, devices, limit).await?;
    let refused = refusals(&parts);
    if is_whole_table {
        leave_out(&mut parts, &refused);
        for (number, refusal) in refused.iter().rev() {
            let name = columns.remove(*number);
            let column = all.iter_mut().find(|column| column.name == name);
            column
                .into_iter()
                .for_each(|column| column.left_out = Some(refusal.clone()));
        }
        // An error if no column is left.
        pinnable(&table, &all)?;
    } else if let Some((number, refusal)) = refused.first() {
        return exec_err!(
            "column {} of table {table} cannot be pinned: {refusal}",
            columns[*number]
        );
    }
    let shares = shares(devices.len(), parts).await?;
    Ok((PinnedTable::try_new(source, columns, shares)?, all))
}

/// Uploads the rows of a plan, partition by partition, to all devices in turn. Returns the devices, and what went to them.
async fn upload(
    ctx: &SessionContext,
    plan: Arc<dyn ExecutionPlan>,
    types: Vec<DataType>,
    devices: Devices,
    limit: Option<u64>,
) -> Result<(Vec<Arc<Device>>, Vec<UploadedRows>)> {
    let task = ctx.task_ctx();
    let shards = task.session_config().target_partitions().max(1);
    let memory = MemoryConsumer::new("PIN TABLE").register(task.memory_pool());
    let mut shares: Vec<Vec<_>> = Vec::new();
    for (number, stream) in execute_stream_partitioned(plan, task)?.into_iter().enumerate() {
        match shares.get_mut(number % shards) {
            Some(share) => share.push(stream),
            None => shares.push(vec![stream]),
        }
    }
    if shares.is_empty() {
        shares.push(Vec::new());
    }
    let opened = SpawnedTask::spawn_blocking(move || devices.open()).join().await;
    let devices = opened.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))??;
    compile_ahead(&devices, &types);
    let types: Arc<[DataType]> = types.into();
    let uploads = shares.into_iter().enumerate().map(|(number, share)| {
        let target = UploadTarget {
            types: Arc::clone(&types),
            device: Arc::clone(&devices[number % devices.len()]),
            limit,
        };
        target.read(share, memory.new_empty())
    });
    let parts = partitions_in_order(uploads.collect()).await?;
    Ok((devices, parts))
}

/// The shares of so many devices, to which the parts went in turn; only of those that have a part.
async fn shares(devices: usize, parts: Vec<UploadedRows>) -> Result<Vec<PinnedShare>> {
    let mut shares: Vec<Vec<_>> = (0..devices).map(|_| Vec::new()).collect();
    for (number, part) in parts.into_iter().enumerate() {
        shares[number % devices].push(part);
    }
    let joined = SpawnedTask::spawn_blocking(move || {
        let shares = shares.into_iter().filter(|parts| !parts.is_empty());
        shares.map(join).collect::<Result<Vec<_>>>()
    });
    let shares = joined.join().await;
    shares.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?
}

/// Rows of some partitions on their way to a device.
struct UploadedRows {
    device: Arc<Device>,
    rows: u64,
    columns: Vec<ColumnUpload>,
}

/// The columns, by number and ascending, that cannot be on a device, each with the reason that a value has shown.
fn refusals(parts: &[UploadedRows]) -> Vec<(usize, String)> {
    let count = parts.first().map_or(0, |part| part.columns.len());
    let refusal = |number: usize| {
        let refusal = parts.iter().find_map(|part| part.columns[number].refusal())?;
        Some((number, refusal.to_owned()))
    };
    (0..count).filter_map(refusal).collect()
}

/// Drops these columns.
fn leave_out(parts: &mut [UploadedRows], refused: &[(usize, String)]) {
    for part in parts {
        for (number, _) in refused.iter().rev() {
            part.columns.remove(*number);
        }
    }
}

/// The columns that are uploaded, and the device that they go to.
#[derive(Clone)]
struct UploadTarget {
    types: Arc<[DataType]>,
    device: Arc<Device>,
    limit: Option<u64>,
}

impl UploadTarget {
    /// The rows of `streams`, one stream after the other.
    async fn read(
        self,
        streams: Vec<SendableRecordBatchStream>,
        memory: MemoryReservation,
    ) -> Result<UploadedRows> {
        // Calls into the driver block, so they do not run on a thread of the runtime.
        fed(streams, move |batches| self.copy(batches, &memory)).await
    }

    /// Uploads batches until there are no more. If their source has failed, the caller drops the result.
    fn copy(&self, batches: Batches, memory: &MemoryReservation) -> Result<UploadedRows> {
        let device = Arc::clone(&self.device);
        let staging = Staging::new(&device, memory.new_empty());
        let upload =
            |data_type| ColumnUpload::try_new(&device, data_type, self.limit, memory.new_empty(), &staging);
        let mut columns = self.types.iter().map(upload).collect::<Result<Vec<_>>>()?;
        let mut rows = 0;
        for batch in batches {
            rows += batch.num_rows() as u64;
            for (upload, array) in columns.iter_mut().zip(batch.columns()) {
                upload.append(array)?;
            }
        }
        Ok(UploadedRows {
            device,
            rows,
            columns,
        })
    }
}

/// Joins the rows of several uploads to one device. They come in the same order in every column.
fn join(parts: Vec<UploadedRows>) -> Result<PinnedShare> {
    let Some(device) = parts.first().map(|part| Arc::clone(&part.device)) else {
        return internal_err!("a table of no parts");
    };
    let rows = parts.iter().map(|part| part.rows).sum();
    let mut parts: Vec<_> = parts.into_iter().map(|part| part.columns.into_iter()).collect();
    let mut columns = Vec::new();
    loop {
        let uploads: Vec<_> = parts.iter_mut().filter_map(Iterator::next).collect();
        if uploads.is_empty() {
            return Ok(PinnedShare {
                device,
                rows,
                columns,
            });
        }
        columns.push(Arc::new(ColumnUpload::joined(uploads)?));
    }
}
