//! Ranks that answers lie at or between, and the values that were found there.

use datafusion::common::Result;

use super::Fraction;

/// The position of an answer: between two ranks (from 1, from the least value), `weight` of the way from `low` to
/// `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The lower rank.
    pub(crate) low: u64,
    /// The upper rank.
    pub(crate) high: u64,
    pub(super) weight: Fraction,
}

impl Pick {
    pub(super) fn at(rank: u64) -> Self {
        Pick {
            low: rank,
            high: rank,
            weight: Fraction { num: 0, den: 1 },
        }
    }
}

/// The positions of the answers of one [`QuantileSpec`](super::QuantileSpec) among a certain number of values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Picks {
    pub(super) list: Vec<Pick>,
    pub(super) interpolates: bool,
}

impl Picks {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Pick> {
        self.list.iter().copied()
    }
}

/// The ranks that answers lie at or between: ascending, distinct.
pub(crate) fn ranks_of(picks: &[Picks]) -> Vec<u64> {
    let all = picks.iter().flat_map(|picks| &picks.list);
    let mut ranks: Vec<u64> = all.flat_map(|pick| [pick.low, pick.high]).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// The keys, or byte strings, that answers are or lie between, for any number of groups.
#[derive(Debug)]
pub(crate) struct Found<T> {
    pub(super) low: Vec<T>,
    /// The values at the upper ranks; filled only by methods that interpolate, as `picks` is.
    pub(super) high: Vec<T>,
    pub(super) picks: Vec<Pick>,
}

impl<T> Default for Found<T> {
    fn default() -> Self {
        Self {
            low: Vec::new(),
            high: Vec::new(),
            picks: Vec::new(),
        }
    }
}

impl<T> Found<T> {
    /// Nothing, with room for so many answers of a method that interpolates, or of one that does not.
    pub(crate) fn with_capacity(answers: usize, interpolates: bool) -> Self {
        let between = if interpolates { answers } else { 0 };
        Self {
            low: Vec::with_capacity(answers),
            high: Vec::with_capacity(between),
            picks: Vec::with_capacity(between),
        }
    }

    /// Adds the values of one group. `value_at` gives the key, or byte string, of a rank from 1.
    ///
    /// # Errors
    /// Errors of `value_at`.
    pub(crate) fn add(
        &mut self,
        picks: &Picks,
        value_at: &(impl Fn(u64) -> Result<T> + ?Sized),
    ) -> Result<()> {
        for pick in picks.iter() {
            self.low.push(value_at(pick.low)?);
            if picks.interpolates {
                self.high.push(value_at(pick.high)?);
                self.picks.push(pick);
            }
        }
        Ok(())
    }
}
