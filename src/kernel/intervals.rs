//! Counts of dyadic intervals for the keys of a shard, computed by the shard's own rounds: a sample, a count, an
//! extraction. The result is the same on every device.

use datafusion::common::{Result, internal_err};

use super::Shard;
use super::round::{Reply, Request};
use crate::cells::{Bracket, Brackets, CellTable, Cells, Edges, MAX_CELLS};
use crate::key::{Key, KeyBits, KeyVec, ShardKey, Width};
use crate::sketch::dyadic::{self, Interval, Joined, around};
use crate::threads::Stop;

/// Most keys that are sorted instead of counted.
const SORTED: u64 = 1 << 13;

/// Least keys of an interval for which counting is worth it. With fewer keys, a sketch is exact, or nearly.
pub(super) const LEAST_SHARE: u64 = 8;

/// Numbers of cells for each interval, tried in this order until they fit: the keys between two sampled ones are
/// divided again.
const FINER: [u64; 3] = [4, 2, 1];

/// Least number of keys for each sampled one.
const SAMPLED: u64 = 16;

/// Limit of crowding: at most one in this number of keys may lie in cells that hold too many, whose keys are then
/// extracted and sorted.
const CROWDED: u64 = 8;

/// Limits where a shard counts fast. If more than one in `CROWDED_FINELY` keys, and more than `FETCHED` keys, lie in
/// crowded cells, these cells are divided and counted again, at most `DIVISIONS` times.
const CROWDED_FINELY: u64 = 4096;
const FETCHED: u64 = 1 << 15;
const DIVISIONS: usize = 6;

/// About the least number of parts that all crowded ranges together are divided into. With many parts, keys of many
/// scales take few divisions.
const PARTS: usize = 1 << 13;

/// Numbers of sampled keys in an interval between arbitrary splitters: the first one that gives fewer than `MOST_EDGES`
/// splitters is taken.
const FEW_SAMPLED: [u64; 3] = [2, 4, 6];
const MOST_EDGES: usize = MAX_CELLS - 2;

/// The least and the greatest key, and the intervals.
pub(super) type Divided = ((KeyBits, KeyBits), Vec<Interval>);

/// The largest dyadic intervals that hold at most `most` keys, or one key only, and the least and the greatest key.
/// `None` if the keys have more scales than a table can tell apart, or there is no memory. With `finely`, keys of many
/// scales are counted between arbitrary splitters, and crowded intervals are counted again, which a device does fast.
///
/// # Errors
/// Errors of the shard.
pub(super) fn intervals<K: ShardKey>(
    shard: &mut dyn Shard,
    width: Width,
    most: u64,
    finely: bool,
    stop: &Stop,
) -> Result<Option<Divided>> {
    let n = shard.len();
    if n <= SORTED {
        return sorted_intervals::<K>(shard, width, most, stop);
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
    } = shard.answer(&request, stop)?
    else {
        return internal_err!("a shard of {n} keys without extremes");
    };
    if let Some(table) = table(&sample, ends, n, most)? {
        let cells = Cells::Table(table);
        // The first and the last cell are those beyond the least and the greatest key: they are empty.
        let counts = counts(shard, &cells, all, stop)?;
        let inner = counts.iter().enumerate().take(cells.len() - 1).skip(1);
        let inner = inner.filter_map(|(cell, count)| Some((cells.range(cell as u32, width)?, *count)));
        if let Some(intervals) = joined::<K>(shard, inner.collect(), most, finely, stop)? {
            return Ok(Some((ends, intervals)));
        }
    }
    if !finely {
        return Ok(None);
    }
    let intervals = between_edges::<K>(shard, sample, ends, most, stop)?;
    Ok(intervals.map(|intervals| (ends, intervals)))
}

/// Counts intervals between arbitrary splitters, which follow the sample through all scales.
fn between_edges<K: ShardKey>(
    shard: &mut dyn Shard,
    sample: KeyVec,
    ends: (KeyBits, KeyBits),
    most: u64,
    stop: &Stop,
) -> Result<Option<Vec<Interval>>> {
    let Some(edges) = edges::<K>(sample, ends) else {
        return Ok(None);
    };
    let cells = Cells::Edges(Edges::try_new(edges)?);
    let counts = counts(shard, &cells, Brackets::all(K::WIDTH), stop)?;
    let ranges = (0..cells.len() as u32).filter_map(|cell| cells.range(cell, K::WIDTH));
    // There are no keys below the first edge and above the last one.
    let (base, bits) = around(ends.0, ends.1);
    let is_inside = |key| around(base, key).1 <= bits;
    let inner = ranges
        .zip(counts)
        .filter(|(range, _)| is_inside(range.first) && is_inside(range.last));
    joined::<K>(shard, inner.collect(), most, true, stop)
}

/// Number of keys inside `within` in each cell.
fn counts(shard: &mut dyn Shard, cells: &Cells, within: Brackets, stop: &Stop) -> Result<Vec<u64>> {
    let request = Request::Count {
        cells: cells.clone(),
        within,
        keep: Vec::new(),
    };
    match shard.answer(&request, stop)? {
        Reply::Counts { counts, .. } => Ok(counts),
        _ => internal_err!("a count without counts"),
    }
}

/// Whether a range holds more than `most` keys, and can be divided.
fn is_crowded((range, count): &(Bracket, u64), most: u64) -> bool {
    *count > most && range.first < range.last
}

/// The crowded ranges among disjoint ones.
fn crowded(ranges: &[(Bracket, u64)], most: u64) -> impl Iterator<Item = &(Bracket, u64)> {
    ranges.iter().filter(move |range| is_crowded(range, most))
}

/// Joins counted dyadic ranges to intervals. Ranges that hold more than `most` keys are divided by their keys. `None`
/// if these keys are too many, or there is no memory for them.
fn joined<K: ShardKey>(
    shard: &mut dyn Shard,
    mut inner: Vec<(Bracket, u64)>,
    most: u64,
    finely: bool,
    stop: &Stop,
) -> Result<Option<Vec<Interval>>> {
    let within = |inner: &[(Bracket, u64)]| crowded(inner, most).map(|(_, count)| count).sum::<u64>();
    for _ in 0..DIVISIONS {
        if !finely || within(&inner) <= (shard.len() / CROWDED_FINELY).max(FETCHED) {
            break;
        }
        let Some(divided) = divided::<K>(shard, &inner, most, stop)? else {
            break;
        };
        inner = divided;
    }
    if within(&inner) > shard.len() / CROWDED {
        return Ok(None);
    }
    let crowded = crowded(&inner, most).map(|(range, _)| *range).collect();
    let Some(lists) = lists::<K>(shard, crowded, stop)? else {
        return Ok(None);
    };
    let (mut joined, mut lists) = (Joined::new(most), lists.into_iter());
    for cell in &inner {
        let (first, bits) = around(cell.0.first, cell.0.last);
        match is_crowded(cell, most).then(|| lists.next()).flatten() {
            Some(keys) => joined.divide(first, bits, &keys),
            None => joined.push(Interval {
                first,
                bits,
                count: cell.1,
            }),
        }
    }
    Ok(Some(joined.finish()))
}

/// Replaces each crowded range by equal parts, which are counted once more. `None` if there are too many parts.
fn divided<K: ShardKey>(
    shard: &mut dyn Shard,
    ranges: &[(Bracket, u64)],
    most: u64,
    stop: &Stop,
) -> Result<Option<Vec<(Bracket, u64)>>> {
    let least = (PARTS / crowded(ranges, most).count().max(1)).max(2) as u64;
    // For each crowded range: the number of bits of its parts, if a part shall hold about `most / finer` keys.
    let split = |(range, count): &(Bracket, u64), finer: u64| {
        let (_, bits) = around(range.first, range.last);
        let parts = (count * finer).div_ceil(most).max(least).next_power_of_two();
        bits - parts.ilog2().min(bits)
    };
    let parts = |finer: u64| -> Vec<Bracket> {
        let parts = crowded(ranges, most).flat_map(|range| {
            let (bits, range) = (split(range, finer), range.0);
            let size = (1 << bits) - 1;
            let starts = (range.first >> bits..=range.last >> bits).map(move |part| part << bits);
            starts.map(move |first| Bracket {
                first,
                last: first | size,
            })
        });
        // One part more than allowed is enough to know that there are too many.
        parts.take(MOST_EDGES / 2 + 1).collect()
    };
    let Some(parts) = FINER
        .into_iter()
        .map(parts)
        .find(|parts| parts.len() <= MOST_EDGES / 2)
    else {
        return Ok(None);
    };
    let within: Vec<Bracket> = crowded(ranges, most).map(|(range, _)| *range).collect();
    let ends = parts
        .iter()
        .flat_map(|part| [Some(part.first), part.last.checked_add(1)]);
    let edges = ends.flatten().filter(|edge| *edge <= K::WIDTH.max_key());
    let cells = Cells::Edges(Edges::try_new(edges.collect())?);
    let counts = counts(shard, &cells, Brackets::try_new(within)?, stop)?;
    let mut counted = Vec::with_capacity(parts.len());
    for part in parts {
        let count = cells.cell(part.first).and_then(|cell| counts.get(cell as usize));
        match count {
            Some(count) => counted.push((part, *count)),
            None => return internal_err!("{part:?} was not counted"),
        }
    }
    let mut counted = counted.into_iter().peekable();
    let mut all = Vec::with_capacity(ranges.len() + counted.len());
    for range in ranges {
        if !is_crowded(range, most) {
            all.push(*range);
            continue;
        }
        while let Some(part) = counted.next_if(|(part, _)| part.last <= range.0.last) {
            all.push(part);
        }
    }
    Ok(Some(all))
}

/// The first keys of dyadic intervals that hold few keys of the sample each, and the end of the last one. `None` if
/// there are too many.
fn edges<K: ShardKey>(sample: KeyVec, ends: (KeyBits, KeyBits)) -> Option<Vec<KeyBits>> {
    let sample = K::keys(sample)?;
    let (base, bits) = around(ends.0, ends.1);
    FEW_SAMPLED.into_iter().find_map(|few| {
        let mut joined = Joined::new(few);
        joined.divide(base, bits, &sample);
        let intervals = joined.finish();
        let last = intervals
            .last()
            .and_then(|interval| interval.last().checked_add(1));
        let last = last.filter(|edge| *edge <= K::WIDTH.max_key());
        let edges = intervals.iter().map(|interval| interval.first).chain(last);
        (intervals.len() < MOST_EDGES).then(|| edges.collect())
    })
}

/// [`intervals`] of few keys, which are sorted.
fn sorted_intervals<K: ShardKey>(
    shard: &mut dyn Shard,
    width: Width,
    most: u64,
    stop: &Stop,
) -> Result<Option<Divided>> {
    let all = Brackets::all(width).as_slice().to_vec();
    let Some(keys) = lists::<K>(shard, all, stop)?.and_then(|lists| lists.into_iter().next()) else {
        return Ok(None);
    };
    let (Some(least), Some(greatest)) = (keys.first(), keys.last()) else {
        return Ok(None);
    };
    let ends = (Key::to_bits(*least), Key::to_bits(*greatest));
    Ok(Some((ends, dyadic::divided(&keys, most))))
}

/// The keys of each bracket, ascending. `None` if there is no memory for them.
fn lists<K: ShardKey>(
    shard: &mut dyn Shard,
    brackets: Vec<Bracket>,
    stop: &Stop,
) -> Result<Option<Vec<Vec<K>>>> {
    if brackets.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let request = Request::Extract {
        brackets: Brackets::try_new(brackets)?,
    };
    let Reply::Extracted(lists) = shard.answer(&request, stop)? else {
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

/// A table whose cells are dyadic intervals, which by the shares of a sample hold at most `most` of `n` keys each, for
/// the most part. `None` if that takes too many cells.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Float64Array, UInt64Array};
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use super::*;
    use crate::kernel::{Backend, CpuBackend};
    use crate::key::KeySpec;

    /// Floats of both signs, most of them within a few of very many scales.
    fn floats() -> ArrayRef {
        let mut word = 1_u64;
        let mut uniform = || {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (word >> 11) as f64 / (1_u64 << 53) as f64
        };
        let normal = std::iter::repeat_with(|| (0..12).map(|_| uniform()).sum::<f64>() - 6.0);
        let values = normal
            .take(200_000)
            .chain([f64::NAN, 1e300, -1e300, 1e-300, -0.0, 0.0]);
        Arc::new(Float64Array::from_iter_values(values))
    }

    fn shard(values: &ArrayRef) -> Box<dyn Shard> {
        let spec = KeySpec::try_new(values.data_type()).unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        let mut shard = CpuBackend::default().open(&spec, memory).unwrap();
        shard.append(values, None).unwrap();
        shard
    }

    fn sorted_keys(values: &ArrayRef) -> Vec<KeyBits> {
        let mut keys = KeySpec::try_new(values.data_type())
            .unwrap()
            .keys(values)
            .unwrap();
        keys.sort_unstable();
        keys
    }

    /// Intervals are dyadic, follow on each other, and count all keys inside each of them.
    fn check(intervals: &[Interval], keys: &[KeyBits], most: u64) {
        let mut counted = 0;
        for interval in intervals {
            let upto = keys.partition_point(|key| *key <= interval.last());
            assert_eq!((upto - counted) as u64, interval.count);
            assert!(interval.first <= keys[counted.min(keys.len() - 1)] || interval.count == 0);
            assert!(interval.count <= most || interval.bits == 0);
            assert_eq!(
                around(interval.first, interval.last()),
                (interval.first, interval.bits)
            );
            counted = upto;
        }
        assert_eq!(counted, keys.len());
    }

    #[test]
    fn many_scales_take_arbitrary_splitters() {
        let values = floats();
        let keys = sorted_keys(&values);
        let (ends, most) = ((keys[0], keys[keys.len() - 1]), 200);
        let sample = keys.iter().step_by(20).map(|key| *key as u64).collect();
        let (mut shard, stop) = (shard(&values), Stop::default());
        let intervals = between_edges::<u64>(shard.as_mut(), KeyVec::W64(sample), ends, most, &stop);
        let intervals = intervals.unwrap().unwrap();
        check(&intervals, &keys, most);
        assert!(intervals.len() < 4 * keys.len() / most as usize);
    }

    #[test]
    fn crowded_ranges_are_divided_and_counted_again() {
        // More scales than cells can tell apart at first: clusters in clusters, and one key many times.
        let number = |i: u64| match i % 10 {
            0..3 => 1 << 40 | i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60,
            3..6 => 1 << 40 | 1 << 20 | i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50,
            6 => 77,
            _ => i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        let values: ArrayRef = Arc::new(UInt64Array::from_iter_values((0..300_000).map(number)));
        let keys = sorted_keys(&values);
        let (mut shard, stop) = (shard(&values), Stop::default());
        for most in [30, 300, 20_000] {
            let all = Bracket {
                first: 0,
                last: u64::MAX.into(),
            };
            let once = divided::<u64>(shard.as_mut(), &[(all, keys.len() as u64)], most, &stop);
            let once = once.unwrap().unwrap();
            assert_eq!(
                once.iter().map(|(_, count)| count).sum::<u64>(),
                keys.len() as u64
            );
            let intervals = joined::<u64>(shard.as_mut(), once, most, true, &stop);
            check(&intervals.unwrap().unwrap(), &keys, most);
        }
        for values in [values, floats()] {
            let (keys, mut shard) = (sorted_keys(&values), self::shard(&values));
            let found = intervals::<u64>(shard.as_mut(), Width::W64, 100, true, &stop);
            let (ends, intervals) = found.unwrap().unwrap();
            assert_eq!(ends, (keys[0], keys[keys.len() - 1]));
            check(&intervals, &keys, 100);
        }
    }
}
