//! The accumulator of many groups: one sketch for each. A sketch keeps a few values as they are.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BinaryArray, BooleanArray};
use datafusion::common::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::super::groups::{emitted_count, grouped_keys};
use super::accumulator::stored;
use super::column::GkColumn;
use crate::key::{KeyBits, kept};
use crate::sketch::AnySketch;

/// Adds the values of each group to a sketch of its own.
#[derive(Debug)]
pub(super) struct GkGroupsAccumulator {
    column: GkColumn,
    sketches: Vec<Option<AnySketch>>,
    /// Memory of all sketches, in bytes.
    held: usize,
}

impl GkGroupsAccumulator {
    pub(super) fn new(column: GkColumn) -> Self {
        Self {
            column,
            sketches: Vec::new(),
            held: 0,
        }
    }

    /// Changes the sketch of a group, and keeps count of its memory.
    fn change(&mut self, group: usize, change: impl FnOnce(&mut AnySketch) -> Result<()>) -> Result<()> {
        let slot = &mut self.sketches[group];
        let before = slot.as_ref().map_or(0, AnySketch::size);
        let sketch = slot.get_or_insert_with(|| self.column.sketch());
        change(sketch)?;
        self.held = self.held + sketch.size() - before;
        Ok(())
    }

    /// Takes out the sketches of the groups that are emitted.
    fn emitted(&mut self, emit_to: EmitTo) -> Vec<Option<AnySketch>> {
        let count = emitted_count(emit_to, self.sketches.len());
        let rest = self.sketches.split_off(count);
        let emitted = std::mem::replace(&mut self.sketches, rest);
        let left: usize = emitted.iter().flatten().map(AnySketch::size).sum();
        self.held = self.held.saturating_sub(left);
        emitted
    }
}

impl GroupsAccumulator for GkGroupsAccumulator {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.sketches.resize_with(total_num_groups, || None);
        let spec = self.column.answer_spec().spec();
        let (groups, keys) = grouped_keys(spec, &values[0], group_indices, opt_filter)?;
        let mut rows: Vec<(u32, KeyBits)> = groups.into_iter().zip(keys).collect();
        rows.sort_by_key(|(group, _)| *group);
        rows.chunk_by(|one, other| one.0 == other.0).try_for_each(|run| {
            let keys = run.iter().map(|(_, key)| *key);
            self.change(run[0].0 as usize, |sketch| sketch.extend_keys(keys))
        })
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.sketches.resize_with(total_num_groups, || None);
        for (state, group) in stored(states)?.iter().zip(group_indices) {
            let Some(state) = state else { continue };
            let summary = self.column.read(state)?;
            self.change(*group, |sketch| sketch.merge(summary))?;
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sketches = self.emitted(emit_to).into_iter();
        let summary =
            |sketch: Option<AnySketch>| sketch.map(|sketch| self.column.summary(sketch)).transpose();
        let summaries = sketches.map(summary).collect::<Result<Vec<_>>>()?;
        self.column.rows(&summaries)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let sketches = self.emitted(emit_to).into_iter();
        let state = |sketch: Option<AnySketch>| sketch.map(|sketch| self.column.state(sketch)).transpose();
        let states = sketches.map(state).collect::<Result<BinaryArray>>()?;
        Ok(vec![Arc::new(states)])
    }

    /// A state for each row: a sketch of its value, NULL if the row does not count.
    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let values = &values[0];
        let kept = kept(values.as_ref(), opt_filter)?;
        let states = (0..values.len()).map(|row| {
            if kept.as_ref().is_some_and(|kept| !kept.value(row)) {
                return Ok(None);
            }
            let mut sketch = self.column.sketch();
            sketch.extend(self.column.answer_spec().spec(), values.slice(row, 1).as_ref())?;
            self.column.state(sketch).map(Some)
        });
        Ok(vec![Arc::new(states.collect::<Result<BinaryArray>>()?)])
    }

    fn size(&self) -> usize {
        let empty = self.sketches.capacity() * size_of::<Option<AnySketch>>();
        size_of::<Self>() + empty + self.held
    }
}
