//! Rounds are data: a [`Request`] goes to every lane, the [`Reply`]s are merged.
//!
//! The same messages drive threads, simulated shards and, later, devices and cluster stages, so one strategy serves
//! all. [`Request::values`] and [`Reply::values`] count what would cross a network, in the unit of the papers: one
//! value (a key, a count, a bucket number).

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::buckets::Cells;
use crate::key::{Key, KeyBits, Width};
use crate::sketch::{AnySummary, Epsilon};

/// The keys strictly between two ends, written by the first and the last of them (`first <= last`): the open
/// interval `(first - 1, last + 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bracket {
    /// Smallest key inside.
    pub first: KeyBits,
    /// Largest key inside.
    pub last: KeyBits,
}

impl Bracket {
    /// Whether `key` lies inside.
    pub fn contains(&self, key: KeyBits) -> bool {
        self.first <= key && key <= self.last
    }

    /// The keys that lie in both, if any.
    pub fn intersect(&self, other: &Bracket) -> Option<Bracket> {
        let both = Bracket {
            first: self.first.max(other.first),
            last: self.last.min(other.last),
        };
        (both.first <= both.last).then_some(both)
    }
}

/// Disjoint brackets in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brackets(Vec<Bracket>);

impl Brackets {
    /// From brackets that are disjoint and ascending.
    ///
    /// # Errors
    /// An internal error if they are not.
    pub fn try_new(brackets: Vec<Bracket>) -> Result<Self> {
        let ordered = brackets.windows(2).all(|pair| pair[0].last < pair[1].first);
        if !ordered || brackets.iter().any(|bracket| bracket.first > bracket.last) {
            return internal_err!("brackets are not disjoint and ascending: {brackets:?}");
        }
        Ok(Self(brackets))
    }

    /// One bracket around all keys of this width.
    pub fn all(width: Width) -> Self {
        Self(vec![Bracket {
            first: 0,
            last: width.max_key(),
        }])
    }

    /// The brackets, ascending.
    pub fn as_slice(&self) -> &[Bracket] {
        &self.0
    }

    /// Whether every key of this width lies inside.
    pub fn is_all(&self, width: Width) -> bool {
        *self == Self::all(width)
    }

    /// Whether each bracket of `other` lies inside one of these.
    pub fn cover(&self, other: &Brackets) -> bool {
        other.0.iter().all(|inner| {
            let at = self.0.partition_point(|outer| outer.last < inner.first);
            self.0
                .get(at)
                .is_some_and(|outer| outer.first <= inner.first && inner.last <= outer.last)
        })
    }
}

/// What the coordinator asks of every lane.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Some of the keys, evenly spread over the positions of those inside `within`.
    Sample {
        /// Keys wanted from all lanes together; a lane gives `ceil(size * own / population)`.
        size: u64,
        /// Keys inside `within`, over all lanes.
        population: u64,
        /// Seed of the jitter.
        seed: u64,
        /// The keys that are sampled.
        within: Brackets,
        /// Whether the smallest and the largest key are wanted too: that takes a read of all keys.
        extremes: bool,
    },
    /// How many keys fall in each cell, of those inside `within`; the keys of the cells in `keep` come back too.
    Count {
        /// The cell function.
        cells: Cells,
        /// The keys that are counted. No bracket of it shares a cell with another.
        within: Brackets,
        /// Cells (ascending) whose keys are wanted.
        keep: Vec<u32>,
    },
    /// A Greenwald-Khanna summary of all keys.
    Sketch {
        /// Its error fraction.
        eps: Epsilon,
    },
    /// The keys inside each bracket.
    Extract {
        /// The brackets.
        brackets: Brackets,
    },
}

impl Request {
    /// The round's name in traces and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Sample { .. } => "sample",
            Request::Count { .. } => "count",
            Request::Sketch { .. } => "sketch",
            Request::Extract { .. } => "extract",
        }
    }

    /// Values in the message: cell definitions and bracket ends. Scalars (seed, sizes) are not counted.
    pub fn values(&self, width: Width) -> u64 {
        let ends = |brackets: &Brackets| {
            if brackets.is_all(width) {
                0
            } else {
                2 * brackets.as_slice().len() as u64
            }
        };
        match self {
            Request::Sample { within, .. } => ends(within),
            Request::Count { cells, within, keep } => cells.values() + ends(within) + keep.len() as u64,
            Request::Sketch { .. } => 0,
            Request::Extract { brackets } => ends(brackets),
        }
    }
}

/// Keys that a lane gives to a [`Request::Sample`] of `size` of `population` keys, of its `own`.
pub fn share(size: u64, population: u64, own: u64) -> u64 {
    (u128::from(size) * u128::from(own)).div_ceil(u128::from(population.max(1))) as u64
}

/// Keys of one width, as a lane returns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyVec {
    /// Keys of at most 32 bits.
    W32(Vec<u32>),
    /// 64-bit keys.
    W64(Vec<u64>),
    /// 128-bit keys.
    W128(Vec<u128>),
}

/// Runs the same expression on whichever vector a [`KeyVec`] holds.
macro_rules! on_keys {
    ($keys:expr, $vec:ident => $body:expr) => {
        match $keys {
            KeyVec::W32($vec) => $body,
            KeyVec::W64($vec) => $body,
            KeyVec::W128($vec) => $body,
        }
    };
}

impl KeyVec {
    /// No keys.
    pub fn new(width: Width) -> Self {
        match width {
            Width::W32 => KeyVec::W32(Vec::new()),
            Width::W64 => KeyVec::W64(Vec::new()),
            Width::W128 => KeyVec::W128(Vec::new()),
        }
    }

    /// Width of the keys.
    pub(crate) fn width(&self) -> Width {
        match self {
            KeyVec::W32(_) => Width::W32,
            KeyVec::W64(_) => Width::W64,
            KeyVec::W128(_) => Width::W128,
        }
    }

    /// A copy of keys of any width.
    pub(crate) fn of<K: Key>(keys: &[K]) -> Self {
        let width = match K::BITS {
            32 => Width::W32,
            64 => Width::W64,
            _ => Width::W128,
        };
        Self::from_bits(keys.iter().map(|key| key.to_bits()), width)
    }

    /// Keys of this width by their bits.
    pub(crate) fn from_bits(bits: impl Iterator<Item = KeyBits>, width: Width) -> Self {
        match width {
            Width::W32 => KeyVec::W32(bits.map(|bits| bits as u32).collect()),
            Width::W64 => KeyVec::W64(bits.map(|bits| bits as u64).collect()),
            Width::W128 => KeyVec::W128(bits.collect()),
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        on_keys!(self, keys => keys.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key at `index`, which is less than [`Self::len`].
    pub fn get(&self, index: usize) -> KeyBits {
        on_keys!(self, keys => Key::to_bits(keys[index]))
    }

    /// Sorts ascending; fast where it is made of a few ascending runs.
    pub fn sort(&mut self) {
        on_keys!(self, keys => keys.sort())
    }

    /// Sorts ascending and drops duplicates.
    pub fn sort_distinct(&mut self) {
        on_keys!(self, keys => {
            keys.sort_unstable();
            keys.dedup();
        })
    }

    /// How many keys are less than `key`; the keys are ascending.
    pub fn lower_bound(&self, key: KeyBits) -> usize {
        on_keys!(self, keys => keys.partition_point(|own| own.to_bits() < key))
    }

    /// How many keys are at most `key`; the keys are ascending.
    pub fn upper_bound(&self, key: KeyBits) -> usize {
        on_keys!(self, keys => keys.partition_point(|own| own.to_bits() <= key))
    }

    /// The keys of the given 0-based ranks (ascending, each less than [`Self::len`]); reorders the keys.
    pub fn select(&mut self, ranks: &[u64]) -> Vec<KeyBits> {
        on_keys!(self, keys => select(keys, ranks))
    }

    /// The same keys in pieces of at most `length`.
    pub(crate) fn pieces(&self, length: usize) -> impl Iterator<Item = KeyVec> {
        let piece = move |start: usize| {
            let end = (start + length).min(self.len());
            on_keys!(self, keys => KeyVec::of(&keys[start..end]))
        };
        (0..self.len()).step_by(length.max(1)).map(piece)
    }

    pub(crate) fn append(&mut self, other: KeyVec) -> Result<()> {
        match (self, other) {
            (KeyVec::W32(own), KeyVec::W32(other)) => append(own, other),
            (KeyVec::W64(own), KeyVec::W64(other)) => append(own, other),
            (KeyVec::W128(own), KeyVec::W128(other)) => append(own, other),
            (own, other) => return internal_err!("keys of two widths: {own:?} and {other:?}"),
        }
        Ok(())
    }
}

/// Keys of two replies are many or few: room for exactly so many is what was reserved.
fn append<K>(own: &mut Vec<K>, mut other: Vec<K>) {
    own.reserve_exact(other.len());
    own.append(&mut other);
}

fn select<K: Key>(keys: &mut [K], ranks: &[u64]) -> Vec<KeyBits> {
    // A selection reads about 2n keys, a sort about n log n: past a handful of ranks the sort wins.
    if ranks.len() > 4 {
        keys.sort_unstable();
        return ranks.iter().map(|rank| keys[*rank as usize].to_bits()).collect();
    }
    let (mut rest, mut skipped) = (keys, 0);
    let mut found: Vec<KeyBits> = Vec::with_capacity(ranks.len());
    for &rank in ranks {
        let index = rank as usize;
        if index < skipped {
            // The same rank again.
            found.extend(found.last().copied());
            continue;
        }
        let (_, key, above) = rest.select_nth_unstable(index - skipped);
        found.push(key.to_bits());
        (rest, skipped) = (above, index + 1);
    }
    found
}

/// A lane's answer, or the merged answer of several.
///
/// A lane that has no memory for the keys that it was to collect gives no list at all in place of one for each cell or
/// bracket; a merged answer has none then either. Counts are right all the same.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To [`Request::Sample`].
    Sample {
        /// The sampled keys; after a merge one ascending run a lane.
        keys: KeyVec,
        /// Smallest and largest key inside the brackets, if they were asked for and there is one.
        extremes: Option<(KeyBits, KeyBits)>,
    },
    /// To [`Request::Count`].
    Counts {
        /// Keys in each cell.
        counts: Vec<u64>,
        /// The keys of each kept cell, in the order of the request.
        kept: Vec<KeyVec>,
    },
    /// To [`Request::Sketch`]; none if some lane had no memory for it.
    Sketch(Option<AnySummary>),
    /// To [`Request::Extract`]: the keys of each bracket.
    Extracted(Vec<KeyVec>),
}

impl Reply {
    /// Values in the message.
    pub fn values(&self) -> u64 {
        let keys = |kept: &[KeyVec]| kept.iter().map(|keys| keys.len() as u64).sum::<u64>();
        match self {
            Reply::Sample { keys, extremes } => keys.len() as u64 + if extremes.is_some() { 2 } else { 0 },
            Reply::Counts { counts, kept } => counts.len() as u64 + keys(kept),
            // Key, g and delta.
            Reply::Sketch(summary) => 3 * summary.as_ref().map_or(0, |summary| summary.len() as u64),
            Reply::Extracted(kept) => keys(kept),
        }
    }
    /// Adds another lane's answer to the same request.
    ///
    /// # Errors
    /// An internal error if the answers are of different shapes.
    pub fn merge(&mut self, other: Reply) -> Result<()> {
        match (self, other) {
            (
                Reply::Sample { keys, extremes },
                Reply::Sample {
                    keys: more,
                    extremes: others,
                },
            ) => {
                keys.append(more)?;
                *extremes = match (*extremes, others) {
                    (Some(own), Some(other)) => Some((own.0.min(other.0), own.1.max(other.1))),
                    (own, other) => own.or(other),
                };
            }
            (
                Reply::Counts { counts, kept },
                Reply::Counts {
                    counts: more,
                    kept: others,
                },
            ) if counts.len() == more.len() => {
                for (count, more) in counts.iter_mut().zip(more) {
                    let sum = count.checked_add(more);
                    *count =
                        sum.ok_or_else(|| internal_datafusion_err!("more than 2^64 - 1 keys in a cell"))?;
                }
                append_each(kept, others)?;
            }
            (Reply::Sketch(own), Reply::Sketch(other)) => {
                *own = match (own.take(), other) {
                    (Some(own), Some(other)) => Some(own.merge(other)?),
                    _ => None,
                };
            }
            (Reply::Extracted(kept), Reply::Extracted(others)) => append_each(kept, others)?,
            _ => return internal_err!("replies to one request have different shapes"),
        }
        Ok(())
    }
}

fn append_each(kept: &mut Vec<KeyVec>, others: Vec<KeyVec>) -> Result<()> {
    if kept.is_empty() || others.is_empty() {
        kept.clear();
        return Ok(());
    }
    if kept.len() != others.len() {
        return internal_err!("{} lists of keys to merge with {}", kept.len(), others.len());
    }
    kept.iter_mut()
        .zip(others)
        .try_for_each(|(keys, more)| keys.append(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_refuse_overlap_and_know_what_they_cover() {
        let bracket = |first, last| Bracket { first, last };
        let outer = Brackets::try_new(vec![bracket(1, 5), bracket(10, 20)]).unwrap();
        let cover = |inner: Vec<Bracket>| outer.cover(&Brackets::try_new(inner).unwrap());
        assert!(cover(vec![bracket(2, 5), bracket(10, 10), bracket(12, 20)]));
        assert!(!cover(vec![bracket(0, 5)]));
        assert!(!cover(vec![bracket(5, 10)]));
        assert!(!cover(vec![bracket(21, 22)]));
        assert!(Brackets::try_new(vec![bracket(1, 5), bracket(5, 6)]).is_err());
        assert!(Brackets::try_new(vec![bracket(2, 1)]).is_err());
        assert!(
            Brackets::all(Width::W32).is_all(Width::W32) && !Brackets::all(Width::W32).is_all(Width::W64)
        );
    }

    #[test]
    fn selection_of_few_and_of_many_ranks_agree_with_a_sort() {
        let keys: Vec<u64> = (0..1000_u64).map(|i| (i * 7919) % 512).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        for ranks in [
            vec![],
            vec![0],
            vec![999],
            vec![3, 3, 500],
            vec![0, 1, 2, 500, 998, 999],
        ] {
            let found = KeyVec::W64(keys.clone()).select(&ranks);
            let expected: Vec<u128> = ranks.iter().map(|rank| sorted[*rank as usize].into()).collect();
            assert_eq!(found, expected, "{ranks:?}");
        }
    }

    #[test]
    fn replies_of_different_shapes_do_not_merge() {
        let mut counts = Reply::Counts {
            counts: vec![1, 2],
            kept: vec![],
        };
        counts
            .merge(Reply::Counts {
                counts: vec![3, 4],
                kept: vec![],
            })
            .unwrap();
        assert_eq!(
            counts,
            Reply::Counts {
                counts: vec![4, 6],
                kept: vec![]
            }
        );
        assert!(
            counts
                .merge(Reply::Counts {
                    counts: vec![1],
                    kept: vec![]
                })
                .is_err()
        );
        assert!(counts.merge(Reply::Extracted(vec![])).is_err());
        let one = |keys| Reply::Extracted(vec![keys]);
        let mut keys = one(KeyVec::W32(vec![1]));
        assert!(keys.merge(one(KeyVec::W64(vec![1]))).is_err());
        let two = Reply::Extracted(vec![KeyVec::W32(vec![]), KeyVec::W32(vec![])]);
        assert!(one(KeyVec::W32(vec![1])).merge(two).is_err());
    }

    #[test]
    fn keys_that_one_lane_left_out_are_missing_in_the_merged_reply() {
        let reply = |kept: Vec<KeyVec>| Reply::Counts {
            counts: vec![1],
            kept,
        };
        let kept = || vec![KeyVec::W32(vec![1])];
        for (own, other) in [(kept(), vec![]), (vec![], kept())] {
            let mut merged = reply(own);
            merged.merge(reply(other)).unwrap();
            let expected = Reply::Counts {
                counts: vec![2],
                kept: vec![],
            };
            assert_eq!(merged, expected);
        }
    }
}
