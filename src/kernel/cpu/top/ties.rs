//! Rows with equal keys: which of them are kept, and in what order.
//!
//! Rows are first ranked by their keys alone, one more than `k`: this shows whether the `k`-th row ties with the next
//! one. Ties are rare where there are many different keys, so only tied rows are compared by their columns.

use std::ops::Range;

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::chunks::Chunks;
use super::rows::{HeldRows, compared};
use super::slots::Segments;
use crate::key::{Key, RowOrder};

/// The treatment of rows with equal keys.
#[derive(Debug)]
pub(crate) enum Ties {
    /// Any of them may come first: `ROW_NUMBER`.
    Any,
    /// All rows that tie with the last one are kept: `RANK`.
    All,
    /// A further order decides.
    By(RowOrder),
}

/// The rows that stay.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// The index into `rows` of each group's first row, and the number of all rows.
    pub(super) offsets: Vec<usize>,
    /// Indices of the rows, best first in each group.
    pub(super) rows: Vec<u32>,
}

impl Ties {
    /// Number of rows of a group to rank by their keys, for `k` rows.
    pub(super) fn rows_to_find(&self, k: usize) -> usize {
        match self {
            Ties::Any => k,
            Ties::All | Ties::By(_) => k.saturating_add(1),
        }
    }

    /// The key that rows must reach once the `k`-th best key is `key`.
    pub(super) fn floor<K: Key>(&self, key: K) -> K {
        match self {
            Ties::Any if key < K::MAX => key + K::one(),
            _ => key,
        }
    }

    /// The best `k` rows of each group, from the rows that were found by their keys.
    ///
    /// # Errors
    /// Errors of comparing rows.
    pub(super) fn choose<K: Key>(
        &self,
        found: &mut Segments<K, u32>,
        rows: HeldRows<'_, K>,
        k: usize,
    ) -> Result<Chosen> {
        let last = match self {
            Ties::Any => {
                return Ok(Chosen {
                    offsets: std::mem::take(&mut found.offsets),
                    rows: std::mem::take(&mut found.rows),
                });
            }
            Ties::All | Ties::By(_) => LastTies::new(found, &rows, k),
        };
        let mut sets = TiedSets::default();
        if let Ties::By(order) = self {
            for (group, range) in ranges(&found.offsets) {
                last.for_each_set(found, group, range, k, |set| sets.add(set));
            }
            sets.sort(order, rows.payload)?;
        }
        let mut chosen = Chosen::default();
        chosen.offsets.push(0);
        let mut next = 0;
        for (group, range) in ranges(&found.offsets) {
            let start = chosen.rows.len();
            let sure = last.sure(found, group, range, k);
            chosen.rows.extend_from_slice(&found.rows[sure.clone()]);
            let tied = last.of(group);
            if matches!(self, Ties::All) {
                chosen.rows.extend(tied.iter().map(|(_, row)| row));
            } else {
                for run in runs(&found.keys[sure.clone()]) {
                    chosen.rows[start + run.start..start + run.end].copy_from_slice(sets.set(next)?);
                    next += 1;
                }
                if !tied.is_empty() {
                    let wanted = k - sure.len();
                    chosen.rows.extend(sets.set(next)?.iter().take(wanted));
                    next += 1;
                }
            }
            chosen.offsets.push(chosen.rows.len());
        }
        Ok(chosen)
    }

    /// The best `k` rows of each group that differ by key or by the order of ties. All rows are sorted.
    ///
    /// # Errors
    /// Errors of comparing rows.
    pub(super) fn choose_distinct<K: Key>(
        &self,
        groups: usize,
        rows: HeldRows<'_, K>,
        k: usize,
    ) -> Result<Chosen> {
        let Ties::By(order) = self else {
            return internal_err!("rows without an order among ties have no duplicates");
        };
        let mut row_indices: Vec<u32> = (0..rows.groups.len() as u32).collect();
        let compared = order.rows(&compared(order, rows.payload, &row_indices)?)?;
        let at = |row: &u32| {
            let row = *row as usize;
            (rows.groups[row], K::MAX.minus(rows.keys[row]), compared.row(row))
        };
        row_indices.sort_unstable_by(|a, b| at(a).cmp(&at(b)));
        row_indices.dedup_by(|a, b| at(a) == at(b));
        let mut chosen = Chosen::default();
        chosen.offsets.push(0);
        let mut next = row_indices.iter().peekable();
        for group in 0..groups as u32 {
            let mut taken = 0;
            while let Some(row) = next.next_if(|row| rows.groups[**row as usize] == group) {
                if taken < k {
                    chosen.rows.push(*row);
                    taken += 1;
                }
            }
            chosen.offsets.push(chosen.rows.len());
        }
        Ok(chosen)
    }
}

fn ranges(offsets: &[usize]) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    offsets.windows(2).map(|ends| ends[0]..ends[1]).enumerate()
}

/// Ranges of two or more equal keys.
fn runs<K: Key>(keys: &[K]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    let runs = keys.chunk_by(|a, b| a == b).map(move |run| {
        start += run.len();
        start - run.len()..start
    });
    runs.filter(|run| run.len() > 1)
}

/// For each group whose `k`-th row ties with the next one: all rows with that key.
struct LastTies {
    /// Group and row index of each such row, ascending.
    rows: Vec<(u32, u32)>,
    /// The index into `rows` of each group's first row, and the number of all of them; empty if there are none at all.
    starts: Vec<u32>,
}

impl LastTies {
    fn new<K: Key>(found: &Segments<K, u32>, rows: &HeldRows<'_, K>, k: usize) -> Self {
        let tie = |range: Range<usize>| match found.keys.get(range) {
            Some(keys) if keys.len() > k && keys[k] == keys[k - 1] => Some(keys[k]),
            _ => None,
        };
        let keys: Vec<Option<K>> = if ranges(&found.offsets).any(|(_, range)| tie(range).is_some()) {
            ranges(&found.offsets).map(|(_, range)| tie(range)).collect()
        } else {
            Vec::new()
        };
        let mut tied = Vec::new();
        if !keys.is_empty() {
            for (row, (group, key)) in rows.groups.iter().zip(rows.keys).enumerate() {
                if keys.get(*group as usize) == Some(&Some(*key)) {
                    tied.push((*group, row as u32));
                }
            }
            tied.sort_unstable();
        }
        let mut starts = Vec::new();
        if !tied.is_empty() {
            let mut at = 0;
            for group in 0..=keys.len() as u32 {
                at += tied[at..].iter().take_while(|(other, _)| *other < group).count();
                starts.push(at as u32);
            }
        }
        Self { rows: tied, starts }
    }

    /// The tied rows of one group.
    fn of(&self, group: usize) -> &[(u32, u32)] {
        match self.starts.get(group..group + 2) {
            Some(ends) => &self.rows[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }

    /// The range of a group's rows that are among the best `k` whatever becomes of its ties.
    fn sure<K: Key>(
        &self,
        found: &Segments<K, u32>,
        group: usize,
        range: Range<usize>,
        k: usize,
    ) -> Range<usize> {
        let keys = &found.keys[range.clone()];
        let len = match (self.of(group).is_empty(), keys.get(k)) {
            (false, Some(last)) => keys.partition_point(|key| key > last),
            _ => keys.len().min(k),
        };
        range.start..range.start + len
    }

    /// Calls `each` with the rows of each set of equal keys in a group, best keys first.
    fn for_each_set<K: Key>(
        &self,
        found: &Segments<K, u32>,
        group: usize,
        range: Range<usize>,
        k: usize,
        mut each: impl FnMut(&mut dyn Iterator<Item = u32>),
    ) {
        let sure = self.sure(found, group, range, k);
        for run in runs(&found.keys[sure.clone()]) {
            let rows = &found.rows[sure.start + run.start..sure.start + run.end];
            each(&mut rows.iter().copied());
        }
        let tied = self.of(group);
        if !tied.is_empty() {
            each(&mut tied.iter().map(|(_, row)| *row));
        }
    }
}

/// Sets of rows with equal keys.
#[derive(Default)]
struct TiedSets {
    rows: Vec<u32>,
    ends: Vec<usize>,
}

impl TiedSets {
    fn add(&mut self, rows: &mut dyn Iterator<Item = u32>) {
        self.rows.extend(rows);
        self.ends.push(self.rows.len());
    }

    /// Sorts the rows of each set.
    fn sort(&mut self, order: &RowOrder, payload: &Chunks) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let compared = order.rows(&compared(order, payload, &self.rows)?)?;
        let mut row_indices: Vec<u32> = (0..self.rows.len() as u32).collect();
        let mut start = 0;
        for end in &self.ends {
            row_indices[start..*end]
                .sort_by(|a, b| compared.row(*a as usize).cmp(&compared.row(*b as usize)));
            start = *end;
        }
        self.rows = row_indices
            .into_iter()
            .map(|index| self.rows[index as usize])
            .collect();
        Ok(())
    }

    fn set(&self, index: usize) -> Result<&[u32]> {
        let start = match index {
            0 => Some(0),
            _ => self.ends.get(index - 1).copied(),
        };
        let range = start.zip(self.ends.get(index)).map(|(start, end)| start..*end);
        range
            .and_then(|range| self.rows.get(range))
            .ok_or_else(|| internal_datafusion_err!("no set {index} of rows with equal keys"))
    }
}
