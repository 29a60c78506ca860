//! The ranks that are wanted of groups, by the numbers of rows that groups have.

use datafusion::common::{Result, internal_err};

use super::sort::Segments;

/// Numbers of rows below this one are looked up by index.
const INDEXED: u64 = 1 << 16;

/// The ranks that are wanted of every group. They follow from its number of rows.
pub trait GroupRanks: Sync {
    /// Ranks of each group.
    fn each(&self) -> usize;

    /// The ranks of a group of `n > 0` rows: [`Self::each`] of them, from 1 and ascending. Some can be equal.
    fn of(&self, n: u64) -> Vec<u64>;

    /// Reserves host memory for the keys of that number of groups.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is none.
    fn reserve(&self, groups: usize) -> Result<()>;
}

/// The ranks for all numbers of rows that some groups have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RankTable {
    /// Ranks of each group.
    pub(super) each: usize,
    /// The numbers of rows, ascending, each once.
    pub(super) lengths: Vec<u64>,
    /// The ranks of the first of these, then those of the second, and so on.
    pub(super) ranks: Vec<u64>,
}

impl RankTable {
    /// The table for these groups. Reserves host memory for their keys.
    ///
    /// # Errors
    /// Errors of [`GroupRanks::reserve`]; an internal error for lists of ranks that are not as [`GroupRanks::of`] has them.
    pub(super) fn try_new(segments: &Segments, wanted: &dyn GroupRanks) -> Result<Self> {
        let groups = segments.codes.len();
        wanted.reserve(groups)?;
        let lengths = distinct(segments.lengths());
        let each = wanted.each();
        let mut ranks = Vec::with_capacity(lengths.len() * each);
        for n in &lengths {
            let own = wanted.of(*n);
            if own.len() != each || !own.is_sorted() || own.iter().any(|rank| !(1..=*n).contains(rank)) {
                return internal_err!("ranks {own:?} of {n} rows, {each} were announced");
            }
            ranks.extend(own);
        }
        Ok(Self { each, lengths, ranks })
    }

    /// The ranks of a group of `n` rows, or none if no group has as many.
    pub(super) fn of(&self, n: u64) -> &[u64] {
        let list = self.lengths.binary_search(&n);
        list.map_or(&[], |list| &self.ranks[list * self.each..(list + 1) * self.each])
    }
}

/// The numbers, ascending, each once.
fn distinct(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut seen = vec![false; INDEXED as usize];
    let mut others = Vec::new();
    // Not a loop over `next`, which takes twice as long.
    numbers.for_each(|number| match seen.get_mut(number as usize) {
        Some(seen) => *seen = true,
        None => others.push(number),
    });
    others.sort_unstable();
    others.dedup();
    let indexed = (0..INDEXED)
        .zip(seen)
        .filter_map(|(number, seen)| seen.then_some(number));
    indexed.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The first and the last rank.
    struct Ends {
        reserved: AtomicUsize,
    }

    impl GroupRanks for Ends {
        fn each(&self) -> usize {
            2
        }

        fn of(&self, n: u64) -> Vec<u64> {
            match n {
                13 => vec![1, 14],
                n => vec![1, n],
            }
        }

        fn reserve(&self, groups: usize) -> Result<()> {
            self.reserved.store(groups, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn each_number_of_rows_has_its_ranks_once() {
        let segments = Segments {
            codes: vec![1, 2, 5, 6],
            starts: vec![0, 3, 3 + 70_000, 6 + 70_000],
            records: 6 + 2 * 70_000,
        };
        let wanted = Ends {
            reserved: AtomicUsize::new(0),
        };
        let table = RankTable::try_new(&segments, &wanted).unwrap();
        assert_eq!(wanted.reserved.load(Ordering::Relaxed), 4);
        assert_eq!(table.lengths, [3, 70_000]);
        assert_eq!((table.of(3), table.of(70_000)), (&[1, 3][..], &[1, 70_000][..]));
        assert!(table.of(4).is_empty());
        let beyond = Segments {
            codes: vec![1],
            starts: vec![0],
            records: 13,
        };
        let error = RankTable::try_new(&beyond, &wanted).unwrap_err().to_string();
        assert!(error.contains("ranks [1, 14] of 13 rows"), "{error}");
    }
}
