//! Vectors of queries and of a table in the layout of a matrix product, in `f32`, with what the error of the product depends on.
//!
//! A pair is judged by a score, of which less is better: the distance itself or its negative, squared for the Euclidean distance, without
//! the 1 of the cosine distance. With the sign `s` (1 where small distances are wanted, -1 where great ones are) and `u = 2^-24`:
//!
//! | measure | score | of the query alone | of the vector alone |
//! | --- | --- | --- | --- |
//! | Euclidean | `s (q q + v v - 2 q v)` | `s q q` | `s v v` |
//! | inner product | `s q v` | 0 | 0 |
//! | cosine | `-s q v`, of vectors of length 1 | 0 | 0 |
//!
//! The product of `n` components in `f32`, of components that are rounded to `f32`, is within `(n + 16) u / (1 - (n + 16) u)` of `|q| |v|`,
//! in whatever order they are added (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1, with room for what follows the
//! product). Two more components, `[1, -m |q|]` of a query and `[t - 16 u v v, |v|]` of a vector, where `t` is the term of the vector alone and `m`
//! that margin (twice for the Euclidean distance, whose product has the factor 2), make the product itself the least score that the pair
//! may have, but for the term of the query.

use super::{Component, Measure, Vectors};

/// Queries of a tile.
pub(super) const QUERIES: usize = 6;

/// Half of the distance between 1 and the next `f32`.
const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// Components of a vector that are brought to their places at once.
const BLOCK: usize = 16;

/// Squared lengths for which the margins hold: no component that matters underflows, and no product overflows. So does 0.
const SQUARES: std::ops::Range<f64> = 1e-20..1e30;

/// Which vectors a query wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranking {
    pub(crate) measure: Measure,
    /// Whether vectors of small values of the measure are better.
    pub(crate) ascending: bool,
}

/// What the score of a pair has from one of its vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// The term of this vector alone.
    pub(super) term: f64,
    /// The factor of the margin of the product.
    pub(super) length: f64,
    /// The part of the margin that does not depend on the other vector.
    pub(super) slack: f64,
    /// Whether the scores of this vector are known: not those of a NULL, or of components that are no finite numbers.
    pub(super) known: bool,
}

/// Vectors in tiles of `lanes` vectors: the first components of all, then the second ones, and so on.
#[derive(Debug)]
struct Tiles {
    flat: Vec<f32>,
    parts: Vec<Part>,
}

/// Vectors of queries.
#[derive(Debug)]
pub(crate) struct QueryTiles {
    tiles: Tiles,
    /// Number of components in the product.
    pub(super) depth: usize,
}

/// Vectors of a table.
#[derive(Debug)]
pub(crate) struct VectorTiles {
    tiles: Tiles,
    /// Vectors of a tile.
    pub(super) lanes: usize,
}

impl Ranking {
    fn sign(self) -> f64 {
        if self.ascending { 1.0 } else { -1.0 }
    }

    /// The factor of the product of components.
    fn factor(self) -> f64 {
        self.sign()
            * match self.measure {
                Measure::Euclidean => -2.0,
                Measure::InnerProduct => 1.0,
                Measure::Cosine => -1.0,
            }
    }

    /// The part of the score of a vector whose squared length is `square`, and the factor that its components are to be scaled by.
    fn part(self, square: f64, is_null: bool) -> (Part, f64) {
        let is_cosine = self.measure == Measure::Cosine;
        let known = !is_null && (SQUARES.contains(&square) || square == 0.0 && !is_cosine);
        let (term, slack) = match self.measure {
            Measure::Euclidean => (self.sign() * square, 32.0 * UNIT * square),
            Measure::InnerProduct | Measure::Cosine => (0.0, 0.0),
        };
        let length = square.sqrt();
        let (length, scale) = if is_cosine {
            (1.0, 1.0 / length)
        } else {
            (length, 1.0)
        };
        let part = Part {
            term,
            length,
            slack,
            known,
        };
        (part, scale)
    }
}

/// The relative error of a product of `dimension` components.
fn margin(dimension: usize) -> f64 {
    let errors = (dimension + 16) as f64 * UNIT;
    if errors < 0.5 {
        errors / (1.0 - errors)
    } else {
        f64::INFINITY
    }
}

/// The least `f32` that is not below a number.
pub(crate) fn rounded_up(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) < value {
        near.next_up()
    } else {
        near
    }
}

impl Tiles {
    /// Tiles of `vectors`. `finish` gives the two components that follow those of a vector, of its part; of a vector whose scores are not
    /// known, and of the lanes of the last tile that have no vector, all others are 0.
    fn new<T: Component>(
        ranking: Ranking,
        vectors: &Vectors<'_, T>,
        is_null: impl Fn(usize) -> bool,
        lanes: usize,
        factor: f64,
        finish: impl Fn(Option<&Part>) -> [f32; 2],
    ) -> Self {
        let (rows, depth) = (vectors.len(), vectors.dimension + 2);
        let mut flat = vec![0.0; rows.div_ceil(lanes) * lanes * depth];
        let mut parts = Vec::with_capacity(rows);
        let mut scales = Vec::with_capacity(lanes);
        for (tile, flat) in flat.chunks_exact_mut(lanes * depth).enumerate() {
            let first = tile * lanes;
            scales.clear();
            for lane in 0..lanes {
                let row = first + lane;
                let part = (row < rows).then(|| ranking.part(squared(vectors.row(row)), is_null(row)));
                let last = finish(part.as_ref().map(|(part, _)| part));
                flat[(depth - 2) * lanes + lane] = last[0];
                flat[(depth - 1) * lanes + lane] = last[1];
                scales.push(
                    part.filter(|(part, _)| part.known)
                        .map(|(_, scale)| scale * factor),
                );
                parts.extend(part.map(|(part, _)| part));
            }
            // Some components of every vector at a time: what is written stays in the first cache.
            for (block, flat) in flat[..(depth - 2) * lanes].chunks_mut(BLOCK * lanes).enumerate() {
                for (lane, scale) in scales.iter().enumerate() {
                    let Some(scale) = scale else { continue };
                    let components = &vectors.row(first + lane)[block * BLOCK..];
                    for (at, component) in flat.iter_mut().skip(lane).step_by(lanes).zip(components) {
                        *at = (component.widen() * scale) as f32;
                    }
                }
            }
        }
        Self { flat, parts }
    }
}

/// The sum of the squares of the components, in any order.
fn squared<T: Component>(components: &[T]) -> f64 {
    let (blocks, rest) = components.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for block in blocks {
        for (lane, component) in lanes.iter_mut().zip(block) {
            *lane += component.widen() * component.widen();
        }
    }
    let rest = rest.iter().map(|component| component.widen() * component.widen());
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}

impl QueryTiles {
    /// The tiles of queries. `is_null`: whether the query of an index has no distance.
    pub(crate) fn new<T: Component>(
        ranking: Ranking,
        queries: &Vectors<'_, T>,
        is_null: impl Fn(usize) -> bool,
    ) -> Self {
        let margin = ranking.factor().abs() * margin(queries.dimension);
        let mut tiles = Tiles::new(ranking, queries, is_null, QUERIES, ranking.factor(), |part| {
            let length = part.filter(|part| part.known && margin.is_finite());
            [1.0, length.map_or(0.0, |part| -rounded_up(margin * part.length))]
        });
        for part in &mut tiles.parts {
            part.known &= margin.is_finite();
            part.length *= margin;
        }
        Self {
            tiles,
            depth: queries.dimension + 2,
        }
    }

    /// Number of queries.
    pub(crate) fn len(&self) -> usize {
        self.tiles.parts.len()
    }

    pub(super) fn flat(&self) -> &[f32] {
        &self.tiles.flat
    }

    pub(super) fn part(&self, query: usize) -> &Part {
        &self.tiles.parts[query]
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.tiles.bytes()
    }
}

impl VectorTiles {
    /// The tiles of vectors. `is_null`: whether the vector of an index has no distance.
    pub(crate) fn new<T: Component>(
        ranking: Ranking,
        vectors: &Vectors<'_, T>,
        is_null: impl Fn(usize) -> bool,
    ) -> Self {
        Self::with_lanes(ranking, vectors, is_null, lanes())
    }

    /// As [`Self::new`], with so many vectors in a tile: 16 or 32.
    pub(super) fn with_lanes<T: Component>(
        ranking: Ranking,
        vectors: &Vectors<'_, T>,
        is_null: impl Fn(usize) -> bool,
        lanes: usize,
    ) -> Self {
        let tiles = Tiles::new(ranking, vectors, is_null, lanes, 1.0, |part| match part {
            // The term, made so much less that rounding it and adding it cannot make the score too great.
            Some(part) if part.known => {
                let term = part.term - 16.0 * UNIT * part.term.abs();
                [-rounded_up(-term), rounded_up(part.length)]
            }
            Some(_) => [f32::NEG_INFINITY, 0.0],
            None => [f32::INFINITY, 0.0],
        });
        Self { tiles, lanes }
    }

    /// Number of vectors.
    pub(crate) fn len(&self) -> usize {
        self.tiles.parts.len()
    }

    /// Number of vectors that are found with every query.
    pub(crate) fn unknown(&self) -> usize {
        self.tiles.parts.iter().filter(|part| !part.known).count()
    }

    pub(super) fn flat(&self) -> &[f32] {
        &self.tiles.flat
    }

    pub(super) fn part(&self, row: usize) -> &Part {
        &self.tiles.parts[row]
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.tiles.bytes()
    }
}

impl Tiles {
    fn bytes(&self) -> usize {
        self.flat.capacity() * size_of::<f32>() + self.parts.capacity() * size_of::<Part>()
    }
}

/// Vectors of a tile: two registers of this processor for each query.
fn lanes() -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return 32;
    }
    16
}
