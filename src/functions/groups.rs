//! The accumulator of many groups. It keeps values and their groups in flat memory, and partitions them by group once, at the end.
//!
//! ```text
//! groups: 2 0 1 0 2      counting sort       |0 0|1|2 2|      select inside
//! keys:   e a c b d      ------------->      |a b|c|e d|      each segment
//! ```
//! Memory: the [values](super::collected) and four bytes for each; while groups are emitted, also one key, or the
//! position of one byte string, for each. There is no allocation for a row or a group. Values from partial states,
//! where those of a group come together, need no four bytes each.

use std::fmt::Debug;
use std::mem::{size_of, take};
use std::slice;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute::filter;
use datafusion::common::{Result, internal_err, resources_datafusion_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::collected::{Collected, Merging, reserve};
use super::states::{items_of, rows_as_states, state_column, state_lists};
use super::weighted::{WeightedKeys, WeightedStrings};
use crate::kernel::byte_strings::ByteStrings;
use crate::kernel::cpu::groups::segments::Plans;
use crate::key::{KeyBits, KeySpec, Width, kept, with_key};
use crate::quantile::{AnswerSpec, Found, TypedAnswerSpec};

/// The accumulator of many groups. `is_weighted`: the last argument has the weights of the values.
pub(super) fn groups_accumulator(answer_spec: AnswerSpec, is_weighted: bool) -> Box<dyn GroupsAccumulator> {
    match (answer_spec, is_weighted) {
        (AnswerSpec::Bytes(column), false) => Box::new(CollectingGroups::<ByteStrings>::new(column)),
        (AnswerSpec::Bytes(column), true) => Box::new(CollectingGroups::<WeightedStrings>::new(column)),
        (AnswerSpec::Keys(column), false) => with_key!(column.spec().width(), K => {
            Box::new(CollectingGroups::<Vec<K>>::new(column))
        }),
        (AnswerSpec::Keys(column), true) => with_key!(column.spec().width(), K => {
            Box::new(CollectingGroups::<WeightedKeys<K>>::new(column))
        }),
    }
}

/// A question about the values of groups: how values become items, and how the items of a group become its answer.
pub(super) trait AskedOfGroups<C: Collected>: Debug + Send + Sync + 'static {
    /// How values become keys or byte strings.
    fn spec(&self) -> &C::Spec;

    /// The answers, one row for each group. The items of group `g`, which may be reordered, are at `starts[g]..starts[g + 1]`.
    ///
    /// # Errors
    /// Those of making answers.
    fn answers(&self, values: &C, items: &mut [C::Item], starts: &[usize]) -> Result<ArrayRef>;
}

impl<C: Collected> AskedOfGroups<C> for TypedAnswerSpec<C::Spec> {
    fn spec(&self) -> &C::Spec {
        self.spec()
    }

    fn answers(&self, values: &C, items: &mut [C::Item], starts: &[usize]) -> Result<ArrayRef> {
        let mut plans = Plans::new([self.quantile_spec().clone()].into());
        let (mut found, mut counts) = (Found::default(), Vec::new());
        for ends in starts.windows(2) {
            let items = &mut items[ends[0]..ends[1]];
            counts.push(values.find(self, items, |n| plans.of(n).clone(), &mut found)?);
        }
        let answers = C::answers(self.quantile_spec(), self.spec(), &found)?;
        self.group_rows(answers, &counts)
    }
}

/// Collects the values of all groups, in any order.
#[derive(Debug)]
pub(super) struct CollectingGroups<C: Collected, A = TypedAnswerSpec<<C as Collected>::Spec>> {
    asked: A,
    values: C,
    groups: GroupIds,
    /// Groups seen so far, those without values included.
    group_count: usize,
    merging: Merging,
}

/// The group of each value, in the order of values.
#[derive(Debug, Default)]
struct GroupIds {
    /// The group of each value that came as a row of its own.
    each: Vec<u32>,
    /// Numbers of values that follow each other: of one group, as in a partial state, or (`None`) of the next groups in `each`.
    runs: Vec<(Option<u32>, usize)>,
}

impl GroupIds {
    /// Adds the group of the next `length` values.
    fn add(&mut self, group: u32, length: usize) {
        if length == 1 {
            self.each.push(group);
            self.add_each(1);
        } else if length > 0 {
            self.runs.push((Some(group), length));
        }
    }

    /// Records that the last `length` groups of `each` are those of the next values.
    fn add_each(&mut self, length: usize) {
        match self.runs.last_mut() {
            Some((None, before)) => *before += length,
            _ => self.runs.push((None, length)),
        }
    }

    /// Groups in the order of values, each with the number of the next values that are its own.
    fn iter(&self) -> impl Iterator<Item = (u32, usize)> {
        let mut at = 0;
        let runs = self.runs.iter().map(move |(group, length)| match group {
            Some(group) => (slice::from_ref(group), *length),
            None => {
                at += length;
                (&self.each[at - length..at], 1)
            }
        });
        runs.flat_map(|(groups, length)| groups.iter().map(move |group| (*group, length)))
    }

    /// The index at which the values of each of the first `count` groups start once they are partitioned, and the index at which the last
    /// group ends.
    fn starts(&self, count: usize) -> Vec<usize> {
        let mut starts = vec![0; count + 1];
        for (group, length) in self.iter() {
            if let Some(after) = starts.get_mut(group as usize + 1) {
                *after += length;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        starts
    }
}

/// Values of the groups `0..starts.len() - 1`, partitioned: the items of group `g` are at `starts[g]..starts[g + 1]`.
struct Segments<C: Collected> {
    values: C,
    items: Vec<C::Item>,
    starts: Vec<usize>,
}

impl<C: Collected, A: AskedOfGroups<C>> CollectingGroups<C, A> {
    pub(super) fn new(asked: A) -> Self {
        Self {
            asked,
            values: C::default(),
            groups: GroupIds::default(),
            group_count: 0,
            merging: Merging::of::<C>(),
        }
    }

    /// Brings equal values of each group together, once there are many items.
    fn merge_equal(&mut self) -> Result<()> {
        let before = self.values.count();
        if !self.merging.is_due(before) {
            return Ok(());
        }
        let count = self.group_count;
        let mut segments = self.emitted(EmitTo::All)?;
        self.group_count = count;
        let mut groups = GroupIds::default();
        for (group, ends) in segments.starts.windows(2).enumerate() {
            let items = &mut segments.items[ends[0]..ends[1]];
            let distinct = segments.values.merge_equal(items)?;
            self.values.add_items(&segments.values, &items[..distinct])?;
            groups.add(group_id(group)?, distinct);
        }
        self.groups = groups;
        self.merging.done(before, self.values.count());
        Ok(())
    }

    /// Takes out the values of the first groups, partitioned by group. The numbers of later groups move down.
    fn emitted(&mut self, emit_to: EmitTo) -> Result<Segments<C>> {
        let count = emitted_count(emit_to, self.group_count);
        let groups = take(&mut self.groups);
        let starts = groups.starts(count);
        let mut next = starts[..count].to_vec();
        let mut items = vec![C::Item::default(); starts[count]];
        let staying = &mut self.groups;
        let runs = groups
            .iter()
            .map(|(group, length)| match next.get_mut(group as usize) {
                Some(next) => {
                    *next += length;
                    (Some(*next - length), length)
                }
                None => {
                    staying.add(group - count as u32, length);
                    (None, length)
                }
            });
        let values = self.values.take_out(runs, &mut items)?;
        self.group_count -= count;
        Ok(Segments {
            values,
            items,
            starts,
        })
    }
}

/// Number of groups, of `count`, that are emitted.
pub(super) fn emitted_count(emit_to: EmitTo, count: usize) -> usize {
    match emit_to {
        EmitTo::All => count,
        EmitTo::First(first) => first.min(count),
    }
}

/// Appends the groups of the rows that are true in `kept` (`None`: of all rows).
///
/// # Errors
/// `ResourcesExhausted` for a group past 2^32 - 1; an execution error where memory ends.
pub(super) fn extend_groups(
    groups: &mut Vec<u32>,
    kept: Option<&BooleanArray>,
    group_indices: &[usize],
) -> Result<()> {
    if let Some(greatest) = group_indices.iter().max() {
        group_id(*greatest)?;
    }
    // All groups fit into 32 bits, as the greatest does.
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

/// The groups and the keys of the rows that are not NULL and pass the filter.
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

/// The number of a group, in the 32 bits that buffers have for it.
pub(super) fn group_id(group: usize) -> Result<u32> {
    u32::try_from(group).map_err(|_| {
        resources_datafusion_err!("at most {} groups are told apart, got group {group}", u32::MAX)
    })
}

impl<C: Collected, A: AskedOfGroups<C>> GroupsAccumulator for CollectingGroups<C, A> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.group_count = total_num_groups;
        let (columns, kept) = C::counted(values, opt_filter)?;
        let before = self.groups.each.len();
        extend_groups(&mut self.groups.each, kept.as_ref(), group_indices)?;
        let groups = self.groups.each.len() - before;
        self.groups.add_each(groups);
        match self.values.append(self.asked.spec(), &columns)? {
            added if added == groups => self.merge_equal(),
            added => internal_err!("exact_quantiles: {groups} groups for {added} values"),
        }
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let mut segments = self.emitted(emit_to)?;
        self.asked
            .answers(&segments.values, &mut segments.items, &segments.starts)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let Segments {
            values,
            mut items,
            starts,
        } = self.emitted(emit_to)?;
        // Distinct values of a group stand at its front, and groups move down behind each other.
        let merges = self.merging.is_useful();
        let (mut lengths, mut end) = (Vec::with_capacity(starts.len() - 1), 0);
        for ends in starts.windows(2) {
            let group = &mut items[ends[0]..ends[1]];
            let count = if merges {
                values.merge_equal(group)?
            } else {
                group.len()
            };
            items.copy_within(ends[0]..ends[0] + count, end);
            end += count;
            lengths.push(count);
        }
        let columns = values.columns(self.asked.spec(), &items[..end])?.into_iter();
        columns
            .map(|column| state_column(column, lengths.clone()))
            .collect()
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.group_count = total_num_groups;
        let lists = state_lists(values)?;
        let states = lists[0];
        if lists.iter().any(|list| list.null_count() > 0) || states.len() != group_indices.len() {
            return internal_err!(
                "{} states, {} of them NULL, for {} groups",
                states.len(),
                states.null_count(),
                group_indices.len()
            );
        }
        for (length, &group) in states.offsets().lengths().zip(group_indices) {
            self.groups.add(group_id(group)?, length);
        }
        let columns: Vec<ArrayRef> = lists.iter().map(|list| items_of(list)).collect();
        let length = columns[0].len();
        self.merging.expect(length);
        match C::counted(&columns, None)? {
            (columns, None) if self.values.append(self.asked.spec(), &columns)? == length => {
                self.merge_equal()
            }
            _ => internal_err!("exact_quantiles: {length} values in states do not all count"),
        }
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let (columns, kept) = C::counted(values, opt_filter)?;
        rows_as_states(columns, kept.as_ref(), values[0].len())
    }

    fn size(&self) -> usize {
        let runs = self.groups.runs.capacity() * size_of::<(Option<u32>, usize)>();
        size_of::<Self>() + self.groups.each.capacity() * size_of::<u32>() + runs + self.values.held_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{AsArray, Int32Array};
    use datafusion::arrow::datatypes::{DataType, Int32Type};

    use super::*;
    use crate::quantile::AnswerSpec;
    use crate::quantile::{Method, Quantile, QuantileSpec};

    fn accumulator() -> CollectingGroups<Vec<u32>> {
        let quantile_spec = QuantileSpec {
            quantiles: vec![Quantile::try_from_f64(1.0).unwrap()],
            method: Method::Disc,
            descending: false,
        };
        match AnswerSpec::try_new(&DataType::Int32, quantile_spec, false, false).unwrap() {
            AnswerSpec::Keys(column) => CollectingGroups::new(column),
            AnswerSpec::Bytes(_) => unreachable!("integers have keys"),
        }
    }

    fn values(list: &[Option<i32>]) -> Vec<ArrayRef> {
        vec![Arc::new(Int32Array::from(list.to_vec()))]
    }

    fn emitted(accumulator: &mut CollectingGroups<Vec<u32>>, emit_to: EmitTo) -> Vec<Option<i32>> {
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
        // Group 2 has become group 0.
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
        // A value of group 3, between groups that are emitted.
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
