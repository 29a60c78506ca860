//! Tests of the kernels against a sort of all rows.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use proptest::prelude::*;

use super::naive::{PATTERNS, best_of_groups, keys, mix, rows, sizes};
use super::segments::{GroupedRows, SegmentBest};
use super::slots::Segments;
use super::{Best, GroupLimit, Places, Rows, Sieve, Ties};
use crate::key::{Key, OrderBy, RowOrder};

/// Keys of a width from keys of 64 bits, in the same order.
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
    /// Number of rows in 16 that all go to one group.
    skew: u64,
    pattern: usize,
    order: usize,
    batch: usize,
    seed: u64,
}

fn grouped() -> impl Strategy<Value = Grouped> {
    let k = prop_oneof![5 => 1..40_usize, 1 => 1..3_000_usize];
    let groups = prop_oneof![1..5_usize, 1..100_usize, 1..20_000_usize];
    let layout = (
        prop_oneof![Just(0_u64), 0..16_u64],
        0..PATTERNS,
        0..3_usize,
        1..9_000_usize,
    );
    (sizes(), k, groups, layout, any::<u64>()).prop_map(|(n, k, groups, layout, seed)| {
        let (skew, pattern, order, batch) = layout;
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

/// One stream, in batches, which are distributed over states that share their floors.
#[derive(Debug, Clone)]
struct Stream {
    n: usize,
    k: usize,
    pattern: usize,
    batch: usize,
    states: usize,
    /// The form in which row numbers are given.
    places: usize,
    seed: u64,
}

fn streams() -> impl Strategy<Value = Stream> {
    let k = prop_oneof![Just(1_usize), 2..40_usize, 40..3_000_usize, Just(30_000_usize)];
    let layout = (0..PATTERNS, 1..20_000_usize, 1..4_usize, 0..3_usize);
    (sizes(), k, layout, any::<u64>()).prop_map(|(n, k, (pattern, batch, states, places), seed)| Stream {
        n,
        k,
        pattern,
        batch,
        states,
        places,
        seed,
    })
}

/// Checks the keys of the first `k` rows, and that the rows have these keys.
fn check_stream<K: Key>(stream: &Stream) {
    let keys = of_width::<K>(&keys(stream.pattern, stream.n, stream.seed));
    let mut states: Vec<Best<K>> = (0..stream.states)
        .map(|_| Best::try_new(stream.k).unwrap())
        .collect();
    let mut expected = keys.clone();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    expected.truncate(stream.k);
    let last = expected.get(stream.k - 1);
    for (index, batch) in keys.chunks(stream.batch).enumerate() {
        let from = (index * stream.batch) as u64;
        let proven = states.iter().filter_map(Best::proven).max();
        let state = &mut states[index % stream.states];
        if let Some(proven) = proven {
            state.exceed(proven);
        }
        let rows: Vec<u64> = (from..from + batch.len() as u64).collect();
        let places: Vec<u32> = (0..batch.len() as u32).collect();
        let places = match stream.places {
            0 => Places::From(from),
            1 => Places::At(from, &places),
            _ => Places::Each(&rows),
        };
        let (before, more) = (state.held_bytes(), state.more_bytes(batch.len()));
        state.push(batch, places).unwrap();
        assert!(
            state.held_bytes() <= before.saturating_add(more),
            "more bytes than said"
        );
        if index % 3 == 0 {
            state.settle().unwrap();
        }
        if index % 5 == 4 {
            // Rows that tie are copied as well.
            let ties = size_of_val(state.rows()) + 4096;
            let most = state.held_bytes() + state.cut_bytes() + 2 * ties;
            state.tighten().unwrap();
            assert!(state.held_bytes() <= most, "a cut took more bytes than said");
        }
        assert!(state.rows().is_sorted());
        assert!(
            state.proven() <= last.copied().or(state.proven()),
            "a bound above the last key"
        );
    }
    let mut all = Best::try_new(stream.k).unwrap();
    let mut held: Vec<(u64, K)> = Vec::new();
    for state in &states {
        held.extend(state.rows().iter().copied().zip(state.keys().iter().copied()));
    }
    held.sort_unstable_by_key(|(row, _)| *row);
    let (rows, kept): (Vec<u64>, Vec<K>) = held.into_iter().unzip();
    all.push(&kept, Places::Each(&rows)).unwrap();
    let (found, mut rows) = all.into_sorted().unwrap();
    assert_eq!(found, expected);
    assert!(
        found
            .iter()
            .zip(&rows)
            .all(|(key, row)| keys[*row as usize] == *key)
    );
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), found.len(), "a row came twice");
}

/// The ties that are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
enum KeptTies {
    Any,
    All,
    ByValue,
    Distinct,
}

/// Rows of a group in sorted order: key, and value, with NULLs last.
type Sorted = Vec<(u64, (bool, i64))>;

impl KeptTies {
    fn spec(self, k: usize) -> GroupLimit {
        GroupLimit {
            k,
            ties: match self {
                KeptTies::Any => Ties::Any,
                KeptTies::All => Ties::All,
                KeptTies::ByValue | KeptTies::Distinct => {
                    Ties::By(RowOrder::try_new(vec![OrderBy::values(0, DataType::Int64)]).unwrap())
                }
            },
            distinct: self == KeptTies::Distinct,
        }
    }

    fn best(self, mut rows: Sorted, k: usize) -> Sorted {
        rows.sort_by_key(|(key, value)| (std::cmp::Reverse(*key), *value));
        if self == KeptTies::Distinct {
            rows.dedup();
        }
        let len = match rows.get(k.saturating_sub(1)) {
            Some((last, _)) if self == KeptTies::All => rows.iter().filter(|(key, _)| key >= last).count(),
            _ => rows.len().min(k),
        };
        rows.truncate(len);
        rows
    }
}

fn check_sieve(grouped: &Grouped, kept: KeptTies) {
    let groups = grouped.groups.min(200);
    let of: Vec<u32> = grouped
        .groups_of_rows()
        .iter()
        .map(|group| group % groups as u32)
        .collect();
    let keys = keys(grouped.pattern, grouped.n, grouped.seed);
    let value = |i: usize| {
        let value = mix(i as u64 ^ grouped.seed) % 9;
        (value > 0).then_some(value as i64)
    };
    let values: ArrayRef = Arc::new(Int64Array::from_iter((0..grouped.n).map(value)));
    let mut sieve = Sieve::<u64>::new(kept.spec(grouped.k), vec![DataType::Int64]);
    for from in (0..grouped.n).step_by(grouped.batch) {
        let range = from..grouped.n.min(from + grouped.batch);
        let rows = Rows {
            groups: &of[range.clone()],
            keys: &keys[range.clone()],
            payload: &[values.slice(from, range.len())],
        };
        sieve.push(groups, rows).unwrap();
        if from % 7 == 0 {
            sieve.cut().unwrap();
        }
    }
    let mut expected = vec![Sorted::new(); groups];
    for i in 0..grouped.n {
        let value = value(i);
        expected[of[i] as usize].push((keys[i], (value.is_none(), value.unwrap_or(0))));
    }
    let none = Rows {
        groups: &[],
        keys: &[],
        payload: &[values.slice(0, 0)],
    };
    sieve.push(groups, none).unwrap();
    let mut expected = expected.into_iter().map(|rows| kept.best(rows, grouped.k));
    // In two parts: the groups of the second one get lower numbers.
    for part in [groups / 2, groups - groups / 2] {
        let best = sieve.take_first(part).unwrap();
        assert_eq!(best.offsets.len(), part + 1);
        let values = best.payload[0].as_primitive::<Int64Type>();
        for ends in best.offsets.windows(2) {
            let value = |at| {
                (
                    values.is_null(at),
                    if values.is_null(at) { 0 } else { values.value(at) },
                )
            };
            let mut found: Sorted = (ends[0]..ends[1]).map(|at| (best.keys[at], value(at))).collect();
            let mut expected = expected.next().unwrap();
            match kept {
                KeptTies::ByValue | KeptTies::Distinct => {}
                KeptTies::All => {
                    assert!(found.is_sorted_by(|a, b| a.0 >= b.0));
                    found.sort_by_key(|(key, value)| (std::cmp::Reverse(*key), *value));
                }
                // It is not specified which of the tied rows come first.
                KeptTies::Any => found
                    .iter_mut()
                    .chain(&mut expected)
                    .for_each(|row| row.1 = (false, 0)),
            }
            assert_eq!(found, expected);
        }
    }
    assert_eq!(sieve.best().unwrap().offsets, [0]);
}

proptest! {
    #[test]
    fn sieves_equal_a_sort(grouped in grouped(), kept in 0..4_usize) {
        check_sieve(&grouped, [KeptTies::Any, KeptTies::All, KeptTies::ByValue, KeptTies::Distinct][kept]);
    }

    #[test]
    fn streams_equal_a_sort(stream in streams(), width in 0..3) {
        match width {
            0 => check_stream::<u32>(&stream),
            1 => check_stream::<u64>(&stream),
            _ => check_stream::<u128>(&stream),
        }
    }

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

/// A sieve of 64 rows in tests: wide ones fill it sooner.
#[test]
fn wide_rows_are_cut_by_their_bytes() {
    let wide = "w".repeat(5000);
    let mut sieve = Sieve::<u64>::new(KeptTies::Any.spec(1), vec![DataType::Utf8]);
    let mut most = 0;
    for key in 0..60_u64 {
        let value: ArrayRef = Arc::new(StringArray::from(vec![wide.as_str()]));
        // Keys rise: no row is dropped by the floor.
        let rows = Rows {
            groups: &[0],
            keys: &[key],
            payload: &[value],
        };
        sieve.push(1, rows).unwrap();
        most = most.max(sieve.held_bytes());
    }
    assert!(most < 64 << 10, "{most} bytes are held for one row of 5000");
    let best = sieve.best().unwrap();
    assert_eq!((best.keys, best.payload[0].len()), (vec![59], 1));
}
