//! Accumulators of types without a fixed-width key: the bytes of all values in flat chunks, selection at the end.
//!
//! ```text
//! groups: 2 0 1 0 2          counting sort of places      |0 0|1|2 2|     select inside each segment by
//! values: oslo bonn ...      ----------------------->     |. .|.|. .|     8 bytes behind its common prefix
//! ```
//! Cost: the bytes and four more for a value, four for its group, and 24 while groups are emitted. No allocation stays
//! for a row or a group. They serve whatever no operator of this crate takes over, as those of fixed width do.

use std::mem::{size_of, take};

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::accumulator::{extend, state_rows};
use super::frame_values::ValuesFrame;
use super::groups::{emitted_count, extend_groups, group_id, lengths, rows_as_states, starts, state_column};
use crate::kernel::values::{At, Values};
use crate::key::{ByteSpec, kept};
use crate::quantile::SelectedColumn;
use crate::quantile::byte_values::Picked;

impl SelectedColumn<ByteSpec> {
    /// Adds the answers over the values at some places (at least one) to `picked`.
    fn pick<'a>(&self, values: &'a Values, places: &[At], picked: &mut Picked<'a>) -> Result<()> {
        if self.is_distinct() {
            return self.pick_sorted(values, &values.sorted_distinct(places), picked);
        }
        let n = places.len() as u64;
        let ranks = self.ask().ranks(n);
        let found = values.select(places, 0, &ranks);
        picked.add(self.ask(), n, &|rank| {
            let at = ranks.binary_search(&rank).ok().and_then(|at| found.get(at));
            let at = at.ok_or_else(|| internal_datafusion_err!("rank {rank} was not selected"))?;
            Ok(values.value(*at))
        })
    }

    /// The same over places that are sorted by their values.
    fn pick_sorted<'a>(&self, values: &'a Values, sorted: &[At], picked: &mut Picked<'a>) -> Result<()> {
        picked.add(self.ask(), sorted.len() as u64, &|rank| {
            let at = sorted.get(rank as usize - 1);
            let at = at.ok_or_else(|| internal_datafusion_err!("rank {rank} of {} values", sorted.len()))?;
            Ok(values.value(*at))
        })
    }

    /// The row of one group, from what was picked for it.
    pub(super) fn picked_row(&self, picked: &Picked, n: u64) -> Result<ScalarValue> {
        self.row(picked.finish(self.spec())?, n)
    }

    pub(super) fn array(&self, values: &Values, places: impl Iterator<Item = At>) -> Result<ArrayRef> {
        let bytes: Vec<&[u8]> = places.map(|at| values.value(at)).collect();
        self.spec().to_array(&bytes)
    }
}

/// Values of one group, in any order; of a window frame that grows, in order from the second answer on.
#[derive(Debug)]
pub(super) struct ValuesAccumulator {
    column: SelectedColumn<ByteSpec>,
    values: Values,
    /// That of `values`, until more come.
    answer: Option<ScalarValue>,
    /// All values, once there were some after an answer.
    frame: Option<Box<ValuesFrame>>,
}

impl ValuesAccumulator {
    pub(super) fn new(column: SelectedColumn<ByteSpec>) -> Self {
        Self {
            column,
            values: Values::default(),
            answer: None,
            frame: None,
        }
    }

    fn add(&mut self, values: &ArrayRef) -> Result<()> {
        if self.answer.take().is_some() {
            // Whoever asks between values will ask again.
            self.frame = Some(Box::new(ValuesFrame::of(&self.column, take(&mut self.values))?));
        }
        match &mut self.frame {
            Some(frame) => frame.insert(&self.column, values),
            None => self.values.append(self.column.spec(), values, None).map(drop),
        }
    }
}

impl Accumulator for ValuesAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if let Some(frame) = &mut self.frame {
            return frame.evaluate(&self.column);
        }
        if let Some(answer) = &self.answer {
            return Ok(answer.clone());
        }
        let places: Vec<At> = self.values.places().collect();
        let mut picked = Picked::new(self.column.ask().method);
        if !places.is_empty() {
            self.column.pick(&self.values, &places, &mut picked)?;
        }
        let answer = self.column.picked_row(&picked, places.len() as u64)?;
        self.answer = Some(answer.clone());
        Ok(answer)
    }

    fn size(&self) -> usize {
        let frame = self.frame.as_ref().map_or(0, |frame| frame.size());
        size_of::<Self>() + self.values.held_bytes() + frame
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = match &self.frame {
            Some(frame) => frame.array(&self.column)?,
            None => self.column.array(&self.values, self.values.places())?,
        };
        self.column.state_of(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        state_rows(states)?
            .iter()
            .flatten()
            .try_for_each(|list| self.add(&list))
    }
}

/// Values of all groups, in any order.
#[derive(Debug)]
pub(super) struct ValuesGroupsAccumulator {
    column: SelectedColumn<ByteSpec>,
    /// Group of each value.
    groups: Vec<u32>,
    values: Values,
    /// Groups seen so far, those without values included.
    group_count: usize,
}

/// Values of the groups `0..starts.len() - 1`, the places of group `g` at `starts[g]..starts[g + 1]`.
struct Segments {
    values: Values,
    places: Vec<At>,
    starts: Vec<usize>,
}

impl ValuesGroupsAccumulator {
    pub(super) fn new(column: SelectedColumn<ByteSpec>) -> Self {
        Self {
            column,
            groups: Vec::new(),
            values: Values::default(),
            group_count: 0,
        }
    }

    /// Takes the values of the first groups out, partitioned by group; later groups move down.
    fn emitted(&mut self, emit_to: EmitTo) -> Result<Segments> {
        let count = emitted_count(emit_to, self.group_count);
        let starts = starts(&self.groups, count);
        let (groups, values) = (take(&mut self.groups), take(&mut self.values));
        let mut next = starts.clone();
        let mut places = vec![At::default(); starts[count]];
        for (at, &group) in values.places().zip(&groups) {
            match (group as usize).checked_sub(count) {
                None => {
                    let next = &mut next[group as usize];
                    places[*next] = at;
                    *next += 1;
                }
                Some(later) => {
                    extend(&mut self.groups, &[later as u32])?;
                    self.values.push(values.value(at))?;
                }
            }
        }
        self.group_count -= count;
        Ok(Segments {
            values,
            places,
            starts,
        })
    }
}

impl GroupsAccumulator for ValuesGroupsAccumulator {
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
        self.values
            .append(self.column.spec(), &values[0], kept.as_ref())?;
        if self.groups.len() as u64 != self.values.len() {
            return internal_err!(
                "exact_quantiles: {} groups for {} values",
                self.groups.len(),
                self.values.len()
            );
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let segments = self.emitted(emit_to)?;
        let mut picked = Picked::new(self.column.ask().method);
        for ends in segments.starts.windows(2).filter(|ends| ends[0] < ends[1]) {
            self.column
                .pick(&segments.values, &segments.places[ends[0]..ends[1]], &mut picked)?;
        }
        let answers = picked.finish(self.column.spec())?;
        let lengths: Vec<u64> = lengths(&segments.starts)
            .into_iter()
            .map(|length| length as u64)
            .collect();
        self.column.group_rows(answers, &lengths)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let segments = self.emitted(emit_to)?;
        let values = self.column.array(&segments.values, segments.places.into_iter())?;
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
            let added = self.values.append(self.column.spec(), &list, None)?;
            extend(&mut self.groups, &vec![group_id(group)?; added])?;
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
        size_of::<Self>() + self.groups.capacity() * size_of::<u32>() + self.values.held_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{AsArray, StringArray};
    use datafusion::arrow::datatypes::DataType;

    use super::super::frame_values::SlidingValuesAccumulator;
    use super::*;
    use crate::quantile::Selected;
    use crate::quantile::{Ask, Method, Quantile};

    fn column(quantile: f64, is_distinct: bool) -> SelectedColumn<ByteSpec> {
        let ask = Ask {
            quantiles: vec![Quantile::try_from_f64(quantile).unwrap()],
            method: Method::Disc,
            descending: false,
        };
        match Selected::try_new(&DataType::Utf8, ask, false, is_distinct).unwrap() {
            Selected::Bytes(column) => column,
            Selected::Keys(_) => unreachable!("strings have no keys"),
        }
    }

    fn texts(list: &[Option<&str>]) -> Vec<ArrayRef> {
        vec![Arc::new(StringArray::from(list.to_vec()))]
    }

    fn emitted(groups: &mut ValuesGroupsAccumulator, emit_to: EmitTo) -> Vec<Option<String>> {
        let rows = groups.evaluate(emit_to).unwrap();
        let rows = rows.as_string::<i32>().iter();
        rows.map(|text| text.map(str::to_owned)).collect()
    }

    fn some(texts: &[&str]) -> Vec<Option<String>> {
        texts.iter().map(|text| Some((*text).to_owned())).collect()
    }

    #[test]
    fn first_groups_leave_and_the_others_move_down() {
        let mut groups = ValuesGroupsAccumulator::new(column(1.0, false));
        let batch = texts(&[Some("five"), Some("a"), None, Some("seven"), Some("two")]);
        groups.update_batch(&batch, &[2, 0, 1, 0, 3], None, 4).unwrap();
        assert_eq!(
            emitted(&mut groups, EmitTo::First(2)),
            [some(&["seven"]), vec![None]].concat()
        );
        // What was group 2 is group 0 now.
        let batch = texts(&[Some("nine"), Some("b")]);
        groups.update_batch(&batch, &[0, 2], None, 3).unwrap();
        assert_eq!(emitted(&mut groups, EmitTo::All), some(&["nine", "two", "b"]));
        assert!(emitted(&mut groups, EmitTo::All).is_empty());
    }

    #[test]
    fn states_carry_values_filters_and_nulls() {
        let batch = texts(&[Some("d"), None, Some("f"), Some("h")]);
        let passed = BooleanArray::from(vec![Some(true), Some(true), Some(false), None]);
        let mut partial = ValuesGroupsAccumulator::new(column(1.0, false));
        partial
            .update_batch(&batch, &[0, 0, 1, 1], Some(&passed), 2)
            .unwrap();
        let mut merged = ValuesGroupsAccumulator::new(column(1.0, false));
        let rows = merged.convert_to_state(&batch, Some(&passed)).unwrap();
        merged
            .merge_batch(&partial.state(EmitTo::All).unwrap(), &[1, 0], 2)
            .unwrap();
        merged.merge_batch(&rows, &[0, 0, 0, 0], 2).unwrap();
        assert_eq!(emitted(&mut merged, EmitTo::All), some(&["d", "d"]));

        let mut one = ValuesAccumulator::new(column(0.5, true));
        one.update_batch(&batch).unwrap();
        one.update_batch(&batch).unwrap();
        let state = one.state().unwrap().remove(0).to_array().unwrap();
        let mut other = ValuesAccumulator::new(column(0.5, true));
        assert_eq!(other.evaluate().unwrap(), ScalarValue::Utf8(None));
        other.merge_batch(&[state]).unwrap();
        assert_eq!(other.evaluate().unwrap(), ScalarValue::from("f"));
    }

    #[test]
    fn sizes_are_those_of_the_buffers() {
        let mut groups = ValuesGroupsAccumulator::new(column(1.0, false));
        let empty = groups.size();
        let batch = texts(&[Some("twelve bytes"); 1000]);
        groups.update_batch(&batch, &[0; 1000], None, 1).unwrap();
        assert!(
            (20_000..80_000).contains(&(groups.size() - empty)),
            "{}",
            groups.size()
        );
        emitted(&mut groups, EmitTo::All);
        assert_eq!(groups.size(), empty);
    }

    #[test]
    fn a_moving_frame_is_a_sorted_one() {
        let all: Vec<String> = (0..20_000_u64)
            .map(|i| format!("{}", i * 7919 % 10_007 / 3))
            .collect();
        let array = StringArray::from_iter_values(&all);
        for (frame, is_distinct) in [(1, false), (50, false), (50, true)] {
            let mut sliding = SlidingValuesAccumulator::new(column(0.5, is_distinct));
            let mut most = 0;
            for last in 0..all.len() {
                sliding.update_batch(&[Arc::new(array.slice(last, 1))]).unwrap();
                if last >= frame {
                    sliding
                        .retract_batch(&[Arc::new(array.slice(last - frame, 1))])
                        .unwrap();
                }
                most = most.max(sliding.size());
                if last % 97 == 0 {
                    let mut inside = all[(last + 1).saturating_sub(frame)..=last].to_vec();
                    inside.sort_unstable();
                    if is_distinct {
                        inside.dedup();
                    }
                    let median = inside[inside.len().div_ceil(2) - 1].as_str();
                    assert_eq!(sliding.evaluate().unwrap(), ScalarValue::from(median));
                }
            }
            assert!(most < 100_000, "what has left is dropped, held {most}");
        }
        // Copies of few values cost no memory, and an answer between values is that of a sort.
        let mut growing = ValuesAccumulator::new(column(0.5, false));
        for (seen, value) in (0..20_000_u64).map(|i| i * 7919 % 5).enumerate() {
            let value = StringArray::from_iter_values([format!("one of five values {value}")]);
            growing.update_batch(&[Arc::new(value)]).unwrap();
            if seen % 999 == 998 || seen < 3 {
                let mut inside: Vec<u64> = (0..=seen as u64).map(|i| i * 7919 % 5).collect();
                inside.sort_unstable();
                let median = format!("one of five values {}", inside[inside.len().div_ceil(2) - 1]);
                assert_eq!(growing.evaluate().unwrap(), ScalarValue::from(median.as_str()));
            }
        }
        assert!(growing.size() < 200_000, "{}", growing.size());
        let state = growing.state().unwrap().remove(0).to_array().unwrap();
        let mut other = ValuesAccumulator::new(column(1.0, false));
        other.merge_batch(&[state]).unwrap();
        assert_eq!(other.values.len(), 20_000);
        let mut sliding = SlidingValuesAccumulator::new(column(0.5, false));
        sliding
            .update_batch(&texts(&[Some("c"), None, Some("a"), Some("b")]))
            .unwrap();
        assert_eq!(sliding.evaluate().unwrap(), ScalarValue::from("b"));
        sliding
            .retract_batch(&texts(&[None, Some("a"), Some("b"), Some("c")]))
            .unwrap();
        assert_eq!(sliding.evaluate().unwrap(), ScalarValue::Utf8(None));
        assert!(sliding.retract_batch(&texts(&[Some("a")])).is_err());
    }
}
