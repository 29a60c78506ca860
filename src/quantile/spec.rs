//! Quantile specifications: the ranks that a call needs, and its answers from the keys of those ranks.

use datafusion::arrow::array::{ArrayRef, new_null_array};
use datafusion::common::Result;

use super::{Found, Fraction, Interpolation, Method, Pick, Picks, Quantile, builtin, ranks_of, spark};
use crate::key::{KeyBits, KeySpec};

/// The question of one call: which quantiles, by which method, from which end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuantileSpec {
    /// The quantiles, in the caller's order.
    pub quantiles: Vec<Quantile>,
    /// The method by which a position becomes an answer.
    pub method: Method,
    /// Whether ranks count from the greatest value (`WITHIN GROUP (ORDER BY x DESC)`).
    pub descending: bool,
}

impl QuantileSpec {
    /// The position of the answer for one quantile among `n > 0` values.
    pub(super) fn pick(&self, quantile: Quantile, n: u64) -> Pick {
        if self.method.is_builtin() {
            return builtin::pick(self.method, quantile, self.descending, n);
        }
        let mut pick = match quantile.pick_by(self.method, n) {
            Some(pick) => pick,
            None if self.method == Method::SparkPercentile => spark::pick(quantile, n),
            None => self.pick_among_gaps(quantile, n),
        };
        if self.descending {
            (pick.low, pick.high) = (n - (pick.low - 1), n - (pick.high - 1));
        }
        pick
    }

    /// The position of the answer by a method that counts in `n - 1` gaps between values (and of `disc`), from the least value.
    fn pick_among_gaps(&self, quantile: Quantile, n: u64) -> Pick {
        if self.method == Method::Disc {
            return Pick::at(quantile.rank(n));
        }
        let (floor, fraction) = quantile.times(n - 1);
        let above = floor + 1 + u64::from(fraction.num > 0);
        let nearest = || {
            let up = match (2 * fraction.num).cmp(&fraction.den) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Greater => true,
                std::cmp::Ordering::Equal => floor % 2 == 1,
            };
            floor + 1 + u64::from(up)
        };
        match self.method {
            Method::Lower => Pick::at(floor + 1),
            Method::Higher => Pick::at(above),
            Method::Nearest => Pick::at(nearest()),
            _ if fraction.num == 0 => Pick::at(floor + 1),
            Method::Linear => Pick {
                low: floor + 1,
                high: above,
                weight: fraction,
            },
            _ => Pick {
                low: floor + 1,
                high: above,
                weight: Fraction::HALF,
            },
        }
    }

    /// The ranks that the answers need, among `n` values: from 1, from the least value, ascending, distinct; none if
    /// `n` is 0.
    pub fn ranks(&self, n: u64) -> Vec<u64> {
        if n == 0 {
            return Vec::new();
        }
        ranks_of(&[self.picks(n)])
    }

    /// The answers, one for each quantile in the caller's order, of type [`Method::result_type`]; all NULL if `n` is 0.
    ///
    /// # Errors
    /// Errors of `key_at`, which gives the key of a rank that [`Self::ranks`] named.
    pub fn answers(
        &self,
        spec: &KeySpec,
        n: u64,
        key_at: &dyn Fn(u64) -> Result<KeyBits>,
    ) -> Result<ArrayRef> {
        if n == 0 {
            return Ok(new_null_array(
                &self.method.result_type(spec.data_type())?,
                self.quantiles.len(),
            ));
        }
        let mut found = Found::default();
        found.add(&self.picks(n), key_at)?;
        self.values(spec, &found)
    }

    /// The positions of the answers among `n > 0` values, in the caller's order.
    pub(crate) fn picks(&self, n: u64) -> Picks {
        let picks = self.quantiles.iter().map(|quantile| self.pick(*quantile, n));
        Picks {
            list: picks.collect(),
            interpolates: self.method.interpolates(),
        }
    }

    /// The answers from the keys that were found, of type [`Method::result_type`].
    pub(crate) fn values(&self, spec: &KeySpec, found: &Found<KeyBits>) -> Result<ArrayRef> {
        if !self.method.interpolates() {
            return spec.to_array(&found.low);
        }
        let interpolation = self.interpolation(spec)?;
        let ends = found.low.iter().zip(&found.high);
        let keys = ends
            .zip(&found.picks)
            .map(|((low, high), pick)| interpolation.between(spec, *pick, *low, *high));
        interpolation.result.to_array(&keys.collect::<Result<Vec<_>>>()?)
    }

    /// The interpolation between keys of `spec`.
    pub(crate) fn interpolation(&self, spec: &KeySpec) -> Result<Interpolation> {
        Interpolation::try_new(self.method, spec)
    }
}
