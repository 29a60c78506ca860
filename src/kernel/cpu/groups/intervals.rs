//! Counts of dyadic intervals for every group of a partition: what a partition says of its groups before the first
//! request.
//!
//! A sample chooses intervals that all groups share, by shares of all keys; one read counts (group, interval) pairs.
//! Where a group has few keys in neighbouring intervals, their counts are added up. Where it has many keys in one
//! interval, because its values are distributed differently from the others', these keys are taken out and their
//! interval is divided for that group alone. So every interval of a group is small or holds a single key, whatever the
//! data. Intervals of several partitions nest and add ([`crate::sketch::dyadic`]).
//!
//! Cost: a cell number, a counter and a checksum for each key.

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::store::BLOCK;
use super::cells::{sample_bytes, sampled};
use super::numbered::Chunk;
use super::segments::Segments;
use crate::cells::classify::{TableOf, number};
use crate::cells::{CellTable, Cells};
use crate::kernel::intervals::table;
use crate::key::{KeyBits, ShardKey, mixed};
use crate::memory::reserve;
use crate::sketch::dyadic::{Interval, Joined, around, divided};
use crate::threads::Stop;

/// Most keys that are all brought together by group and sorted.
const SORTED: usize = 1 << 13;
/// Number of keys that are sampled for the shared intervals.
const SAMPLE: usize = 1 << 15;
/// Most intervals of a group.
const MOST_INTERVALS: u64 = 2048;
/// Most counters, of 32 bits each.
const COUNTERS: usize = 1 << 20;
/// A shared interval is divided for one group alone if it holds more than this multiple of the keys that an interval of
/// the group should hold.
const CROWDED: u64 = 4;

/// The counts by which one partition describes its groups.
#[derive(Debug, Default)]
pub(crate) struct GroupCounts {
    /// For each group: ascending intervals that hold all of its keys, none of them empty.
    pub(crate) intervals: Vec<Vec<Interval>>,
    /// For each group: the sum of its mixed keys, modulo 2^64.
    pub(crate) checks: Vec<u64>,
}

/// Most keys of an interval of a group that has `n` keys in this partition and `ranks` target ranks.
///
/// An interval is written in about three bytes. For every rank, the keys of one or two intervals follow later, in eight
/// bytes each. The two together are least where an interval holds about `sqrt(0.4 n / ranks)` keys.
fn interval_limit(n: u64, ranks: usize) -> u64 {
    let best = (0.4 * n as f64 / ranks.max(1) as f64).sqrt() as u64;
    best.max(n / MOST_INTERVALS).max(1)
}

/// Counts the keys of `groups` groups, each of which has `ranks` target ranks.
///
/// # Errors
/// When `stop` is set; `ResourcesExhausted` if there is not even memory for one counter for each group.
pub(crate) fn count<K: ShardKey>(
    chunks: &[Chunk],
    groups: usize,
    ranks: usize,
    memory: &MemoryReservation,
    stop: &Stop,
) -> Result<GroupCounts> {
    let n: usize = chunks.iter().map(Chunk::len).sum();
    let Some(ends) = ends::<K>(chunks) else {
        return Ok(GroupCounts {
            intervals: vec![Vec::new(); groups],
            checks: vec![0; groups],
        });
    };
    if n <= SORTED {
        return gathered::<K>(chunks, groups, ranks);
    }
    let each = (n / groups.max(1)) as u64;
    let interval_count = (each / interval_limit(each, ranks)).clamp(1, MOST_INTERVALS) as usize;
    let interval_count = interval_count.min(COUNTERS / groups.max(1)).max(1);
    let held = memory.new_empty();
    let shared = match held.try_grow(sample_bytes::<K>(SAMPLE)) {
        Ok(()) => SharedIntervals::sampled::<K>(chunks, n, ends, interval_count)?,
        Err(_) => SharedIntervals::single(ends),
    };
    held.free();
    let shared = match held.try_grow(groups * (shared.intervals.len() + 3) * size_of::<u32>()) {
        Ok(()) => shared,
        Err(_) => {
            reserve(&held, groups * 16)?;
            SharedIntervals::single(ends)
        }
    };
    shared.count::<K>(chunks, groups, ranks, &held, stop)
}

/// The least and the greatest key of all chunks.
fn ends<K: ShardKey>(chunks: &[Chunk]) -> Option<(KeyBits, KeyBits)> {
    let mut ends: Option<(K, K)> = None;
    for keys in chunks.iter().map(|chunk| chunk.keys::<K>()) {
        let Some(first) = keys.first() else { continue };
        let (mut least, mut greatest) = ends.unwrap_or((*first, *first));
        for key in keys {
            least = least.min(*key);
            greatest = greatest.max(*key);
        }
        ends = Some((least, greatest));
    }
    ends.map(|(least, greatest)| (least.to_bits(), greatest.to_bits()))
}

/// Brings keys together by group, and divides each group's keys into intervals.
fn gathered<K: ShardKey>(chunks: &[Chunk], groups: usize, ranks: usize) -> Result<GroupCounts> {
    let ids: Vec<Vec<u32>> = chunks
        .iter()
        .map(|chunk| chunk.ids().iter().map(|id| u32::from(*id)).collect())
        .collect();
    let pieces: Vec<_> = ids
        .iter()
        .zip(chunks)
        .map(|(ids, chunk)| (ids.as_slice(), chunk.keys::<K>()))
        .collect();
    let mut segments = Segments::default();
    segments.fill(groups, &pieces);
    let mut counts = GroupCounts::default();
    for group in 0..groups {
        let keys = segments.segment_mut(group);
        keys.sort_unstable();
        counts.add(
            divided(keys, interval_limit(keys.len() as u64, ranks)),
            keys.iter()
                .fold(0, |sum, key| sum.wrapping_add(mixed(key.to_bits()))),
        );
    }
    Ok(counts)
}

impl GroupCounts {
    /// Adds the next group.
    fn add(&mut self, mut intervals: Vec<Interval>, check: u64) {
        intervals.retain(|interval| interval.count > 0);
        self.intervals.push(intervals);
        self.checks.push(check);
    }
}

/// Consecutive dyadic intervals that hold the keys of all groups, and how the interval of a key is found.
struct SharedIntervals {
    /// First key and number of bits of each interval.
    intervals: Vec<(KeyBits, u32)>,
    /// Fine cells, and the index of the interval that each of them lies in. `None`: there is only one interval.
    cells: Option<(CellTable, Vec<u16>)>,
}

impl SharedIntervals {
    fn single((least, greatest): (KeyBits, KeyBits)) -> Self {
        Self {
            intervals: vec![around(least, greatest)],
            cells: None,
        }
    }

    /// About `interval_count` intervals, by the shares of a sample.
    fn sampled<K: ShardKey>(
        chunks: &[Chunk],
        n: usize,
        ends: (KeyBits, KeyBits),
        interval_count: usize,
    ) -> Result<Self> {
        if interval_count < 2 {
            return Ok(Self::single(ends));
        }
        let lengths = chunks.iter().map(Chunk::len);
        let mut sample = sampled(lengths, n, SAMPLE, |chunk, at| Ok(chunks[chunk].keys::<K>()[at]))?;
        sample.sort_unstable();
        let (sampled, sample) = (sample.len() as u64, K::vec(sample));
        let most = (n / interval_count).max(1) as u64;
        let Some(table) = table(&sample, ends, n as u64, most)? else {
            return Ok(Self::single(ends));
        };
        let cells = Cells::Table(table);
        let mut joined = Joined::new(sampled / interval_count as u64);
        // The first and the last cell are those beyond the least and the greatest key: they are empty.
        let inner = 1..cells.len() as u32 - 1;
        for range in inner.clone().filter_map(|cell| cells.range(cell, K::WIDTH)) {
            joined.push(Interval {
                first: range.first,
                bits: KeyBits::BITS - (range.first ^ range.last).leading_zeros(),
                count: (sample.upper_bound(range.last) - sample.lower_bound(range.first)) as u64,
            });
        }
        let intervals: Vec<_> = joined
            .finish()
            .into_iter()
            .map(|own| (own.first, own.bits))
            .collect();
        let mut of_cell = vec![0; cells.len()];
        for cell in inner {
            if let Some(range) = cells.range(cell, K::WIDTH) {
                let after = intervals.partition_point(|(first, _)| *first <= range.first);
                of_cell[cell as usize] = after.saturating_sub(1) as u16;
            }
        }
        let Cells::Table(table) = cells else {
            return Ok(Self::single(ends));
        };
        Ok(Self {
            intervals,
            cells: Some((table, of_cell)),
        })
    }

    fn count<K: ShardKey>(
        &self,
        chunks: &[Chunk],
        groups: usize,
        ranks: usize,
        memory: &MemoryReservation,
        stop: &Stop,
    ) -> Result<GroupCounts> {
        let width = self.intervals.len();
        let (mut counts, mut checks) = (vec![0_u32; groups * width], vec![0_u64; groups]);
        self.each::<K>(chunks, stop, |ids, keys, intervals| {
            for ((id, key), interval) in ids.iter().zip(keys).zip(intervals) {
                let id = usize::from(*id);
                counts[id * width + usize::from(*interval)] += 1;
                checks[id] = checks[id].wrapping_add(mixed(key.to_bits()));
            }
            Ok(())
        })?;
        let limits: Vec<u64> = counts
            .chunks(width)
            .map(|counts| interval_limit(counts.iter().map(|count| u64::from(*count)).sum(), ranks))
            .collect();
        let is_crowded = |group: usize, interval: usize| {
            let count = u64::from(counts[group * width + interval]);
            count > CROWDED * limits[group] && self.intervals[interval].1 > 0
        };
        let mut crowded = self.crowded::<K>(chunks, groups, &counts, is_crowded, memory, stop)?;
        let (mut found, mut next) = (GroupCounts::default(), 0);
        for (group, check) in checks.into_iter().enumerate() {
            let mut joined = Joined::new(limits[group]);
            for (interval, (first, bits)) in self.intervals.iter().enumerate() {
                match &mut crowded {
                    Some(segments) if is_crowded(group, interval) => {
                        let keys = segments.segment_mut(next);
                        keys.sort_unstable();
                        joined.divide(*first, *bits, keys);
                        next += 1;
                    }
                    _ => joined.push(Interval {
                        first: *first,
                        bits: *bits,
                        count: counts[group * width + interval].into(),
                    }),
                }
            }
            found.add(joined.finish(), check);
        }
        Ok(found)
    }

    /// The keys of all crowded (group, interval) pairs, brought together by pair. `None` if no pair is crowded, or
    /// there is no memory for the keys.
    fn crowded<K: ShardKey>(
        &self,
        chunks: &[Chunk],
        groups: usize,
        counts: &[u32],
        is_crowded: impl Fn(usize, usize) -> bool,
        memory: &MemoryReservation,
        stop: &Stop,
    ) -> Result<Option<Segments<K>>> {
        let width = self.intervals.len();
        let (mut pairs, mut total) = (0_u32, 0);
        let mut numbers = Vec::new();
        for group in 0..groups {
            for interval in 0..width {
                if !is_crowded(group, interval) {
                    continue;
                }
                if numbers.is_empty() {
                    if memory.try_grow(size_of_val(counts)).is_err() {
                        return Ok(None);
                    }
                    numbers = vec![u32::MAX; counts.len()];
                }
                let slot = group * width + interval;
                numbers[slot] = pairs;
                (pairs, total) = (pairs + 1, total + counts[slot] as usize);
            }
        }
        let bytes = total * (size_of::<u32>() + 2 * size_of::<K>());
        if pairs == 0 || memory.try_grow(bytes).is_err() {
            return Ok(None);
        }
        let (mut slots, mut taken) = (Vec::with_capacity(total), Vec::with_capacity(total));
        self.each::<K>(chunks, stop, |ids, keys, intervals| {
            for ((id, key), interval) in ids.iter().zip(keys).zip(intervals) {
                let number = numbers[usize::from(*id) * width + usize::from(*interval)];
                if number != u32::MAX {
                    slots.push(number);
                    taken.push(*key);
                }
            }
            Ok(())
        })?;
        let mut segments = Segments::default();
        segments.fill(pairs as usize, &[(&slots, &taken)]);
        Ok(Some(segments))
    }

    /// Calls `each` with all keys, block by block, with the numbers of their groups and the indices of their intervals.
    fn each<K: ShardKey>(
        &self,
        chunks: &[Chunk],
        stop: &Stop,
        mut each: impl FnMut(&[u16], &[K], &[u16]) -> Result<()>,
    ) -> Result<()> {
        let cells = self.cells.as_ref();
        let classify = cells.map(|(table, of_cell)| (TableOf::<K>::new(table), of_cell));
        let mut numbers = [0; BLOCK];
        for chunk in chunks {
            let blocks = chunk.ids().chunks(BLOCK).zip(chunk.keys::<K>().chunks(BLOCK));
            for (ids, keys) in blocks {
                stop.check()?;
                let numbers = &mut numbers[..keys.len()];
                if let Some((classify, of_cell)) = &classify {
                    number(keys, classify, numbers);
                    for number in &mut *numbers {
                        *number = of_cell[usize::from(*number)];
                    }
                }
                each(ids, keys, numbers)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::DataType;
    use datafusion::execution::memory_pool::{
        GreedyMemoryPool, MemoryConsumer, MemoryPool, UnboundedMemoryPool,
    };

    use super::super::numbered::NumberedKeys;
    use super::*;
    use crate::key::KeySpec;

    fn chunks(ids: &[u16], keys: &[u64]) -> (Vec<Chunk>, MemoryReservation) {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let mut numbered = NumberedKeys::new(MemoryConsumer::new("test").register(&pool), None);
        let spec = KeySpec::try_new(&DataType::UInt64).unwrap();
        for (ids, keys) in ids.chunks(1000).zip(keys.chunks(1000)) {
            let raw = datafusion::arrow::buffer::Buffer::from_slice_ref(keys);
            numbered.append::<u64>(ids, &raw, &spec).unwrap();
        }
        numbered.into_parts()
    }

    fn unbounded() -> MemoryReservation {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        MemoryConsumer::new("test").register(&pool)
    }

    /// Intervals of each group are ascending, disjoint, and count the keys inside them; with `fine`, none of them is
    /// much too full.
    fn check(name: &str, groups: usize, rows: &[(u16, u64)], memory: &MemoryReservation, fine: bool) {
        let (ids, keys): (Vec<u16>, Vec<u64>) = rows.iter().copied().unzip();
        let (chunks, _held) = chunks(&ids, &keys);
        let found = count::<u64>(&chunks, groups, 1, memory, &Stop::default()).unwrap();
        assert_eq!(
            (found.intervals.len(), found.checks.len()),
            (groups, groups),
            "{name}"
        );
        for group in 0..groups {
            let own = rows
                .iter()
                .filter(|row| usize::from(row.0) == group)
                .map(|row| row.1);
            let mut own: Vec<u64> = own.collect();
            own.sort_unstable();
            let check = own
                .iter()
                .fold(0_u64, |sum, key| sum.wrapping_add(mixed((*key).into())));
            assert_eq!(found.checks[group], check, "{name}, group {group}");
            let intervals = &found.intervals[group];
            let counted: u64 = intervals.iter().map(|interval| interval.count).sum();
            assert_eq!(counted, own.len() as u64, "{name}, group {group}");
            assert!(
                intervals.windows(2).all(|pair| pair[0].last() < pair[1].first),
                "{name}"
            );
            for interval in intervals {
                let upto = own.partition_point(|key| KeyBits::from(*key) <= interval.last());
                let below = own.partition_point(|key| KeyBits::from(*key) < interval.first);
                assert_eq!(
                    interval.count,
                    (upto - below) as u64,
                    "{name}, group {group}: {interval:?}"
                );
                let most = CROWDED * interval_limit(own.len() as u64, 1);
                assert!(
                    !fine || interval.bits == 0 || interval.count <= most,
                    "{name}, group {group}: {interval:?}, {most}"
                );
            }
        }
    }

    fn random(i: u64) -> u64 {
        mixed(u128::from(i) + 1)
    }

    #[test]
    fn intervals_hold_few_keys_of_each_group() {
        for rows in [0_u64, 1, 5000, 60_000] {
            let of = |key: &dyn Fn(u64, u64) -> u64| -> Vec<(u16, u64)> {
                let row = |i: u64| (random(3 * i) % 20, i);
                (0..rows)
                    .map(row)
                    .map(|(group, i)| (group as u16, key(group, i)))
                    .collect()
            };
            for (name, rows) in [
                ("random", of(&|_, i| random(i))),
                ("equal", of(&|_, _| u64::MAX)),
                ("few", of(&|_, i| random(i) % 5 * 1_000_003)),
                ("far apart", of(&|group, i| (group << 40) + random(i) % 100_000)),
                (
                    "one far away",
                    of(&|group, i| if group == 3 { u64::MAX - i } else { i % 1000 }),
                ),
                ("heavy", of(&|_, i| if i % 2 == 0 { 1 << 50 } else { random(i) })),
                ("ascending", of(&|_, i| i)),
            ] {
                // One group more than there are rows of.
                check(name, 21, &rows, &unbounded(), true);
            }
        }
    }

    #[test]
    fn without_memory_intervals_are_coarse_and_counts_right() {
        let rows: Vec<(u16, u64)> = (0..30_000).map(|i| ((i % 7) as u16, random(i))).collect();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(200));
        let memory = MemoryConsumer::new("test").register(&pool);
        check("little memory", 7, &rows, &memory, false);
        let none: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(20));
        let memory = MemoryConsumer::new("test").register(&none);
        let (ids, keys): (Vec<u16>, Vec<u64>) = rows.into_iter().unzip();
        let error = count::<u64>(&chunks(&ids, &keys).0, 7, 1, &memory, &Stop::default()).unwrap_err();
        assert!(error.to_string().contains("112 more bytes wanted"), "{error}");
    }
}
