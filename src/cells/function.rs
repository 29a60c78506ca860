//! A cell function of any form.

use datafusion::common::{Result, internal_err};

use super::{Bracket, CellTable, Edges, Linear};
use crate::key::{KeyBits, Width};

/// A cell function.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    /// Two-level table.
    Table(CellTable),
    /// Linear projection inside pieces; keys outside all pieces have no cell.
    Linear(Linear),
    /// Arbitrary splitters.
    Edges(Edges),
}

impl Cells {
    /// One cell of all keys.
    pub(crate) fn one() -> Self {
        Cells::Edges(Edges::default())
    }

    /// Number of edges that a key is compared with; 0 if its cell is computed.
    pub(crate) fn edges(&self) -> usize {
        match self {
            Cells::Edges(edges) => edges.as_slice().len(),
            Cells::Table(_) | Cells::Linear(_) => 0,
        }
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        match self {
            Cells::Table(table) => table.len(),
            Cells::Linear(linear) => linear.len(),
            Cells::Edges(edges) => edges.as_slice().len() + 1,
        }
    }

    /// Always false: there is at least one cell.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The cell of a key; `None` outside the pieces of [`Cells::Linear`].
    pub fn cell(&self, key: KeyBits) -> Option<u32> {
        match self {
            Cells::Table(table) => Some(table.cell(key)),
            Cells::Linear(linear) => linear.cell(key),
            Cells::Edges(edges) => Some(edges.as_slice().partition_point(|edge| *edge <= key) as u32),
        }
    }

    /// The keys of a cell; `None` if no key falls into it.
    pub fn range(&self, cell: u32, width: Width) -> Option<Bracket> {
        match self {
            Cells::Table(table) => table.range(cell, width),
            Cells::Linear(linear) => linear.range(cell),
            Cells::Edges(edges) => edges.range(cell, width),
        }
    }

    /// The first and the last cell that hold keys of `bracket`. For [`Cells::Linear`] the bracket must lie in one
    /// piece.
    ///
    /// # Errors
    /// An internal error if an end of the bracket has no cell.
    pub fn span(&self, bracket: &Bracket) -> Result<(u32, u32)> {
        match (self.cell(bracket.first), self.cell(bracket.last)) {
            (Some(first), Some(last)) => Ok((first, last)),
            _ => internal_err!("{bracket:?} reaches beyond the cells that were counted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyVec;

    fn sample(keys: &[u64]) -> KeyVec {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        KeyVec::W64(keys)
    }

    /// Checks that every cell's range holds exactly the keys that map to the cell, at both ends.
    fn check(cells: &Cells, width: Width) {
        for cell in 0..cells.len() as u32 {
            let Some(range) = cells.range(cell, width) else {
                continue;
            };
            assert_eq!(cells.cell(range.first), Some(cell), "{range:?}");
            assert_eq!(cells.cell(range.last), Some(cell), "{range:?}");
            if range.first > 0 {
                assert_ne!(cells.cell(range.first - 1), Some(cell), "{range:?}");
            }
            if range.last < width.max_key() {
                assert_ne!(cells.cell(range.last + 1), Some(cell), "{range:?}");
            }
        }
    }

    #[test]
    fn table_cells_are_exact_at_their_ends() {
        let spread: Vec<u64> = (0..5000).map(|i| i * 0x0003_1415_9265_3589).collect();
        let clustered: Vec<u64> = (0..5000)
            .map(|i| if i % 50 == 0 { i << 50 } else { 77_000 + i % 97 })
            .collect();
        let few: Vec<u64> = (0..5000).map(|i| i % 3).collect();
        for keys in [
            spread,
            clustered,
            few,
            vec![5],
            vec![0, u64::MAX],
            vec![u64::MAX; 4],
        ] {
            let table = CellTable::from_sample(&sample(&keys), 4096).unwrap();
            assert!(table.cells <= 4096 + 2048 + 2);
            check(&Cells::Table(table.clone()), Width::W64);
            let mut heavy: Vec<u128> = keys.iter().step_by(997).map(|key| (*key).into()).collect();
            heavy.extend([0, 1, u64::MAX.into()]);
            heavy.sort_unstable();
            heavy.dedup();
            heavy.truncate(CellTable::MOST_HEAVY);
            let table = Cells::Table(table.with_heavy(heavy.clone()).unwrap());
            check(&table, Width::W64);
            for key in heavy {
                let cell = table.cell(key).unwrap();
                let only = Bracket {
                    first: key,
                    last: key,
                };
                assert_eq!(table.range(cell, Width::W64), Some(only));
            }
        }
    }

    #[test]
    fn tables_reach_over_all_keys_of_the_widest() {
        let keys: Vec<u128> = (0..5000_u128).map(|i| i * (u128::MAX / 4999)).collect();
        let table = CellTable::from_sample(&KeyVec::W128(keys), 4096).unwrap();
        assert!(
            (2048..=4096 + 2048 + 2).contains(&table.cells),
            "{} cells",
            table.cells
        );
        check(&Cells::Table(table), Width::W128);
        let ends = CellTable::from_sample(&KeyVec::W128(vec![0, u128::MAX]), 4096).unwrap();
        check(&Cells::Table(ends), Width::W128);
    }

    #[test]
    fn table_gives_cells_by_share() {
        let keys: Vec<u64> = (0..10_000)
            .map(|i| if i < 9_000 { i << 30 } else { i << 41 })
            .collect();
        let table = CellTable::from_sample(&sample(&keys), 8192).unwrap();
        let cell = |key| table.cell(key);
        assert!(cell(8_999 << 30) > 2_000, "{}", cell(8_999 << 30));
    }

    #[test]
    fn linear_buckets_are_exact_at_their_ends() {
        let bracket = |first, last| Bracket { first, last };
        for (width, intervals) in [
            (Width::W64, vec![(bracket(0, u64::MAX.into()), 512)]),
            (
                Width::W64,
                vec![
                    (bracket(10, 10), 512),
                    (bracket(11, 13), 2),
                    (bracket(100, 1099), 7),
                ],
            ),
            (
                Width::W64,
                vec![(bracket(u64::MAX as u128 - 4, u64::MAX.into()), 512)],
            ),
            (
                Width::W32,
                vec![(bracket(0, 99), 100), (bracket(1 << 20, u32::MAX.into()), 1000)],
            ),
            (Width::W128, vec![(bracket(0, u128::MAX), 512)]),
            (
                Width::W128,
                vec![(bracket(5, 9), 512), (bracket(1 << 100, 1 << 101), 3)],
            ),
        ] {
            let linear = Cells::Linear(Linear::try_new(&intervals, width).unwrap());
            check(&linear, width);
            for (interval, _) in &intervals {
                let (first, last) = linear.span(interval).unwrap();
                let covered: Vec<_> = (first..=last)
                    .filter_map(|cell| linear.range(cell, width))
                    .collect();
                assert_eq!(covered[0].first, interval.first);
                assert_eq!(covered[covered.len() - 1].last, interval.last);
                assert!(covered.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
            }
        }
    }

    #[test]
    fn a_short_interval_gets_one_bucket_a_key() {
        for length in 1..200_u128 {
            let interval = Bracket {
                first: 1000,
                last: 999 + length,
            };
            let linear = Linear::try_new(&[(interval, 8192)], Width::W64).unwrap();
            for key in interval.first..=interval.last {
                assert_eq!(linear.cell(key), Some((key - 1000) as u32));
            }
            assert_eq!((linear.cell(999), linear.cell(1000 + length)), (None, None));
        }
    }

    #[test]
    fn edges_are_exact_at_their_ends() {
        let edges = Edges::try_new(vec![7, 0, 3, 8, 3, u64::MAX.into()]).unwrap();
        assert_eq!(edges.as_slice(), [3, 7, 8, u64::MAX.into()]);
        check(&Cells::Edges(edges), Width::W64);
        check(&Cells::Edges(Edges::try_new(vec![]).unwrap()), Width::W128);
    }
}
