//! The classifier: a perfect search tree of splitters in an array, descended without branches.

use datafusion_quantiles::key::Key;

/// Most buckets, with equality buckets: the number of a bucket is one byte of the oracle.
pub(super) const MAX_BUCKETS: usize = 256;

/// Number of keys that descend the tree together, so that their loads overlap.
const IN_FLIGHT: usize = 8;

/// Splitters that cut keys into `2^log` ranges, and each range in two where splitters repeated in the sample.
///
/// With splitters `s0 < s1 < ...` range `b` holds the keys in `(s(b-1), sb]`. Where `equal` is set, range `b` becomes
/// the buckets `2b`, keys in `(s(b-1), sb)`, and `2b + 1`, keys equal to `sb`, which need no further work.
#[derive(Debug)]
pub(super) struct Classifier<K> {
    /// Node `i` has its children at `2i` and `2i + 1`; the root is at 1.
    tree: [K; MAX_BUCKETS],
    /// The greatest key of each range; that of the last range is the greatest of all keys.
    upper: [K; MAX_BUCKETS],
    log: u32,
    equal: bool,
}

impl<K: Key> Classifier<K> {
    /// Takes up to `2^log - 1` splitters at equal distances out of an ascending sample, which is not empty;
    /// `1 <= log <= 8`.
    pub(super) fn of_sample(sample: &[K], log: u32) -> Self {
        let cut = |ranges: usize| {
            let mut splitters: Vec<K> = (1..ranges).map(|i| sample[i * sample.len() / ranges]).collect();
            splitters.dedup();
            splitters
        };
        let mut splitters = cut(1 << log);
        let equal = splitters.len() < (1 << log) - 1;
        // Equality buckets double the number of buckets, so that only half as many splitters are possible.
        if equal && splitters.len() >= MAX_BUCKETS / 2 {
            splitters = cut(MAX_BUCKETS / 2);
        }
        Self::new(&splitters, equal)
    }

    /// A tree of splitters, which are ascending and distinct: 1 to 255, or 1 to 127 with equality buckets.
    fn new(splitters: &[K], equal: bool) -> Self {
        let log = usize::BITS - splitters.len().leading_zeros();
        let ranges = 1_usize << log;
        let last = splitters[splitters.len() - 1];
        let mut upper = [K::MAX; MAX_BUCKETS];
        // The greatest splitter fills up to a power of two; the ranges between its copies stay empty.
        upper[..ranges - 1].fill(last);
        upper[..splitters.len()].copy_from_slice(splitters);
        let mut tree = [K::MAX; MAX_BUCKETS];
        for (node, slot) in tree.iter_mut().enumerate().take(ranges).skip(1) {
            let depth = node.ilog2();
            let width = ranges >> depth;
            *slot = upper[(node - (1 << depth)) * width + width / 2 - 1];
        }
        Self {
            tree,
            upper,
            log,
            equal,
        }
    }

    /// Number of buckets.
    pub(super) fn buckets(&self) -> usize {
        (1 << self.log) << u32::from(self.equal)
    }

    /// Whether all keys of this bucket are equal.
    pub(super) fn is_equality(&self, bucket: usize) -> bool {
        self.equal && bucket % 2 == 1
    }

    /// The bucket of one key.
    pub(super) fn bucket(&self, key: K) -> usize {
        let mut node = 1;
        for _ in 0..self.log {
            node = 2 * node + usize::from(key > self.tree[node]);
        }
        let range = node - (1 << self.log);
        if self.equal {
            2 * range + usize::from(key == self.upper[range])
        } else {
            range
        }
    }

    /// Writes each key's bucket to `oracle`, which is as long as `keys`.
    pub(super) fn classify(&self, keys: &[K], oracle: &mut [u8]) {
        match self.log {
            1 => self.descend::<1>(keys, oracle),
            2 => self.descend::<2>(keys, oracle),
            3 => self.descend::<3>(keys, oracle),
            4 => self.descend::<4>(keys, oracle),
            5 => self.descend::<5>(keys, oracle),
            6 => self.descend::<6>(keys, oracle),
            7 => self.descend::<7>(keys, oracle),
            _ => self.descend::<8>(keys, oracle),
        }
        if self.equal {
            for (key, bucket) in keys.iter().zip(oracle) {
                *bucket = 2 * *bucket + u8::from(*key == self.upper[*bucket as usize]);
            }
        }
    }

    /// The range of each key: `LOG` is known at compile time, so that the loops unroll and no index is checked.
    #[inline(never)]
    fn descend<const LOG: u32>(&self, keys: &[K], oracle: &mut [u8]) {
        let (chunks, rest) = keys.as_chunks::<IN_FLIGHT>();
        let (numbers, last) = oracle.as_chunks_mut::<IN_FLIGHT>();
        for (chunk, numbers) in chunks.iter().zip(numbers) {
            *numbers = self.ranges::<LOG, IN_FLIGHT>(chunk);
        }
        for (key, number) in rest.iter().zip(last) {
            [*number] = self.ranges::<LOG, 1>(&[*key]);
        }
    }

    #[inline(always)]
    fn ranges<const LOG: u32, const N: usize>(&self, keys: &[K; N]) -> [u8; N] {
        let mut nodes = [1_usize; N];
        for _ in 0..LOG {
            for (node, key) in nodes.iter_mut().zip(keys) {
                *node = 2 * *node + usize::from(*key > self.tree[*node]);
            }
        }
        nodes.map(|node| (node - (1 << LOG)) as u8)
    }
}
