//! The best rows of groups of pinned tables: `topk_by`, `max_by` and `min_by` with `GROUP BY`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;

use super::calls::{OnDevice, PinnedCalls, distinct};
use super::groups::{GROUP_BYTES, all_codes, by_code, chunked_rows, own_groups};
use super::table::PinnedTable;
use super::topk::{PinnedTopKCall, value_bytes};
use crate::exec::operator::comma_separated;
use crate::functions::topk::{firsts, lists};
use crate::kernel::cuda::{GroupTop, GroupTopSelection, Groups, Predicate, RowMask, TopAnswer};
use crate::key::KeySpec;

/// Calls over pinned columns by group, one output column for each after the group columns.
#[derive(Debug)]
pub(crate) struct PinnedGroupTopK {
    /// Indices of the pinned columns that rows are grouped by.
    pub(crate) groups: Vec<usize>,
    /// The condition for a row to make a group. `None`: all rows do.
    pub(crate) filter: Option<Predicate>,
    pub(crate) calls: Vec<PinnedTopKCall>,
}

impl PinnedTopKCall {
    /// The selection of this call, in the rows of `mask` or in all rows.
    fn selection<'b>(
        &self,
        groups: &'b Groups<'b>,
        mask: Option<&'b (Arc<RowMask>, u64)>,
        on: &OnDevice<'b>,
    ) -> Result<GroupTopSelection<'b>> {
        let column = on.column(self.key.column);
        let format = column.format(&KeySpec::try_new(column.data_type())?);
        Ok(GroupTopSelection {
            groups,
            keys: on.among(column, format, mask),
            answer: TopAnswer::Values(on.column(self.value)),
            least: self.call.ascending,
            k: self.call.rows() as u64,
            forced: None,
        })
    }

    fn group_rows(&self, groups: &Groups<'_>, on: &mut OnDevice<'_>) -> Result<GroupTop> {
        let mask = on.mask(self.key.filter.as_ref(), on.column(self.key.column))?;
        let selection = self.selection(groups, mask.as_ref(), on)?;
        let (memory, each) = (&on.memory, value_bytes(on.column(self.value)));
        selection.rows(&mut on.report, |groups, rows| {
            memory.try_grow(groups * GROUP_BYTES + rows * each)
        })
    }

    /// The answer of this call for each of the groups `codes`. Some of them can have no rows in `top`.
    fn group_answers(&self, top: &GroupTop, codes: &[u64]) -> Result<ArrayRef> {
        let own = own_groups(codes, &top.codes);
        let (from, end) = (top.offsets[own.start], top.offsets[own.end]);
        // A slice would count, and keep, the memory of all values.
        let rows = UInt32Array::from_iter_values(0..(end - from) as u32);
        let values = take(top.values.slice(from, end - from).as_ref(), &rows, None)?;
        let lengths = by_code(codes, &top.codes, |group| top.length(group))?;
        match self.call.k {
            Some(_) => lists(&values, &lengths),
            None => firsts(&values, &lengths),
        }
    }
}

impl PinnedCalls for PinnedGroupTopK {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let groups = on.groups(&self.groups)?;
        let tops = self.calls.iter().map(|call| call.group_rows(&groups, on));
        let tops = tops.collect::<Result<Vec<_>>>()?;
        let known = self.calls.iter().zip(&tops);
        let known = known.map(|(call, top)| (&call.key, top.codes.as_slice()));
        let codes = all_codes(&groups, self.groups[0], self.filter.as_ref(), known, on)?;
        let own = tops.iter().map(|top| top.codes.as_slice());
        chunked_rows(&codes, own, |codes| {
            let mut columns = groups.values(codes)?;
            for (call, top) in self.calls.iter().zip(&tops) {
                columns.push(call.group_answers(top, codes)?);
            }
            Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
        })
    }

    fn fits(&self, on: &mut OnDevice<'_>) -> Result<bool> {
        let Some(groups) = on.fitting_groups(&self.groups)? else {
            return Ok(false);
        };
        for call in &self.calls {
            let selection = call.selection(&groups, None, on)?;
            if !selection.fits(&mut on.report)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn columns(&self) -> Vec<usize> {
        let calls = self.calls.iter();
        let calls = calls.flat_map(|call| [call.value, call.key.column]);
        distinct(self.groups.iter().copied().chain(calls))
    }

    fn shown(&self, table: &PinnedTable) -> String {
        let groups = self.groups.iter().map(|index| table.name(*index));
        format!(
            "gby=[{}], calls=[{}]",
            comma_separated(groups),
            comma_separated(self.calls.iter().map(|call| &call.shown))
        )
    }
}
