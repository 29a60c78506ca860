//! The accumulator of many groups: a [`Sieve`], whose memory is flat.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use datafusion::arrow::compute::filter;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::column::TopKColumn;
use crate::functions::groups::{emitted_count, extend_groups, group_id};
use crate::functions::states::state_column;
use crate::kernel::cpu::top::Sieve;
use crate::key::Key;

/// Keeps the best rows of each group.
#[derive(Debug)]
pub(super) struct TopKGroupsAccumulator<K> {
    column: TopKColumn,
    /// The rows; `None` before the first one.
    sieve: Option<Sieve<K>>,
    groups: usize,
}

impl<K: Key> TopKGroupsAccumulator<K> {
    pub(super) fn new(column: TopKColumn) -> Self {
        Self {
            column,
            sieve: None,
            groups: 0,
        }
    }

    /// Adds rows that count, as columns of value and key. `ids`: the group of each row.
    fn push(&mut self, ids: &[u32], dense: &[ArrayRef]) -> Result<()> {
        let sieve = match &mut self.sieve {
            Some(sieve) => sieve,
            none => none.insert(self.column.sieve()?),
        };
        self.column.push(sieve, self.groups, ids, dense)
    }

    /// Takes out the best rows of the groups that are emitted: their columns, and the number of rows of each group.
    fn emitted(&mut self, emit_to: EmitTo) -> Result<(Vec<ArrayRef>, Vec<usize>)> {
        let count = emitted_count(emit_to, self.groups);
        // Tells the sieve of groups without rows.
        self.push(&[], &self.column.no_rows())?;
        self.groups -= count;
        let sieve = self.sieve.as_mut();
        let sieve = sieve.ok_or_else(|| internal_datafusion_err!("rows of groups are nowhere"))?;
        let best = sieve.take_first(count)?;
        if self.groups == 0 {
            self.sieve = None;
        }
        let lengths = best.lengths();
        Ok((best.payload, lengths))
    }
}

/// The rows in state columns of values and keys, without their lists: the group of each row, and the two columns.
pub(super) fn state_rows(
    states: &[ArrayRef],
    group_indices: impl Iterator<Item = usize>,
) -> Result<(Vec<u32>, Vec<ArrayRef>)> {
    let [values, keys] = states else {
        return internal_err!("a state of {} columns", states.len());
    };
    let lists = |state: &ArrayRef| state.as_list_opt::<i64>().cloned();
    let (Some(values), Some(keys)) = (lists(values), lists(keys)) else {
        return internal_err!("states of {} and {}", values.data_type(), keys.data_type());
    };
    if values.null_count() + keys.null_count() > 0 || values.offsets().lengths().ne(keys.offsets().lengths())
    {
        return internal_err!("states whose values and keys do not match");
    }
    let mut ids = Vec::new();
    for (length, group) in values.offsets().lengths().zip(group_indices) {
        ids.resize(ids.len() + length, group_id(group)?);
    }
    let flat = |list: &datafusion::arrow::array::LargeListArray| {
        let start = list.offsets().first().map_or(0, |start| *start as usize);
        list.values().slice(start, ids.len())
    };
    let rows = vec![flat(&values), flat(&keys)];
    Ok((ids, rows))
}

impl<K: Key> GroupsAccumulator for TopKGroupsAccumulator<K> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups = total_num_groups;
        let kept = self.column.kept(values, opt_filter)?;
        let mut ids = Vec::new();
        extend_groups(&mut ids, kept.as_ref(), group_indices)?;
        let dense = self.column.dense(values, kept.as_ref())?;
        self.push(&ids, &dense)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (rows, lengths) = self.emitted(emit_to)?;
        self.column.answers(&rows[0], &lengths)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (rows, lengths) = self.emitted(emit_to)?;
        rows.into_iter()
            .map(|column| state_column(column, lengths.clone()))
            .collect()
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups = total_num_groups;
        let (ids, rows) = state_rows(values, group_indices.iter().copied())?;
        self.push(&ids, &rows)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let kept = self.column.kept(values, opt_filter)?;
        let lengths: Vec<usize> = match &kept {
            None => vec![1; values[0].len()],
            Some(kept) => kept.values().iter().map(usize::from).collect(),
        };
        let column = |column: &ArrayRef| {
            let dense = match &kept {
                None => Arc::clone(column),
                Some(kept) => filter(column, kept)?,
            };
            state_column(dense, lengths.clone())
        };
        values.iter().take(2).map(column).collect()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.sieve.as_ref().map_or(0, Sieve::working_bytes)
    }
}
