//! The pinned tables of a session, and the shares of each table in the memory of devices.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use datafusion::arrow::array::ArrayRef;
use datafusion::catalog::Session;
use datafusion::common::{Result, TableReference, internal_err};
use datafusion::logical_expr::TableScan;
use datafusion::prelude::SessionContext;

use super::source::PinnedSource;
use crate::kernel::cuda::{Device, DeviceColumn, Gather, Report};

/// Some rows of a pinned table, in the memory of one device.
#[derive(Debug)]
pub(crate) struct PinnedShare {
    pub(crate) device: Arc<Device>,
    pub(crate) rows: u64,
    /// All pinned columns of the table, with the rows of this share.
    pub(crate) columns: Vec<Arc<DeviceColumn>>,
}

impl PinnedShare {
    /// The values of rows, by their numbers in the share, in pinned columns. It takes at most so many bytes of device memory, if there is a limit,
    /// and says whether to measure the time of each kernel.
    ///
    /// # Errors
    /// `ResourcesExhausted` if device memory ends; an execution error if the device fails.
    pub(in crate::exec) fn fetch(
        &self,
        rows: &[u64],
        columns: &[usize],
        (limit, timed): (Option<u64>, bool),
        report: &mut Report,
    ) -> Result<Vec<ArrayRef>> {
        let gather = Gather::try_new(&self.device, rows, limit, timed, report)?;
        let columns = columns
            .iter()
            .map(|index| gather.values(&self.columns[*index], report));
        columns.collect()
    }
}

/// Pinned columns of one table. They lie on one device, or on several, each with a share of the rows.
#[derive(Debug)]
pub(crate) struct PinnedTable {
    /// The table that the columns were read from.
    pub(crate) source: Arc<PinnedSource>,
    /// Names of the columns.
    names: Vec<String>,
    /// One or more shares.
    shares: Vec<PinnedShare>,
}

impl PinnedTable {
    /// A pinned table with these shares.
    ///
    /// # Errors
    /// An internal error if there is no share.
    pub(crate) fn try_new(
        source: Arc<PinnedSource>,
        names: Vec<String>,
        shares: Vec<PinnedShare>,
    ) -> Result<Self> {
        if shares.is_empty() {
            return internal_err!("a table on no device");
        }
        Ok(Self {
            source,
            names,
            shares,
        })
    }

    /// Names of the columns.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The shares of the rows, one for each device.
    pub(crate) fn shares(&self) -> &[PinnedShare] {
        &self.shares
    }

    /// The share of the first device. It has all rows if the table lies on one device.
    pub(crate) fn first(&self) -> &PinnedShare {
        &self.shares[0]
    }

    /// Whether the table lies on several devices.
    pub(crate) fn is_spread(&self) -> bool {
        self.shares.len() > 1
    }

    /// Bytes of device memory that the columns take.
    pub(crate) fn bytes(&self) -> u64 {
        let columns = self.shares.iter().flat_map(|share| &share.columns);
        columns.map(|column| column.bytes() as u64).sum()
    }

    /// Index of the pinned column with this name.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| own == name)
    }

    /// Name of the pinned column at this index.
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// Whether a pinned column has NULLs, on any device.
    pub(crate) fn has_nulls(&self, index: usize) -> bool {
        self.shares.iter().any(|share| share.columns[index].has_nulls())
    }

    /// The pinned column at this index, on the first device.
    pub(crate) fn column(&self, index: usize) -> &DeviceColumn {
        &self.first().columns[index]
    }
}

/// The pinned tables of one session, or of several that share them, by their full names.
#[derive(Debug)]
pub(crate) struct PinnedTables {
    /// Id of the session. Other sessions can have a copy of its configuration, and so this value, but not its pinned tables.
    session: String,
    tables: Arc<RwLock<BTreeMap<TableReference, Arc<PinnedTable>>>>,
}

impl PinnedTables {
    /// The pinned tables of a session. `None` if it has never pinned one.
    pub(crate) fn of(session: &dyn Session) -> Option<Arc<Self>> {
        let tables = session.config().get_extension::<Self>()?;
        (tables.session == session.session_id()).then_some(tables)
    }

    /// The pinned tables of a session. If it has none yet, it gets an empty list.
    pub(crate) fn of_context(ctx: &SessionContext) -> Arc<Self> {
        let state = ctx.state_ref();
        let mut state = state.write();
        if let Some(tables) = Self::of(&*state) {
            return tables;
        }
        let tables = Arc::new(Self {
            session: state.session_id().to_owned(),
            tables: Arc::default(),
        });
        state.config_mut().set_extension(Arc::clone(&tables));
        tables
    }

    /// Has another session share these tables. Those that it had pinned itself are unpinned.
    pub(crate) fn share_with(&self, other: &SessionContext) {
        let state = other.state_ref();
        let mut state = state.write();
        let shared = Self {
            session: state.session_id().to_owned(),
            tables: Arc::clone(&self.tables),
        };
        state.config_mut().set_extension(Arc::new(shared));
    }

    /// Whether no table is pinned.
    pub(crate) fn is_empty(&self) -> bool {
        self.read(BTreeMap::is_empty)
    }

    /// The pinned table that `scan` reads, if any.
    ///
    /// # Errors
    /// Errors of the catalog.
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

    /// All pinned tables, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<PinnedTable>> {
        self.read(|tables| tables.values().cloned().collect())
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeMap<TableReference, Arc<PinnedTable>>) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a table. Returns the table that was pinned under the same name before.
    pub(crate) fn insert(&self, table: PinnedTable) -> Option<Arc<PinnedTable>> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.insert(table.source.name().clone(), Arc::new(table))
    }

    /// Drops a table, and frees the idle memory of its devices if no other pinned table of the session is there.
    pub(crate) fn release(&self, table: Arc<PinnedTable>) {
        let shares = table.shares().iter();
        let devices: Vec<_> = shares.map(|share| Arc::clone(&share.device)).collect();
        drop(table);
        for device in devices {
            let is_used = self.read(|tables| {
                let mut shares = tables.values().flat_map(|table| &table.shares);
                shares.any(|share| Arc::ptr_eq(&share.device, &device))
            });
            if !is_used {
                // The workspace of a query that runs now is freed some time later.
                device.release_idle();
            }
        }
    }

    pub(crate) fn remove(&self, name: &TableReference) -> Option<Arc<PinnedTable>> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.remove(name)
    }
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
        let other = SessionContext::new();
        tables.share_with(&other);
        assert!(Arc::ptr_eq(
            &PinnedTables::of_context(&other).tables,
            &tables.tables
        ));
        assert!(!is_shared(&other) && is_shared(&one));
    }
}
