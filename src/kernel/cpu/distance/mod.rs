//! Distances between query vectors and many vectors, from memory at nearly the speed of reading it.
//!
//! ```text
//! [`distances`]   8 vectors, a running sum for each, in order of the components    the answer
//! [`within`]      1 vector, 32 running sums, each of every 32nd component          within a proved margin of the answer
//! [`reaching`]    6 queries by 16 or 32 vectors, in `f32`, as a matrix product        within a proved margin of the answer
//! ```
//! Arithmetic is in `f64` but for the product, of components that are widened without rounding. A distance is one sum of terms (or two), added in order
//! of the components from the first to the last, as a plain loop does it: that is the order of DataFusion's functions, so the bits of
//! the answer are theirs, but for NaNs, whose sign and payload depend on the instructions. Vectors are added side by side, so that no sum waits for another.
//!
//! A bound that an answer must reach makes most of that work needless: lanes of one vector add faster, in another order, and the
//! difference between two orders is at most `n 2^-52` of the sum of the terms' sizes for `n` components (Higham, *Accuracy and Stability
//! of Numerical Algorithms*, section 4.2). A vector whose estimate lies beyond the bound by more than that cannot reach it.

mod estimate;
mod exact;
mod pairs;
mod tiles;

pub(crate) use estimate::{Bound, within};
pub(crate) use exact::{Distances, distances, from_queries};
pub(crate) use pairs::{Floors, Marks, PAIR_BYTES, Pair, Room, SharedBounds, reaching};
#[cfg(feature = "cuda")]
pub(crate) use tiles::rounded_up;
pub(crate) use tiles::{QueryTiles, Ranking, VectorTiles};

/// A measure of how far apart, or how alike, two vectors `a` and `b` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Measure {
    /// The Euclidean distance, `sqrt(sum((a - b)^2))`.
    Euclidean,
    /// The cosine distance, `1 - sum(a b) / (sqrt(sum(a a)) sqrt(sum(b b)))`. There is none to a vector of zeros.
    Cosine,
    /// The inner product, `sum(a b)`.
    InnerProduct,
}

impl Measure {
    /// All of them.
    pub(crate) const ALL: [Measure; 3] = [Measure::Euclidean, Measure::Cosine, Measure::InnerProduct];
}

/// A component of a vector.
pub(crate) trait Component: Copy {
    /// The component as an `f64`, without rounding.
    fn widen(self) -> f64;
}

impl Component for f64 {
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
}

impl Component for f32 {
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }
}

/// The bits of a half-precision number.
impl Component for u16 {
    #[inline(always)]
    fn widen(self) -> f64 {
        // The exponent and fraction at their places in an `f64`, whose exponent is biased by 1023 and not by 15. The product is exact, of
        // subnormal halves too.
        let (sign, size) = (u64::from(self >> 15) << 63, u64::from(self & 0x7fff));
        let finite = f64::from_bits(size << 42) * f64::from_bits((1023 + 1008) << 52);
        let special = f64::from_bits(0x7ff0 << 48 | (size & 0x3ff) << 42);
        let size = if size & 0x7c00 == 0x7c00 { special } else { finite };
        f64::from_bits(size.to_bits() | sign)
    }
}

/// Vectors of one length in flat memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vectors<'a, T> {
    components: &'a [T],
    places: Places<'a>,
    dimension: usize,
    rows: usize,
}

/// Where vectors start.
#[derive(Debug, Clone, Copy)]
enum Places<'a> {
    /// One behind the other.
    Dense,
    /// The first component of each.
    At(&'a [usize]),
}

impl<'a, T: Component> Vectors<'a, T> {
    /// `rows` vectors, one behind the other; `None` if that is not the length of `components`.
    pub(crate) fn dense(components: &'a [T], dimension: usize, rows: usize) -> Option<Self> {
        (rows.checked_mul(dimension)? == components.len()).then_some(Self {
            components,
            places: Places::Dense,
            dimension,
            rows,
        })
    }

    /// Vectors that start at these places; `None` if one ends behind the last component.
    pub(crate) fn at(components: &'a [T], dimension: usize, starts: &'a [usize]) -> Option<Self> {
        let ends = |start: &usize| start.checked_add(dimension);
        let is_inside = |start| ends(start).is_some_and(|end| end <= components.len());
        starts.iter().all(is_inside).then_some(Self {
            components,
            places: Places::At(starts),
            dimension,
            rows: starts.len(),
        })
    }

    /// Number of vectors.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// The components of all vectors, one behind the other.
    pub(crate) fn widened(&self) -> Vec<f64> {
        let rows = (0..self.rows).flat_map(|row| self.row(row));
        rows.map(|component| component.widen()).collect()
    }

    /// Up to `rows` vectors from the vector `first` on.
    fn slice(&self, first: usize, rows: usize) -> Self {
        let first = first.min(self.rows);
        let end = self.rows.min(first + rows);
        let (components, places) = match self.places {
            Places::Dense => {
                let components = &self.components[first * self.dimension..end * self.dimension];
                (components, Places::Dense)
            }
            Places::At(starts) => (self.components, Places::At(&starts[first..end])),
        };
        Self {
            components,
            places,
            dimension: self.dimension,
            rows: end - first,
        }
    }

    /// One vector.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [T] {
        let start = match self.places {
            Places::Dense => row * self.dimension,
            Places::At(starts) => starts[row],
        };
        &self.components[start..start + self.dimension]
    }
}

/// The terms of two vectors whose sum a measure is made of.
trait Terms {
    /// Whether the margin of an estimate depends on the size of the first vector.
    const NEEDS_SQUARES: bool;

    /// The term of one component of both.
    fn of(a: f64, b: f64) -> f64;
}

/// `(a - b)^2`.
struct SquaredDifference;

impl Terms for SquaredDifference {
    const NEEDS_SQUARES: bool = false;

    #[inline(always)]
    fn of(a: f64, b: f64) -> f64 {
        let difference = a - b;
        difference * difference
    }
}

/// `a b`.
struct Product;

impl Terms for Product {
    const NEEDS_SQUARES: bool = true;

    #[inline(always)]
    fn of(a: f64, b: f64) -> f64 {
        a * b
    }
}

/// `a a`.
struct Square;

impl Terms for Square {
    const NEEDS_SQUARES: bool = false;

    #[inline(always)]
    fn of(a: f64, _b: f64) -> f64 {
        a * a
    }
}

#[cfg(test)]
mod tests;
