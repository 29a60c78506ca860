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
mod source;
mod statement;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use datafusion::catalog::Session;
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::execution::config::SessionConfig;
use datafusion::logical_expr::TableScan;
use datafusion::prelude::SessionContext;

use crate::config::{DeviceChoice, QuantilesOptions};
use crate::kernel::cuda::{Device, DeviceColumn, Devices};
use crate::planner::check_runs_here;
pub(crate) use source::PinnedSource;
pub use statement::{PinStatement, sql};

/// Some rows of a pinned table, in the memory of one device.
#[derive(Debug)]
pub(crate) struct PinnedShare {
    pub(crate) device: Arc<Device>,
    pub(crate) rows: u64,
    /// Every pinned column of the table.
    pub(crate) columns: Vec<Arc<DeviceColumn>>,
}

/// Columns of one table in the memory of one device, or of several, each of which has a share of the rows.
#[derive(Debug)]
pub(crate) struct PinnedTable {
    /// The table whose columns these are.
    pub(crate) source: Arc<PinnedSource>,
    /// Of the columns.
    names: Vec<String>,
    /// At least one.
    shares: Vec<PinnedShare>,
}

impl PinnedTable {
    /// What each device has.
    pub(crate) fn shares(&self) -> &[PinnedShare] {
        &self.shares
    }

    /// What the first device has: all rows, where the table is not spread.
    pub(crate) fn first(&self) -> &PinnedShare {
        &self.shares[0]
    }

    /// Whether it lies on several devices.
    pub(crate) fn is_spread(&self) -> bool {
        self.shares.len() > 1
    }

    fn bytes(&self) -> u64 {
        let columns = self.shares.iter().flat_map(|share| &share.columns);
        columns.map(|column| column.bytes() as u64).sum()
    }

    /// Index of a pinned column.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| own == name)
    }

    /// Name of the pinned column at an index.
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// The pinned column at an index, on the first device.
    pub(crate) fn column(&self, index: usize) -> &DeviceColumn {
        &self.first().columns[index]
    }
}

/// The pinned tables of one session, by their full names.
#[derive(Debug)]
pub(crate) struct PinnedTables {
    /// The session's id: configurations are copied from session to session.
    session: String,
    tables: RwLock<BTreeMap<TableReference, Arc<PinnedTable>>>,
}

impl PinnedTables {
    /// The session's; `None`: it has not pinned any.
    pub(crate) fn of(session: &dyn Session) -> Option<Arc<Self>> {
        let tables = session.config().get_extension::<Self>()?;
        (tables.session == session.session_id()).then_some(tables)
    }

    /// The session's, which it has from now on.
    fn of_context(ctx: &SessionContext) -> Arc<Self> {
        let state = ctx.state_ref();
        let mut state = state.write();
        if let Some(tables) = Self::of(&*state) {
            return tables;
        }
        let tables = Arc::new(Self {
            session: state.session_id().to_owned(),
            tables: RwLock::default(),
        });
        state.config_mut().set_extension(Arc::clone(&tables));
        tables
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.read(BTreeMap::is_empty)
    }

    /// The table that `scan` reads.
    ///
    /// # Errors
    /// Those of the catalog.
    pub(crate) async fn read_by(
        &self,
        scan: &TableScan,
        session: &dyn Session,
    ) -> Result<Option<Arc<PinnedTable>>> {
        for table in self.all() {
            if table.source.is_read_by(scan, session).await? {
                return Ok(Some(table));
            }
        }
        Ok(None)
    }

    /// All of them, by their names.
    fn all(&self) -> Vec<Arc<PinnedTable>> {
        self.read(|tables| tables.values().cloned().collect())
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeMap<TableReference, Arc<PinnedTable>>) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was there before.
    fn insert(&self, table: PinnedTable) -> Option<Arc<PinnedTable>> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.insert(table.source.name().clone(), Arc::new(table))
    }

    /// Gives back what queries over a table worked in, on devices that no other table is on.
    fn release(&self, table: Arc<PinnedTable>) {
        let shares = table.shares().iter();
        let devices: Vec<_> = shares.map(|share| Arc::clone(&share.device)).collect();
        drop(table);
        for device in devices {
            let is_used = self.read(|tables| {
                let mut shares = tables.values().flat_map(|table| &table.shares);
                shares.any(|share| Arc::ptr_eq(&share.device, &device))
            });
            if !is_used {
                // What a query works in now goes later, by itself.
                device.release_idle();
            }
        }
    }

    fn remove(&self, name: &TableReference) -> Option<Arc<PinnedTable>> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.remove(name)
    }
}

/// A table's name with the defaults of the session filled in.
pub(crate) fn full_name(table: &TableReference, config: &SessionConfig) -> TableReference {
    let catalog = &config.options().catalog;
    let resolved = table
        .clone()
        .resolve(&catalog.default_catalog, &catalog.default_schema);
    TableReference::full(resolved.catalog, resolved.schema, resolved.table)
}

/// Has a session use these devices, in place of all those of the machine: `cuda:N` counts them.
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
        let devices = table.shares.iter().map(|share| Arc::clone(&share.device));
        Devices::Given(devices.collect()).to_string()
    };
    Ok(RecordBatch::try_from_iter([
        ("table_name", text(&|table| table.source.name().to_string())),
        ("columns", text(&|table| table.names.join(", "))),
        (
            "rows",
            number(&|table| table.shares.iter().map(|share| share.rows).sum()),
        ),
        ("bytes", number(&|table| table.bytes())),
        ("device", text(&devices)),
        (
            "device_name",
            text(&|table| table.first().device.name().to_owned()),
        ),
    ])?)
}

#[cfg(test)]
mod tests {
    use datafusion::execution::session_state::SessionStateBuilder;

    use super::*;

    #[test]
    fn pinned_tables_belong_to_one_session() {
        let one = SessionContext::new();
        let tables = PinnedTables::of_context(&one);
        let own = |ctx: &SessionContext| PinnedTables::of(&ctx.state());
        let is_shared = |ctx: &SessionContext| own(ctx).is_some_and(|own| Arc::ptr_eq(&own, &tables));
        assert!(is_shared(&one) && is_shared(&one.clone()));
        assert!(is_shared(&SessionContext::new_with_state(one.state())));
        assert!(is_shared(&one.clone().enable_url_table()));
        let configured = SessionContext::new_with_config(one.copied_config());
        let built = SessionStateBuilder::new_from_existing(one.state()).build();
        let built = SessionContext::new_with_state(built);
        for other in [configured, built] {
            assert!(own(&other).is_none());
            let others = PinnedTables::of_context(&other);
            assert!(!Arc::ptr_eq(&others, &tables) && is_shared(&one));
            assert!(Arc::ptr_eq(&others, &PinnedTables::of_context(&other)));
        }
    }
}
