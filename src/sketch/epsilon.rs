//! The error fraction, as an exact number.

use std::cmp::Ordering;

use datafusion::common::{Result, exec_err, plan_err};

/// Greatest numerator and denominator, so that products with a number of values fit in 128 bits.
const MOST: u64 = 10_u64.pow(DIGITS as u32);

/// Number of decimal places that are used. The fraction is rounded down behind them, which only makes the bound
/// tighter.
const DIGITS: usize = 18;

/// The error fraction eps of a sketch: a rational number in `[0, 1]`, in lowest terms.
///
/// Exact, so that `floor(2 eps n)` is the same everywhere: a number is taken as the shortest decimal that prints it
/// (0.1 is one tenth), as for the quantile argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epsilon {
    numerator: u64,
    denominator: u64,
}

impl Epsilon {
    /// An error fraction from the accuracy argument: in (0, 1) it is the error fraction, from 1 on its reciprocal.
    ///
    /// # Errors
    /// A planning error if `accuracy` is not a finite number above 0.
    pub fn try_new(accuracy: f64) -> Result<Self> {
        if !(accuracy.is_finite() && accuracy > 0.0) {
            return plan_err!(
                "accuracy is {accuracy}: allowed is an error fraction in (0, 1), or its reciprocal from 1 on"
            );
        }
        // `to_string` never uses scientific notation.
        let decimal = accuracy.to_string();
        let (whole, places) = decimal.split_once('.').unwrap_or((&decimal, ""));
        let places = &places[..places.len().min(DIGITS)];
        let scale = 10_u64.pow(places.len() as u32);
        let scaled = format!("{whole}{places}").parse::<u64>().unwrap_or(u64::MAX);
        Ok(if accuracy < 1.0 {
            Self::reduced(scaled, scale)
        } else if scaled <= MOST {
            Self::reduced(scale, scaled)
        } else {
            // One part in 10^18 of any count that a sketch can reach is less than a value.
            Self::reduced(0, 1)
        })
    }

    /// An error fraction from the numerator and denominator that are stored.
    ///
    /// # Errors
    /// An execution error if the fraction is not in lowest terms, above 1, or has terms above 10^18.
    pub(crate) fn from_fraction(numerator: u64, denominator: u64) -> Result<Self> {
        let proper = denominator > 0 && numerator <= denominator && denominator <= MOST;
        if !proper || gcd(numerator, denominator) != 1 {
            return exec_err!(
                "error fraction {numerator}/{denominator}: allowed are fractions up to 1 in lowest terms"
            );
        }
        Ok(Self {
            numerator,
            denominator,
        })
    }

    fn reduced(numerator: u64, denominator: u64) -> Self {
        let gcd = gcd(numerator, denominator);
        Self {
            numerator: numerator / gcd,
            denominator: denominator / gcd,
        }
    }

    /// Numerator and denominator, in lowest terms.
    pub fn fraction(self) -> (u64, u64) {
        (self.numerator, self.denominator)
    }

    /// `floor(2 eps n)`: the greatest `g + delta` that a summary of `n` values may have, or 1 if that is more.
    pub fn budget(self, n: u64) -> u64 {
        let (numerator, denominator) = (self.numerator, self.denominator);
        match n.checked_mul(2).and_then(|twice| twice.checked_mul(numerator)) {
            // A division of 128 bits takes several times as long, which matters for small groups.
            Some(product) => product / denominator,
            None => {
                let twice = 2 * u128::from(n) * u128::from(numerator) / u128::from(denominator);
                u64::try_from(twice).unwrap_or(u64::MAX)
            }
        }
    }

    /// `floor(multiple / eps) + 1`, or `most` if that is less.
    pub(super) fn reciprocal(self, multiple: u64, most: usize) -> usize {
        let quotient = match multiple.checked_mul(self.denominator) {
            Some(product) => product.checked_div(self.numerator).map(u128::from),
            None => (u128::from(multiple) * u128::from(self.denominator)).checked_div(self.numerator.into()),
        };
        let quotient = quotient.and_then(|quotient| usize::try_from(quotient + 1).ok());
        quotient.map_or(most, |quotient| quotient.min(most))
    }
}

impl PartialOrd for Epsilon {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Epsilon {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |a: u64, b: u64| u128::from(a) * u128::from(b);
        cross(self.numerator, other.denominator).cmp(&cross(other.numerator, self.denominator))
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_is_a_fraction_or_its_reciprocal() {
        for (accuracy, fraction) in [
            (0.5, (1, 2)),
            (0.1, (1, 10)),
            (0.0001, (1, 10_000)),
            (10_000.0, (1, 10_000)),
            (1.0, (1, 1)),
            (2.5, (2, 5)),
            (0.999, (999, 1000)),
            (1e300, (0, 1)),
            (1e-300, (0, 1)),
            (f64::MIN_POSITIVE, (0, 1)),
            (f64::MAX, (0, 1)),
        ] {
            assert_eq!(
                Epsilon::try_new(accuracy).unwrap().fraction(),
                fraction,
                "{accuracy}"
            );
        }
    }

    #[test]
    fn bad_accuracies_are_named() {
        for accuracy in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(
                Epsilon::try_new(accuracy).unwrap_err().strip_backtrace(),
                format!(
                    "Error during planning: accuracy is {accuracy}: allowed is an error fraction in (0, 1), or its \
                     reciprocal from 1 on"
                )
            );
        }
    }

    #[test]
    fn budgets_are_exact() {
        let budget = |accuracy, n| Epsilon::try_new(accuracy).unwrap().budget(n);
        assert_eq!(budget(0.1, 5), 1);
        assert_eq!(budget(0.1, 4), 0);
        assert_eq!(budget(0.3, 10), 6);
        assert_eq!(budget(10_000.0, 1 << 40), (1 << 41) / 10_000);
        assert_eq!(budget(1.0, i64::MAX as u64), 2 * (i64::MAX as u64));
        assert_eq!(budget(1e-300, u64::MAX), 0);
    }
}
