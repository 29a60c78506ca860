//! The best rows of groups of pinned tables: `topk_by`, `max_by` and `min_by` with `GROUP BY`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::compute::{interleave, take};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;

use super::calls::{CountedMask, OnDevice, PinnedCalls, distinct};
use super::group_tops::GroupTops;
use super::groups::{GROUP_BYTES, all_codes, by_code, in_chunks, own_groups};
use super::table::PinnedTable;
use super::topk::{PinnedTopKCall, ROW_BYTES, value_bytes};
use crate::exec::operator::comma_separated;
use crate::functions::topk::{firsts, lists};
use crate::kernel::cuda::{GroupTopSelection, Groups, OtherShare, Predicate, SpreadGroups, TopAnswer};
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
    /// The selection of this call in the share that is meant, in the rows of `mask` or in all rows.
    fn selection<'b>(
        &self,
        groups: &'b Groups<'b>,
        mask: Option<&'b CountedMask>,
        others: &'b [OtherShare<'b>],
        on: &OnDevice<'b>,
    ) -> Result<GroupTopSelection<'b>> {
        let column = on.column(self.key.column);
        let format = column.format(&KeySpec::try_new(column.data_type())?);
        Ok(GroupTopSelection {
            groups,
            keys: on.among(column, format, mask),
            answer: TopAnswer::Values(on.column(self.value)),
            others,
            least: self.call.ascending,
            k: self.call.rows() as u64,
            forced: None,
        })
    }

    /// The columns of this call in the other shares.
    fn other_shares<'b>(&self, on: &OnDevice<'b>) -> Vec<OtherShare<'b>> {
        on.other_shares(self.key.column, Some(self.value))
    }

    /// The best rows of each share.
    fn group_rows<'b>(&self, groups: &SpreadGroups<'b>, on: &mut OnDevice<'b>) -> Result<GroupTops> {
        let shares = on.on_each(|on| {
            let mask = on.mask(self.key.filter.as_ref(), on.column(self.key.column))?;
            let others = self.other_shares(on);
            let selection = self.selection(groups.of_share(on.share)?, mask.as_ref(), &others, on)?;
            let merged = if on.table.is_spread() { ROW_BYTES } else { 0 };
            let (memory, each) = (&on.memory, value_bytes(on.column(self.value)) + merged);
            selection.rows(&mut on.report, |groups, rows| {
                memory.try_grow(groups * GROUP_BYTES + rows * each)
            })
        })?;
        Ok(GroupTops::new(shares))
    }

    /// The answer of this call for each of the groups `codes`. Some of them can have no rows in `tops`.
    fn group_answers(&self, tops: &GroupTops, codes: &[u64]) -> Result<ArrayRef> {
        let (values, lengths) = match tops.shares() {
            [top] => {
                let own = own_groups(codes, &top.codes);
                let (from, end) = (top.offsets[own.start], top.offsets[own.end]);
                // A slice would count, and keep, the memory of all values.
                let rows = UInt32Array::from_iter_values(0..(end - from) as u32);
                let values = take(top.values.slice(from, end - from).as_ref(), &rows, None)?;
                (values, by_code(codes, &top.codes, |group| top.length(group))?)
            }
            shares => {
                let (places, lengths) = tops.places(codes, self.call.rows())?;
                let values: Vec<_> = shares.iter().map(|top| top.values.as_ref()).collect();
                (interleave(&values, &places)?, lengths)
            }
        };
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
        let found: Vec<_> = tops.iter().map(GroupTops::codes).collect();
        let known = self.calls.iter().zip(&found);
        let known = known.map(|(call, codes)| (&call.key, codes.as_ref()));
        let codes = all_codes(&groups, self.groups[0], self.filter.as_ref(), known, on)?;
        let own = tops.iter().flat_map(GroupTops::shares);
        let own = own.map(|top| top.codes.as_slice());
        in_chunks(&codes, own, |codes| {
            let mut columns = groups.values(codes)?;
            for (call, tops) in self.calls.iter().zip(&tops) {
                columns.push(call.group_answers(tops, codes)?);
            }
            Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
        })
    }

    fn fits(&self, on: &mut OnDevice<'_>) -> Result<bool> {
        let Some(groups) = on.fitting_groups(&self.groups)? else {
            return Ok(false);
        };
        for call in &self.calls {
            let others = call.other_shares(on);
            let selection = call.selection(groups.of_share(on.share)?, None, &others, on)?;
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
