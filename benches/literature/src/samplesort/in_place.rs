//! In-place sample sort. Keys are gathered in a buffer for each bucket. Full buffers return to the front of the keys as blocks, the blocks
//! are permuted, and the keys that are left in buffers fill the gaps ("Local classification", "Block permutation" and the cleanup of the
//! source).
//!
//! ```text
//! classified   |bb|aa|cc|bb|aa|  free  |     buffers: a, cc, d      a block: keys of one bucket
//! permuted     |  |aa|aa|bb|bb|..cc|   |     bucket b owns the blocks that begin inside its range
//! cleaned up   |aaaaa|bbbb|ccccc|d|
//! ```

use std::ops::Range;

use super::scatter::{NEAR_BYTES, OutOfPlace};
use super::tree::{Classifier, MAX_BUCKETS};
use super::{Random, SMALL, classifier, sort_by, sort_small};
use datafusion_quantiles::key::Key;

/// Bytes of a block: long enough to be copied at the speed of memory. 256 blocks fit in the second-level cache.
const BLOCK_BYTES: usize = 2048;

/// Number of keys that are classified before any of them moves.
const BATCH: usize = 1024;

/// The sort and its memory: block buffers, and memory to sort a small part out of place.
#[derive(Debug)]
pub(crate) struct InPlace<K> {
    /// A block for each bucket.
    buffers: Vec<K>,
    /// The block that is being moved.
    moving: Vec<K>,
    /// The block whose position reaches beyond the end of the keys.
    overflow: Vec<K>,
    near: OutOfPlace<K>,
    /// Number of keys in a part up to which it is sorted out of place.
    near_len: usize,
    random: Random,
}

/// The positions of the buckets and of their blocks. Blocks are numbered from the start of the keys.
struct Layout {
    /// Index of each bucket's first key; at the end the number of keys.
    starts: Vec<usize>,
    /// Number of keys in each bucket's buffer.
    buffered: [usize; MAX_BUCKETS],
    /// Number of the block at which the next block of each bucket is put; in the end the one after its last block.
    write: [usize; MAX_BUCKETS],
    /// Number of the block after the last one of each bucket's range that still waits to be moved.
    read: [usize; MAX_BUCKETS],
    /// The bucket whose last block lies in the overflow.
    overflown: Option<usize>,
}

impl<K: Key> InPlace<K> {
    const BLOCK: usize = BLOCK_BYTES / size_of::<K>();

    pub(crate) fn new() -> Self {
        Self::with_near_len(NEAR_BYTES / size_of::<K>())
    }

    pub(super) fn with_near_len(near_len: usize) -> Self {
        Self {
            buffers: Vec::new(),
            moving: vec![K::default(); Self::BLOCK],
            overflow: vec![K::default(); Self::BLOCK],
            near: OutOfPlace::new(),
            near_len: near_len.max(SMALL),
            random: Random::new(1),
        }
    }

    /// Sorts keys in ascending order.
    pub(crate) fn sort(&mut self, keys: &mut [K]) {
        sort_by(keys, |keys, levels| self.sort_unordered(keys, levels));
    }

    /// Sorts keys that are probably in no order.
    pub(super) fn sort_unordered(&mut self, keys: &mut [K], levels: u32) {
        if keys.len() <= self.near_len {
            return self.near.sort_unordered(keys, levels);
        }
        if levels == 0 {
            return sort_small(keys);
        }
        let classifier = classifier(keys, &mut self.random);
        self.buffers.resize(MAX_BUCKETS * Self::BLOCK, K::default());
        let mut layout = self.gather(keys, &classifier);
        self.permute(keys, &classifier, &mut layout);
        for bucket in 0..classifier.buckets() {
            self.clean_up(keys, bucket, &layout);
        }
        for bucket in 0..classifier.buckets() {
            if !classifier.is_equality(bucket) {
                let range = layout.starts[bucket]..layout.starts[bucket + 1];
                self.sort_unordered(&mut keys[range], levels - 1);
            }
        }
    }

    /// Local classification. Keys that were read leave space for at least as many that are written back.
    fn gather(&mut self, keys: &mut [K], classifier: &Classifier<K>) -> Layout {
        let mut next: [usize; MAX_BUCKETS] = std::array::from_fn(|bucket| bucket * Self::BLOCK);
        let mut counts = [0_usize; MAX_BUCKETS];
        let mut written = 0;
        let mut oracle = [0_u8; BATCH];
        for first in (0..keys.len()).step_by(BATCH) {
            let last = keys.len().min(first + BATCH);
            let oracle = &mut oracle[..last - first];
            classifier.classify(&keys[first..last], oracle);
            for (at, bucket) in (first..last).zip(oracle) {
                let next = &mut next[*bucket as usize];
                self.buffers[*next] = keys[at];
                *next += 1;
                if next.is_multiple_of(Self::BLOCK) {
                    *next -= Self::BLOCK;
                    keys[written..written + Self::BLOCK]
                        .copy_from_slice(&self.buffers[*next..*next + Self::BLOCK]);
                    written += Self::BLOCK;
                    counts[*bucket as usize] += Self::BLOCK;
                }
            }
        }
        let buffered = std::array::from_fn(|bucket| next[bucket] - bucket * Self::BLOCK);
        Layout::new(counts, buffered, written, Self::BLOCK)
    }

    /// Block permutation: each block in a wrong range is taken out and put at its bucket's next position. A block that waited there is
    /// moved next.
    fn permute(&mut self, keys: &mut [K], classifier: &Classifier<K>, layout: &mut Layout) {
        for bucket in 0..classifier.buckets() {
            while layout.read[bucket] > layout.write[bucket] {
                layout.read[bucket] -= 1;
                self.moving
                    .copy_from_slice(&keys[block::<K>(layout.read[bucket])]);
                self.place(keys, classifier, layout);
            }
        }
    }

    /// Puts the moving block, and the blocks that it displaces, at their positions.
    fn place(&mut self, keys: &mut [K], classifier: &Classifier<K>, layout: &mut Layout) {
        loop {
            let bucket = classifier.bucket(self.moving[0]);
            let at = layout.write[bucket];
            layout.write[bucket] += 1;
            let place = block::<K>(at);
            if at < layout.read[bucket] {
                if classifier.bucket(keys[place.start]) != bucket {
                    keys[place].swap_with_slice(&mut self.moving);
                }
                continue;
            }
            if place.end <= keys.len() {
                keys[place].copy_from_slice(&self.moving);
            } else {
                self.overflow.copy_from_slice(&self.moving);
                layout.overflown = Some(bucket);
            }
            return;
        }
    }

    /// Fills the gaps before and after a bucket's blocks with its keys from elsewhere: beyond the bucket's end, where the next bucket's gap
    /// is, in the overflow, and in the buffer. Buckets are filled in order.
    fn clean_up(&mut self, keys: &mut [K], bucket: usize, layout: &Layout) {
        let (start, end) = (layout.starts[bucket], layout.starts[bucket + 1]);
        let overflown = layout.overflown == Some(bucket);
        let blocks_start = start.next_multiple_of(Self::BLOCK);
        let blocks_end = (layout.write[bucket] - usize::from(overflown)) * Self::BLOCK;
        let mut gaps = Gaps {
            before: start..blocks_start.min(end),
            after: blocks_end.min(end)..end,
        };
        if blocks_end > end && blocks_end > blocks_start {
            let beyond = &mut self.moving[..blocks_end - end];
            beyond.copy_from_slice(&keys[end..blocks_end]);
            gaps.fill(keys, beyond);
        }
        if overflown {
            gaps.fill(keys, &self.overflow);
        }
        let buffer = &self.buffers[block::<K>(bucket)];
        gaps.fill(keys, &buffer[..layout.buffered[bucket]]);
    }
}

fn block<K: Key>(number: usize) -> Range<usize> {
    number * InPlace::<K>::BLOCK..(number + 1) * InPlace::<K>::BLOCK
}

impl Layout {
    /// The layout of buckets with `counts` keys in each bucket's blocks. `written` is the number of keys in all blocks, which come first.
    fn new(
        counts: [usize; MAX_BUCKETS],
        buffered: [usize; MAX_BUCKETS],
        written: usize,
        block: usize,
    ) -> Self {
        let mut starts = vec![0; MAX_BUCKETS + 1];
        for bucket in 0..MAX_BUCKETS {
            starts[bucket + 1] = starts[bucket] + counts[bucket] + buffered[bucket];
        }
        let write: [usize; MAX_BUCKETS] = std::array::from_fn(|bucket| starts[bucket].div_ceil(block));
        let read = std::array::from_fn(|bucket| {
            (written / block).clamp(write[bucket], starts[bucket + 1].div_ceil(block))
        });
        Self {
            starts,
            buffered,
            write,
            read,
            overflown: None,
        }
    }
}

/// The positions of a bucket that no block covers.
struct Gaps {
    before: Range<usize>,
    after: Range<usize>,
}

impl Gaps {
    /// Fills positions with keys, of which there are at most as many as positions.
    fn fill<K: Key>(&mut self, keys: &mut [K], source: &[K]) {
        let (first, rest) = source.split_at(source.len().min(self.before.len()));
        for (gap, source) in [(&mut self.before, first), (&mut self.after, rest)] {
            keys[gap.start..gap.start + source.len()].copy_from_slice(source);
            gap.start += source.len();
        }
    }
}
