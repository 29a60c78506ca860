//! The values of a group in order, as the functions of this module read them.

use datafusion::common::{Result, internal_datafusion_err};

use crate::functions::collected::InOrder;

/// The values of one group, ascending.
pub(super) struct Sorted<'a, C: InOrder> {
    values: &'a C,
    kind: Kind<'a, C::Item>,
}

enum Kind<'a, I> {
    /// An item for each value.
    Listed(&'a [I]),
    /// An item for each distinct value, and the number of values up to it.
    Counted(Vec<I>, Vec<u64>),
}

impl<'a, C: InOrder> Sorted<'a, C> {
    /// Values with an item each, ascending.
    pub(super) fn listed(values: &'a C, items: &'a [C::Item]) -> Self {
        Self {
            values,
            kind: Kind::Listed(items),
        }
    }

    /// Distinct values, ascending, and how often each is there.
    pub(super) fn counted(values: &'a C, counted: impl Iterator<Item = (C::Item, u64)>) -> Self {
        let mut n = 0;
        let (items, ends) = counted
            .map(|(item, count)| {
                n += count;
                (item, n)
            })
            .unzip();
        Self {
            values,
            kind: Kind::Counted(items, ends),
        }
    }

    /// What tells the values of items.
    pub(super) fn values(&self) -> &'a C {
        self.values
    }

    /// Number of values.
    pub(super) fn n(&self) -> u64 {
        match &self.kind {
            Kind::Listed(items) => items.len() as u64,
            Kind::Counted(_, ends) => ends.last().copied().unwrap_or(0),
        }
    }

    /// The item of a rank, from 1.
    ///
    /// # Errors
    /// An internal error for a rank that no value has.
    pub(super) fn at(&self, rank: u64) -> Result<C::Item> {
        let item = match &self.kind {
            Kind::Listed(items) => items.get((rank as usize).wrapping_sub(1)),
            Kind::Counted(items, ends) => items.get(ends.partition_point(|end| *end < rank)),
        };
        let found = item.copied().filter(|_| rank > 0);
        found.ok_or_else(|| internal_datafusion_err!("rank {rank} of {} values", self.n()))
    }

    /// The item of a rank, from 1, and the number of values up to it and those equal to it.
    ///
    /// # Errors
    /// An internal error for a rank that no value has.
    pub(super) fn through(&self, rank: u64) -> Result<(C::Item, u64)> {
        let item = self.at(rank)?;
        Ok(match &self.kind {
            Kind::Listed(_) => {
                let is_same = |other| self.values.compare(other, self.values, item).is_eq();
                (item, self.count_while_from(rank, is_same))
            }
            Kind::Counted(_, ends) => (item, ends[ends.partition_point(|end| *end < rank)]),
        })
    }

    /// Number of values in front for which `holds`, which holds for none behind one for which it does not.
    pub(super) fn count_while(&self, holds: impl Fn(C::Item) -> bool) -> u64 {
        self.count_while_from(0, holds)
    }

    /// As [`Self::count_while`], where it is known to hold for the first `from` values. Takes time logarithmic in the number of values
    /// from there to the end of those for which it holds.
    pub(super) fn count_while_from(&self, from: u64, holds: impl Fn(C::Item) -> bool) -> u64 {
        match &self.kind {
            Kind::Listed(items) => searched(items, from as usize, holds) as u64,
            Kind::Counted(items, ends) => {
                let known = if from == 0 {
                    0
                } else {
                    ends.partition_point(|end| *end <= from)
                };
                match searched(items, known, holds) {
                    0 => 0,
                    before => ends[before - 1],
                }
            }
        }
    }

    /// Calls `each` with an item of each distinct value, ascending, and the number of its copies.
    pub(super) fn for_each_distinct(&self, mut each: impl FnMut(C::Item, u64)) {
        match &self.kind {
            Kind::Listed(items) => {
                let same = |a: &C::Item, b: &C::Item| self.values.compare(*a, self.values, *b).is_eq();
                for copies in items.chunk_by(same) {
                    each(copies[0], copies.len() as u64);
                }
            }
            Kind::Counted(items, ends) => {
                let mut before = 0;
                for (item, end) in items.iter().zip(ends) {
                    each(*item, end - before);
                    before = *end;
                }
            }
        }
    }
}

/// Number of items in front for which `holds`, which holds for the first `from` and for none behind one for which it does not.
fn searched<I: Copy>(items: &[I], from: usize, holds: impl Fn(I) -> bool) -> usize {
    let (mut known, mut step) = (from, 1);
    while let Some(item) = items.get(known + step - 1)
        && holds(*item)
    {
        known += step;
        step *= 2;
    }
    let open = &items[known..items.len().min(known + step - 1)];
    known + open.partition_point(|item| holds(*item))
}
