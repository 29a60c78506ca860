//! A multiset of keys in order, with ranks: a counted B+-tree, for keys that are inserted and removed.
//!
//! ```text
//! inner   keys  .  k5  .  k9  .        least key of each child but the first
//!         counts   4     4     3       values below each child
//! leaf    [k1 k2 k3 k4] [k5 ..] [k9 ..]     distinct keys, each with its number of copies
//! ```
//! Insertion, removal and the key of a rank each follow one path from the root: logarithmic in the number of distinct keys, and at
//! most the keys of one leaf move. A distinct key takes 12 to 24 bytes in a full leaf; on average at least a quarter of a leaf is in
//! use. Many copies of one key take the memory of one. It loses to a heap or a sort where all ranks are asked for at once after the last
//! change: that is what the other files of this module do.

use std::cmp::Ordering;
use std::mem::size_of;

use datafusion::common::{Result, internal_datafusion_err, internal_err, resources_err};

use crate::key::Key;

/// Most keys of a leaf: those that an insertion moves lie in few cache lines.
const LEAF: usize = 128;
/// Most children of an inner node.
const FAN: usize = 64;

/// A multiset of keys that finds the key of a rank.
#[derive(Debug)]
pub(crate) struct OrderedKeys<K> {
    leaves: Nodes<Leaf<K>>,
    inners: Nodes<Inner<K>>,
    root: u32,
    /// Inner levels above the leaves.
    height: u32,
    /// Whether a key counts once, however many copies there are.
    distinct: bool,
    /// Number of ranks: values, or distinct ones.
    count: u64,
    /// Number of all copies of all keys.
    copies: u64,
}

#[derive(Debug, Default)]
struct Leaf<K> {
    keys: Vec<K>,
    /// Number of copies of each key, at least 1.
    copies: Vec<u64>,
    /// Ranks in the leaf: values, or distinct ones.
    count: u64,
}

#[derive(Debug, Default)]
struct Inner<K> {
    /// Bound `i` is the least key that child `i + 1` may hold.
    bounds: Vec<K>,
    children: Vec<u32>,
    /// Ranks below each child: values, or distinct ones.
    counts: Vec<u64>,
}

/// Nodes by number. Free numbers are used again.
#[derive(Debug)]
struct Nodes<T> {
    nodes: Vec<T>,
    free: Vec<u32>,
}

/// The upper half of a node that was full.
struct Split<K> {
    bound: K,
    node: u32,
    count: u64,
}

impl<T> Nodes<T> {
    fn add(&mut self, node: T) -> Result<u32> {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return Ok(id);
        }
        let Ok(id) = u32::try_from(self.nodes.len()) else {
            return resources_err!("a window frame holds at most {} blocks of keys", u32::MAX);
        };
        self.nodes.push(node);
        Ok(id)
    }
}

impl<T> std::ops::Index<u32> for Nodes<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        &self.nodes[id as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Nodes<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.nodes[id as usize]
    }
}

impl<K: Copy> Leaf<K> {
    fn new() -> Self {
        Leaf {
            keys: Vec::with_capacity(LEAF + 1),
            copies: Vec::with_capacity(LEAF + 1),
            count: 0,
        }
    }

    fn counted(mut self, distinct: bool) -> Self {
        self.count = if distinct {
            self.keys.len() as u64
        } else {
            self.copies.iter().sum()
        };
        self
    }

    /// The key at an index among the leaf's ranks, from 0.
    fn at(&self, mut index: u64, distinct: bool) -> Option<K> {
        if distinct || self.count == self.keys.len() as u64 {
            return self.keys.get(index as usize).copied();
        }
        for (key, copies) in self.keys.iter().zip(&self.copies) {
            match index.checked_sub(*copies) {
                None => return Some(*key),
                Some(rest) => index = rest,
            }
        }
        None
    }
}

impl<K: Copy> Inner<K> {
    /// The child that may hold the key that `compare` looks for.
    fn child_of(&self, compare: &impl Fn(&K) -> Ordering) -> usize {
        self.bounds.partition_point(|bound| compare(bound).is_le())
    }

    /// Removes a child, and the bound between it and a neighbour.
    fn remove(&mut self, child: usize) {
        self.children.remove(child);
        self.counts.remove(child);
        if !self.bounds.is_empty() {
            self.bounds.remove(child.saturating_sub(1));
        }
    }
}

impl<K: Key> OrderedKeys<K> {
    /// Adds one copy of `key`.
    ///
    /// # Errors
    /// `ResourcesExhausted` past 2^64 - 1 ranks, or 2^32 - 1 leaves.
    pub(crate) fn insert(&mut self, key: K) -> Result<()> {
        self.insert_by(key, 1, &|other| other.cmp(&key)).map(drop)
    }

    /// Removes one copy of `key`.
    ///
    /// # Errors
    /// An internal error if there is none; then nothing changes.
    pub(crate) fn remove(&mut self, key: K) -> Result<()> {
        self.remove_by(1, &|other| other.cmp(&key)).map(drop)
    }
}

/// The effect of an insertion or a removal.
#[derive(Clone, Copy)]
struct Change {
    /// Number of ranks that came or went.
    ranks: u64,
    /// Whether a distinct key came or went: its first copy, or its last one.
    is_key: bool,
}

/// Keys in an order of the caller's: `compare` says how a key of the tree compares with the key that is meant.
impl<K: Copy + Default> OrderedKeys<K> {
    /// An empty multiset. `distinct`: ranks are those of distinct keys.
    pub(crate) fn new(distinct: bool) -> Self {
        Self {
            leaves: Nodes {
                nodes: vec![Leaf::new()],
                free: Vec::new(),
            },
            inners: Nodes {
                nodes: Vec::new(),
                free: Vec::new(),
            },
            root: 0,
            height: 0,
            distinct,
            count: 0,
            copies: 0,
        }
    }

    /// Number of ranks: values, or distinct ones.
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// The key of a rank, counted from 1.
    pub(crate) fn select(&self, rank: u64) -> Option<K> {
        let mut index = rank.checked_sub(1)?;
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node];
            let mut child = 0;
            while index >= *inner.counts.get(child)? {
                index -= inner.counts[child];
                child += 1;
            }
            node = inner.children[child];
        }
        self.leaves[node].at(index, self.distinct)
    }

    /// Adds copies of a key, at least one. True if they are the first ones of the key.
    ///
    /// # Errors
    /// Those of [`Self::insert`].
    pub(crate) fn insert_by(
        &mut self,
        key: K,
        copies: u64,
        compare: &impl Fn(&K) -> Ordering,
    ) -> Result<bool> {
        if self.copies.checked_add(copies).is_none() {
            return resources_err!("a window frame holds at most {} copies of its values", u64::MAX);
        }
        let (added, split) = self.insert_below(self.root, self.height, (key, copies), compare)?;
        self.count += added.ranks;
        self.copies += copies;
        if let Some(split) = split {
            self.root = self.inners.add(Inner {
                bounds: vec![split.bound],
                children: vec![self.root, split.node],
                counts: vec![self.count - split.count, split.count],
            })?;
            self.height += 1;
        }
        Ok(added.is_key)
    }

    /// Inserts below `node`: the change, and the new neighbour of `node` if it had to be split.
    fn insert_below(
        &mut self,
        node: u32,
        level: u32,
        key: (K, u64),
        compare: &impl Fn(&K) -> Ordering,
    ) -> Result<(Change, Option<Split<K>>)> {
        if level == 0 {
            return self.insert_into(node, key, compare);
        }
        let at = self.inners[node].child_of(compare);
        let (added, split) = self.insert_below(self.inners[node].children[at], level - 1, key, compare)?;
        let inner = &mut self.inners[node];
        inner.counts[at] += added.ranks;
        let Some(split) = split else {
            return Ok((added, None));
        };
        inner.counts[at] -= split.count;
        inner.counts.insert(at + 1, split.count);
        inner.children.insert(at + 1, split.node);
        inner.bounds.insert(at, split.bound);
        if inner.children.len() <= FAN {
            return Ok((added, None));
        }
        let middle = inner.children.len() / 2;
        let upper = Inner {
            children: inner.children.split_off(middle),
            counts: inner.counts.split_off(middle),
            bounds: inner.bounds.split_off(middle),
        };
        // The bound between the halves moves to the parent.
        let bound = inner.bounds.pop();
        let bound = bound.ok_or_else(|| internal_datafusion_err!("children of a node without bounds"))?;
        let count = upper.counts.iter().sum();
        let node = self.inners.add(upper)?;
        Ok((added, Some(Split { bound, node, count })))
    }

    /// Inserts into a leaf: the change, and the new neighbour of the leaf if it had to be split.
    fn insert_into(
        &mut self,
        node: u32,
        (key, more): (K, u64),
        compare: &impl Fn(&K) -> Ordering,
    ) -> Result<(Change, Option<Split<K>>)> {
        let distinct = self.distinct;
        let leaf = &mut self.leaves[node];
        let at = match leaf.keys.binary_search_by(compare) {
            Ok(at) => {
                // All copies of the tree together have a number.
                leaf.copies[at] += more;
                let ranks = if distinct { 0 } else { more };
                leaf.count += ranks;
                let is_key = false;
                return Ok((Change { ranks, is_key }, None));
            }
            Err(at) => at,
        };
        leaf.keys.insert(at, key);
        leaf.copies.insert(at, more);
        let added = Change {
            ranks: if distinct { 1 } else { more },
            is_key: true,
        };
        leaf.count += added.ranks;
        if leaf.keys.len() <= LEAF {
            return Ok((added, None));
        }
        let middle = leaf.keys.len() / 2;
        let mut upper = Leaf::new();
        upper.keys.extend(leaf.keys.drain(middle..));
        upper.copies.extend(leaf.copies.drain(middle..));
        let upper = upper.counted(distinct);
        leaf.count -= upper.count;
        let (bound, count) = (upper.keys[0], upper.count);
        let node = self.leaves.add(upper)?;
        Ok((added, Some(Split { bound, node, count })))
    }

    /// Removes copies of a key. True if they were the last ones of the key.
    ///
    /// # Errors
    /// An internal error if there are fewer; then nothing changes.
    pub(crate) fn remove_by(&mut self, copies: u64, compare: &impl Fn(&K) -> Ordering) -> Result<bool> {
        let removed = self.remove_below(self.root, self.height, copies, compare)?;
        self.count -= removed.ranks;
        self.copies -= copies;
        while self.height > 0 {
            match self.inners[self.root].children[..] {
                [] => {
                    self.root = self.leaves.add(Leaf::new())?;
                    self.height = 0;
                }
                [only] => {
                    self.inners.free.push(self.root);
                    self.root = only;
                    self.height -= 1;
                }
                _ => break,
            }
        }
        Ok(removed.is_key)
    }

    fn remove_below(
        &mut self,
        node: u32,
        level: u32,
        copies: u64,
        compare: &impl Fn(&K) -> Ordering,
    ) -> Result<Change> {
        if level == 0 {
            let distinct = self.distinct;
            let leaf = &mut self.leaves[node];
            let found = leaf.keys.binary_search_by(compare).ok();
            let Some((at, left)) = found.and_then(|at| Some((at, leaf.copies[at].checked_sub(copies)?)))
            else {
                return internal_err!("a window retracts a value that it never added");
            };
            leaf.copies[at] = left;
            let is_key = left == 0;
            if is_key {
                leaf.keys.remove(at);
                leaf.copies.remove(at);
            }
            let ranks = if distinct { u64::from(is_key) } else { copies };
            leaf.count -= ranks;
            return Ok(Change { ranks, is_key });
        }
        let at = self.inners[node].child_of(compare);
        let removed = self.remove_below(self.inners[node].children[at], level - 1, copies, compare)?;
        self.inners[node].counts[at] -= removed.ranks;
        self.refill(node, at, level - 1);
        Ok(removed)
    }

    /// Removes child `at` of `node` if it is empty. Joins it with a neighbour if it is at most a quarter full and both fit in three
    /// quarters of a node. `level` is the child's.
    fn refill(&mut self, node: u32, at: usize, level: u32) {
        let capacity = if level == 0 { LEAF } else { FAN };
        let len = self.child_len(node, at, level);
        if len == 0 {
            self.free(self.inners[node].children[at], level);
            self.inners[node].remove(at);
            return;
        }
        if len > capacity / 4 {
            return;
        }
        let children = self.inners[node].children.len();
        let fits = |left: &usize| {
            left + 1 < children
                && self.child_len(node, *left, level) + self.child_len(node, left + 1, level)
                    <= capacity / 4 * 3
        };
        if let Some(left) = [Some(at), at.checked_sub(1)].into_iter().flatten().find(fits) {
            self.join(node, left, level);
        }
    }

    /// Joins children `left` and `left + 1` of `node`, which are of this level.
    fn join(&mut self, node: u32, left: usize, level: u32) {
        let inner = &mut self.inners[node];
        let (into, from) = (inner.children[left], inner.children[left + 1]);
        let (bound, count) = (inner.bounds[left], inner.counts[left + 1]);
        inner.counts[left] += count;
        inner.remove(left + 1);
        if level == 0 {
            let mut moved = std::mem::take(&mut self.leaves[from]);
            let leaf = &mut self.leaves[into];
            leaf.keys.append(&mut moved.keys);
            leaf.copies.append(&mut moved.copies);
            leaf.count += moved.count;
        } else {
            let mut moved = std::mem::take(&mut self.inners[from]);
            let inner = &mut self.inners[into];
            inner.bounds.push(bound);
            inner.bounds.append(&mut moved.bounds);
            inner.children.append(&mut moved.children);
            inner.counts.append(&mut moved.counts);
        }
        self.free(from, level);
    }

    /// Number of keys or children of child `at` of `node`.
    fn child_len(&self, node: u32, at: usize, level: u32) -> usize {
        let child = self.inners[node].children[at];
        match level {
            0 => self.leaves[child].keys.len(),
            _ => self.inners[child].children.len(),
        }
    }

    fn free(&mut self, node: u32, level: u32) {
        match level {
            0 => self.leaves.free.push(node),
            _ => self.inners.free.push(node),
        }
    }

    /// Every key with its number of copies, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, u64)> {
        // Free leaves hold no keys.
        let leaves = self.leaves.nodes.iter();
        leaves.flat_map(|leaf| leaf.keys.iter().copied().zip(leaf.copies.iter().copied()))
    }

    /// Bytes of memory held.
    pub(crate) fn size(&self) -> usize {
        let leaf = size_of::<Leaf<K>>() + (LEAF + 1) * (size_of::<K>() + size_of::<u64>());
        let inner =
            size_of::<Inner<K>>() + (FAN + 1) * (size_of::<K>() + size_of::<u32>() + size_of::<u64>());
        self.leaves.nodes.len() * leaf + self.inners.nodes.len() * inner
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Checks what must hold of any tree: bounds separate the keys, counts add up, no level is empty.
    fn check(tree: &OrderedKeys<u64>) {
        fn below(tree: &OrderedKeys<u64>, node: u32, level: u32, low: u64, high: Option<u64>) -> u64 {
            if level == 0 {
                let leaf = &tree.leaves[node];
                assert!(leaf.keys.is_sorted_by(|a, b| a < b));
                assert!(leaf.keys.first().is_none_or(|key| *key >= low));
                assert!(
                    leaf.keys
                        .last()
                        .is_none_or(|key| high.is_none_or(|high| *key < high))
                );
                assert!(leaf.keys.len() <= LEAF && leaf.copies.iter().all(|&copies| copies > 0));
                return leaf.count;
            }
            let inner = &tree.inners[node];
            assert!((1..=FAN).contains(&inner.children.len()));
            assert_eq!(inner.bounds.len() + 1, inner.children.len());
            for (i, (&child, &count)) in inner.children.iter().zip(&inner.counts).enumerate() {
                let low = if i == 0 { low } else { inner.bounds[i - 1] };
                let high = inner.bounds.get(i).copied().or(high);
                assert_eq!(below(tree, child, level - 1, low, high), count);
            }
            inner.counts.iter().sum()
        }
        assert_eq!(below(tree, tree.root, tree.height, 0, None), tree.len());
    }

    /// Checks that a tree holds the keys of a sorted list.
    fn agree(tree: &OrderedKeys<u64>, sorted: &[u64]) {
        check(tree);
        let mut ranked = sorted.to_vec();
        if tree.distinct {
            ranked.dedup();
        }
        assert_eq!(tree.len(), ranked.len() as u64);
        let found: Vec<_> = (1..=tree.len()).map(|rank| tree.select(rank).unwrap()).collect();
        assert_eq!(found, ranked);
        assert_eq!((tree.select(0), tree.select(tree.len() + 1)), (None, None));
        let copies = tree.iter().flat_map(|(key, copies)| vec![key; copies as usize]);
        let mut copies: Vec<_> = copies.collect();
        copies.sort_unstable();
        assert_eq!(copies, sorted);
    }

    /// A frame of `width` keys that moves over `keys`, then shrinks away.
    fn slide(keys: &[u64], width: usize, distinct: bool) {
        let mut tree = OrderedKeys::new(distinct);
        let mut sorted: Vec<u64> = Vec::new();
        for (i, &key) in keys.iter().enumerate() {
            tree.insert(key).unwrap();
            sorted.insert(sorted.partition_point(|other| *other < key), key);
            if let Some(old) = i.checked_sub(width) {
                tree.remove(keys[old]).unwrap();
                sorted.remove(sorted.binary_search(&keys[old]).unwrap());
            }
            if i % 997 == 0 {
                agree(&tree, &sorted);
            }
        }
        agree(&tree, &sorted);
        let left = &keys[keys.len().saturating_sub(width)..];
        for (i, &key) in left.iter().enumerate() {
            tree.remove(key).unwrap();
            sorted.remove(sorted.binary_search(&key).unwrap());
            if i % 499 == 0 {
                agree(&tree, &sorted);
            }
        }
        agree(&tree, &[]);
        assert_eq!(tree.height, 0);
    }

    #[test]
    fn it_agrees_with_a_sorted_list() {
        let mut rng = SmallRng::seed_from_u64(7);
        let patterns: [Vec<u64>; 5] = [
            (0..30_000).map(|_| rng.random()).collect(),
            (0..30_000).collect(),
            (0..30_000).rev().collect(),
            (0..30_000).map(|_| rng.random_range(0..50)).collect(),
            (0..30_000)
                .map(|i| if i % 3 == 0 { u64::MAX } else { i / 100 })
                .collect(),
        ];
        for keys in &patterns {
            for width in [1, 10, 1000, 20_000, 40_000] {
                for distinct in [false, true] {
                    slide(keys, width, distinct);
                }
            }
        }
    }

    #[test]
    fn a_frame_that_drifts_does_not_grow() {
        let mut rng = SmallRng::seed_from_u64(11);
        let keys: Vec<u64> = (0..200_000)
            .map(|i| i * 1000 + rng.random_range(0..5_000_000))
            .collect();
        let mut tree = OrderedKeys::new(false);
        let mut most = 0;
        for (i, &key) in keys.iter().enumerate() {
            tree.insert(key).unwrap();
            if i >= 10_000 {
                tree.remove(keys[i - 10_000]).unwrap();
            }
            most = most.max(tree.size());
        }
        // 16 bytes a key.
        assert!(most < 4 * 16 * 10_000, "{most} bytes");
    }

    #[test]
    fn a_key_that_is_not_there_is_an_error_and_changes_nothing() {
        let mut tree = OrderedKeys::new(false);
        for key in 0..1000_u64 {
            tree.insert(2 * key).unwrap();
        }
        assert!(tree.remove(501).unwrap_err().to_string().contains("never added"));
        agree(&tree, &(0..1000).map(|key| 2 * key).collect::<Vec<_>>());
    }
}
