//! Calls of functions over pinned columns, and the state of one execution on a device.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::table::{PinnedShare, PinnedTable};
use crate::kernel::cuda::source::ColumnFormat;
use crate::kernel::cuda::{DeviceColumn, OtherShare, Predicate, Report, RowMask, Selection, SpreadGroups};
use crate::key::KeySpec;
use crate::threads::{Stop, scoped_map};

/// A pinned column with a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilteredColumn {
    /// Index of the pinned column.
    pub(crate) column: usize,
    /// The condition for a row to count. `None`: all rows count.
    pub(crate) filter: Option<Predicate>,
}

/// The rows of a share in which a filter holds, and the number of these that are not NULL in some column.
pub(super) type CountedMask = (Arc<RowMask>, u64);

/// The calls of a query over pinned columns, and their computation on a device.
pub(crate) trait PinnedCalls: Debug + Send + Sync {
    /// Computes all rows of the answer on the device.
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>>;

    /// Indices of the pinned columns that are read, each once.
    fn columns(&self) -> Vec<usize>;

    /// The calls as `EXPLAIN` shows them.
    fn shown(&self, table: &PinnedTable) -> String;

    /// Whether the values of these columns fit in the records that the device makes, also without a filter.
    ///
    /// # Errors
    /// Errors of the device.
    fn fits(&self, _on: &mut OnDevice<'_>) -> Result<bool> {
        Ok(true)
    }

    /// Bytes of host memory that the query needs, as far as they depend on the number of rows in its answer.
    fn host_bytes(&self, _table: &PinnedTable) -> usize {
        0
    }
}

/// The state of one execution on the devices of a pinned table, or on one of them.
pub(crate) struct OnDevice<'a> {
    pub(super) table: &'a PinnedTable,
    /// Index of the share whose columns and rows are meant.
    pub(super) share: usize,
    /// Most bytes of device memory that this crate may hold.
    pub(super) limit: Option<u64>,
    /// Whether to measure the time of each kernel.
    pub(super) timed: bool,
    /// Reservation of host memory.
    pub(super) memory: MemoryReservation,
    pub(super) report: Report,
    /// Bitmaps that were computed so far, each with the index of the share and the filter: several columns can have the same filter.
    masks: Vec<(usize, Predicate, Arc<RowMask>)>,
    /// For each column that was selected in rounds: name of the strategy, and number of rounds.
    pub(super) rounds: Vec<(&'static str, usize)>,
    /// Reservations of what single devices have found.
    found: Vec<MemoryReservation>,
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
            share: 0,
            limit,
            timed,
            memory,
            report: Report::default(),
            masks: Vec::new(),
            rounds: Vec::new(),
            found: Vec::new(),
        }
    }

    /// What `ask` finds on each device of the table, in the order of their shares. The devices work at the same time, and what they found stays
    /// reserved.
    ///
    /// # Errors
    /// The first of `ask`.
    pub(super) fn on_each<T: Send>(
        &mut self,
        ask: impl Fn(&mut OnDevice<'a>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        if !self.table.is_spread() {
            return Ok(vec![ask(self)?]);
        }
        let of_shares = (0..self.table.shares().len()).map(|share| Self {
            share,
            ..Self::new(self.table, self.limit, self.timed, self.memory.new_empty())
        });
        let of_shares: Vec<_> = of_shares.collect();
        let asked = scoped_map(of_shares.len(), of_shares, &Stop::default(), |mut on, _| {
            let found = ask(&mut on)?;
            Ok((found, on.report, on.memory))
        })?;
        let (mut found, mut reports) = (Vec::new(), Vec::new());
        for (one, report, memory) in asked {
            found.push(one);
            reports.push(report);
            self.found.push(memory);
        }
        self.report.add_together(reports);
        Ok(found)
    }

    /// The share of the table that is meant.
    pub(super) fn share(&self) -> &'a PinnedShare {
        &self.table.shares()[self.share]
    }

    pub(super) fn column(&self, index: usize) -> &'a DeviceColumn {
        &self.share().columns[index]
    }

    /// These pinned columns of each share.
    fn columns_of_shares(&self, indices: &[usize]) -> Vec<Vec<&'a DeviceColumn>> {
        let shares = self.table.shares().iter();
        let columns = shares.map(|share| {
            indices
                .iter()
                .map(|index| share.columns[*index].as_ref())
                .collect()
        });
        columns.collect()
    }

    /// The columns of keys and of values, at these indices, of all shares but the one that is meant.
    pub(super) fn other_shares(&self, keys: usize, values: Option<usize>) -> Vec<OtherShare<'a>> {
        let shares = self.table.shares().iter().enumerate();
        let others = shares.filter(|(share, _)| *share != self.share);
        let others = others.map(|(_, share)| OtherShare {
            keys: &share.columns[keys],
            values: values.map(|index| share.columns[index].as_ref()),
        });
        others.collect()
    }

    /// The groups of the rows of all shares by these pinned columns.
    ///
    /// # Errors
    /// As [`SpreadGroups::try_new`].
    pub(super) fn groups(&mut self, by: &[usize]) -> Result<SpreadGroups<'a>> {
        let columns = self.columns_of_shares(by);
        SpreadGroups::try_new(&columns, self.limit, self.timed, &mut self.report)
    }

    /// As [`Self::groups`]; `None` if a device cannot number so many groups.
    ///
    /// # Errors
    /// As [`SpreadGroups::fitting`].
    pub(super) fn fitting_groups(&mut self, by: &[usize]) -> Result<Option<SpreadGroups<'a>>> {
        let columns = self.columns_of_shares(by);
        SpreadGroups::fitting(&columns, self.limit, self.timed, &mut self.report)
    }

    /// The values of rows of the device in pinned columns, as a batch of this schema.
    pub(super) fn fetch(
        &mut self,
        rows: &[u64],
        columns: &[usize],
        schema: &SchemaRef,
    ) -> Result<RecordBatch> {
        let how = (self.limit, self.timed);
        let columns = self.share().fetch(rows, columns, how, &mut self.report)?;
        batch_of(schema, columns, rows.len())
    }

    /// A selection in the rows of a column, or only in those of `mask`, which comes with the number of its rows that have a value.
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

    /// For each share a bitmap of its rows of a filter, and the number of these that are not NULL in the pinned column at this index.
    pub(super) fn masks_of_shares(
        &mut self,
        filter: Option<&Predicate>,
        column: usize,
    ) -> Result<Vec<Option<CountedMask>>> {
        let (table, shares) = (self.table, 0..self.table.shares().len());
        let masks = shares.map(|share| {
            let column = &table.shares()[share].columns[column];
            self.mask_of_share(share, filter, column)
        });
        masks.collect()
    }

    /// For each share a selection in the rows of the pinned column at this index, whose keys are those of `spec`, or only in those of `masks`.
    pub(super) fn among_shares<'b>(
        &self,
        column: usize,
        spec: &KeySpec,
        masks: &'b [Option<CountedMask>],
    ) -> Vec<Selection<'b>>
    where
        'a: 'b,
    {
        let shares = self.table.shares().iter().zip(masks);
        let among = shares.map(|(share, mask)| {
            let column: &'a DeviceColumn = &share.columns[column];
            self.among(column, column.format(spec), mask.as_ref())
        });
        among.collect()
    }

    /// A bitmap of the device's rows of a filter, and the number of these that are not NULL in `column`.
    pub(super) fn mask(
        &mut self,
        filter: Option<&Predicate>,
        column: &DeviceColumn,
    ) -> Result<Option<CountedMask>> {
        self.mask_of_share(self.share, filter, column)
    }

    /// As [`Self::mask`], for the rows of one share of the table.
    pub(super) fn mask_of_share(
        &mut self,
        share: usize,
        filter: Option<&Predicate>,
        column: &DeviceColumn,
    ) -> Result<Option<CountedMask>> {
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

/// The columns in their order, each once.
pub(super) fn distinct(columns: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut all = Vec::new();
    columns.for_each(|column| {
        if !all.contains(&column) {
            all.push(column);
        }
    });
    all
}

/// A batch of these columns, or of no columns and this number of rows.
pub(super) fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &options,
    )?)
}
