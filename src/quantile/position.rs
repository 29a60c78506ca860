//! Positions of quantiles among sorted values, by exact arithmetic.

use datafusion::arrow::datatypes::i256;

use super::number::MAX_EXACT_SCALE;
use super::{Fraction, Method, Pick, Quantile};

/// A rule of Hyndman and Fan (1996): among `n` values, quantile `q` lies at `(q (a n + b) - c) / d`, counted from 0.
#[derive(Debug, Clone, Copy)]
struct Line {
    a: i128,
    b: i128,
    c: i128,
    d: i128,
}

impl Line {
    const fn new(a: i128, b: i128, c: i128, d: i128) -> Self {
        Self { a, b, c, d }
    }

    /// The rule of a method that interpolates between the values around such a position.
    fn of(method: Method) -> Option<Self> {
        Some(match method {
            Method::InterpolatedInvertedCdf => Self::new(1, 0, 1, 1),
            Method::Weibull => Self::new(1, 1, 1, 1),
            Method::Hazen => Self::new(2, 0, 1, 2),
            Method::MedianUnbiased => Self::new(3, 1, 2, 3),
            Method::NormalUnbiased => Self::new(8, 2, 5, 8),
            _ => return None,
        })
    }
}

impl Quantile {
    /// The whole part and the fraction of a position on `line` among `n > 0` values; `None` if it is below 0.
    fn on(self, line: Line, n: u64) -> Option<(u64, Fraction)> {
        if self.scale > MAX_EXACT_SCALE {
            // It comes from a float of at most 17 digits, so q (a n + b) < 10^17 / 10^39 * 2^67 < 1 <= c.
            return None;
        }
        let (digits, one) = (self.digits as i128, 10_i128.pow(self.scale));
        let span = line.a * i128::from(n) + line.b;
        if let (Some(product), Some(below), Some(den)) = (
            digits.checked_mul(span),
            one.checked_mul(line.c),
            one.checked_mul(line.d),
        ) {
            let num = product - below;
            let fraction = |num| Fraction {
                num: num as u128,
                den: den as u128,
            };
            return (num >= 0).then(|| ((num / den) as u64, fraction(num % den)));
        }
        let [digits, one, span] = [digits, one, span].map(i256::from_i128);
        let num = digits * span - one * i256::from_i128(line.c);
        let den = one * i256::from_i128(line.d);
        if num.is_negative() {
            return None;
        }
        let (whole, mut num, mut den) = ((num / den).as_i128(), num % den, den);
        // A denominator that fits 127 bits: the 38th digit of the fraction is lost.
        if den.to_i128().is_none() {
            let ten = i256::from_i128(10);
            (num, den) = (num / ten, den / ten);
        }
        let fraction = Fraction {
            num: num.as_i128() as u128,
            den: den.as_i128() as u128,
        };
        Some((whole as u64, fraction))
    }

    const HALF: Self = Self { digits: 5, scale: 1 };

    /// The position of the answer by `method` among `n > 0` values; `None` if the method is none of Hyndman and Fan's that this
    /// module has, and none of ClickHouse's.
    pub(super) fn pick_by(self, method: Method, n: u64) -> Option<Pick> {
        let between = |low: u64, weight: Fraction| Pick {
            low,
            high: low + 1,
            weight,
        };
        if let Some(line) = Line::of(method) {
            return Some(match self.on(line, n) {
                None => Pick::at(1),
                Some((floor, _)) if floor >= n - 1 => Pick::at(n),
                Some((floor, fraction)) if fraction.num == 0 => Pick::at(floor + 1),
                Some((floor, fraction)) => between(floor + 1, fraction),
            });
        }
        match method {
            Method::ClickHouseLow if self == Self::HALF => Some(Pick::at(self.rank(n))),
            Method::ClickHouse | Method::ClickHouseLow => {
                Some(Pick::at(self.times(n).0.saturating_add(1).min(n)))
            }
            Method::AveragedInvertedCdf => {
                let (floor, fraction) = self.times(n);
                Some(match fraction.num {
                    0 if (1..n).contains(&floor) => between(floor, Fraction::HALF),
                    _ => Pick::at(self.rank(n)),
                })
            }
            // Position q n - 3/2; where it is whole, the odd index, which is an even rank.
            Method::ClosestObservation => Some(match self.on(Line::new(2, 0, 3, 2), n) {
                None => Pick::at(1),
                Some((floor, fraction)) if fraction.num == 0 && floor % 2 == 1 => Pick::at(floor + 1),
                Some((floor, _)) => Pick::at(floor + 2),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_many_digits_are_between_their_neighbours() {
        let below = Quantile {
            digits: 10_u128.pow(38) / 3,
            scale: 38,
        };
        let n = u64::MAX >> 1;
        for method in Method::ALL {
            let Some(pick) = below.pick_by(method, n) else {
                continue;
            };
            let third = n / 3;
            assert!(
                pick.low.abs_diff(third) < 3 && pick.high - pick.low < 2,
                "{method}: {pick:?}"
            );
            assert!(
                pick.weight.num < pick.weight.den && pick.weight.den < 1 << 127,
                "{method}"
            );
        }
    }

    #[test]
    fn tiny_quantiles_are_the_least_value() {
        let tiny = Quantile::try_from_f64(1e-300).unwrap();
        for method in Method::ALL {
            if let Some(pick) = tiny.pick_by(method, 1 << 60) {
                assert_eq!(pick, Pick::at(1), "{method}");
            }
        }
    }
}
