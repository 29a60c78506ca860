//! The rows of a column of vectors that may be among the first `k` in the order of their distance from a query.
//!
//! ```text
//! distances in f32 ── the k-th, or a bound of it ── those within the proved error of the k-th ──> rows, for exact distances
//!   one read           ChunkSearch, TopSelection      few more than k
//! ```
//! The device adds in `f32`, so it cannot tell rows apart whose distances differ by less than the error of such a sum
//! ([`RoundedQuery::bound`]). It gives all of them, and the host, which adds in `f64`, ranks them. [`ChunkSearch`] finds them where `k` is small
//! beside the number of rows; otherwise, and where that cannot tell, all distances are written, as a column that [`TopSelection`] selects from.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::column::DeviceColumn;
use super::distance_bound::RoundedQuery;
use super::distances::{DistanceColumn, Point};
use super::filter::{Predicate, RowMask};
use super::near_chunks::ChunkSearch;
use super::report::Report;
use super::select::Selection;
use super::source::vector_of;
use super::top::TopSelection;
use crate::kernel::cpu::distance::Measure;
use crate::key::{KeyBits, KeySpec};

/// The order of rows by their distance from a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// Whether the greatest distance comes first.
    pub(crate) farthest: bool,
    /// Whether rows that have no distance come first: those without a vector, and vectors of zeros, which have no cosine.
    pub(crate) nulls_first: bool,
    /// Whether rows of one distance, or without one, are ordered by something else.
    pub(crate) further_keys: bool,
}

/// A request for the rows that may be among the first `k`.
#[derive(Debug)]
pub(crate) struct NearRows<'a> {
    /// All columns of the table.
    pub(crate) columns: &'a [&'a DeviceColumn],
    /// Index of the column of vectors.
    pub(crate) vectors: usize,
    /// The order.
    pub(crate) order: Order,
    /// The condition for a row to count. `None`: all rows count.
    pub(crate) filter: Option<&'a Predicate>,
    /// Most bytes of device memory that this crate may hold.
    pub(crate) limit: Option<u64>,
    /// Whether to measure the time of each kernel.
    pub(crate) timed: bool,
    /// Host memory of lists of rows.
    pub(crate) memory: &'a MemoryReservation,
}

impl NearRows<'_> {
    /// Whether a device can compare vectors of this type with a query: its components fit in `f32`, and in the shared memory of a block.
    pub(crate) fn can_rank(vectors: &DeviceColumn, measure: Measure, query: &[f64]) -> bool {
        let room = vectors.device().shared_memory() / size_of::<f32>();
        vector_of(vectors.data_type()).is_some_and(|(_, width)| width == query.len() && width + 8 <= room)
            && RoundedQuery::try_new(measure, query).is_some()
    }

    /// Bytes of host memory for the rows that may be among the first `k`, where they are few.
    pub(crate) fn host_bytes(k: usize) -> usize {
        ChunkSearch::host_bytes(k)
    }

    /// The rows that may be among the first `k`, ascending: all that are, and few others. `k` is from 1 to [`TopSelection::MOST`]. Where the first
    /// `k` include rows that have no distance, any of these stand for the others, unless [`Order::further_keys`] is set.
    ///
    /// # Errors
    /// An execution error for a query that [`Self::can_rank`] does not allow, or if the device fails; `ResourcesExhausted` if its memory ends, or
    /// that of the pool.
    pub(crate) fn rows(
        &self,
        measure: Measure,
        query: &[f64],
        k: u64,
        report: &mut Report,
    ) -> Result<Vec<u64>> {
        let Some(vectors) = self
            .columns
            .get(self.vectors)
            .filter(|vectors| vectors.rows() > 0)
        else {
            return Ok(Vec::new());
        };
        let Some(query) = RoundedQuery::try_new(measure, query) else {
            return exec_err!("a query whose components a device cannot hold in 32 bits");
        };
        let mask = self
            .filter
            .map(|filter| RowMask::evaluate(filter, self.columns, self.limit, report));
        let mask = mask.transpose()?;
        let point = Point {
            measure,
            components: &query.point,
            size: query.size(),
            negative: self.order.farthest,
            null_value: if self.order.nulls_first {
                f32::NEG_INFINITY
            } else {
                f32::NAN
            },
            mask: mask.as_ref().map(RowMask::bits),
        };
        let spec = KeySpec::for_order_by(&DataType::Float32)?;
        let search = ChunkSearch {
            vectors,
            query: &query,
            point,
            k,
            spec: &spec,
            limit: self.limit,
            timed: self.timed,
        };
        let mut rows = match search.rows(report)? {
            Some(rows) => rows,
            None => {
                let distances = DistanceColumn::compute(vectors, point, self.limit, self.timed, report)?;
                let mask = match &mask {
                    None => None,
                    Some(mask) => Some((mask, mask.count(&distances.values, self.limit, report)?)),
                };
                let found = Found {
                    ask: self,
                    distances: &distances,
                    mask,
                    spec: &spec,
                };
                found.rows(&query, k, report)?
            }
        };
        rows.sort_unstable();
        Ok(rows)
    }
}

/// The distances of all rows.
struct Found<'a> {
    ask: &'a NearRows<'a>,
    distances: &'a DistanceColumn,
    /// The rows that count, and their number.
    mask: Option<(&'a RowMask, u64)>,
    spec: &'a KeySpec,
}

impl Found<'_> {
    fn rows(&self, query: &RoundedQuery, k: u64, report: &mut Report) -> Result<Vec<u64>> {
        let all = self.mask.map_or(self.distances.values.rows(), |(_, kept)| kept);
        let k = k.min(all);
        if k == 0 {
            return Ok(Vec::new());
        }
        // Some more, so that one selection mostly shows all that are in question.
        let asked = (k + (k / 8).max(22)).min(all).min(TopSelection::MOST);
        let mut ranked = self.least(asked, report)?;
        let kth = self.spec.float_of(ranked[k as usize - 1].0);
        let has_distance = !kth.is_nan() && kth != f32::NEG_INFINITY;
        if !has_distance && !self.ask.order.further_keys {
            // All that come before are among the first, and any others without a distance may stand in for the k-th row.
            ranked.truncate(k as usize);
            return Ok(ranked.into_iter().map(|(_, row)| row).collect());
        }
        let bound = if kth.is_finite() {
            query.bound(kth, self.ask.order.farthest, self.distances.greatest_square)
        } else {
            kth
        };
        let unknown = self.distances.unknown > 0;
        let is_asked = |value: f32| bound.is_nan() || value <= bound || (unknown && value == f32::INFINITY);
        let last = ranked
            .last()
            .map_or(f32::NAN, |(key, _)| self.spec.float_of(*key));
        let shows_all = asked == all || (!unknown && !bound.is_nan() && (last > bound || last.is_nan()));
        if shows_all {
            let rows = ranked
                .into_iter()
                .filter(|(key, _)| is_asked(self.spec.float_of(*key)));
            return Ok(rows.map(|(_, row)| row).collect());
        }
        self.within(bound, report)
    }

    /// All rows within a bound, and those that `f32` cannot tell; all rows if the bound is a NaN.
    fn within(&self, bound: f32, report: &mut Report) -> Result<Vec<u64>> {
        let column = &self.distances.values;
        let key = |value: f32| self.spec.float_key(f64::from(value));
        let between = |first, last| Predicate::Within {
            column: 0,
            first,
            last,
            outside: false,
        };
        let (unknown, greatest) = (key(f32::INFINITY), KeyBits::from(u32::MAX));
        let last = if bound.is_nan() { greatest } else { key(bound) };
        let near = Predicate::Or(vec![between(0, last), between(unknown, unknown)]);
        let mut near = RowMask::evaluate(&near, &[column], self.ask.limit, report)?;
        if let Some((mask, _)) = self.mask {
            near.intersect(mask, column, self.ask.limit, report)?;
        }
        near.list(self.ask.memory, report)
    }

    /// The keys and rows with the least values, in order.
    fn least(&self, count: u64, report: &mut Report) -> Result<Vec<(KeyBits, u64)>> {
        let column = &self.distances.values;
        let among = Selection {
            column,
            format: column.format(self.spec),
            mask: self.mask.map(|(mask, kept)| (mask.bits(), kept)),
            limit: self.ask.limit,
            timed: self.ask.timed,
        };
        let top = TopSelection { among, least: true }.rows(count, report)?;
        let mut ranked: Vec<(KeyBits, u64)> = top.keys.into_iter().zip(top.rows).collect();
        ranked.sort_unstable();
        Ok(ranked)
    }
}
