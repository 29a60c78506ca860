//! Tables pinned in the memory of a device: columns that are read once, so that queries over them read nothing else.
//!
//! ```sql
//! PIN TABLE trips (fare, tip);
//! SELECT exact_quantiles(fare, [0.5, 0.99]), exact_quantiles(tip, 0.9) FROM trips;   -- on the device
//! SHOW PINNED;
//! UNPIN TABLE trips;
//! ```
//! [`sql`] runs these statements and all others; [`pin_table`], [`unpin_table`] and [`pinned_tables`] are the same without
//! SQL.
//!
//! On the device run exact quantiles, `topk_by`, `max_by` and `min_by`, by groups too, and `ORDER BY` a column with a `LIMIT`, where
//! all columns that they name are pinned; `EXPLAIN` shows it.
//!
//! **What is pinned is a snapshot.** Such queries over pinned columns of that table answer as of the moment of pinning,
//! whatever happens to its rows afterwards, until it is pinned again or unpinned:
//!
//! | afterwards | answers |
//! | --- | --- |
//! | rows are inserted, deleted or changed; a file is replaced | those of the snapshot |
//! | another table is registered under the name | those of that table; the snapshot keeps its memory, and the log warns once |
//! | a file that is its own table (`FROM 'trips.parquet'`) is replaced by one of another schema | those of that file, with the same warning |
//! | the table is dropped | an error: the name means nothing. The snapshot keeps its memory until it is unpinned |
//! | `SET quantiles.device = 'cpu'`, or a query that is not answered on a device | those of the table as it is |
//! | the device fails, with `quantiles.device = 'auto'` | those of the table as it is; the log warns |
//!
//! A session sees its own pinned tables only, and its clones and their states are the same session; one that is made from its
//! configuration or its state has none. A view cannot be pinned; queries of it use the tables that it reads. The memory of pinned tables is that of the process: `quantiles.cuda_memory_limit` counts what
//! all its sessions hold on the device.

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
pub use statement::{PinStatement, sql};

/// Has a session use these devices, in place of all those of the machine: `cuda:N` counts them.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub fn use_devices(ctx: &SessionContext, devices: Vec<Arc<Device>>) {
    let state = ctx.state_ref();
    let mut state = state.write();
    Devices::give(state.config_mut(), devices);
}

/// Reads `columns` of a table, which are then in the memory of a device: that of `quantiles.device`, device 0 for `auto` and
/// `cuda`. With `cuda:all` the table's partitions are spread over all devices of the machine; then only exact quantiles without
/// groups run on them, each device reading its share once, and all else over the table itself. That is for tables which one device has
/// no room for, or that are asked for many ranks. A table that is pinned already is replaced when all is read; until then it
/// answers queries, and both take memory: unpin it first where that is too much.
///
/// Cost: one read of the columns, partitions in parallel, and their copies to the device through page-locked memory, 4 MiB for each
/// of `target_partitions` partitions that are read at a time, reserved in the memory pool. On the device the columns take up to a
/// quarter more than their size, and each its own size once more while it is put together, one after the other.
///
/// # Errors
/// A planning error for a session whose planner uses no pinned tables, as one that sends its queries to a cluster, for a
/// view, for a table or column that does not exist, a column that is named twice or whose values have no
/// fixed-width key (all types of numbers up to 128 bits, Booleans, dates and times have), an endless table, or
/// `quantiles.device = 'cpu'`; an execution error that says why there is no device; `ResourcesExhausted` where its memory, or
/// `quantiles.cuda_memory_limit`, is too small. What was pinned before stays.
pub async fn pin_table(
    ctx: &SessionContext,
    table: impl Into<TableReference>,
    columns: &[&str],
) -> Result<()> {
    check_runs_here(&ctx.state())?;
    let tables = PinnedTables::of_context(ctx);
    let config = ctx.copied_config();
    let options = QuantilesOptions::of(config.options());
    let table = full_name(&table.into(), &config);
    if options.device == DeviceChoice::Cpu {
        return plan_err!(
            "quantiles.device is 'cpu': PIN TABLE needs a device, allowed are auto, cuda, cuda:N, cuda:all"
        );
    }
    let devices = Devices::of(options.device, &config);
    let pinned = load::load(ctx, table, columns, devices, options.cuda_memory_limit).await?;
    if let Some(before) = tables.insert(pinned) {
        tables.release(before);
    }
    Ok(())
}

/// Gives the memory of a pinned table back, once no query uses it any more.
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

/// The pinned tables of a session, a row each: `table_name`, `columns` (their names, separated by commas), `rows`, `bytes`
/// (of device memory), `device` (such as `cuda:0`, or `cuda:0+cuda:1`) and `device_name`.
///
/// # Errors
/// None that can occur.
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
