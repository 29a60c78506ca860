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

use super::column::DeviceColumn;
use super::distance_bound::RoundedQuery;
use super::distances::{DistanceColumn, Point};
use super::filter::{Predicate, RowMask};
use super::near_chunks::ChunkSearch;
use super::report::Report;
use super::select::Selection;
use super::source::vector_of;
use super::top::{Top, TopSelection};
use crate::kernel::cpu::distance::Measure;
use crate::key::{KeyBits, KeySpec};

/// The order of rows by their distance from a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Whether the greatest distance comes first.
    pub farthest: bool,
    /// Whether rows that have no vector come first.
    pub nulls_first: bool,
}

/// A request for the rows that may be among the first `k`.
#[derive(Debug)]
pub struct NearRows<'a> {
    /// All columns of the table.
    pub columns: &'a [&'a DeviceColumn],
    /// Index of the column of vectors.
    pub vectors: usize,
    /// The order.
    pub order: Order,
    /// The condition for a row to count. `None`: all rows count.
    pub filter: Option<&'a Predicate>,
    /// Most bytes of device memory that this crate may hold.
    pub limit: Option<u64>,
    /// Whether to measure the time of each kernel.
    pub timed: bool,
}

impl NearRows<'_> {
    /// Whether a device can compare vectors of this type with a query: its components fit in `f32`, and in the shared memory of a block.
    pub(crate) fn can_rank(vectors: &DeviceColumn, measure: Measure, query: &[f64]) -> bool {
        let room = vectors.device().shared_memory() / size_of::<f32>();
        vector_of(vectors.data_type()).is_some_and(|(_, width)| width == query.len() && width + 8 <= room)
            && RoundedQuery::try_new(measure, query).is_some()
    }

    /// The rows that may be among the first `k`, ascending: all that are, and few others. `k` is from 1 to [`TopSelection::MOST`]. Of rows
    /// that have no vector there may be fewer than there are, but as many as the first `k` need.
    ///
    /// # Errors
    /// A planning error for a query that [`Self::can_rank`] does not allow; an execution error if more than [`TopSelection::MOST`] rows are as
    /// near as the k-th, or if the device fails; `ResourcesExhausted` if its memory ends.
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
        };
        let spec = KeySpec::for_order_by(&DataType::Float32)?;
        let mask = self
            .filter
            .map(|filter| RowMask::evaluate(filter, self.columns, self.limit, report));
        let mask = mask.transpose()?;
        let search = ChunkSearch {
            vectors,
            query: &query,
            point,
            mask: mask.as_ref().map(RowMask::bits),
            k,
            spec: &spec,
            limit: self.limit,
            timed: self.timed,
        };
        // Rows that have no vector come after those that `f32` cannot tell, of which there are none here, and after `k` that have one.
        let found = match self.order.nulls_first && vectors.has_nulls() {
            true => None,
            false => search.rows(report)?,
        };
        let mut rows = match found {
            Some(rows) => rows,
            None => self.among_all(vectors, (&query, point), (k, mask, spec), report)?,
        };
        rows.sort_unstable();
        Ok(rows)
    }

    /// The rows, from the distances of all of them.
    fn among_all(
        &self,
        vectors: &DeviceColumn,
        (query, point): (&RoundedQuery, Point<'_>),
        (k, mask, spec): (u64, Option<RowMask>, KeySpec),
        report: &mut Report,
    ) -> Result<Vec<u64>> {
        let distances = DistanceColumn::compute(vectors, point, self.limit, self.timed, report)?;
        let mask = match mask {
            None => None,
            Some(mask) => {
                let kept = mask.count(&distances.values, self.limit, report)?;
                Some((mask, kept))
            }
        };
        let found = Found {
            ask: self,
            distances: &distances,
            spec,
        };
        found.rows(query, k, mask, report)
    }
}

/// The distances of a request.
struct Found<'a> {
    ask: &'a NearRows<'a>,
    distances: &'a DistanceColumn,
    spec: KeySpec,
}

impl Found<'_> {
    fn rows(
        &self,
        query: &RoundedQuery,
        k: u64,
        mask: Option<(RowMask, u64)>,
        report: &mut Report,
    ) -> Result<Vec<u64>> {
        let all = mask
            .as_ref()
            .map_or(self.distances.values.rows(), |(_, kept)| *kept);
        let k = k.min(all);
        if k == 0 {
            return Ok(Vec::new());
        }
        // Some more, so that one selection mostly shows all that are in question.
        let asked = (k + (k / 8).max(22)).min(all).min(TopSelection::MOST);
        let top = self.least(asked, mask.as_ref(), report)?;
        let mut ranked: Vec<(KeyBits, u64)> = top.keys.into_iter().zip(top.rows).collect();
        ranked.sort_unstable();
        let kth = self.value(ranked[k as usize - 1].0);
        if kth.is_nan() || kth == f32::NEG_INFINITY {
            // The k-th row has no vector: all that come before are among the first, and others without one may stand in for it.
            ranked.truncate(k as usize);
            return Ok(ranked.into_iter().map(|(_, row)| row).collect());
        }
        let bound = if kth.is_infinite() {
            kth
        } else {
            query.bound(kth, self.ask.order.farthest, self.distances.greatest_square)
        };
        let is_asked = |value: f32| value <= bound || (value == f32::INFINITY && self.distances.unknown > 0);
        let last = ranked.last().map_or(f32::NAN, |(key, _)| self.value(*key));
        let shows_all = asked == all || (self.distances.unknown == 0 && last > bound);
        if shows_all {
            let rows = ranked.into_iter().filter(|(key, _)| is_asked(self.value(*key)));
            return Ok(rows.map(|(_, row)| row).collect());
        }
        self.within(bound, report)
    }

    /// All rows within a bound, and those that `f32` cannot tell.
    fn within(&self, bound: f32, report: &mut Report) -> Result<Vec<u64>> {
        let mut columns = self.ask.columns.to_vec();
        columns.push(&self.distances.values);
        let column = self.ask.columns.len();
        let key = |value: f32| self.spec.float_key(f64::from(value));
        let between = |first, last| Predicate::Within {
            column,
            first,
            last,
            outside: false,
        };
        let unknown = key(f32::INFINITY);
        let near = Predicate::Or(vec![between(0, key(bound)), between(unknown, unknown)]);
        let predicate = match self.ask.filter {
            Some(filter) => Predicate::And(vec![filter.clone(), near]),
            None => near,
        };
        let mask = RowMask::evaluate(&predicate, &columns, self.ask.limit, report)?;
        let kept = mask.count(&self.distances.values, self.ask.limit, report)?;
        if kept > TopSelection::MOST {
            return exec_err!(
                "{kept} rows are as near as the last one of the answer, as far as a device can tell: allowed are {}. \
                 SET quantiles.device = 'cpu' ranks them",
                TopSelection::MOST
            );
        }
        Ok(self.least(kept, Some(&(mask, kept)), report)?.rows)
    }

    /// The rows with the least values.
    fn least(&self, count: u64, mask: Option<&(RowMask, u64)>, report: &mut Report) -> Result<Top> {
        let column = &self.distances.values;
        let among = Selection {
            column,
            format: column.format(&self.spec),
            mask: mask.map(|(mask, kept)| (mask.bits(), *kept)),
            limit: self.ask.limit,
            timed: self.ask.timed,
        };
        TopSelection { among, least: true }.rows(count, report)
    }

    fn value(&self, key: KeyBits) -> f32 {
        self.spec.float(key).map_or(f32::NAN, |value| value as f32)
    }
}
