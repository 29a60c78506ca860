//! Accumulator of many groups: flat buffers of (group, key), partitioned once by group at the end.
//!
//! ```text
//! groups: 2 0 1 0 2      counting sort       |0 0|1|2 2|      select inside
//! keys:   e a c b d      ------------->      |a b|c|e d|      each segment
//! ```
//! Cost: 4 bytes and a key (of 4, 8 or 16) a value, as much again while groups are emitted; no allocation for a group. Of
//! partial states, which bring the keys of a group together, only the keys.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, LargeListArray, new_empty_array};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::filter;
use datafusion::common::{Result, internal_err, resources_datafusion_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::accumulator::{reserve, state_rows};
use crate::kernel::cpu::groups::segments::{Plans, Segments};
use crate::key::{Key, KeyBits, KeySpec, Width, kept};
use crate::quantile::{SelectedColumn, state_item};

/// The accumulator over keys of the column's width.
pub(super) fn groups_accumulator(column: SelectedColumn) -> Box<dyn GroupsAccumulator> {
    match column.spec().width() {
        Width::W32 => Box::new(QuantilesGroupsAccumulator::<u32>::new(column)),
        Width::W64 => Box::new(QuantilesGroupsAccumulator::<u64>::new(column)),
        Width::W128 => Box::new(QuantilesGroupsAccumulator::<u128>::new(column)),
    }
}

/// Keys of all groups, in any order.
#[derive(Debug)]
struct QuantilesGroupsAccumulator<K> {
    column: SelectedColumn,
    /// Group of each key.
    groups: Vec<u32>,
    keys: Vec<K>,
    merged: Runs<K>,
    /// Groups seen so far, those without values included.
    group_count: usize,
}

/// Keys of partial states: a run of each.
#[derive(Debug, Default)]
struct Runs<K> {
    /// Group and length of each run.
    runs: Vec<(u32, usize)>,
    keys: Vec<K>,
}

impl<K: Key> Runs<K> {
    /// Copies the keys of the first groups to their places; later groups move down by `next.len()`.
    fn take(&mut self, next: &mut [usize], keys: &mut [K]) {
        let (mut from, mut stay, mut kept) = (0, 0, 0);
        for at in 0..self.runs.len() {
            let (group, length) = self.runs[at];
            let run = from..from + length;
            from = run.end;
            match next.get_mut(group as usize) {
                Some(next) => {
                    keys[*next..*next + length].copy_from_slice(&self.keys[run]);
                    *next += length;
                }
                None => {
                    self.keys.copy_within(run, stay);
                    stay += length;
                    self.runs[kept] = (group - next.len() as u32, length);
                    kept += 1;
                }
            }
        }
        self.runs.truncate(kept);
        self.keys.truncate(stay);
        if kept == 0 {
            *self = Self::default();
        }
    }
}

impl<K: Key> QuantilesGroupsAccumulator<K> {
    fn new(column: SelectedColumn) -> Self {
        Self {
            column,
            groups: Vec::new(),
            keys: Vec::new(),
            merged: Runs::default(),
            group_count: 0,
        }
    }

    /// Takes the keys of the first `count` groups out, partitioned by group; later groups move down.
    fn take_segments(&mut self, count: usize) -> Segments<K> {
        let mut starts = counts_before(&self.groups, count);
        for &(group, length) in &self.merged.runs {
            if let Some(after) = starts.get_mut(group as usize + 1) {
                *after += length;
            }
        }
        sum_up(&mut starts);
        let mut next = starts[..count].to_vec();
        let mut keys = vec![K::default(); starts[count]];
        self.merged.take(&mut next, &mut keys);
        let mut kept = 0;
        for i in 0..self.keys.len() {
            let group = self.groups[i] as usize;
            if group < count {
                keys[next[group]] = self.keys[i];
                next[group] += 1;
            } else {
                self.groups[kept] = (group - count) as u32;
                self.keys[kept] = self.keys[i];
                kept += 1;
            }
        }
        self.groups.truncate(kept);
        self.keys.truncate(kept);
        if kept == 0 {
            (self.groups, self.keys) = (Vec::new(), Vec::new());
        }
        self.group_count -= count;
        Segments::new(keys, starts)
    }

    fn emitted(&mut self, emit_to: EmitTo) -> Segments<K> {
        self.take_segments(emitted_count(emit_to, self.group_count))
    }
}

/// How many of `count` groups leave.
pub(super) fn emitted_count(emit_to: EmitTo, count: usize) -> usize {
    match emit_to {
        EmitTo::All => count,
        EmitTo::First(first) => first.min(count),
    }
}

/// How many values the group before each of the first `count` groups has, and the last of these.
fn counts_before(groups: &[u32], count: usize) -> Vec<usize> {
    let mut counts = vec![0; count + 1];
    for &group in groups {
        if (group as usize) < count {
            counts[group as usize + 1] += 1;
        }
    }
    counts
}

fn sum_up(counts: &mut [usize]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}

/// Where the values of each of the first `count` groups start once they are partitioned, and where the last ends.
pub(super) fn starts(groups: &[u32], count: usize) -> Vec<usize> {
    let mut starts = counts_before(groups, count);
    sum_up(&mut starts);
    starts
}

/// Number of values of each group.
pub(super) fn lengths(starts: &[usize]) -> Vec<usize> {
    starts.windows(2).map(|ends| ends[1] - ends[0]).collect()
}

/// Appends the groups of the rows that are kept (`None`: of all).
pub(super) fn extend_groups(
    groups: &mut Vec<u32>,
    kept: Option<&BooleanArray>,
    group_indices: &[usize],
) -> Result<()> {
    if let Some(greatest) = group_indices.iter().max() {
        group_id(*greatest)?;
    }
    // All of them fit, as the greatest does.
    match kept {
        None => {
            reserve(groups, group_indices.len())?;
            groups.extend(group_indices.iter().map(|&group| group as u32));
        }
        Some(kept) => {
            reserve(groups, kept.values().count_set_bits())?;
            groups.extend(kept.values().set_indices().map(|row| group_indices[row] as u32));
        }
    }
    Ok(())
}

/// The keys of the rows that count, and the group of each.
pub(super) fn grouped_keys(
    spec: &KeySpec,
    values: &ArrayRef,
    group_indices: &[usize],
    opt_filter: Option<&BooleanArray>,
) -> Result<(Vec<u32>, Vec<KeyBits>)> {
    let kept = kept(values.as_ref(), opt_filter)?;
    let mut groups = Vec::new();
    extend_groups(&mut groups, kept.as_ref(), group_indices)?;
    let keys = match &kept {
        None => spec.keys(values.as_ref())?,
        Some(kept) => spec.keys(filter(values.as_ref(), kept)?.as_ref())?,
    };
    if groups.len() != keys.len() {
        return internal_err!("{} groups for {} keys", groups.len(), keys.len());
    }
    Ok((groups, keys))
}

/// A group's number in the buffers.
pub(super) fn group_id(group: usize) -> Result<u32> {
    u32::try_from(group).map_err(|_| {
        resources_datafusion_err!(
            "exact_quantiles handles {} groups at most, got group {group}",
            u32::MAX
        )
    })
}

impl<K: Key> GroupsAccumulator for QuantilesGroupsAccumulator<K> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.group_count = total_num_groups;
        let kept = kept(values[0].as_ref(), opt_filter)?;
        extend_groups(&mut self.groups, kept.as_ref(), group_indices)?;
        let dense = match &kept {
            None => Arc::clone(&values[0]),
            Some(kept) => filter(values[0].as_ref(), kept)?,
        };
        reserve(&mut self.keys, dense.len())?;
        self.column.spec().append_keys(dense.as_ref(), &mut self.keys)?;
        match self.groups.len() == self.keys.len() {
            true => Ok(()),
            false => internal_err!("{} groups for {} keys", self.groups.len(), self.keys.len()),
        }
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let mut segments = self.emitted(emit_to);
        let mut plans = Plans::new([self.column.ask().clone()].into());
        let answers = segments.answers(&mut plans, self.column.is_distinct())?;
        let values = match (segments.keys().is_empty(), answers.found.first()) {
            (false, Some(found)) => self.column.ask().values(self.column.spec(), found)?,
            _ => new_empty_array(&self.column.answer_type()?),
        };
        self.column.group_rows(values, &answers.lengths)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (segments, spec) = (self.emitted(emit_to), self.column.spec());
        let values = match segments.keys().is_empty() {
            true => new_empty_array(spec.data_type()),
            false => spec.values_of(segments.keys())?,
        };
        Ok(vec![state_column(values, lengths(segments.starts()))?])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.group_count = total_num_groups;
        let states = state_rows(values)?;
        if states.null_count() > 0 || states.len() != group_indices.len() {
            return internal_err!(
                "{} states, {} of them NULL, for {} groups",
                states.len(),
                states.null_count(),
                group_indices.len()
            );
        }
        let offsets = states.offsets();
        let lengths = offsets.lengths();
        let start = offsets.first().map_or(0, |start| *start as usize);
        let end = offsets.last().map_or(0, |end| *end as usize);
        for (length, &group) in lengths.zip(group_indices) {
            self.merged.runs.push((group_id(group)?, length));
        }
        reserve(&mut self.merged.keys, end - start)?;
        let keys = states.values().slice(start, end - start);
        self.column
            .spec()
            .append_keys(keys.as_ref(), &mut self.merged.keys)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        rows_as_states(&values[0], opt_filter)
    }

    fn size(&self) -> usize {
        size_of::<Self>()
            + self.groups.capacity() * size_of::<u32>()
            + (self.keys.capacity() + self.merged.keys.capacity()) * size_of::<K>()
            + self.merged.runs.capacity() * size_of::<(u32, usize)>()
    }
}

/// A state for each row: its value, if it has one and passes the filter.
pub(super) fn rows_as_states(values: &ArrayRef, opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
    let state = match kept(values.as_ref(), opt_filter)? {
        None => state_column(Arc::clone(values), vec![1; values.len()])?,
        Some(kept) => {
            let lengths = kept.values().iter().map(usize::from).collect();
            state_column(filter(values.as_ref(), &kept)?, lengths)?
        }
    };
    Ok(vec![state])
}

/// A state for each row: the next `lengths[row]` of `values`.
pub(super) fn state_column(values: ArrayRef, lengths: Vec<usize>) -> Result<ArrayRef> {
    let item = state_item(values.data_type());
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(LargeListArray::try_new(item, offsets, values, None)?))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{AsArray, Int32Array};
    use datafusion::arrow::datatypes::{DataType, Int32Type};

    use super::*;
    use crate::quantile::Selected;
    use crate::quantile::{Ask, Method, Quantile};

    fn accumulator() -> QuantilesGroupsAccumulator<u32> {
        let ask = Ask {
            quantiles: vec![Quantile::try_from_f64(1.0).unwrap()],
            method: Method::Disc,
            descending: false,
        };
        match Selected::try_new(&DataType::Int32, ask, false, false).unwrap() {
            Selected::Keys(column) => QuantilesGroupsAccumulator::new(column),
            Selected::Bytes(_) => unreachable!("integers have keys"),
        }
    }

    fn values(list: &[Option<i32>]) -> Vec<ArrayRef> {
        vec![Arc::new(Int32Array::from(list.to_vec()))]
    }

    fn emitted(accumulator: &mut QuantilesGroupsAccumulator<u32>, emit_to: EmitTo) -> Vec<Option<i32>> {
        accumulator
            .evaluate(emit_to)
            .unwrap()
            .as_primitive::<Int32Type>()
            .iter()
            .collect()
    }

    #[test]
    fn first_groups_leave_and_the_others_move_down() {
        let mut groups = accumulator();
        let batch = values(&[Some(5), Some(1), None, Some(7), Some(2)]);
        groups.update_batch(&batch, &[2, 0, 1, 0, 3], None, 4).unwrap();
        assert_eq!(emitted(&mut groups, EmitTo::First(2)), [Some(7), None]);
        // What was group 2 is group 0 now.
        groups
            .update_batch(&values(&[Some(9), Some(3)]), &[0, 2], None, 3)
            .unwrap();
        assert_eq!(emitted(&mut groups, EmitTo::All), [Some(9), Some(2), Some(3)]);
        assert!(emitted(&mut groups, EmitTo::All).is_empty());
    }

    #[test]
    fn states_carry_values_filters_and_nulls() {
        let batch = values(&[Some(4), None, Some(6), Some(8)]);
        let passed = BooleanArray::from(vec![Some(true), Some(true), Some(false), None]);
        let mut partial = accumulator();
        partial
            .update_batch(&batch, &[0, 0, 1, 1], Some(&passed), 2)
            .unwrap();
        let rows = accumulator().convert_to_state(&batch, Some(&passed)).unwrap();
        let mut merged = accumulator();
        merged
            .merge_batch(&partial.state(EmitTo::All).unwrap(), &[1, 0], 2)
            .unwrap();
        merged.merge_batch(&rows, &[0, 0, 0, 0], 2).unwrap();
        assert_eq!(emitted(&mut merged, EmitTo::All), [Some(4), Some(4)]);
    }

    #[test]
    fn states_of_later_groups_stay() {
        let state = |rows: &[Option<i32>], groups: &[usize]| {
            let mut partial = accumulator();
            partial.update_batch(&values(rows), groups, None, 3).unwrap();
            partial.state(EmitTo::All).unwrap()
        };
        let mut merged = accumulator();
        let rows = [Some(1), Some(4), Some(2), Some(9), Some(3)];
        merged
            .merge_batch(&state(&rows, &[0, 0, 1, 2, 2]), &[0, 1, 3], 4)
            .unwrap();
        merged
            .merge_batch(&state(&rows[..2], &[0, 1]), &[1, 3, 0], 4)
            .unwrap();
        // Of group 3, between those that left.
        merged.update_batch(&values(&[Some(11)]), &[3], None, 4).unwrap();
        assert_eq!(emitted(&mut merged, EmitTo::First(2)), [Some(4), Some(2)]);
        assert_eq!(emitted(&mut merged, EmitTo::First(1)), [None]);
        assert_eq!(emitted(&mut merged, EmitTo::All), [Some(11)]);
        let null = datafusion::arrow::array::new_null_array(state(&[], &[])[0].data_type(), 1);
        assert!(merged.merge_batch(&[null], &[0], 1).is_err());
    }

    #[test]
    fn its_size_is_that_of_its_buffers() {
        let mut groups = accumulator();
        let empty = groups.size();
        groups
            .update_batch(&values(&[Some(1); 1000]), &[0; 1000], None, 1)
            .unwrap();
        assert!(groups.size() >= empty + 1000 * 8);
        groups.evaluate(EmitTo::All).unwrap();
        assert_eq!(groups.size(), empty);
    }
}
