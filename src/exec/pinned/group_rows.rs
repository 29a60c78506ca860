//! The best rows of groups of pinned tables, as rows: `ROW_NUMBER() .. <= k`, `QUALIFY` and `DISTINCT ON`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, UInt64Array};
use datafusion::arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;

use super::calls::{FilteredColumn, OnDevice, PinnedCalls, batch_of, distinct};
use super::groups::GROUP_BYTES;
use super::table::PinnedTable;
use super::topk::{ROW_BYTES, value_bytes};
use crate::exec::operator::comma_separated;
use crate::kernel::cuda::{GroupTopSelection, Groups, RowMask, TopAnswer};
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
        mask: Option<&'b (Arc<RowMask>, u64)>,
        on: &OnDevice<'b>,
    ) -> Result<GroupTopSelection<'b>> {
        let column = on.column(self.key.column);
        let format = column.format(&KeySpec::for_order_by(column.data_type())?);
        Ok(GroupTopSelection {
            groups,
            keys: on.among(column, format, mask),
            answer: TopAnswer::RowNumbers,
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

impl PinnedCalls for PinnedGroupRows {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let groups = on.groups(&self.groups)?;
        let mask = on.mask(self.key.filter.as_ref(), on.column(self.key.column))?;
        let selection = self.selection(&groups, mask.as_ref(), on)?;
        let (memory, each) = (&on.memory, self.row_bytes(on));
        let top = selection.rows(&mut on.report, |groups, rows| {
            memory.try_grow(groups * GROUP_BYTES + rows * each)
        })?;
        let lengths = top.offsets.windows(2).map(|ends| (ends[1] - ends[0]) as u64);
        let mut numbers = lengths.flat_map(|length| 1..=length);
        let rows = top.values.as_primitive::<UInt64Type>().values();
        let batches = rows.chunks(BATCH_ROWS).map(|rows| {
            let how = (on.limit, on.timed);
            let mut columns = on.share().fetch(rows, &self.columns, how, &mut on.report)?;
            if self.with_number {
                let numbers = UInt64Array::from_iter_values(numbers.by_ref().take(rows.len()));
                columns.push(Arc::new(numbers) as ArrayRef);
            }
            batch_of(schema, columns, rows.len())
        });
        batches.collect()
    }

    fn fits(&self, on: &mut OnDevice<'_>) -> Result<bool> {
        let Some(groups) = on.fitting_groups(&self.groups)? else {
            return Ok(false);
        };
        self.selection(&groups, None, on)?.fits(&mut on.report)
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
