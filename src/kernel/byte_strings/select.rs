//! Selection of ranks among a few byte strings in memory.

use std::cmp::Ordering;

use datafusion::common::Result;

use super::{At, ByteStrings};
use crate::kernel::cpu::groups::segments::select_by;
use crate::kernel::cpu::groups::weighted::{merge_equal, select_weighted};
use crate::key::PrefixKey;

/// The prefix key of a value behind the common prefix, and the location of the value.
type KeyedPlace = (u64, At);

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

    /// Sorts locations by their values. Fast where they consist of a few ascending runs.
    pub(crate) fn sort(&self, locations: &mut [At]) {
        let (common, mut pairs) = self.keyed(locations, 0);
        pairs.sort_by(|a, b| self.compare(common, a, b));
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

    /// The locations of the values at `ranks`, where each value counts as often as its weight says: see [`select_weighted`].
    pub(crate) fn select_weighted(&self, items: &[(At, u64)], ranks: &[u64]) -> Vec<At> {
        let (common, mut keyed) = self.keyed_items(items);
        let found = select_weighted(&mut keyed, ranks, &|a, b| self.compare(common, a, b));
        found.into_iter().map(|(_, at)| at).collect()
    }

    /// Sorts locations by their values, brings equal values together at the front, with the sum of their weights, and returns their number: see
    /// [`merge_equal`].
    ///
    /// # Errors
    /// An execution error for a sum past 64 bits.
    pub(crate) fn merge_weighted(&self, items: &mut [(At, u64)]) -> Result<usize> {
        let (common, mut keyed) = self.keyed_items(items);
        let distinct = merge_equal(&mut keyed, &|a, b| self.compare(common, a, b))?;
        for (item, ((_, at), weight)) in items.iter_mut().zip(keyed) {
            *item = (at, weight);
        }
        Ok(distinct)
    }

    /// [`Self::keyed`] for locations with weights.
    fn keyed_items(&self, items: &[(At, u64)]) -> (usize, Vec<(KeyedPlace, u64)>) {
        let places: Vec<At> = items.iter().map(|(at, _)| *at).collect();
        let (common, keyed) = self.keyed(&places, 0);
        let weights = items.iter().map(|(_, weight)| *weight);
        (common, keyed.into_iter().zip(weights).collect())
    }

    /// The length of the common prefix in bytes, and the prefix key of what follows it in each value.
    fn keyed(&self, locations: &[At], known: usize) -> (usize, Vec<KeyedPlace>) {
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
