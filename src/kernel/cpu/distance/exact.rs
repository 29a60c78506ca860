//! Distances whose sums are added in order of the components.

use std::array::from_fn;
use std::marker::PhantomData;

use super::{Component, Measure, Product, Square, SquaredDifference, Terms, Vectors};
use crate::cells::simd::{Kernel, dispatch};

/// Vectors that are added side by side, and components whose terms are made before they are added.
const SIDE: usize = 8;

/// Vectors whose two sums are made one after the other.
const NEAR: usize = 64;

/// Distances of vectors from a query.
#[derive(Debug, Default)]
pub(crate) struct Distances {
    /// One for each vector.
    pub(crate) values: Vec<f64>,
    /// The vectors that have none, ascending: their values are 0.
    pub(crate) missing: Vec<usize>,
}

/// The distance of each of `vectors` from `query`, which has their length.
pub(crate) fn distances<T: Component>(
    measure: Measure,
    vectors: &Vectors<'_, T>,
    query: &[f64],
) -> Distances {
    from_queries(measure, vectors, |_| query)
}

/// The distance of each of `vectors` from the query of its index, which has its length.
pub(crate) fn from_queries<'a, T: Component>(
    measure: Measure,
    vectors: &Vectors<'_, T>,
    query_of: impl Fn(usize) -> &'a [f64] + Copy,
) -> Distances {
    match measure {
        Measure::Euclidean => {
            // A sum of no terms is -0.0, as that of an iterator.
            let sums = sums::<_, SquaredDifference>(vectors, query_of, -0.0);
            all(sums.into_iter().map(f64::sqrt))
        }
        Measure::InnerProduct => all(sums::<_, Product>(vectors, query_of, 0.0).into_iter()),
        Measure::Cosine => cosines(vectors, query_of),
    }
}

/// Distances that all vectors have.
fn all(values: impl Iterator<Item = f64>) -> Distances {
    Distances {
        values: values.collect(),
        missing: Vec::new(),
    }
}

/// Cosine distances.
fn cosines<'a, T: Component>(
    vectors: &Vectors<'_, T>,
    query_of: impl Fn(usize) -> &'a [f64] + Copy,
) -> Distances {
    let mut of_query = (std::ptr::null(), 0.0);
    let mut missing = Vec::new();
    let mut values = Vec::with_capacity(vectors.len());
    // So few vectors at a time that they are still in the cache for the second sum.
    for first in (0..vectors.len()).step_by(NEAR) {
        let near = vectors.slice(first, NEAR);
        let near_query = |row| query_of(first + row);
        let products = sums::<_, Product>(&near, near_query, 0.0);
        let squares = sums::<_, Square>(&near, near_query, 0.0);
        let sums = (first..).zip(products.into_iter().zip(squares));
        values.extend(sums.map(|(row, (product, of_vector))| {
            // Vectors of one query mostly come one after the other.
            let query = query_of(row);
            if of_query.0 != query.as_ptr() {
                of_query = (query.as_ptr(), square(query));
            }
            if of_vector == 0.0 || of_query.1 == 0.0 {
                missing.push(row);
                return 0.0;
            }
            1.0 - product / (of_vector.sqrt() * of_query.1.sqrt())
        }));
    }
    Distances { values, missing }
}

/// The sum of the squares of the components, in their order.
pub(super) fn square(query: &[f64]) -> f64 {
    query.iter().fold(0.0, |sum, b| sum + b * b)
}

/// The sum of the terms of each vector and its query. Each begins with `start`.
fn sums<'a, T: Component, F: Terms>(
    vectors: &Vectors<'_, T>,
    query_of: impl Fn(usize) -> &'a [f64] + Copy,
    start: f64,
) -> Vec<f64> {
    let mut sums = vec![start; vectors.len()];
    dispatch(InOrder {
        vectors,
        query_of,
        sums: &mut sums,
        terms: PhantomData::<F>,
    });
    sums
}

/// The sum of the terms of one vector, in order, behind `start`.
#[inline(always)]
fn row_sum<T: Component, F: Terms>(row: &[T], query: &[f64], start: f64) -> f64 {
    let terms = row.iter().zip(query).map(|(a, b)| F::of(a.widen(), *b));
    terms.fold(start, |sum, term| sum + term)
}

/// The loop that adds the terms of all vectors.
struct InOrder<'a, T, F, Q> {
    vectors: &'a Vectors<'a, T>,
    query_of: Q,
    sums: &'a mut [f64],
    terms: PhantomData<F>,
}

impl<'q, T: Component, F: Terms, Q: Fn(usize) -> &'q [f64]> Kernel for InOrder<'_, T, F, Q> {
    #[inline(always)]
    fn run(self) {
        let (tiles, rest) = self.sums.as_chunks_mut::<SIDE>();
        let done = SIDE * tiles.len();
        for (tile, sums) in tiles.iter_mut().enumerate() {
            let rows = from_fn(|row| self.vectors.row(SIDE * tile + row));
            let queries = from_fn(|row| (self.query_of)(SIDE * tile + row));
            add_tile::<T, F>(rows, queries, sums);
        }
        for (row, sum) in rest.iter_mut().enumerate() {
            let query = (self.query_of)(done + row);
            *sum = row_sum::<T, F>(self.vectors.row(done + row), query, *sum);
        }
    }
}

/// Adds the terms of vectors side by side: terms of [`SIDE`] components are made at once, then added one component after the other.
#[allow(
    clippy::needless_range_loop,
    reason = "loops over indices become vector instructions, those over iterators of arrays do not all"
)]
#[inline(always)]
fn add_tile<T: Component, F: Terms>(rows: [&[T]; SIDE], queries: [&[f64]; SIDE], out: &mut [f64; SIDE]) {
    let blocks = rows.map(|row| row.as_chunks::<SIDE>().0);
    let of_queries = queries.map(|query| query.as_chunks::<SIDE>().0);
    let mut sums = *out;
    let mut terms = [[0.0; SIDE]; SIDE];
    for block in 0..of_queries[0].len() {
        for row in 0..SIDE {
            let (a, b) = (&blocks[row][block], &of_queries[row][block]);
            for at in 0..SIDE {
                terms[row][at] = F::of(a[at].widen(), b[at]);
            }
        }
        for at in 0..SIDE {
            for row in 0..SIDE {
                sums[row] += terms[row][at];
            }
        }
    }
    let done = SIDE * of_queries[0].len();
    for row in 0..SIDE {
        out[row] = row_sum::<T, F>(&rows[row][done..], &queries[row][done..], sums[row]);
    }
}
