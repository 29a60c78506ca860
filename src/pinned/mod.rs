//! Tables pinned in the memory of a device: their columns are read once, and queries over them read only that memory.
//!
//! ```sql
//! PIN TABLE trips (fare, tip);            -- or PIN TABLE trips: all columns that can be pinned
//! SELECT exact_quantiles(fare, [0.5, 0.99]), exact_quantiles(tip, 0.9) FROM trips;   -- on the device
//! SHOW PINNED;
//! UNPIN TABLE trips;
//! ```
//! [`crate::statement::sql`] runs these statements and all others. [`pin_table`], [`pin_all_columns`], [`unpin_table`] and [`pinned_tables`] do the
//! same without SQL.
//!
//! The device computes exact quantiles, `topk_by`, `max_by` and `min_by`, with and without groups, and `ORDER BY` one column, or the distance
//! of vectors from one vector, with a `LIMIT`, if all columns that the query names are pinned. `EXPLAIN` shows whether it does.
//!
//! **A pinned table is a snapshot.** Queries that the device answers see the rows of the moment of pinning, whatever happens to the table
//! afterwards, until it is pinned again or unpinned:
//!
//! | event after pinning | queries answer from |
//! | --- | --- |
//! | rows are inserted, deleted or changed; a file is replaced | the snapshot |
//! | another table is registered under the name | that other table; the snapshot keeps its memory, and the log warns once |
//! | a file that is its own table (`FROM 'trips.parquet'`) is replaced by one of another schema | the new file, with the same warning |
//! | the table is dropped | nothing: there is an error, because the name is unknown. The snapshot keeps its memory until it is unpinned |
//! | `SET quantiles.device = 'cpu'`, or a query that a device cannot answer | the table as it is now |
//! | the device fails, with `quantiles.device = 'auto'` | the table as it is now; the log warns |
//!
//! A session sees only its own pinned tables, unless [`share_pinned_tables`] says otherwise. Its clones and their states are the same session; a session that is made from its
//! configuration or its state has no pinned tables. A view cannot be pinned, but queries of a view use the pinned tables that it reads.
//! `quantiles.cuda_memory_limit` applies to the memory that all sessions of the process hold on the device.

mod columns;
mod compile;
mod load;
mod statement;

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::prelude::SessionContext;

use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::{PinnedTable, PinnedTables, full_name};
#[cfg(feature = "internals")]
use crate::kernel::cuda::Device;
use crate::kernel::cuda::Devices;
use crate::planner::check_runs_here;
pub use columns::PinnedColumn;
pub use compile::compile_kernels;
pub use statement::PinStatement;

/// Lets a session use these devices in place of those of the machine: `cuda:N` means the one with index N.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub fn use_devices(ctx: &SessionContext, devices: Vec<Arc<Device>>) {
    let state = ctx.state_ref();
    let mut state = state.write();
    Devices::give(state.config_mut(), devices);
}

/// Reads `columns` of a table into the memory of a device: the device of `quantiles.device`, or device 0 for `auto` and `cuda`.
///
/// With `cuda:all` the partitions of the table are spread over all devices of the machine. Each device reads its share, for quantiles of
/// groups the shares of the others too. The nearest rows of many queries, and joins, run over the table itself. That is for tables that one
/// device has no room for, and for queries of many ranks or many groups.
///
/// If the table is pinned already, the new columns replace the old ones when all are read. Until then the old ones answer queries, and
/// both take memory; if that is too much, unpin the table first.
///
/// Cost: one read of the columns, with partitions in parallel, and copies to the device through page-locked memory. That takes 4 MiB,
/// reserved in the memory pool, for each of the `target_partitions` partitions that are read at a time. On the device the columns take up to
/// a quarter more than their size. At the end each column in turn takes its size once more, while its pieces are joined.
///
/// # Errors
/// A planning error
///
/// * for a session whose planner does not use pinned tables, such as one that sends its queries to a cluster,
/// * for a view, an endless table, or a table that does not exist,
/// * for a column that does not exist, is named twice, or whose values have no key of fixed width (all types of numbers up to 128 bits,
///   Booleans, dates and times have one) and are no vectors (`FixedSizeList` of `Float16` or `Float32`),
/// * with `quantiles.device = 'cpu'`.
///
/// An execution error that says why there is no device, or that a vector has a NULL component. `ResourcesExhausted` if the device's memory, or `quantiles.cuda_memory_limit`, is
/// too small. After an error the columns that were pinned before stay.
pub async fn pin_table(
    ctx: &SessionContext,
    table: impl Into<TableReference>,
    columns: &[&str],
) -> Result<()> {
    pin(ctx, table.into(), Some(columns)).await.map(drop)
}

/// Reads all columns of a table that can be pinned into the memory of a device, as [`pin_table`]. The answer has all columns of the
/// table, in their order: those that are pinned, and those that are left out, with the reason.
///
/// # Errors
/// As [`pin_table`], and a planning error for a table of which no column can be pinned.
pub async fn pin_all_columns(
    ctx: &SessionContext,
    table: impl Into<TableReference>,
) -> Result<Vec<PinnedColumn>> {
    pin(ctx, table.into(), None).await
}

/// Pins these columns, or all that can be. Returns all columns of the table.
async fn pin(
    ctx: &SessionContext,
    table: TableReference,
    columns: Option<&[&str]>,
) -> Result<Vec<PinnedColumn>> {
    check_runs_here(&ctx.state())?;
    let tables = PinnedTables::of_context(ctx);
    let config = ctx.copied_config();
    let options = QuantilesOptions::of(config.options());
    let table = full_name(&table, &config);
    if options.device == DeviceChoice::Cpu {
        return plan_err!(
            "quantiles.device is 'cpu': PIN TABLE needs a device, allowed are auto, cuda, cuda:N, cuda:all"
        );
    }
    let devices = Devices::of(options.device, &config);
    let (pinned, all) = load::load(ctx, table, columns, devices, options.cuda_memory_limit).await?;
    if let Some(before) = tables.insert(pinned) {
        tables.release(before);
    }
    Ok(all)
}

/// Has the session `other` share the pinned tables of `ctx`, from now on: what one of them pins or unpins, it pins or unpins for both. For
/// servers, whose clients have sessions of their own over the same catalog. A pinned table answers only for the table that it was read
/// from, so a table of the same name in another catalog is not confused with it.
pub fn share_pinned_tables(ctx: &SessionContext, other: &SessionContext) {
    PinnedTables::of_context(ctx).share_with(other);
}

/// Unpins a table. Its memory is freed when no query uses it any more.
///
/// # Errors
/// A planning error that names the table if it is not pinned.
pub fn unpin_table(ctx: &SessionContext, table: impl Into<TableReference>) -> Result<()> {
    let name = full_name(&table.into(), &ctx.copied_config());
    let Some(tables) = PinnedTables::of(&ctx.state()) else {
        return plan_err!("table {name} is not pinned");
    };
    match tables.remove(&name) {
        None => plan_err!("table {name} is not pinned"),
        Some(table) => {
            tables.release(table);
            Ok(())
        }
    }
}

/// The pinned tables of a session, one row for each: `table_name`, `columns` (names, separated by commas), `rows`, `bytes` (of device
/// memory), `device` (such as `cuda:0`, or `cuda:0+cuda:1`) and `device_name`.
///
/// # Errors
/// None in practice.
pub fn pinned_tables(ctx: &SessionContext) -> Result<RecordBatch> {
    let tables = PinnedTables::of(&ctx.state()).map_or_else(Vec::new, |tables| tables.all());
    let text = |of: &dyn Fn(&PinnedTable) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(
            tables.iter().map(|table| of(table)),
        ))
    };
    let number = |of: &dyn Fn(&PinnedTable) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(
            tables.iter().map(|table| of(table)),
        ))
    };
    let devices = |table: &PinnedTable| {
        let devices = table.shares().iter().map(|share| Arc::clone(&share.device));
        Devices::Given(devices.collect()).to_string()
    };
    Ok(RecordBatch::try_from_iter([
        ("table_name", text(&|table| table.source.name().to_string())),
        ("columns", text(&|table| table.names().join(", "))),
        (
            "rows",
            number(&|table| table.shares().iter().map(|share| share.rows).sum()),
        ),
        ("bytes", number(&|table| table.bytes())),
        ("device", text(&devices)),
        (
            "device_name",
            text(&|table| table.first().device.name().to_owned()),
        ),
    ])?)
}
