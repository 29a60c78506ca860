//! The sort of one shard's keys, and the merge of runs.

use std::sync::Mutex;

use super::samplesort::{InPlace, OutOfPlace};
use datafusion_quantiles::key::Key;
use datafusion_quantiles::key::KeyVec;

/// The sort of a shard's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LocalSort {
    /// Super scalar sample sort: takes as much memory as the keys, and a byte for each key.
    OutOfPlace,
    /// In-place super scalar sample sort: takes about 1 MB.
    InPlace,
    /// `slice::sort_unstable`, to compare.
    Standard,
}

/// Sorts keys in ascending order.
pub fn sort(keys: &mut KeyVec, sort: LocalSort) {
    match keys {
        KeyVec::W32(keys) => Sorter::new(sort).sort(keys),
        KeyVec::W64(keys) => Sorter::new(sort).sort(keys),
        KeyVec::W128(keys) => Sorter::new(sort).sort(keys),
    }
}

/// Most runs that are merged; more runs are sorted instead.
const MERGED_RUNS: usize = 8;

/// A sort with the memory that it keeps between calls.
#[derive(Debug)]
enum Sorter<K> {
    OutOfPlace(OutOfPlace<K>),
    InPlace(InPlace<K>),
    Standard,
}

impl<K: Key> Sorter<K> {
    fn new(sort: LocalSort) -> Self {
        match sort {
            LocalSort::OutOfPlace => Sorter::OutOfPlace(OutOfPlace::new()),
            LocalSort::InPlace => Sorter::InPlace(InPlace::new()),
            LocalSort::Standard => Sorter::Standard,
        }
    }

    fn sort(&mut self, keys: &mut [K]) {
        match self {
            Sorter::OutOfPlace(sorter) => sorter.sort(keys),
            Sorter::InPlace(sorter) => sorter.sort(keys),
            Sorter::Standard => keys.sort_unstable(),
        }
    }
}

/// Sorters for as many threads as sort at the same time.
#[derive(Debug)]
pub(super) struct Sorters<K> {
    kind: LocalSort,
    idle: Mutex<Vec<Sorter<K>>>,
}

impl<K: Key> Sorters<K> {
    pub(super) fn new(kind: LocalSort) -> Self {
        Self {
            kind,
            idle: Mutex::new(vec![]),
        }
    }

    /// Sorts keys in ascending order.
    pub(super) fn sort(&self, keys: &mut [K]) {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        let mut sorter = idle.unwrap_or_else(|| Sorter::new(self.kind));
        sorter.sort(keys);
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(sorter);
        }
    }

    /// The keys of ascending runs, as one run. The standard library's stable sort finds runs and merges them pair by pair. That takes
    /// about 3 ns for each key and each doubling of runs. Past [`MERGED_RUNS`] a sort costs less.
    pub(super) fn merge(&self, mut runs: Vec<Vec<K>>) -> Vec<K> {
        if runs.len() == 1 {
            return runs.pop().unwrap_or_default();
        }
        let many = runs.iter().filter(|run| !run.is_empty()).count() > MERGED_RUNS;
        let mut keys: Vec<K> = Vec::with_capacity(runs.iter().map(Vec::len).sum());
        runs.into_iter().for_each(|run| keys.extend(run));
        if many {
            self.sort(&mut keys)
        } else {
            keys.sort()
        }
        keys
    }
}
