//! A table's columns on their way to the card.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, TableReference, plan_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::{ExecutionPlanProperties, execute_stream};
use datafusion::prelude::{Expr, SessionContext};
use futures::StreamExt;
use tokio::sync::mpsc;

use super::{PinnedColumn, PinnedTable};
use crate::kernel::cuda::{Card, ColumnUpload, DeviceColumn};

/// Batches that wait for their copy.
const WAITING: usize = 4;

/// Reads `columns` of `table` to the card `ordinal`.
///
/// # Errors
/// See [`pin_table`](super::pin_table).
pub(super) async fn load(
    ctx: &SessionContext,
    table: TableReference,
    columns: &[&str],
    ordinal: usize,
    limit: Option<u64>,
) -> Result<PinnedTable> {
    let frame = ctx.table(table.clone()).await?;
    let schema = Arc::new(frame.schema().as_arrow().clone());
    check(&table, &schema, columns)?;
    let chosen: Vec<_> = columns
        .iter()
        .map(|name| Expr::Column(datafusion::common::Column::from_name(*name)))
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
    let task = ctx.task_ctx();
    let memory = MemoryConsumer::new("PIN TABLE").register(task.memory_pool());
    let (sender, batches) = mpsc::channel::<RecordBatch>(WAITING);
    // Calls into the driver wait: not on a thread of the runtime.
    let copying = SpawnedTask::spawn_blocking(move || copy(batches, &types, ordinal, limit, &memory));
    let read = async move {
        let mut stream = execute_stream(Arc::clone(&plan), task)?;
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            if batch.num_rows() > 0 && sender.send(batch).await.is_err() {
                // The copying ended: its error is the reason.
                return Ok(());
            }
        }
        sender.send(RecordBatch::new_empty(plan.schema())).await.ok();
        Ok::<_, DataFusionError>(())
    };
    let (read, copied) = futures::future::join(read, copying.join()).await;
    read?;
    let copied = copied.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))??;
    let columns = columns
        .iter()
        .zip(copied.columns)
        .map(|(name, column)| PinnedColumn {
            name: (*name).to_owned(),
            column,
        });
    Ok(PinnedTable {
        name: table.to_string(),
        schema,
        card: copied.card,
        columns: columns.collect(),
        rows: copied.rows,
    })
}

/// Columns on a card.
struct Copied {
    card: Arc<Card>,
    rows: u64,
    columns: Vec<DeviceColumn>,
}

/// Copies batches as they come, until one without rows ends them; if none does, what they come from failed, and the columns
/// are worth nothing.
fn copy(
    mut batches: mpsc::Receiver<RecordBatch>,
    types: &[DataType],
    ordinal: usize,
    limit: Option<u64>,
    memory: &MemoryReservation,
) -> Result<Copied> {
    let card = Card::get(ordinal)?;
    let upload = |data_type| ColumnUpload::try_new(&card, data_type, limit, memory.new_empty());
    let mut uploads = types.iter().map(upload).collect::<Result<Vec<_>>>()?;
    let (mut rows, mut complete) = (0, false);
    while let Some(batch) = batches.blocking_recv() {
        complete = batch.num_rows() == 0;
        rows += batch.num_rows() as u64;
        for (upload, array) in uploads.iter_mut().zip(batch.columns()) {
            upload.append(array)?;
        }
    }
    let columns = match complete {
        true => uploads
            .into_iter()
            .map(ColumnUpload::finish)
            .collect::<Result<Vec<_>>>()?,
        false => Vec::new(),
    };
    Ok(Copied { card, rows, columns })
}

/// The columns exist, once each, and can be on a card.
fn check(table: &TableReference, schema: &Schema, columns: &[&str]) -> Result<()> {
    if columns.is_empty() {
        return plan_err!("no columns to pin of table {table}: name at least one");
    }
    for (i, name) in columns.iter().enumerate() {
        let Ok(field) = schema.field_with_name(name) else {
            let names: Vec<_> = schema
                .fields()
                .iter()
                .map(|field| field.name().as_str())
                .collect();
            return plan_err!(
                "table {table} has no column {name}: there are {}",
                names.join(", ")
            );
        };
        if columns[..i].contains(name) {
            return plan_err!("column {name} of table {table} is named twice");
        }
        if !DeviceColumn::supports(field.data_type()) {
            return plan_err!(
                "column {name} of table {table} cannot be pinned: values of type {} have no key of fixed width; numbers up \
                 to 128 bits, Booleans, dates, times, timestamps and durations have",
                field.data_type()
            );
        }
    }
    Ok(())
}
