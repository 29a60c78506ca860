//! Answers that are made during a scan: values are counted as they pass by, and only the keys that a request wants are kept.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::common::{Result, internal_err};

use super::blocks::{CellCount, Extraction, FewCount};
use super::extract::BracketFinder;
use super::lists::{Lists, key_vecs};
use super::store::BLOCK;
use super::working_bytes;
use crate::cells::simd::{Kernel, dispatch};
use crate::cells::{Brackets, Cells};
use crate::kernel::round::{Reply, Request};
use crate::key::{Encoding, Key, KeySpec, ShardKey, Width, dense, with_key, words};
use crate::memory::{Lease, RoundMemory};

/// What one scan saw of a column: two scans of the same values agree, in whatever order the values come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Number of values.
    pub(crate) values: u64,
    /// Sum of the lower 64 bits of their keys, modulo 2^64.
    pub(crate) sum: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: Seen) {
        self.values += other.values;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// The answer of one partition to one request, made during a scan.
pub(crate) trait ScanAnswer: Send {
    /// Answers for the values that are not NULL. If there is a `filter`, only for values in whose row it is true.
    ///
    /// # Errors
    /// An internal error if `values` is of another type.
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()>;

    /// What was seen so far.
    fn seen(&self) -> Seen;

    /// The answer, and the memory that its keys take. As a shard's, it has no lists where there was no memory for the keys.
    fn finish(self: Box<Self>) -> (Reply, Option<Lease>);
}

/// The answer to `request`, a count or an extraction, before the first value. Its memory is taken from `round_memory`. `counted`: the
/// cells of the last count, which may be faster to compute than brackets are to search.
///
/// # Errors
/// `ResourcesExhausted` if there is no memory to count in; an internal error for another request.
pub(crate) fn scan_answer(
    spec: &KeySpec,
    request: &Request,
    counted: Option<&Cells>,
    round_memory: &Arc<RoundMemory>,
) -> Result<Box<dyn ScanAnswer>> {
    with_key!(spec.width(), K => Ok(Box::new(CpuScanAnswer::<K>::try_new(spec, request, counted, round_memory)?)))
}

/// Keys that are compared with edges at a time: they stay in the first-level cache for all comparisons.
const PIECE: usize = 1024;

/// What is wanted of each key.
enum Wanted<K> {
    FewCount(FewCount<K>),
    CellCount(CellCount<K>),
    Extraction(Extraction<K>),
}

/// Encodes words as keys, both of equal lengths, and adds the keys to what was seen.
struct EncodeAndSum<'a, K> {
    encoding: Encoding,
    words: &'a [K],
    keys: &'a mut [K],
    seen: &'a mut Seen,
}

impl<K: Key> Kernel for EncodeAndSum<'_, K> {
    #[inline(always)]
    fn run(self) {
        for (words, keys) in self.words.chunks(PIECE).zip(self.keys.chunks_mut(PIECE)) {
            self.encoding.encode(words, keys);
            let sum = keys
                .iter()
                .fold(0_u64, |sum, key| sum.wrapping_add(key.to_bits() as u64));
            self.seen.add(Seen {
                values: keys.len() as u64,
                sum,
            });
        }
    }
}

struct CpuScanAnswer<K> {
    spec: KeySpec,
    wanted: Wanted<K>,
    /// Brackets of the keys that are counted; `None`: all keys are.
    within: Option<BracketFinder<K>>,
    seen: Seen,
    /// Keys of one block.
    keys: Vec<K>,
    /// Those of the keys that are inside the brackets.
    inside: Vec<K>,
    /// Cells of one block.
    numbers: Vec<u16>,
    _work: Lease,
}

impl<K: ShardKey> CpuScanAnswer<K> {
    fn try_new(
        spec: &KeySpec,
        request: &Request,
        counted: Option<&Cells>,
        round_memory: &Arc<RoundMemory>,
    ) -> Result<Self> {
        let (width, all) = (spec.width(), Brackets::all(spec.width()));
        let (cells, edges, within) = match request {
            Request::Count { cells, within, .. } => (cells.len(), cells.edges(), within),
            Request::Extract { brackets } => (0, brackets.as_slice().len(), &all),
            other => return internal_err!("a scan cannot answer {}", other.name()),
        };
        let bytes = working_bytes::<K>(cells, edges + 2 * within.as_slice().len());
        let work = round_memory.hold(bytes, "a scan that counts")?;
        let wanted = match request {
            Request::Count { cells, keep, .. } => {
                match FewCount::try_new(cells, keep, width, round_memory)? {
                    Some(count) => Wanted::FewCount(count),
                    None => Wanted::CellCount(CellCount::new(cells, keep, round_memory)?),
                }
            }
            Request::Extract { brackets } => {
                Wanted::Extraction(Extraction::new(brackets, counted, width, round_memory)?)
            }
            other => return internal_err!("a scan cannot answer {}", other.name()),
        };
        Ok(Self {
            spec: spec.clone(),
            wanted,
            within: match within.is_all(width) {
                true => None,
                false => Some(BracketFinder::new(within, width)?),
            },
            seen: Seen::default(),
            keys: vec![K::default(); BLOCK],
            inside: Vec::with_capacity(BLOCK),
            numbers: vec![0; BLOCK],
            _work: work,
        })
    }

    /// Answers for a block of Arrow's words.
    fn add(&mut self, words: &[K]) {
        let keys = &mut self.keys[..words.len()];
        dispatch(EncodeAndSum {
            encoding: self.spec.encoding(),
            words,
            keys,
            seen: &mut self.seen,
        });
        let block = match &self.within {
            None => &*keys,
            Some(brackets) => {
                self.inside.clear();
                brackets.filter(keys, &mut self.inside);
                &self.inside
            }
        };
        match &mut self.wanted {
            Wanted::FewCount(count) => count.add(block),
            Wanted::CellCount(count) => count.add(block, &mut self.numbers[..block.len()]),
            Wanted::Extraction(extraction) => extraction.add(block),
        }
    }
}

impl<K: ShardKey> ScanAnswer for CpuScanAnswer<K> {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        let kept = dense(values.as_ref(), filter)?;
        let raw = self.spec.raw(kept.as_ref().unwrap_or(values).as_ref())?;
        if raw.len() % size_of::<K>() != 0 {
            return internal_err!("{} bytes are not keys of {} bits", raw.len(), K::BITS);
        }
        let block = match self.wanted {
            Wanted::FewCount(_) => PIECE,
            Wanted::CellCount(_) | Wanted::Extraction(_) => BLOCK,
        };
        words(&raw).chunks(block).for_each(|words| self.add(words));
        Ok(())
    }

    fn seen(&self) -> Seen {
        self.seen
    }

    fn finish(self: Box<Self>) -> (Reply, Option<Lease>) {
        let taken = |lists: Lists<K>| {
            let (lists, lease) = lists.finish();
            (key_vecs(lists), lease)
        };
        let (counts, kept) = match self.wanted {
            Wanted::FewCount(count) => count.finish(),
            Wanted::CellCount(count) => count.finish(),
            Wanted::Extraction(extraction) => {
                let (lists, lease) = taken(extraction.finish());
                return (Reply::Extracted(lists), lease);
            }
        };
        let (kept, lease) = taken(kept);
        (Reply::Counts { counts, kept }, lease)
    }
}
