//! The best rows of groups of pinned tables, as rows: `ROW_NUMBER() .. <= k`, `QUALIFY` and `DISTINCT ON`.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, UInt64Array};
use datafusion::arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;

use super::calls::{CountedMask, FilteredColumn, OnDevice, PinnedCalls, batch_of, distinct};
use super::group_tops::GroupTops;
use super::groups::{GROUP_BYTES, in_chunks};
use super::table::PinnedTable;
use super::topk::{ROW_BYTES, fetched, value_bytes};
use crate::exec::operator::comma_separated;
use crate::kernel::cuda::{GroupTopSelection, Groups, OtherShare, SpreadGroups, TopAnswer};
use crate::key::KeySpec;

/// Most rows of a batch of the answer.
const BATCH_ROWS: usize = 1 << 20;

/// The first rows of each group in the order of a column that has no NULLs. Of rows that tie, those that come first in the table do.
#[derive(Debug)]
pub(crate) struct PinnedGroupRows {
    /// Indices of the pinned columns that rows are grouped by.
    pub(crate) groups: Vec<usize>,
    pub(crate) key: FilteredColumn,
    pub(crate) descending: bool,
    /// Most rows of a group.
    pub(crate) k: usize,
    /// Index of the pinned column of each output column.
    pub(crate) columns: Vec<usize>,
    /// Whether the number of each row in its group, from 1, follows these columns.
    pub(crate) with_number: bool,
}

impl PinnedGroupRows {
    /// The selection of the rows of `mask`, or of all rows.
    fn selection<'b>(
        &self,
        groups: &'b Groups<'b>,
        mask: Option<&'b CountedMask>,
        others: &'b [OtherShare<'b>],
        on: &OnDevice<'b>,
    ) -> Result<GroupTopSelection<'b>> {
        let column = on.column(self.key.column);
        let format = column.format(&KeySpec::for_order_by(column.data_type())?);
        Ok(GroupTopSelection {
            groups,
            keys: on.among(column, format, mask),
            answer: TopAnswer::RowNumbers,
            others,
            least: !self.descending,
            k: self.k as u64,
            forced: None,
        })
    }

    /// Bytes of host memory for each row of the answer.
    fn row_bytes(&self, on: &OnDevice<'_>) -> usize {
        let values = self.columns.iter().map(|index| value_bytes(on.column(*index)));
        ROW_BYTES + values.sum::<usize>()
    }
}

impl PinnedGroupRows {
    /// The rows of a table on one device.
    fn of_device(
        &self,
        groups: &Groups<'_>,
        on: &mut OnDevice<'_>,
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>> {
        let mask = on.mask(self.key.filter.as_ref(), on.column(self.key.column))?;
        let selection = self.selection(groups, mask.as_ref(), &[], on)?;
        let (memory, each) = (&on.memory, self.row_bytes(on));
        let (offsets, gather) = selection.places(&mut on.report, |groups, rows| {
            memory.try_grow(groups * GROUP_BYTES + rows * each)
        })?;
        let Some(gather) = gather else {
            return Ok(Vec::new());
        };
        let lengths = offsets.windows(2).map(|ends| ends[1] - ends[0]);
        self.in_batches(lengths, schema, |rows| {
            let columns = self.columns.iter();
            let columns = columns.map(|index| {
                let column = on.column(*index);
                gather.some_values(rows.clone(), column, &mut on.report)
            });
            columns.collect()
        })
    }

    /// The rows of a table on several devices: each finds those of its share, and the host the first of these.
    fn of_shares(
        &self,
        groups: &SpreadGroups<'_>,
        on: &mut OnDevice<'_>,
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>> {
        let tops = on.on_each(|on| {
            let mask = on.mask(self.key.filter.as_ref(), on.column(self.key.column))?;
            let others = on.other_shares(self.key.column, None);
            let selection = self.selection(groups.of_share(on.share)?, mask.as_ref(), &others, on)?;
            let (memory, each) = (&on.memory, self.row_bytes(on));
            selection.rows(&mut on.report, |groups, rows| {
                memory.try_grow(groups * GROUP_BYTES + rows * each)
            })
        })?;
        let tops = GroupTops::new(tops);
        let own = tops.shares().iter().map(|top| top.codes.as_slice());
        let chunks = in_chunks(&tops.codes(), own, |codes| tops.places(codes, self.k))?;
        let numbers = tops.shares().iter();
        let numbers: Vec<_> = numbers
            .map(|top| top.values.as_primitive::<UInt64Type>().values())
            .collect();
        let places = chunks.iter().flat_map(|(places, _)| places);
        let rows: Vec<_> = places
            .map(|(share, index)| (*share, numbers[*share][*index]))
            .collect();
        let lengths = chunks.iter().flat_map(|(_, lengths)| lengths).copied();
        self.in_batches(lengths, schema, |some| fetched(&rows[some], &self.columns, on))
    }

    /// The rows of groups of these numbers of rows, in batches. `values` gives the values of the columns for some of the rows.
    fn in_batches(
        &self,
        lengths: impl Iterator<Item = usize> + Clone,
        schema: &SchemaRef,
        mut values: impl FnMut(Range<usize>) -> Result<Vec<ArrayRef>>,
    ) -> Result<Vec<RecordBatch>> {
        let total = lengths.clone().sum::<usize>();
        let mut numbers = lengths.flat_map(|length| 1..=length as u64);
        let batches = (0..total).step_by(BATCH_ROWS).map(|from| {
            let rows = from..total.min(from + BATCH_ROWS);
            let count = rows.len();
            let mut columns = values(rows)?;
            if self.with_number {
                let numbers = UInt64Array::from_iter_values(numbers.by_ref().take(count));
                columns.push(Arc::new(numbers) as ArrayRef);
            }
            batch_of(schema, columns, count)
        });
        batches.collect()
    }
}

impl PinnedCalls for PinnedGroupRows {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let groups = on.groups(&self.groups)?;
        if on.table.is_spread() {
            self.of_shares(&groups, on, schema)
        } else {
            self.of_device(groups.of_share(on.share)?, on, schema)
        }
    }

    fn fits(&self, on: &mut OnDevice<'_>) -> Result<bool> {
        let Some(groups) = on.fitting_groups(&self.groups)? else {
            return Ok(false);
        };
        let others = on.other_shares(self.key.column, None);
        let groups = groups.of_share(on.share)?;
        self.selection(groups, None, &others, on)?.fits(&mut on.report)
    }

    fn columns(&self) -> Vec<usize> {
        let keyed = std::iter::once(self.key.column);
        distinct(
            self.groups
                .iter()
                .copied()
                .chain(keyed)
                .chain(self.columns.iter().copied()),
        )
    }

    fn shown(&self, table: &PinnedTable) -> String {
        let groups = self.groups.iter().map(|index| table.name(*index));
        let direction = if self.descending { "DESC" } else { "ASC" };
        format!(
            "gby=[{}], row_number <= {}, order_by=[{} {direction}]",
            comma_separated(groups),
            self.k,
            table.name(self.key.column)
        )
    }
}
