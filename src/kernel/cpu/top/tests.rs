//! The kernel against the oracle.

use proptest::prelude::*;

use super::naive::{PATTERNS, best_of_groups, keys, mix, rows, sizes};
use super::segments::{GroupedRows, SegmentBest};
use super::slots::Segments;
use crate::key::Key;

/// Keys of a width from those of 64 bits, in the same order.
fn of_width<K: Key>(keys: &[u64]) -> Vec<K> {
    let shift = if K::BITS == 128 { 40 } else { 0 };
    keys.iter()
        .map(|key| K::from_bits(u128::from(*key) << shift))
        .collect()
}

/// Grouped rows.
#[derive(Debug, Clone)]
struct Grouped {
    n: usize,
    k: usize,
    groups: usize,
    /// Rows of 16 that all go to one group.
    skew: u64,
    pattern: usize,
    order: usize,
    batch: usize,
    seed: u64,
}

fn grouped() -> impl Strategy<Value = Grouped> {
    let k = prop_oneof![5 => 1..40_usize, 1 => 1..3_000_usize];
    let groups = prop_oneof![1..5_usize, 1..100_usize, 1..20_000_usize];
    let how = (
        prop_oneof![Just(0_u64), 0..16_u64],
        0..PATTERNS,
        0..3_usize,
        1..9_000_usize,
    );
    (sizes(), k, groups, how, any::<u64>()).prop_map(|(n, k, groups, how, seed)| {
        let (skew, pattern, order, batch) = how;
        Grouped {
            n,
            k,
            groups,
            skew,
            pattern,
            order,
            batch,
            seed,
        }
    })
}

impl Grouped {
    fn groups_of_rows(&self) -> Vec<u32> {
        let group = |i: u64| {
            let random = mix(i ^ self.seed);
            if random % 16 < self.skew {
                0
            } else {
                ((random >> 8) % self.groups as u64) as u32
            }
        };
        (0..self.n as u64).map(group).collect()
    }
}

fn pieces<'a, K, R>(
    groups: &'a [u32],
    keys: &'a [K],
    rows: &'a [R],
    batch: usize,
) -> Vec<GroupedRows<'a, K, R>> {
    let chunks = groups
        .chunks(batch)
        .zip(keys.chunks(batch))
        .zip(rows.chunks(batch));
    chunks
        .map(|((groups, keys), rows)| GroupedRows { groups, keys, rows })
        .collect()
}

fn check_grouped<K: Key>(grouped: &Grouped) {
    let of = grouped.groups_of_rows();
    let keys = of_width::<K>(&keys(grouped.pattern, grouped.n, grouped.seed));
    let rows = rows(grouped.order, grouped.n, 0);
    let narrow: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
    let expected = best_of_groups(grouped.groups, &of, &keys, &rows, grouped.k);

    let mut segments = SegmentBest::default();
    let mut out = Segments::default();
    let parts = pieces(&of, &keys, &narrow, grouped.batch);
    // Twice, so that memory is used again.
    segments.best(1, &[], 3, &mut out).unwrap();
    for _ in 0..2 {
        out.clear();
        segments
            .best(grouped.groups, &parts, grouped.k, &mut out)
            .unwrap();
        assert_eq!((&out.offsets, &out.keys), (&expected.offsets, &expected.keys));
        assert!(
            out.rows
                .iter()
                .zip(&expected.rows)
                .all(|(a, b)| u64::from(*a) == *b)
        );
    }
}

proptest! {
    #[test]
    fn groups_equal_a_sort(grouped in grouped(), width in 0..3) {
        match width {
            0 => check_grouped::<u32>(&grouped),
            1 => check_grouped::<u64>(&grouped),
            _ => check_grouped::<u128>(&grouped),
        }
    }
}

#[test]
fn wrong_arguments_are_errors() {
    let said = |error: datafusion::common::DataFusionError| error.strip_backtrace();
    let mut segments = SegmentBest::<u64>::default();
    let mut out = Segments::default();
    let piece = |groups: &'static [u32]| GroupedRows {
        groups,
        keys: &[1, 2],
        rows: &[0, 1],
    };
    assert!(said(segments.best(2, &[piece(&[0, 2])], 1, &mut out).unwrap_err()).contains("group 2 of 2"));
    assert!(
        said(segments.best(2, &[piece(&[0])], 1, &mut out).unwrap_err())
            .contains("1 groups and 2 row numbers for 2 keys")
    );
    assert!(
        said(segments.best(2, &[piece(&[0, 1])], 0, &mut out).unwrap_err()).contains("k must be at least 1")
    );
    segments.best(2, &[piece(&[1, 1])], usize::MAX, &mut out).unwrap();
    assert_eq!(
        (out.offsets, out.keys, out.rows),
        (vec![0, 0, 2], vec![2, 1], vec![1, 0])
    );
}

#[test]
fn rows_given_twice_do_not_break_anything() {
    let keys = [5_u64; 5000];
    let same = [9_u64; 5000];
    for k in [1, 3, 100] {
        let piece = GroupedRows {
            groups: &[0; 5000],
            keys: &keys,
            rows: &same,
        };
        let mut out = Segments::default();
        SegmentBest::default().best(1, &[piece], k, &mut out).unwrap();
        assert_eq!((out.offsets, out.keys), (vec![0, k], vec![5; k]));
    }
}
