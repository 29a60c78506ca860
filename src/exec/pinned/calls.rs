//! Calls over pinned columns, and one execution of them on a device.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::table::PinnedTable;
use crate::kernel::cuda::source::ColumnFormat;
use crate::kernel::cuda::{DeviceColumn, Predicate, Report, RowMask, Selection};

/// A pinned column, and which of its rows count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilteredColumn {
    /// Index of the pinned column.
    pub(crate) column: usize,
    /// Which rows count; `None`: all.
    pub(crate) filter: Option<Predicate>,
}

/// Calls over pinned columns, and how a device answers them.
pub(crate) trait PinnedCalls: Debug + Send + Sync {
    /// All rows of the answer, by the device.
    fn batch(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<RecordBatch>;

    /// Pinned columns that are read, each once.
    fn columns(&self) -> Vec<usize>;

    /// What is asked, for `EXPLAIN`.
    fn shown(&self, table: &PinnedTable) -> String;

    /// Whether the device's records have room for the values of these columns, whatever rows a filter leaves.
    ///
    /// # Errors
    /// Those of the device.
    fn fits(&self, _on: &mut OnDevice<'_>) -> Result<bool> {
        Ok(true)
    }

    /// Host memory that grows with what is asked for.
    fn host_bytes(&self, _table: &PinnedTable) -> usize {
        0
    }
}

/// One execution on a device.
pub(crate) struct OnDevice<'a> {
    pub(super) table: &'a PinnedTable,
    /// Most bytes of device memory that this crate may hold.
    pub(super) limit: Option<u64>,
    /// Whether the time of each kernel is wanted.
    pub(super) timed: bool,
    /// Host memory.
    pub(super) memory: MemoryReservation,
    pub(super) report: Report,
    /// The rows of each filter on one of the table's devices: several columns may have the same.
    masks: Vec<(usize, Predicate, Arc<RowMask>)>,
    /// How each column was selected, where that was in rounds, and in how many.
    pub(super) rounds: Vec<(&'static str, usize)>,
}

impl<'a> OnDevice<'a> {
    pub(super) fn new(
        table: &'a PinnedTable,
        limit: Option<u64>,
        timed: bool,
        memory: MemoryReservation,
    ) -> Self {
        Self {
            table,
            limit,
            timed,
            memory,
            report: Report::default(),
            masks: Vec::new(),
            rounds: Vec::new(),
        }
    }

    pub(super) fn column(&self, index: usize) -> &'a DeviceColumn {
        self.table.column(index)
    }

    /// A question to the rows of a column, to those of `mask` where it is given.
    pub(super) fn among<'b, M: Borrow<RowMask>>(
        &self,
        column: &'b DeviceColumn,
        format: ColumnFormat,
        mask: Option<&'b (M, u64)>,
    ) -> Selection<'b> {
        Selection {
            column,
            format,
            mask: mask.map(|(mask, kept)| (mask.borrow().bits(), *kept)),
            limit: self.limit,
            timed: self.timed,
        }
    }

    /// The rows of a filter, and how many of them are not NULL in `column`.
    pub(super) fn kept(
        &mut self,
        filter: Option<&Predicate>,
        column: &DeviceColumn,
    ) -> Result<Option<(Arc<RowMask>, u64)>> {
        self.kept_of(0, filter, column)
    }

    /// The same of the rows that are on one of the table's devices.
    pub(super) fn kept_of(
        &mut self,
        share: usize,
        filter: Option<&Predicate>,
        column: &DeviceColumn,
    ) -> Result<Option<(Arc<RowMask>, u64)>> {
        let Some(filter) = filter else {
            return Ok(None);
        };
        let mut masks = self.masks.iter();
        let known = masks.find(|(of, other, _)| *of == share && other == filter);
        let mask = match known {
            Some((_, _, mask)) => Arc::clone(mask),
            None => {
                let columns = self.table.shares()[share].columns.iter().map(Arc::as_ref);
                let columns: Vec<_> = columns.collect();
                let mask = Arc::new(RowMask::evaluate(filter, &columns, self.limit, &mut self.report)?);
                self.masks.push((share, filter.clone(), Arc::clone(&mask)));
                mask
            }
        };
        let kept = mask.count(column, self.limit, &mut self.report)?;
        Ok(Some((mask, kept)))
    }
}

/// Each once, as they come.
pub(super) fn distinct(columns: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut all = Vec::new();
    columns.for_each(|column| {
        if !all.contains(&column) {
            all.push(column);
        }
    });
    all
}
