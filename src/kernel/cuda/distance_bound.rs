//! How far distances that a device adds in `f32` may lie from those that `f64` gives, and which rows that leaves in question.
//!
//! A sum of `n` terms of one sign has a relative error of at most about `n 2^-24` in any order, and one of products at most that of the
//! sizes of both vectors (Higham, *Accuracy and Stability of Numerical Algorithms*, sections 3.1 and 4.2). A query is rounded to `f32`
//! first, which moves every Euclidean distance by at most the distance between the query and what it was rounded to.

use crate::kernel::cpu::distance::Measure;

/// Relative error of one rounding to `f32`.
const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// A query whose distances are added in `f32`, and the errors of these.
#[derive(Debug, Clone)]
pub(super) struct RoundedQuery {
    measure: Measure,
    /// The components as a device has them.
    pub(super) point: Vec<f32>,
    /// The root of the sum of squares of `point`.
    size: f64,
    /// The distance of `point` from the query, or a little more.
    moved: f64,
}

impl RoundedQuery {
    /// The query; `None` if `f32` cannot hold it, or if its size leaves no room for the errors below.
    pub(super) fn try_new(measure: Measure, query: &[f64]) -> Option<Self> {
        let point: Vec<f32> = query.iter().map(|component| *component as f32).collect();
        if point.iter().any(|component| !component.is_finite()) || query.is_empty() {
            return None;
        }
        let square = |sum: f64, component: f64| sum + component * component;
        let moved = point
            .iter()
            .zip(query)
            .map(|(own, component)| f64::from(*own) - component);
        let moved = moved.fold(0.0, square).sqrt() * (1.0 + 1e-9);
        let size = point
            .iter()
            .map(|component| f64::from(*component))
            .fold(0.0, square)
            .sqrt();
        let fits = match measure {
            Measure::Euclidean => size < 1e18,
            Measure::InnerProduct => size < 1e30,
            Measure::Cosine => (1e-15..=1e15).contains(&size),
        };
        fits.then_some(Self {
            measure,
            point,
            size,
            moved,
        })
    }

    /// The root of the sum of squares of the query, as a device has it.
    pub(super) fn size(&self) -> f32 {
        self.size as f32
    }

    /// The greatest value of a row that may be among the first `k` rows, where `kth` is the k-th least value. Values are squared distances,
    /// cosine distances or products; with `farthest` their negatives. `greatest_square`: the greatest sum of squares of a vector.
    pub(super) fn bound(&self, kth: f32, farthest: bool, greatest_square: f32) -> f32 {
        let kth = f64::from(kth);
        let components = self.point.len() as f64;
        // Of a sum in f32, of what underflow takes away from it, and of the distance in f64.
        let relative = (components + 32.0) * UNIT;
        let underflow = components * f64::from(f32::MIN_POSITIVE);
        let of_double = 4.0 * (components + 64.0) * f64::EPSILON;
        let bound = match self.measure {
            Measure::Euclidean if farthest => {
                let low = ((-kth - underflow).max(0.0) / (1.0 + relative)).sqrt();
                let low = (low * (1.0 - of_double) - 2.0 * self.moved).max(0.0);
                -(low * low * (1.0 - relative) - underflow)
            }
            Measure::Euclidean => {
                let high = ((kth + underflow) / (1.0 - relative)).sqrt();
                let high = high * (1.0 + of_double) + 2.0 * self.moved;
                high * high * (1.0 + relative) + underflow
            }
            Measure::Cosine => {
                let small = (self.moved + underflow * 1e15) / self.size;
                kth + 2.0 * (3.0 * relative + 3.0 * small + of_double)
            }
            Measure::InnerProduct => {
                let greatest = (f64::from(greatest_square) / (1.0 - relative) + underflow).sqrt();
                let each = (relative + of_double) * self.size + (1.0 + of_double) * self.moved;
                kth + 2.0 * (greatest * each + underflow)
            }
        };
        (bound as f32).next_up().min(f32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums as the kernels add them, for 8 lanes of 4 components.
    fn in_singles(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
        let mut sums = [0.0_f32; 8];
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            sums[i / 4 % 8] += term(*x, *y);
        }
        let fours: Vec<f32> = (0..4).map(|i| sums[i] + sums[i + 4]).collect();
        (fours[0] + fours[2]) + (fours[1] + fours[3])
    }

    fn distance(measure: Measure, a: &[f32], b: &[f64]) -> f64 {
        let pairs = || a.iter().map(|x| f64::from(*x)).zip(b);
        let product = pairs().fold(0.0, |sum, (x, y)| sum + x * y);
        let square = pairs().fold(0.0, |sum, (x, _)| sum + x * x);
        let of_query = b.iter().fold(0.0, |sum, y| sum + y * y);
        match measure {
            Measure::Euclidean => pairs().fold(0.0, |sum, (x, y)| sum + (x - y) * (x - y)).sqrt(),
            Measure::Cosine => 1.0 - product / (square.sqrt() * of_query.sqrt()),
            Measure::InnerProduct => product,
        }
    }

    fn value(measure: Measure, a: &[f32], query: &RoundedQuery) -> (f32, f32) {
        let square = in_singles(a, a, |x, _| x * x);
        let product = in_singles(a, &query.point, |x, y| x * y);
        let value = match measure {
            Measure::Euclidean => in_singles(a, &query.point, |x, y| (x - y) * (x - y)),
            Measure::Cosine => 1.0 - product / (square.sqrt() * query.size()),
            Measure::InnerProduct => product,
        };
        (value, square)
    }

    /// No row among the first k has a value beyond the bound, also where vectors differ in their last bits, and few others are within it.
    #[test]
    fn the_first_rows_are_within_the_bound() {
        let mut words = quantiles_words(5);
        let mut next = || (words() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5;
        for measure in Measure::ALL {
            for farthest in [false, true] {
                for (width, spread) in [
                    (1, 1.0),
                    (3, 1e-6),
                    (128, 1.0),
                    (128, 1e-7),
                    (784, 1e-5),
                    (128, 1e12),
                ] {
                    let centre: Vec<f64> = (0..width).map(|_| next()).collect();
                    let near = |next: &mut dyn FnMut() -> f64| -> Vec<f64> {
                        centre.iter().map(|x| (x + spread * next()) * 1.7).collect()
                    };
                    let query = near(&mut next);
                    let rows: Vec<Vec<f32>> = (0..300)
                        .map(|_| near(&mut next).iter().map(|x| *x as f32).collect())
                        .collect();
                    let rounded = RoundedQuery::try_new(measure, &query).unwrap();
                    let sign = if farthest { -1.0 } else { 1.0 };
                    let values: Vec<_> = rows.iter().map(|row| value(measure, row, &rounded)).collect();
                    let greatest = values.iter().map(|(_, square)| *square).fold(0.0, f32::max);
                    let mut order: Vec<usize> = (0..rows.len()).collect();
                    let of = |row: usize| sign * distance(measure, &rows[row], &query);
                    order.sort_by(|a, b| of(*a).total_cmp(&of(*b)));
                    let mut sorted: Vec<f32> = values.iter().map(|(value, _)| sign as f32 * value).collect();
                    sorted.sort_by(f32::total_cmp);
                    for k in [1, 10, 100] {
                        let bound = rounded.bound(sorted[k - 1], farthest, greatest);
                        for row in &order[..k] {
                            let own = sign as f32 * values[*row].0;
                            assert!(
                                own <= bound,
                                "{measure:?} {farthest} {width} {spread} {k}: {own} {bound}"
                            );
                        }
                        let within = sorted.iter().filter(|value| **value <= bound).count();
                        assert!(
                            spread != 1.0 || width == 1 || within <= k + 3,
                            "{measure:?} {width} {k}: {within}"
                        );
                    }
                }
            }
        }
    }

    fn quantiles_words(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    #[test]
    fn queries_that_are_too_large_are_left_to_the_cpu() {
        let fits = |measure, query: &[f64]| RoundedQuery::try_new(measure, query).is_some();
        for measure in Measure::ALL {
            assert!(fits(measure, &[1.0, 0.1]));
            assert!(!fits(measure, &[1.0, 1e39]));
            assert!(!fits(measure, &[1.0, f64::NAN]));
            assert!(!fits(measure, &[]));
        }
        assert!(!fits(Measure::Cosine, &[0.0, 0.0]) && fits(Measure::Euclidean, &[0.0, 0.0]));
    }
}
