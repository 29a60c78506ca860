//! Estimates of distances, with a margin that the exact distance lies within, and the vectors that may reach a bound.

use std::marker::PhantomData;

use super::exact::square;
use super::{Component, Measure, Product, Square, SquaredDifference, Terms, Vectors};
use crate::cells::simd::{Kernel, dispatch};

/// Running sums of one vector.
const LANES: usize = 32;

/// Sums that the lanes of one vector are added to first.
const PARTS: usize = LANES / 4;

/// Vectors whose parts are added together.
const TILE: usize = 16;

/// Sizes of sums of squares for which the margins below hold: no term that matters has underflowed, and none is infinite.
const SIZES: std::ops::Range<f64> = 1e-200..1e200;

/// A bound on distances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// Distances up to this one.
    AtMost(f64),
    /// Distances from this one on.
    AtLeast(f64),
}

impl Bound {
    /// Whether a distance that is at least `low` and at most `high` may be within the bound. If either is a NaN it may.
    #[inline(always)]
    fn may_hold(self, low: f64, high: f64) -> bool {
        let is_beyond = match self {
            Bound::AtMost(bound) => low > bound,
            Bound::AtLeast(bound) => high < bound,
        };
        !is_beyond
    }
}

/// Appends to `rows` the indices of the vectors whose distance from `query` may be within `bound`: all that are, and few others.
pub(crate) fn within<T: Component>(
    measure: Measure,
    vectors: &Vectors<'_, T>,
    query: &[f64],
    bound: Bound,
    rows: &mut Vec<u32>,
) {
    // Twice the greatest relative difference between two orders of adding, and of the operations that follow.
    let margin = (4.0 * query.len() as f64 + 64.0) * f64::EPSILON;
    let of_query = square(query);
    let may_hold = |row: &[f64; 2]| {
        let [first, square] = *row;
        match measure {
            Measure::Euclidean => {
                let distance = first.sqrt();
                // What underflow takes away is smaller than any normal number.
                let (low, high) = (distance * (1.0 - margin), distance * (1.0 + margin));
                !SIZES.contains(&first) || bound.may_hold(low, high)
            }
            Measure::Cosine | Measure::InnerProduct => {
                let sizes = square.sqrt() * of_query.sqrt();
                let known = SIZES.contains(&square) && SIZES.contains(&of_query);
                let (value, margin) = match measure {
                    Measure::Cosine => (1.0 - first / sizes, margin),
                    _ => (first, margin * sizes),
                };
                !known || bound.may_hold(value - margin, value + margin)
            }
        }
    };
    let mut sums = vec![[0.0; 2]; vectors.len()];
    match measure {
        Measure::Euclidean => dispatch(InLanes::<T, SquaredDifference>::new(vectors, query, &mut sums)),
        Measure::Cosine | Measure::InnerProduct => {
            dispatch(InLanes::<T, Product>::new(vectors, query, &mut sums));
        }
    }
    let passing = sums.iter().enumerate().filter(|(_, sums)| may_hold(sums));
    rows.extend(passing.map(|(row, _)| row as u32));
}

/// The loop that adds the terms of all vectors in lanes.
struct InLanes<'a, T, F> {
    vectors: &'a Vectors<'a, T>,
    query: &'a [f64],
    /// For each vector the sum of the terms, and that of its squares if the margin depends on it.
    sums: &'a mut [[f64; 2]],
    terms: PhantomData<F>,
}

impl<'a, T, F> InLanes<'a, T, F> {
    fn new(vectors: &'a Vectors<'a, T>, query: &'a [f64], sums: &'a mut [[f64; 2]]) -> Self {
        Self {
            vectors,
            query,
            sums,
            terms: PhantomData,
        }
    }
}

impl<T: Component, F: Terms> Kernel for InLanes<'_, T, F> {
    #[inline(always)]
    fn run(self) {
        let mut parts = [[0.0; PARTS]; TILE];
        for (tile, sums) in self.sums.chunks_mut(TILE).enumerate() {
            for (row, parts) in parts.iter_mut().enumerate().take(sums.len()) {
                add_row::<T, F>(self.vectors.row(TILE * tile + row), self.query, parts);
            }
            for ([sum, _], parts) in sums.iter_mut().zip(&parts) {
                *sum = parts.iter().sum();
            }
            if !F::NEEDS_SQUARES {
                continue;
            }
            // The vectors are still in the cache.
            for (row, parts) in parts.iter_mut().enumerate().take(sums.len()) {
                add_row::<T, Square>(self.vectors.row(TILE * tile + row), self.query, parts);
            }
            for ([_, square], parts) in sums.iter_mut().zip(&parts) {
                *square = parts.iter().sum();
            }
        }
    }
}

/// Adds the terms of one vector in lanes, and writes sums of some lanes each.
#[allow(
    clippy::needless_range_loop,
    reason = "loops over indices become vector instructions, those over iterators of arrays do not all"
)]
#[inline(always)]
fn add_row<T: Component, F: Terms>(row: &[T], query: &[f64], parts: &mut [f64; PARTS]) {
    let (blocks, tail) = row.as_chunks::<LANES>();
    let (of_query, rest) = query.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in blocks.iter().zip(of_query) {
        for lane in 0..LANES {
            lanes[lane] += F::of(a[lane].widen(), b[lane]);
        }
    }
    for part in 0..PARTS {
        parts[part] =
            (lanes[part] + lanes[part + PARTS]) + (lanes[part + 2 * PARTS] + lanes[part + 3 * PARTS]);
    }
    for (at, (a, b)) in tail.iter().zip(rest).enumerate() {
        parts[at % PARTS] += F::of(a.widen(), *b);
    }
}
