//! Accumulator of many groups: flat buffers of (group, key), partitioned once by group at the end.
//!
//! ```text
//! groups: 2 0 1 0 2      counting sort       |0 0|1|2 2|      select inside
//! keys:   e a c b d      ------------->      |a b|c|e d|      each segment
//! ```
//! Cost: 20 bytes a value, and as much again while groups are emitted; no allocation for a group.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, LargeListArray, new_empty_array};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::{concat, filter};
use datafusion::common::{Result, internal_err, resources_datafusion_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::accumulator::{SelectedColumn, extend, state_item, state_rows};
use crate::key::{KeyBits, KeySpec, kept};

/// Groups whose answers are gathered before they become one array.
const CHUNK: usize = 4096;

/// Keys of all groups, in any order.
#[derive(Debug)]
pub(super) struct QuantilesGroupsAccumulator {
    column: SelectedColumn,
    /// Group of each key.
    groups: Vec<u32>,
    keys: Vec<KeyBits>,
    /// Groups seen so far, those without values included.
    group_count: usize,
}

/// Keys of the groups `0..starts.len() - 1`, those of group `g` at `starts[g]..starts[g + 1]`.
struct Segments {
    keys: Vec<KeyBits>,
    starts: Vec<usize>,
}

impl QuantilesGroupsAccumulator {
    pub(super) fn new(column: SelectedColumn) -> Self {
        Self {
            column,
            groups: Vec::new(),
            keys: Vec::new(),
            group_count: 0,
        }
    }

    /// Takes the keys of the first `count` groups out, partitioned by group; later groups move down.
    fn take_segments(&mut self, count: usize) -> Segments {
        let starts = starts(&self.groups, count);
        let mut next = starts.clone();
        let mut keys = vec![0; starts[count]];
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
        Segments { keys, starts }
    }

    fn emitted(&mut self, emit_to: EmitTo) -> Segments {
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

/// Where the values of each of the first `count` groups start once they are partitioned, and where the last ends.
pub(super) fn starts(groups: &[u32], count: usize) -> Vec<usize> {
    let mut starts = vec![0; count + 1];
    for &group in groups {
        if (group as usize) < count {
            starts[group as usize + 1] += 1;
        }
    }
    for group in 0..count {
        starts[group + 1] += starts[group];
    }
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
    let ids: Vec<u32> = match kept {
        None => group_indices
            .iter()
            .map(|&group| group_id(group))
            .collect::<Result<_>>()?,
        Some(kept) => {
            let rows = kept.values().set_indices();
            rows.map(|row| group_id(group_indices[row]))
                .collect::<Result<_>>()?
        }
    };
    extend(groups, &ids)
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

impl GroupsAccumulator for QuantilesGroupsAccumulator {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.group_count = total_num_groups;
        let (groups, keys) = grouped_keys(self.column.spec(), &values[0], group_indices, opt_filter)?;
        extend(&mut self.groups, &groups)?;
        extend(&mut self.keys, &keys)?;
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let mut segments = self.emitted(emit_to);
        let lengths = lengths(&segments.starts);
        let one = self.column.answer_type()?;
        let mut chunks = vec![new_empty_array(&one)];
        let mut answers = Vec::with_capacity(CHUNK);
        let mut rest = segments.keys.as_mut_slice();
        for &length in lengths.iter().filter(|&&length| length > 0) {
            let (keys, after) = rest.split_at_mut(length);
            rest = after;
            answers.push(self.column.answers(keys)?);
            if answers.len() == CHUNK {
                chunks.push(concatenated(&answers)?);
                answers.clear();
            }
        }
        chunks.extend(answers);
        let lengths: Vec<u64> = lengths.into_iter().map(|length| length as u64).collect();
        self.column.group_rows(concatenated(&chunks)?, &lengths)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let segments = self.emitted(emit_to);
        let values = self.column.spec().to_array(&segments.keys)?;
        Ok(vec![state_column(values, lengths(&segments.starts))?])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.group_count = total_num_groups;
        for (list, &group) in state_rows(values)?.iter().zip(group_indices) {
            let Some(list) = list else { continue };
            let keys = self.column.spec().keys(list.as_ref())?;
            extend(&mut self.groups, &vec![group_id(group)?; keys.len()])?;
            extend(&mut self.keys, &keys)?;
        }
        Ok(())
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
            + self.keys.capacity() * size_of::<KeyBits>()
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

fn concatenated(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    Ok(concat(&arrays)?)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{AsArray, Int32Array};
    use datafusion::arrow::datatypes::{DataType, Int32Type};

    use super::*;
    use crate::functions::Selected;
    use crate::select::quantile::{Ask, Method, Quantile};

    fn accumulator() -> QuantilesGroupsAccumulator {
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

    fn emitted(accumulator: &mut QuantilesGroupsAccumulator, emit_to: EmitTo) -> Vec<Option<i32>> {
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
    fn its_size_is_that_of_its_buffers() {
        let mut groups = accumulator();
        let empty = groups.size();
        groups
            .update_batch(&values(&[Some(1); 1000]), &[0; 1000], None, 1)
            .unwrap();
        assert!(groups.size() >= empty + 1000 * 20);
        groups.evaluate(EmitTo::All).unwrap();
        assert_eq!(groups.size(), empty);
    }
}
