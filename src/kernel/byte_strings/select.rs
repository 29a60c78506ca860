//! Selection of ranks among a few byte strings in memory.

use std::cmp::Ordering;

use super::{At, ByteStrings};
use crate::kernel::cpu::groups::segments::select_by;
use crate::key::PrefixKey;

impl ByteStrings {
    /// Reorders locations of values so that those of `ranks` are where a sort by value would put them. The ranks are
    /// from 1, ascending, distinct, and at most the number of locations. `known` is the number of first bytes that are
    /// equal in all of these values.
    ///
    /// Eight bytes behind the common prefix are compared in registers, and whole values only where these are equal.
    pub(crate) fn select(&self, locations: &mut [At], known: usize, ranks: &[u64]) {
        let (common, mut pairs) = self.keyed(locations, known);
        select_by(&mut pairs, 0, ranks, &|a, b| self.compare(common, a, b));
        for (location, pair) in locations.iter_mut().zip(pairs) {
            *location = pair.1;
        }
    }

    /// Sorts locations by their values, moves one for each distinct value to the front, and returns these.
    pub(crate) fn sort_distinct<'a>(&self, locations: &'a mut [At]) -> &'a mut [At] {
        let (common, mut pairs) = self.keyed(locations, 0);
        pairs.sort_unstable_by(|a, b| self.compare(common, a, b));
        pairs.dedup_by(|a, b| self.compare(common, a, b).is_eq());
        let distinct = &mut locations[..pairs.len()];
        for (location, pair) in distinct.iter_mut().zip(pairs) {
            *location = pair.1;
        }
        distinct
    }

    /// The length of the common prefix in bytes, and the prefix key of what follows it in each value.
    fn keyed(&self, locations: &[At], known: usize) -> (usize, Vec<(u64, At)>) {
        let bounds = self.bounds_of(locations, known);
        let common = bounds.map_or(0, |bounds| bounds.prefix.len());
        let key = |at: &At| (u64::of(&self.value(*at)[common..]), *at);
        (common, locations.iter().map(key).collect())
    }

    fn compare(&self, common: usize, a: &(u64, At), b: &(u64, At)) -> Ordering {
        a.0.cmp(&b.0).then_with(|| match u64::whole(a.0.into()) {
            Some(_) => Ordering::Equal,
            None => {
                let rest = |at: At| &self.value(at)[common + u64::BYTES..];
                rest(a.1).cmp(rest(b.1))
            }
        })
    }
}
