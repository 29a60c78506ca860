//! A lane's keys as counts of dyadic intervals, by the lane's own rounds: a sample, a count, an extraction. The same on every
//! device.

use datafusion::common::{Result, internal_err};

use super::buckets::{CellTable, Cells, MAX_CELLS};
use super::cpu::LaneKey;
use super::round::{Bracket, Brackets, KeyVec, Reply, Request};
use super::{Lane, Stop};
use crate::key::{Key, KeyBits, Width};
use crate::sketch::dyadic::{Interval, Joined, around};

/// Up to so many keys are sorted.
const SORTED: u64 = 1 << 13;

/// Below this an interval holds so few keys that a sketch is exact, or nearly.
pub(super) const LEAST_SHARE: u64 = 8;

/// Cells for each interval, if there is room: what falls between them is divided again.
const FINER: [u64; 3] = [4, 2, 1];

/// At least so many keys for each sampled one.
const SAMPLED: u64 = 16;

/// Of the keys, this share at most may lie in cells that hold too many.
const CROWDED: u64 = 8;

/// Intervals, and the least and the greatest key.
pub(super) type Divided = ((KeyBits, KeyBits), Vec<Interval>);

/// The largest dyadic intervals that hold at most `most` keys, or one key only, and the least and the greatest key.
/// `None` if the keys have more scales than a table, or there is no memory.
///
/// # Errors
/// Those of the lane.
pub(super) fn intervals<K: LaneKey>(
    lane: &mut dyn Lane,
    width: Width,
    most: u64,
    stop: &Stop,
) -> Result<Option<Divided>> {
    let n = lane.len();
    if n <= SORTED {
        return sorted_intervals::<K>(lane, width, most, stop);
    }
    let all = Brackets::all(width);
    let request = Request::Sample {
        size: (8 * (n / most)).min(n / SAMPLED),
        population: n,
        seed: 0,
        within: all.clone(),
        extremes: true,
    };
    let Reply::Sample {
        keys: sample,
        extremes: Some(ends),
    } = lane.answer(&request, stop)?
    else {
        return internal_err!("a lane of {n} keys without extremes");
    };
    let Some(table) = table(&sample, ends, n, most)? else {
        return Ok(None);
    };
    let cells = Cells::Table(table);
    let request = Request::Count {
        cells: cells.clone(),
        within: all,
        keep: Vec::new(),
    };
    let Reply::Counts { counts, .. } = lane.answer(&request, stop)? else {
        return internal_err!("a count without counts");
    };
    // Beyond the ends, in the first and the last cell, there is nothing.
    let inner = counts.iter().enumerate().take(cells.len() - 1).skip(1);
    let inner = inner.filter_map(|(cell, count)| Some((cells.range(cell as u32, width)?, *count)));
    let inner: Vec<(Bracket, u64)> = inner.collect();
    let is_crowded = |(range, count): &&(Bracket, u64)| *count > most && range.first < range.last;
    let crowded: Vec<Bracket> = inner.iter().filter(is_crowded).map(|(range, _)| *range).collect();
    let within: u64 = inner.iter().filter(is_crowded).map(|(_, count)| count).sum();
    if within > n / CROWDED {
        return Ok(None);
    }
    let Some(lists) = lists::<K>(lane, crowded, stop)? else {
        return Ok(None);
    };
    let (mut joined, mut lists) = (Joined::new(most), lists.into_iter());
    for cell in &inner {
        let (range, count) = *cell;
        let bits = KeyBits::BITS - (range.first ^ range.last).leading_zeros();
        match is_crowded(&cell).then(|| lists.next()).flatten() {
            Some(keys) => joined.divide(range.first, bits, &keys),
            None => joined.push(Interval {
                first: range.first,
                bits,
                count,
            }),
        }
    }
    Ok(Some((ends, joined.finish())))
}

/// The same of few keys.
fn sorted_intervals<K: LaneKey>(
    lane: &mut dyn Lane,
    width: Width,
    most: u64,
    stop: &Stop,
) -> Result<Option<Divided>> {
    let all = Brackets::all(width).as_slice().to_vec();
    let Some(keys) = lists::<K>(lane, all, stop)?.and_then(|lists| lists.into_iter().next()) else {
        return Ok(None);
    };
    let (Some(least), Some(greatest)) = (keys.first(), keys.last()) else {
        return Ok(None);
    };
    let ends = (Key::to_bits(*least), Key::to_bits(*greatest));
    let (first, bits) = around(ends.0, ends.1);
    let mut joined = Joined::new(most);
    joined.divide(first, bits, &keys);
    Ok(Some((ends, joined.finish())))
}

/// The keys of each bracket, ascending; `None` if there is no memory for them.
fn lists<K: LaneKey>(
    lane: &mut dyn Lane,
    brackets: Vec<Bracket>,
    stop: &Stop,
) -> Result<Option<Vec<Vec<K>>>> {
    if brackets.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let request = Request::Extract {
        brackets: Brackets::try_new(brackets)?,
    };
    let Reply::Extracted(lists) = lane.answer(&request, stop)? else {
        return internal_err!("an extraction without keys");
    };
    let sorted = |list| {
        let mut keys = K::keys(list)?;
        keys.sort_unstable();
        Some(keys)
    };
    let sorted: Option<Vec<Vec<K>>> = lists.into_iter().map(sorted).collect();
    Ok(sorted.filter(|lists| !lists.is_empty()))
}

/// A table whose cells are dyadic intervals, by a sample so fine that most hold at most `most` of `n` keys; `None` if that
/// takes too many.
pub(super) fn table(
    sample: &KeyVec,
    ends: (KeyBits, KeyBits),
    n: u64,
    most: u64,
) -> Result<Option<CellTable>> {
    let (base, top) = CellTable::aligned(ends.0, ends.1);
    let (shift, count) = CellTable::layout(base, top);
    let ends = (0..count as KeyBits).map(|index| base + (index << shift) + ((1 << shift) - 1));
    let mut before = 0;
    let shares = ends.map(|end| {
        let upto = sample.upper_bound(end);
        (upto - std::mem::replace(&mut before, upto)) as u64
    });
    let shares: Vec<u64> = shares.collect();
    for finer in FINER {
        let split = |share: &u64| {
            let keys = u128::from(*share) * u128::from(n) / sample.len().max(1) as u128;
            let cells = (keys * u128::from(finer)).div_ceil(u128::from(most)).max(1);
            cells.next_power_of_two().ilog2().min(shift)
        };
        let splits: Vec<u32> = shares.iter().map(split).collect();
        let cells = splits.iter().map(|split| 1_u64 << (*split).min(32)).sum::<u64>();
        if cells + 2 * CellTable::MOST_HEAVY as u64 + 2 <= MAX_CELLS as u64 {
            return CellTable::from_splits(base, top, &splits).map(Some);
        }
    }
    Ok(None)
}
