//! The values of one group or window frame. Where values repeat, each is held once, with a count.
//!
//! ```text
//! counted: (a, 3) (c, 1) (f, 9)      ascending
//! recent:  c b b f                   as they came
//! ```
//! When the recent values have become many they are sorted. If that leaves at most half of them, they are merged into the counted ones; if
//! not, they stay as they are, so that a column without copies costs its keys and nothing else. Time of a value: its part of the sorts,
//! logarithmic in the number of distinct values. A value that leaves a frame costs a pass over the distinct values in it.

use std::mem::{size_of, take};
use std::slice::from_ref;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::common::{Result, exec_err, internal_err};

use super::sorted::Sorted;
use crate::functions::collected::{InOrder, reserve};

/// Recent values that are sorted at the earliest.
const LEAST: usize = 1 << 16;

/// More rows than there are.
const MOST_ROWS: u64 = 1 << 47;

/// The values of one group or window frame.
#[derive(Debug)]
pub(super) struct Held<C: InOrder> {
    /// Distinct values, ascending, with the number of copies of each.
    counted: Vec<(C::Item, u64)>,
    /// What tells the values of the items of `counted`.
    distinct: C,
    recent: C,
    /// Number of recent values.
    recent_count: usize,
    /// Number of recent values at which they are sorted.
    limit: usize,
}

/// The values of a group, as a partial state has them.
pub(super) struct HeldState {
    pub(super) values: ArrayRef,
    /// The number of copies of each value, where the values are distinct. None if each value is there as often as it occurs.
    pub(super) counts: Vec<u64>,
}

impl<C: InOrder> Default for Held<C> {
    fn default() -> Self {
        Self {
            counted: Vec::new(),
            distinct: C::default(),
            recent: C::default(),
            recent_count: 0,
            limit: LEAST,
        }
    }
}

/// Items of distinct values, with the number of copies of each, from sorted items.
fn with_copies<C: InOrder>(values: &C, items: &[C::Item]) -> Vec<(C::Item, u64)> {
    let same = |a: &C::Item, b: &C::Item| values.compare(*a, values, *b).is_eq();
    let chunks = items.chunk_by(same);
    chunks.map(|chunk| (chunk[0], chunk.len() as u64)).collect()
}

impl<C: InOrder> Held<C> {
    /// Adds values, none of which is NULL.
    ///
    /// # Errors
    /// An execution error where memory ends; an internal error for values of another type.
    pub(super) fn add(&mut self, spec: &C::Spec, values: &ArrayRef) -> Result<()> {
        self.recent_count += self.recent.append(spec, from_ref(values))?;
        if self.recent_count < self.limit {
            return Ok(());
        }
        let repeated = self.recent.with_items(|values, items| {
            values.sort(items);
            let distinct = items
                .windows(2)
                .filter(|pair| values.compare(pair[0], values, pair[1]).is_ne())
                .count()
                + 1;
            (distinct <= items.len() / 2).then(|| with_copies(values, items))
        });
        self.limit = 2 * self.recent_count;
        if let Some(counted) = repeated {
            self.merge_recent(counted)?;
            self.limit = LEAST.max(2 * self.counted.len());
        }
        Ok(())
    }

    /// Merges the recent values, of which `counted` has each once, into the counted ones.
    fn merge_recent(&mut self, counted: Vec<(C::Item, u64)>) -> Result<()> {
        let recent = take(&mut self.recent);
        self.recent_count = 0;
        self.merge(&recent, counted)
    }

    /// Counts all recent values.
    fn count_recent(&mut self) -> Result<()> {
        if self.recent_count == 0 {
            return Ok(());
        }
        let counted = self.recent.with_items(|values, items| {
            values.sort(items);
            with_copies(values, items)
        });
        self.merge_recent(counted)
    }

    /// Merges values with their numbers of copies, in ascending order, into the counted ones.
    fn merge(&mut self, values: &C, counted: Vec<(C::Item, u64)>) -> Result<()> {
        let mut merged = Vec::new();
        reserve(&mut merged, self.counted.len() + counted.len())?;
        let mut own = take(&mut self.counted).into_iter().peekable();
        for (item, count) in counted {
            while let Some(before) = own.next_if(|own| self.distinct.compare(own.0, values, item).is_lt()) {
                merged.push(before);
            }
            let same = own.next_if(|own| self.distinct.compare(own.0, values, item).is_eq());
            merged.push(match same {
                Some((item, copies)) => (item, copies.saturating_add(count)),
                None => (self.distinct.adopt(values, item)?, count),
            });
        }
        merged.extend(own);
        self.counted = merged;
        Ok(())
    }

    /// Removes values, none of which is NULL.
    ///
    /// # Errors
    /// An internal error for a value that is not there.
    pub(super) fn remove(&mut self, spec: &C::Spec, values: &ArrayRef) -> Result<()> {
        self.count_recent()?;
        let mut left = C::default();
        left.append(spec, from_ref(values))?;
        let gone = left.with_items(|values, items| {
            values.sort(items);
            with_copies(values, items)
        });
        let mut gone = gone.into_iter().peekable();
        let (mut distinct, mut counted) = (C::default(), Vec::new());
        for (item, count) in take(&mut self.counted) {
            let same = gone.next_if(|other| self.distinct.compare(item, &left, other.0).is_eq());
            match count.checked_sub(same.map_or(0, |other| other.1)) {
                Some(0) => {}
                Some(count) => counted.push((distinct.adopt(&self.distinct, item)?, count)),
                None => return internal_err!("a window retracts a row that it never added"),
            }
        }
        (self.distinct, self.counted) = (distinct, counted);
        match gone.next() {
            Some(_) => internal_err!("a window retracts a row that it never added"),
            None => Ok(()),
        }
    }

    /// Calls `with` with the values in order; each distinct one once if `is_distinct`.
    ///
    /// # Errors
    /// Those of `with`, and an execution error where memory ends.
    pub(super) fn sorted<T>(
        &mut self,
        is_distinct: bool,
        with: impl FnOnce(Sorted<'_, C>) -> Result<T>,
    ) -> Result<T> {
        if self.counted.is_empty() {
            return self.recent.with_items(|values, items| {
                values.sort(items);
                if !is_distinct {
                    return with(Sorted::listed(values, items));
                }
                let once = with_copies(values, items).into_iter().map(|(item, _)| (item, 1));
                with(Sorted::counted(values, once))
            });
        }
        self.count_recent()?;
        let counted = self.counted.iter().copied();
        let counted = counted.map(|(item, count)| (item, if is_distinct { 1 } else { count }));
        with(Sorted::counted(&self.distinct, counted))
    }

    /// The values, as a partial state has them.
    ///
    /// # Errors
    /// Those of making an array, and an execution error where memory ends.
    pub(super) fn state(&mut self, spec: &C::Spec) -> Result<HeldState> {
        if self.counted.is_empty() {
            let values = self.recent.with_items(|values, items| {
                // Sorted here, on one of many threads; where states come together, sorted lists are merged.
                values.sort(items);
                values.array(spec, items)
            })?;
            let counts = Vec::new();
            return Ok(HeldState { values, counts });
        }
        self.count_recent()?;
        let (items, counts): (Vec<_>, Vec<u64>) = self.counted.iter().copied().unzip();
        let values = self.distinct.array(spec, &items)?;
        Ok(HeldState { values, counts })
    }

    /// Adds the values of a partial state.
    ///
    /// # Errors
    /// An execution error for a damaged state, and where memory ends.
    pub(super) fn add_state(&mut self, spec: &C::Spec, state: &HeldState) -> Result<()> {
        let HeldState { values, counts } = state;
        if values.null_count() > 0 {
            return exec_err!("a damaged state: NULL among values");
        }
        if counts.is_empty() {
            return self.add(spec, values);
        }
        let rows = counts
            .iter()
            .fold(0_u64, |rows, count| rows.saturating_add(*count));
        if counts.len() != values.len() || counts.contains(&0) || rows > MOST_ROWS {
            return exec_err!(
                "a damaged state: {} counts, of {rows} rows, for {} values",
                counts.len(),
                values.len()
            );
        }
        let mut others = C::default();
        others.append(spec, from_ref(values))?;
        let counted = others.with_items(|_, items| {
            let pairs = items.iter().copied().zip(counts.iter().copied());
            pairs.collect::<Vec<_>>()
        });
        if !counted.is_sorted_by(|a, b| others.compare(a.0, &others, b.0).is_lt()) {
            return exec_err!("a damaged state: counted values that do not ascend");
        }
        self.merge(&others, counted)
    }

    /// Memory held, in bytes, with the buffer that a sort of the recent values takes.
    pub(super) fn size(&self) -> usize {
        let recent = self.recent.held_bytes() + self.recent_count / 2 * size_of::<C::Item>();
        self.counted.capacity() * size_of::<(C::Item, u64)>() + self.distinct.held_bytes() + recent
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::DataType;

    use super::*;
    use crate::key::{KeyBits, KeySpec};

    fn spec() -> KeySpec {
        KeySpec::try_new(&DataType::Int64).unwrap()
    }

    fn array(values: impl Iterator<Item = i64>) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(values))
    }

    fn found(held: &mut Held<Vec<u64>>, is_distinct: bool) -> Vec<(i128, u64)> {
        let mut found = Vec::new();
        let each = |sorted: Sorted<'_, Vec<u64>>| {
            sorted.for_each_distinct(|item, count| found.push((spec().integer(KeyBits::from(item)), count)));
            // The other two ways to read them agree.
            let mut rank = 0;
            for (value, count) in &found {
                for _ in 0..*count {
                    rank += 1;
                    assert_eq!(spec().integer(KeyBits::from(sorted.at(rank)?)), *value);
                }
                let up_to = |item: u64| spec().integer(KeyBits::from(item)) <= *value;
                assert_eq!(sorted.count_while(up_to), rank);
            }
            assert_eq!(sorted.n(), rank);
            assert!(sorted.at(rank + 1).is_err() && sorted.at(0).is_err());
            Ok(())
        };
        held.sorted(is_distinct, each).unwrap();
        found
    }

    #[test]
    fn values_that_repeat_are_held_once() {
        let (mut held, n) = (Held::<Vec<u64>>::default(), 4 * LEAST as i64);
        for part in 0..8 {
            let values = (0..n / 8).map(|i| (i * 7919 + part) % 100 - 50);
            held.add(&spec(), &array(values)).unwrap();
        }
        assert!(held.size() < 4 * LEAST * 8, "{}", held.size());
        let mut counts = std::collections::BTreeMap::new();
        for value in (0..8).flat_map(|part| (0..n / 8).map(move |i| (i * 7919 + part) % 100 - 50)) {
            *counts.entry(i128::from(value)).or_insert(0) += 1;
        }
        let expected: Vec<_> = counts.into_iter().collect();
        assert_eq!(found(&mut held, false), expected);
        let once: Vec<_> = expected.iter().map(|(value, _)| (*value, 1)).collect();
        assert_eq!(found(&mut held, true), once);
        // A state of it has the counts, and one that meets other values adds them up.
        let state = held.state(&spec()).unwrap();
        assert_eq!(state.values.len(), 100);
        let mut merged = Held::<Vec<u64>>::default();
        merged.add(&spec(), &array([-50, 200, 200].into_iter())).unwrap();
        merged.add_state(&spec(), &state).unwrap();
        let mut more = expected.clone();
        more[0].1 += 1;
        more.push((200, 2));
        assert_eq!(found(&mut merged, false), more);
    }

    #[test]
    fn values_without_copies_cost_their_keys() {
        let mut held = Held::<Vec<u64>>::default();
        let n = 3 * LEAST as i64;
        held.add(&spec(), &array((0..n).map(|i| (i * 7919) % n))).unwrap();
        assert!(held.counted.is_empty());
        assert_eq!(found(&mut held, false).len(), n as usize);
        let state = held.state(&spec()).unwrap();
        assert!(state.counts.is_empty() && state.values.len() == n as usize);
    }

    #[test]
    fn values_come_and_go() {
        let mut held = Held::<Vec<u64>>::default();
        held.add(&spec(), &array([3, 1, 2, 1].into_iter())).unwrap();
        held.remove(&spec(), &array([1].into_iter())).unwrap();
        assert_eq!(found(&mut held, false), [(1, 1), (2, 1), (3, 1)]);
        held.add(&spec(), &array([2, 9].into_iter())).unwrap();
        held.remove(&spec(), &array([3, 1].into_iter())).unwrap();
        assert_eq!(found(&mut held, false), [(2, 2), (9, 1)]);
        assert!(held.remove(&spec(), &array([4].into_iter())).is_err());
    }

    #[test]
    fn damaged_states_are_errors() {
        let state = |values: &[i64], counts: &[u64]| HeldState {
            values: array(values.iter().copied()),
            counts: counts.to_vec(),
        };
        let add = |state: HeldState| Held::<Vec<u64>>::default().add_state(&spec(), &state);
        add(state(&[1, 2], &[4, 1])).unwrap();
        for damaged in [
            state(&[1, 2], &[4]),
            state(&[1, 2], &[4, 0]),
            state(&[2, 1], &[4, 1]),
            state(&[1, 1], &[4, 1]),
            state(&[1], &[u64::MAX]),
        ] {
            assert!(add(damaged).is_err());
        }
    }
}
