//! Keys brought together by group, and ranks selected inside each group.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};

use crate::key::{Key, KeyBits};
use crate::quantile::{Found, Picks, QuantileSpec, ranks_of};

/// Most keys of a segment that is always sorted: selection in place is not faster there.
const SORTED: usize = 64;
/// A longer segment is sorted too if it has fewer than this number of keys for each rank.
const KEYS_A_RANK: usize = 16;
/// Plans for fewer values than this are found by index, others in a hash table.
const INDEXED: usize = 1 << 12;

/// The ranks that all calls over one column need of a group with a certain number of values.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The ranks that any call needs: from 1, ascending, distinct.
    pub(crate) ranks: Vec<u64>,
    /// For each call: the ranks that its answers lie at or between.
    pub(crate) picks: Vec<Picks>,
}

impl Plan {
    /// The plan of the calls `quantile_specs` for `n > 0` values.
    pub(crate) fn new(quantile_specs: &[QuantileSpec], n: u64) -> Self {
        let picks: Vec<Picks> = quantile_specs
            .iter()
            .map(|quantile_spec| quantile_spec.picks(n))
            .collect();
        let ranks = ranks_of(&picks);
        Self { ranks, picks }
    }
}

/// The plans of the calls over one column. Groups of equal size have the same ranks, which are computed once.
#[derive(Debug, Clone)]
pub(crate) struct Plans {
    quantile_specs: Arc<[QuantileSpec]>,
    indexed: Vec<Option<Arc<Plan>>>,
    others: HashMap<u64, Arc<Plan>>,
}

impl Plans {
    pub(crate) fn new(quantile_specs: Arc<[QuantileSpec]>) -> Self {
        Self {
            quantile_specs,
            indexed: vec![None; INDEXED],
            others: HashMap::new(),
        }
    }

    pub(crate) fn calls(&self) -> usize {
        self.quantile_specs.len()
    }

    /// The quantile specification of each call.
    pub(crate) fn quantile_specs(&self) -> &Arc<[QuantileSpec]> {
        &self.quantile_specs
    }

    /// The plan for `n > 0` values.
    pub(crate) fn of(&mut self, n: u64) -> &Arc<Plan> {
        let quantile_specs = &self.quantile_specs;
        let make = || Arc::new(Plan::new(quantile_specs, n));
        match self.indexed.get_mut(n as usize) {
            Some(slot) => slot.get_or_insert_with(make),
            None => {
                // Where values have weights, groups of as many rows can have any number of values.
                if self.others.len() == INDEXED {
                    self.others.clear();
                }
                self.others.entry(n).or_insert_with(make)
            }
        }
    }
}

/// The answers of many groups, in the order of groups.
#[derive(Debug)]
pub(crate) struct GroupAnswers {
    /// For each call: the keys that were found, of the groups that have values.
    pub(crate) found: Vec<Found<KeyBits>>,
    /// Number of values of each group.
    pub(crate) lengths: Vec<u64>,
}

impl GroupAnswers {
    /// Answers of calls with these specifications, with room for so many groups.
    pub(crate) fn with_capacity(quantile_specs: &[QuantileSpec], groups: usize) -> Self {
        let found = quantile_specs.iter().map(|quantile_spec| {
            let answers = groups * quantile_spec.quantiles.len();
            Found::with_capacity(answers, quantile_spec.method.interpolates())
        });
        Self {
            found: found.collect(),
            lengths: Vec::with_capacity(groups),
        }
    }

    /// Adds the next group, of `n` values. `key_at` gives the key of each rank of the plan.
    pub(crate) fn add(
        &mut self,
        n: u64,
        plan: &Plan,
        key_at: &impl Fn(u64) -> Result<KeyBits>,
    ) -> Result<()> {
        self.lengths.push(n);
        for (found, picks) in self.found.iter_mut().zip(&plan.picks) {
            found.add(picks, key_at)?;
        }
        Ok(())
    }

    /// Adds the next group, which has no values.
    pub(crate) fn add_empty(&mut self) {
        self.lengths.push(0);
    }
}

/// Keys in order of group. The memory is used again for the next hash partition.
#[derive(Debug, Default)]
pub(crate) struct Segments<K> {
    keys: Vec<K>,
    /// The index of the first key of each group, and the number of all keys.
    starts: Vec<usize>,
    next: Vec<usize>,
}

impl<K: Key> Segments<K> {
    /// Brings the keys of each of `groups` groups together, by a counting sort.
    pub(crate) fn fill(&mut self, groups: usize, pieces: &[(&[u32], &[K])]) {
        self.starts.clear();
        self.starts.resize(groups + 1, 0);
        for (ids, _) in pieces {
            for id in *ids {
                self.starts[*id as usize + 1] += 1;
            }
        }
        for group in 0..groups {
            self.starts[group + 1] += self.starts[group];
        }
        self.next.clear();
        self.next.extend_from_slice(&self.starts[..groups]);
        self.keys.resize(self.starts[groups], K::default());
        for (ids, keys) in pieces {
            for (id, key) in ids.iter().zip(*keys) {
                let next = &mut self.next[*id as usize];
                self.keys[*next] = *key;
                *next += 1;
            }
        }
    }

    /// The keys of a group, in no particular order.
    pub(crate) fn segment_mut(&mut self, group: usize) -> &mut [K] {
        &mut self.keys[self.starts[group]..self.starts[group + 1]]
    }

    /// Selects the ranks of every group; with `distinct`, among the distinct keys of the group.
    pub(crate) fn answers(&mut self, plans: &mut Plans, distinct: bool) -> Result<GroupAnswers> {
        let groups = self.starts.len() - 1;
        let mut answers = GroupAnswers::with_capacity(plans.quantile_specs(), groups);
        for group in 0..groups {
            let segment = self.segment_mut(group);
            let segment = if distinct {
                sorted_distinct(segment)
            } else {
                segment
            };
            let n = segment.len() as u64;
            if n == 0 {
                answers.add_empty();
                continue;
            }
            let plan = plans.of(n);
            if !distinct {
                select_ranks(segment, &plan.ranks);
            }
            let key_at = |rank: u64| match segment.get(rank as usize - 1) {
                Some(key) => Ok(key.to_bits()),
                None => Err(internal_datafusion_err!("rank {rank} of {n} values")),
            };
            answers.add(n, plan, &key_at)?;
        }
        Ok(answers)
    }
}

/// Reorders `keys` so that the keys of `ranks` are where a sort would put them. The ranks are from 1, ascending,
/// distinct, and at most the number of keys.
///
/// The time is linear in the number of keys times the logarithm of the number of ranks.
pub(crate) fn select_ranks<K: Ord>(keys: &mut [K], ranks: &[u64]) {
    select_ranks_by(keys, ranks, &K::cmp);
}

/// [`select_ranks`] in the order of `compare`.
pub(crate) fn select_ranks_by<T>(items: &mut [T], ranks: &[u64], compare: &impl Fn(&T, &T) -> Ordering) {
    if items.len() <= SORTED || items.len() / KEYS_A_RANK < ranks.len() {
        items.sort_unstable_by(compare);
    } else {
        select_by(items, 0, ranks, compare);
    }
}

/// Selects as [`select_ranks_by`] does in long slices. `before` items precede `items` in the order, and ranks count
/// them.
pub(crate) fn select_by<T>(
    items: &mut [T],
    before: u64,
    ranks: &[u64],
    compare: &impl Fn(&T, &T) -> Ordering,
) {
    let middle = ranks.len() / 2;
    let Some(&rank) = ranks.get(middle) else { return };
    let index = (rank - 1 - before) as usize;
    let (below, _, above) = items.select_nth_unstable_by(index, compare);
    select_by(below, before, &ranks[..middle], compare);
    select_by(above, rank, &ranks[middle + 1..], compare);
}

/// Sorts the keys, moves the distinct ones to the front and returns them.
pub(crate) fn sorted_distinct<K: Ord>(keys: &mut [K]) -> &mut [K] {
    keys.sort_unstable();
    let mut distinct = 0;
    for i in 0..keys.len() {
        if i == 0 || keys[i] != keys[distinct - 1] {
            // A swap keeps every key in the slice, so that evaluating again sees the same values.
            keys.swap(distinct, i);
            distinct += 1;
        }
    }
    &mut keys[..distinct]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantile::{Method, Quantile};

    #[test]
    fn ranks_land_in_place() {
        for n in [1, 50, 1000_u64] {
            let keys: Vec<KeyBits> = (0..KeyBits::from(n)).map(|i| (i * 7919) % 613).collect();
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            for ranks in [vec![1], vec![n], vec![1, n / 2 + 1, n], (1..=n).collect(), vec![]] {
                let mut ranks = ranks;
                ranks.dedup();
                let mut selected = keys.clone();
                select_ranks(&mut selected, &ranks);
                for &rank in &ranks {
                    let at = rank as usize - 1;
                    assert_eq!(selected[at], sorted[at], "rank {rank} of {n}");
                }
                selected.sort_unstable();
                assert_eq!(selected, sorted, "no key is lost");
            }
        }
    }

    #[test]
    fn distinct_keys_come_first_and_none_is_lost() {
        let mut keys = vec![3, 1, 3, 2, 1, 1];
        assert_eq!(sorted_distinct(&mut keys), [1, 2, 3]);
        keys.sort_unstable();
        assert_eq!(keys, [1, 1, 1, 2, 3, 3]);
    }

    #[test]
    fn groups_are_selected_each_by_itself() {
        let quantile_spec = QuantileSpec {
            quantiles: vec![Quantile::try_from_f64(0.5).unwrap()],
            method: Method::Disc,
            descending: false,
        };
        let mut plans = Plans::new(Arc::new([quantile_spec]));
        let mut segments = Segments::<u64>::default();
        for distinct in [false, true] {
            // Twice, so that memory is used again.
            segments.fill(1, &[(&[0; 9], &[1; 9])]);
            segments.fill(4, &[(&[2, 0, 2], &[9, 5, 1]), (&[2, 2, 0, 3], &[9, 9, 5, 7])]);
            let answers = segments.answers(&mut plans, distinct).unwrap();
            let lengths = if distinct { [1, 0, 2, 1] } else { [2, 0, 4, 1] };
            assert_eq!(answers.lengths, lengths);
            let spec = crate::key::KeySpec::try_new(&datafusion::arrow::datatypes::DataType::UInt64).unwrap();
            let values = plans.quantile_specs[0].values(&spec, &answers.found[0]).unwrap();
            let expected = if distinct {
                vec![5_u64, 1, 7]
            } else {
                vec![5, 9, 7]
            };
            let expected = datafusion::arrow::array::UInt64Array::from(expected);
            assert_eq!(values.as_ref(), &expected as &dyn datafusion::arrow::array::Array);
        }
    }
}
