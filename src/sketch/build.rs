//! Builder of a summary, from keys or from ranges of keys with their counts.

use super::epsilon::Epsilon;
use super::gk::{Summary, Tuple};
use crate::key::Key;

/// Takes ranges of keys in ascending order, none of which overlaps the next one, and makes one tuple or more of each.
#[derive(Debug)]
pub(super) struct Builder<K> {
    eps: Epsilon,
    n: u64,
    tuples: Vec<Tuple<K>>,
    /// Number of values that the last tuple stands for, if it came from ranges.
    shared: u64,
}

impl<K: Key> Builder<K> {
    pub(super) fn new(eps: Epsilon, capacity: usize) -> Self {
        Self {
            eps,
            n: 0,
            tuples: Vec::with_capacity(capacity),
            shared: 0,
        }
    }

    /// Adds `count >= 1` values from `least` to `greatest`, both of which occur. The last rank of `greatest` is known,
    /// so it becomes a tuple with delta 0 and g the count. Of a range of one key alone all ranks are known.
    /// Neighbouring ranges share a tuple as long as they have at most `most` values together.
    pub(super) fn range(&mut self, least: K, greatest: K, count: u64, most: u64) {
        if least != greatest {
            self.minimum(least, 1);
        }
        let below = if least == greatest { 0 } else { count - 1 };
        if self.shared > 0 && self.shared + count <= most && self.tuples.len() > 1 {
            self.tuples.pop();
            self.shared += count;
        } else {
            self.shared = count;
        }
        self.tuple(greatest, count, below);
    }

    /// Adds `times` values equal to `anchor` and `others >= 1` more, on both sides of it, up to `greatest`. `greatest`
    /// occurs in the data, but perhaps not among these values. Nothing is known of the positions of the others.
    pub(super) fn anchored(&mut self, anchor: K, times: u64, greatest: K, others: u64) {
        if anchor == greatest {
            return self.tuple(anchor, times + others, others);
        }
        if times > 0 {
            self.push(anchor, self.n + times, self.n + others);
        }
        self.tuple(greatest, times + others, times + others);
    }

    /// Adds ascending values: every `most`-th one gets a tuple, together with the run of equal keys that it is in.
    pub(super) fn sorted(&mut self, keys: &[K], most: usize) {
        self.shared = 0;
        let mut rest = keys;
        while let [first, ..] = rest {
            let stretch = &rest[..most.clamp(1, rest.len())];
            let last = stretch[stretch.len() - 1];
            let below = stretch.partition_point(|key| *key < last);
            let upto = below + run(&rest[below..]);
            if below > 0 {
                self.minimum(*first, 1);
            }
            self.tuple(last, upto as u64, below as u64);
            rest = &rest[upto..];
        }
    }

    pub(super) fn finish(mut self) -> Summary<K> {
        self.tuples.shrink_to_fit();
        Summary {
            eps: self.eps,
            n: self.n,
            tuples: self.tuples,
        }
    }

    /// Adds the minimum as the first tuple, if there is none yet: at least `upto` values are at or below it, none is
    /// below.
    pub(super) fn minimum(&mut self, least: K, upto: u64) {
        if self.tuples.is_empty() {
            self.push(least, upto, 0);
        }
    }

    /// Adds a tuple at the end of the next `count` values, at most `below` of which are below its key.
    pub(super) fn tuple(&mut self, key: K, count: u64, below: u64) {
        let below = self.n + below;
        self.n += count;
        self.push(key, self.n, below);
    }

    fn push(&mut self, key: K, upto: u64, below: u64) {
        match self.tuples.last_mut() {
            Some(last) if last.key == key => last.upto = upto,
            _ => self.tuples.push(Tuple { key, upto, below }),
        }
    }
}

/// The number of ascending keys that equal the first one, found by doubling steps, as runs are mostly short.
fn run<K: Key>(keys: &[K]) -> usize {
    let mut end = 1;
    while keys.get(end).is_some_and(|key| *key == keys[0]) {
        end *= 2;
    }
    let known = end / 2;
    let end = end.min(keys.len());
    known + keys[known..end].partition_point(|key| *key == keys[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_measured() {
        for (length, more) in [
            (1, 0),
            (1, 1),
            (2, 0),
            (3, 5),
            (4, 4),
            (1000, 1),
            (1024, 0),
            (1025, 7),
        ] {
            let keys = [vec![7_u64; length], vec![8; more]].concat();
            assert_eq!(run(&keys), length);
        }
    }

    #[test]
    fn heavy_keys_take_one_tuple() {
        let keys = [vec![1_u64; 1000], vec![2, 3, 4], vec![5; 1000]].concat();
        let mut builder = Builder::new(Epsilon::try_new(0.5).unwrap(), 0);
        builder.sorted(&keys, 4);
        let tuples: Vec<_> = builder.finish().tuples().collect();
        assert_eq!(tuples, [(1, 1000, -999), (5, 1003, -999)]);
    }
}
