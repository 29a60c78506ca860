//! Pairs of a query and a vector that may be among the best of their query.
//!
//! ```text
//! tile of 6 queries x tile of 16 or 32 vectors ── product ──> least scores ── any within its query's bound? ── no ──> next tile
//!                                                                                │ yes
//!                                     the pair is kept, and its greatest score makes the bound of the query tighter
//! ```
//! The bound of a query is the k-th least of the greatest scores that its pairs may have: a pair whose least score is beyond it has at least
//! k better pairs. Bounds only fall, so they may be shared by threads that read different vectors.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use datafusion::common::{DataFusionError, Result};

use super::tiles::{QUERIES, QueryTiles, VectorTiles, rounded_up};
use crate::cells::simd::{Kernel, dispatch};

/// Bytes of a pair while pairs are looked for: with its least score, and once more where they are put in order.
pub(crate) const PAIR_BYTES: usize = size_of::<(Pair, f32)>() + size_of::<Pair>();

/// Bytes of vectors that all queries are multiplied with before the next ones are read: they stay in a core's second cache.
const BLOCK_BYTES: usize = 256 << 10;

/// A query and a vector, by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) query: u32,
    pub(crate) row: u32,
}

/// Marks of queries and vectors: a pair of equal marks is left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks<'a> {
    /// One for each query.
    pub(crate) queries: &'a [u32],
    /// One for each vector.
    pub(crate) rows: &'a [u32],
}

impl Marks<'_> {
    /// The mark of a query or a vector none of whose pairs is wanted.
    pub(crate) const UNWANTED: u32 = u32::MAX;

    /// Whether a pair is wanted.
    pub(crate) fn wants(&self, pair: Pair) -> bool {
        let (query, row) = (self.queries[pair.query as usize], self.rows[pair.row as usize]);
        query != row && query != Self::UNWANTED && row != Self::UNWANTED
    }
}

/// What one thread knows about the best pairs of each query.
#[derive(Debug)]
pub(crate) struct Floors {
    k: usize,
    queries: Vec<Floor>,
}

/// The best pairs of one query.
#[derive(Debug, Clone)]
struct Floor {
    /// Greatest scores of pairs, fewer than twice `k`.
    scores: Vec<f32>,
    /// A score that at least `k` pairs do not exceed.
    bound: f32,
}

/// The bounds of all queries, for all threads.
#[derive(Debug)]
pub(crate) struct SharedBounds(Vec<AtomicU32>);

impl SharedBounds {
    /// Bounds of queries that have no pairs yet.
    pub(crate) fn new(queries: usize) -> Self {
        Self((0..queries).map(|_| AtomicU32::new(u32::MAX)).collect())
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
}

/// A number whose order is that of a score.
fn ordered(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The score whose order is that of a number.
fn from_ordered(ordered: u32) -> f32 {
    f32::from_bits(if ordered >> 31 == 1 {
        ordered & !(1 << 31)
    } else {
        !ordered
    })
}

impl Floors {
    /// Bytes of floors without pairs.
    pub(crate) fn least_bytes(queries: usize) -> usize {
        queries * size_of::<Floor>()
    }

    /// Floors of `k` pairs for each of some queries.
    pub(crate) fn new(k: usize, queries: usize) -> Self {
        let none = Floor {
            scores: Vec::new(),
            bound: f32::INFINITY,
        };
        Self {
            k: k.max(1),
            queries: vec![none; queries],
        }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let scores = self.queries.iter().map(|floor| floor.scores.capacity());
        self.queries.len() * size_of::<Floor>() + scores.sum::<usize>() * size_of::<f32>()
    }
}

impl Floor {
    /// Takes the greatest score of a pair.
    fn push(&mut self, score: f32, k: usize) {
        if score < self.bound {
            self.scores.push(score);
            if self.scores.len() >= k.saturating_mul(2) {
                self.settle(k);
            }
        }
    }

    /// Makes the bound as tight as the scores allow.
    fn settle(&mut self, k: usize) {
        if self.scores.len() >= k {
            let (_, last, _) = self.scores.select_nth_unstable_by(k - 1, f32::total_cmp);
            self.bound = self.bound.min(*last);
            self.scores.truncate(k);
        }
    }
}

/// Memory for the pairs that are found. How many there are, only the product tells: equal vectors all make pairs.
pub(crate) struct Room<'a> {
    /// Number of pairs that there is room for, [`PAIR_BYTES`] each.
    pub(crate) pairs: usize,
    /// Makes room for more pairs, this many in all.
    pub(crate) grow: &'a dyn Fn(usize) -> Result<()>,
}

/// The pairs of `vectors` with some queries that may be among the best `k` of their query, ordered by query, then by vector: all that are,
/// and few others. A pair of a vector or a query without known scores always may. With `marks`, unwanted pairs are left out.
///
/// # Errors
/// Those of [`Room::grow`]. The floors are of no use then.
pub(crate) fn reaching(
    queries: &QueryTiles,
    of: Range<usize>,
    vectors: &VectorTiles,
    marks: Option<Marks<'_>>,
    floors: &mut Floors,
    shared: &SharedBounds,
    room: Room<'_>,
) -> Result<Vec<Pair>> {
    let first = of.start.next_multiple_of(QUERIES);
    debug_assert_eq!(first, of.start, "a range of queries begins with a tile");
    let mut found = Found {
        queries,
        vectors,
        marks,
        first,
        end: of.end,
        limits: Vec::with_capacity(of.len().next_multiple_of(QUERIES)),
        floors,
        pairs: Vec::with_capacity(room.pairs),
        room,
        failed: None,
    };
    for query in of.clone() {
        let known = from_ordered(shared.0[query].load(Ordering::Relaxed));
        let floor = &mut found.floors.queries[query];
        // The bits above all scores are no number.
        floor.bound = if known < floor.bound { known } else { floor.bound };
        found.limits.push(found.limit(query));
    }
    found
        .limits
        .resize(of.len().next_multiple_of(QUERIES), f32::NEG_INFINITY);
    if vectors.lanes == 32 {
        product::<32>(&mut found);
    } else {
        product::<16>(&mut found);
    }
    if let Some(error) = found.failed {
        return Err(error);
    }
    found.settle();
    for query in of {
        let bound = ordered(found.floors.queries[query].bound);
        shared.0[query].fetch_min(bound, Ordering::Relaxed);
    }
    let mut pairs: Vec<Pair> = found.pairs.into_iter().map(|(pair, _)| pair).collect();
    pairs.sort_unstable();
    Ok(pairs)
}

/// The pairs that are found on the way through the product. Products, least scores of pairs without the term of the query, are what is
/// compared.
struct Found<'a> {
    queries: &'a QueryTiles,
    vectors: &'a VectorTiles,
    marks: Option<Marks<'a>>,
    /// The first of the queries, and the one behind the last: a tile may have room for more.
    first: usize,
    end: usize,
    /// The greatest product that is wanted of each query.
    limits: Vec<f32>,
    floors: &'a mut Floors,
    /// Pairs, and their least products.
    pairs: Vec<(Pair, f32)>,
    room: Room<'a>,
    /// Why there is no room for all pairs: no more are taken.
    failed: Option<DataFusionError>,
}

impl Found<'_> {
    /// Makes the bounds of all queries as tight as they can be, and drops the pairs beyond them.
    fn settle(&mut self) {
        for query in self.first..self.end {
            self.floors.queries[query].settle(self.floors.k);
            self.limits[query - self.first] = self.limit(query);
        }
        let (limits, first) = (&self.limits, self.first);
        self.pairs
            .retain(|(pair, low)| *low <= limits[pair.query as usize - first]);
    }

    /// Drops pairs where all room is taken, or makes room for twice as many. Returns whether there is room for one.
    #[cold]
    fn make_room(&mut self) -> bool {
        self.settle();
        if self.pairs.len() > self.room.pairs / 2 {
            let more = 2 * self.room.pairs.max(1);
            self.failed = (self.room.grow)(more).err();
            if self.failed.is_some() {
                return false;
            }
            self.room.pairs = more;
            self.pairs.reserve_exact(more - self.pairs.len());
        }
        true
    }

    /// The greatest product of a query that is within its bound.
    fn limit(&self, query: usize) -> f32 {
        let part = self.queries.part(query);
        if part.known {
            rounded_up(f64::from(self.floors.queries[query].bound) - least(part.term, part.slack))
        } else {
            f32::INFINITY
        }
    }

    /// Takes the products of one query, of this index among the queries of the range, with the vectors of a tile.
    #[inline(never)]
    fn take(&mut self, index: usize, first_row: usize, lows: &[f32]) {
        let query = self.first + index;
        if query >= self.end {
            return;
        }
        for (row, low) in (first_row..self.vectors.len()).zip(lows) {
            if *low > self.limits[index] {
                continue;
            }
            let pair = Pair {
                query: query as u32,
                row: row as u32,
            };
            if self.marks.is_some_and(|marks| !marks.wants(pair)) {
                continue;
            }
            if self.failed.is_some() || self.pairs.len() >= self.room.pairs && !self.make_room() {
                return;
            }
            self.pairs.push((pair, *low));
            let (of_query, of_row) = (self.queries.part(query), self.vectors.part(row));
            if of_query.known && of_row.known {
                let margin = 2.002 * of_query.length * of_row.length + of_query.slack + of_row.slack;
                let high = f64::from(*low) + least(of_query.term, of_query.slack) + margin;
                let floor = &mut self.floors.queries[query];
                let before = floor.bound;
                floor.push(rounded_up(high), self.floors.k);
                if floor.bound < before {
                    self.limits[index] = self.limit(query);
                }
            }
        }
    }
}

/// The term of a query, made less by half of its slack, as that of a vector is.
fn least(term: f64, slack: f64) -> f64 {
    term - slack / 2.0
}

/// Multiplies all queries of the range with all vectors.
fn product<const LANES: usize>(found: &mut Found<'_>) {
    #[cfg(target_arch = "x86_64")]
    let is_fused = is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let is_fused = cfg!(target_arch = "aarch64");
    if is_fused {
        dispatch(Product::<LANES, true> { found });
    } else {
        dispatch(Product::<LANES, false> { found });
    }
}

/// The loop over tiles. `FUSED`: products are added without rounding in between, by an instruction that is there.
struct Product<'f, 'a, const LANES: usize, const FUSED: bool> {
    found: &'f mut Found<'a>,
}

impl<const LANES: usize, const FUSED: bool> Kernel for Product<'_, '_, LANES, FUSED> {
    #[inline(always)]
    fn run(self) {
        let Found { queries, vectors, .. } = *self.found;
        let depth = queries.depth;
        let (vectors, _) = vectors.flat().as_chunks::<LANES>();
        let (queries, _) = queries.flat().as_chunks::<QUERIES>();
        let first = self.found.first / QUERIES;
        let tiles = self.found.limits.len() / QUERIES;
        let queries = &queries[first * depth..(first + tiles) * depth];
        let block = (BLOCK_BYTES / (depth * LANES * size_of::<f32>())).max(1);
        for (start, block_of) in vectors.chunks(block * depth).enumerate() {
            for (tile, queries) in queries.chunks_exact(depth).enumerate() {
                for (at, vectors) in block_of.chunks_exact(depth).enumerate() {
                    let limits = &self.found.limits.as_chunks::<QUERIES>().0[tile];
                    let products = multiply::<LANES, FUSED>(queries, vectors);
                    let reach = reach(&products, limits);
                    for query in 0..QUERIES {
                        if reach[query] {
                            let first_row = (start * block + at) * LANES;
                            self.found
                                .take(tile * QUERIES + query, first_row, &products[query]);
                        }
                    }
                }
            }
        }
    }
}

/// The products of a tile of queries with a tile of vectors.
#[allow(
    clippy::needless_range_loop,
    reason = "loops over indices become vector instructions, those over iterators of arrays do not all"
)]
#[inline(always)]
fn multiply<const LANES: usize, const FUSED: bool>(
    queries: &[[f32; QUERIES]],
    vectors: &[[f32; LANES]],
) -> [[f32; LANES]; QUERIES] {
    let mut sums = [[0.0_f32; LANES]; QUERIES];
    for (a, b) in queries.iter().zip(vectors) {
        for query in 0..QUERIES {
            for lane in 0..LANES {
                sums[query][lane] = if FUSED {
                    a[query].mul_add(b[lane], sums[query][lane])
                } else {
                    sums[query][lane] + a[query] * b[lane]
                };
            }
        }
    }
    sums
}

/// Whether a product of each query is within its limit.
#[allow(
    clippy::needless_range_loop,
    reason = "loops over indices become vector instructions, those over iterators of arrays do not all"
)]
#[inline(always)]
fn reach<const LANES: usize>(products: &[[f32; LANES]; QUERIES], limits: &[f32; QUERIES]) -> [bool; QUERIES] {
    let mut reach = [false; QUERIES];
    for query in 0..QUERIES {
        for lane in 0..LANES {
            reach[query] |= products[query][lane] <= limits[query];
        }
    }
    reach
}
