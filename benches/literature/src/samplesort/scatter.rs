//! Out-of-place sample sort. The oracle has each key's bucket, the counts give the start of each bucket, and a scatter moves the keys.
//! Levels alternate between two arrays.

use super::tree::{Classifier, MAX_BUCKETS};
use super::{Random, SMALL, classifier, sort_by, sort_small};
use datafusion_quantiles::key::Key;

/// Bytes of a part up to which it is sorted in memory that stays in the second-level cache, and then moved as a whole.
pub(super) const NEAR_BYTES: usize = 512 << 10;

/// The sort and its memory, which is kept for the next keys: new pages cost as much as a level.
#[derive(Debug)]
pub(crate) struct OutOfPlace<K> {
    /// The other array, with as many keys as are sorted.
    other: Vec<K>,
    /// The other array of small parts.
    near: Vec<K>,
    oracle: Vec<u8>,
    random: Random,
}

impl<K: Key> OutOfPlace<K> {
    pub(crate) fn new() -> Self {
        Self {
            other: Vec::new(),
            near: Vec::new(),
            oracle: Vec::new(),
            random: Random::new(1),
        }
    }

    /// Sorts keys in ascending order.
    pub(crate) fn sort(&mut self, keys: &mut [K]) {
        sort_by(keys, |keys, levels| self.sort_unordered(keys, levels));
    }

    /// Sorts keys that are probably in no order.
    pub(super) fn sort_unordered(&mut self, keys: &mut [K], levels: u32) {
        if self.other.len() < keys.len() {
            // Not `resize`, which would copy the old keys.
            self.other = vec![K::default(); keys.len()];
            self.oracle = vec![0; keys.len()];
        }
        let near_len = NEAR_BYTES / size_of::<K>();
        if keys.len() > near_len {
            self.near.resize(near_len, K::default());
        }
        let part = Part {
            there: &mut self.other[..keys.len()],
            oracle: &mut self.oracle[..keys.len()],
            here: keys,
        };
        sort_into(part, &mut self.near, Home::Here, levels, &mut self.random);
    }
}

/// The array, of two, that the sorted keys belong in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    /// The array in which the keys are.
    Here,
    /// The other array.
    There,
}

impl Home {
    fn other(self) -> Self {
        match self {
            Home::Here => Home::There,
            Home::There => Home::Here,
        }
    }
}

/// A range of the keys, with the same range of the other array and of the oracle.
struct Part<'a, K> {
    here: &'a mut [K],
    there: &'a mut [K],
    oracle: &'a mut [u8],
}

impl<K: Key> Part<'_, K> {
    fn split_at(self, len: usize) -> (Self, Self) {
        let (here, here_rest) = self.here.split_at_mut(len);
        let (there, there_rest) = self.there.split_at_mut(len);
        let (oracle, oracle_rest) = self.oracle.split_at_mut(len);
        let rest = Self {
            here: here_rest,
            there: there_rest,
            oracle: oracle_rest,
        };
        (Self { here, there, oracle }, rest)
    }

    fn swapped(self) -> Self {
        Self {
            here: self.there,
            there: self.here,
            oracle: self.oracle,
        }
    }

    /// Moves the keys to their buckets in `there`. Returns the number of keys in each bucket.
    fn scatter(&mut self, classifier: &Classifier<K>) -> [usize; MAX_BUCKETS] {
        classifier.classify(self.here, self.oracle);
        let counts = count(self.oracle);
        let mut next = counts;
        let mut start = 0;
        for next in &mut next {
            start += std::mem::replace(next, start);
        }
        for (key, bucket) in self.here.iter().zip(&*self.oracle) {
            let next = &mut next[*bucket as usize];
            self.there[*next] = *key;
            *next += 1;
        }
        counts
    }
}

/// Sorts the keys in `here`. The array that is not their home has no defined content afterwards.
fn sort_into<K: Key>(mut part: Part<'_, K>, near: &mut [K], home: Home, levels: u32, random: &mut Random) {
    let len = part.here.len();
    if len <= SMALL || levels == 0 {
        sort_small(part.here);
        if home == Home::There {
            part.there.copy_from_slice(part.here);
        }
        return;
    }
    if len <= near.len() && home == Home::There {
        let near_part = Part {
            here: part.here,
            there: &mut near[..len],
            oracle: part.oracle,
        };
        sort_into(near_part, &mut [], Home::Here, levels, random);
        return part.there.copy_from_slice(part.here);
    }
    let classifier = classifier(part.here, random);
    let counts = part.scatter(&classifier);
    for (bucket, count) in counts.into_iter().enumerate().take(classifier.buckets()) {
        let (own, rest) = part.split_at(count);
        part = rest;
        match home {
            _ if !classifier.is_equality(bucket) => {
                sort_into(own.swapped(), near, home.other(), levels - 1, random);
            }
            Home::Here => own.here.copy_from_slice(own.there),
            Home::There => {}
        }
    }
}

/// Four tables of counters, so that equal neighbours do not wait for each other.
fn count(oracle: &[u8]) -> [usize; MAX_BUCKETS] {
    let mut tables = [[0_usize; MAX_BUCKETS]; 4];
    let (chunks, rest) = oracle.as_chunks::<4>();
    for chunk in chunks {
        for (table, bucket) in tables.iter_mut().zip(chunk) {
            table[*bucket as usize] += 1;
        }
    }
    for bucket in rest {
        tables[0][*bucket as usize] += 1;
    }
    std::array::from_fn(|bucket| tables.iter().map(|table| table[bucket]).sum())
}
