//! Ranks that answers lie at or between, and the keys that were found there.

use datafusion::common::Result;

use super::Fraction;
use crate::key::KeyBits;

/// Where an answer lies: between two ranks (1-based, from the least value), `weight` of the way from `low` to `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(super) low: u64,
    pub(super) high: u64,
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

/// Where the answers of one [`Ask`](super::Ask) lie among some number of values.
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

/// Keys between which answers lie, of any number of groups.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(super) low: Vec<KeyBits>,
    /// Of a method that interpolates, as `picks`.
    pub(super) high: Vec<KeyBits>,
    pub(super) picks: Vec<Pick>,
}

impl Found {
    /// Adds those of one group; `key_at` gives the key of a 1-based rank.
    pub(crate) fn add(&mut self, picks: &Picks, key_at: &dyn Fn(u64) -> Result<KeyBits>) -> Result<()> {
        for pick in picks.iter() {
            self.low.push(key_at(pick.low)?);
            if picks.interpolates {
                self.high.push(key_at(pick.high)?);
                self.picks.push(pick);
            }
        }
        Ok(())
    }
}
