//! `histogram(x, bins [, 'equi-depth' | 'equi-width'])`: how many values lie between edges.
//!
//! Each bin holds the values above its low edge, up to and including its high edge; the first one holds its low edge too. There may
//! be fewer bins than are asked for.
//!
//! - `'equi-depth'`: the edges are values of the column, the least one and those of the ranks ceil(i n / bins). Bins without values are left
//!   out, where one value fills several; the first bin may begin and end with the least value.
//! - `'equi-width'`: the edges part the distance from the least to the greatest value evenly. They are rounded to the type in which a
//!   quantile by `linear` is given, and values are compared with the rounded edges. Bins whose rounded edges are equal are left out, unless
//!   all values are.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, StructArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, exec_err, plan_err};

use super::asked::Asked;
use super::number::{float, key_at, key_of};
use super::sorted::Sorted;
use crate::functions::collected::InOrder;
use crate::functions::topk::lists;
use crate::key::{Key, KeyBits, KeySpec};
use crate::quantile::{Interpolation, Method, QuantileSpec};

/// The fields of a bin.
pub(super) fn bin_fields(edge: &DataType) -> Fields {
    Fields::from(vec![
        Field::new("low", edge.clone(), true),
        Field::new("high", edge.clone(), true),
        Field::new("count", DataType::UInt64, true),
    ])
}

/// The bins of groups.
#[derive(Debug, Default)]
pub(super) struct Bins<E> {
    lows: Vec<E>,
    highs: Vec<E>,
    counts: Vec<u64>,
    /// Number of bins of each group.
    lengths: Vec<usize>,
    /// Number of bins of all groups that have ended.
    ended: usize,
}

impl<E> Bins<E> {
    pub(super) fn push(&mut self, low: E, high: E, count: u64) {
        self.lows.push(low);
        self.highs.push(high);
        self.counts.push(count);
    }

    /// Ends the bins of a group.
    pub(super) fn end(&mut self) {
        self.lengths.push(self.counts.len() - self.ended);
        self.ended = self.counts.len();
    }

    /// The bins as lists, from the arrays of their edges.
    fn lists(self, low: ArrayRef, high: ArrayRef) -> Result<ArrayRef> {
        let fields = bin_fields(low.data_type());
        let counts = Arc::new(UInt64Array::from(self.counts));
        let bins = StructArray::try_new(fields, vec![low, high, counts], None)?;
        lists(&(Arc::new(bins) as ArrayRef), &self.lengths)
    }
}

impl Bins<KeyBits> {
    /// The bins as lists, whose edges have the type of `spec`.
    ///
    /// # Errors
    /// Those of making arrays.
    pub(super) fn array(self, spec: &KeySpec) -> Result<ArrayRef> {
        let (low, high) = (spec.to_array(&self.lows)?, spec.to_array(&self.highs)?);
        self.lists(low, high)
    }
}

/// Bins with about the same number of values each, as one list: from the keys of the least value and of the upper edges, ascending, each with
/// the number of values up to it.
///
/// # Errors
/// Those of making arrays.
pub(crate) fn bins_between(spec: &KeySpec, edges: &[(KeyBits, u64)]) -> Result<ArrayRef> {
    let mut bins = Bins::default();
    if let [(least, _), edges @ ..] = edges {
        let (mut low, mut before) = (*least, 0);
        for (high, through) in edges {
            if *through > before {
                bins.push(low, *high, through - before);
            }
            (low, before) = (*high, *through);
        }
    }
    bins.end();
    bins.array(spec)
}

/// Bins with about the same number of values each, at most so many.
#[derive(Debug)]
pub(super) struct EquiDepth(pub(super) usize);

impl<C: InOrder> Asked<C> for EquiDepth {
    type Answers = Bins<C::Item>;

    fn answer(&self, _: &C::Spec, sorted: &Sorted<'_, C>, answers: &mut Self::Answers) -> Result<()> {
        let n = sorted.n();
        // More bins than values have no more edges.
        let bins = n.min(self.0 as u64);
        let (mut low, mut before) = (None, 0);
        for bin in 1..=bins {
            let rank = part_of(n, bin, bins);
            if rank <= before {
                continue;
            }
            let (high, through) = sorted.through(rank)?;
            answers.push(low.unwrap_or(sorted.at(1)?), high, through - before);
            (low, before) = (Some(high), through);
        }
        answers.end();
        Ok(())
    }

    fn finish(&self, spec: &C::Spec, values: &C, answers: Self::Answers) -> Result<ArrayRef> {
        let low = values.array(spec, &answers.lows)?;
        let high = values.array(spec, &answers.highs)?;
        answers.lists(low, high)
    }
}

/// `bin / bins` of `n`, rounded up.
fn part_of(n: u64, bin: u64, bins: u64) -> u64 {
    match bin.checked_mul(n) {
        Some(product) => product.div_ceil(bins),
        None => (u128::from(bin) * u128::from(n)).div_ceil(bins.into()) as u64,
    }
}

/// The type of edges of equal distance.
///
/// # Errors
/// A planning error for a type whose values have no distance.
pub(super) fn edge_type(x: &DataType) -> Result<DataType> {
    use DataType::*;
    match x {
        Float16 | Float32 | Float64 | Decimal32(..) | Decimal64(..) | Decimal128(..) | Date32 | Date64
        | Time32(_) | Time64(_) | Timestamp(..) | Duration(_) => Method::Linear.result_type(x),
        integer if integer.is_integer() => Ok(Float64),
        other => plan_err!(
            "histogram 'equi-width' of values of type {other}: allowed are integers, floating-point numbers, decimals of up to 38 \
             digits, Date, Time, Timestamp and Duration; 'equi-depth' takes every type with an order"
        ),
    }
}

/// Bins of the same width, at most so many.
#[derive(Debug)]
pub(crate) struct EquiWidth {
    bins: usize,
    between: Interpolation,
}

impl EquiWidth {
    /// # Errors
    /// Those of [`edge_type`].
    pub(crate) fn try_new(spec: &KeySpec, bins: usize) -> Result<Self> {
        edge_type(spec.data_type())?;
        let linear = QuantileSpec {
            quantiles: Vec::new(),
            method: Method::Linear,
            descending: false,
        };
        Ok(Self {
            bins,
            between: linear.interpolation(spec)?,
        })
    }

    /// The upper edges of all bins, from the least and the greatest value, ascending.
    fn edges(&self, spec: &KeySpec, ends: [KeyBits; 2]) -> Result<Vec<KeyBits>> {
        let mut edges = self.between.parts(spec, ends, self.bins as u64)?;
        let mut low = self.between.part(spec, ends, 0, 1)?;
        for edge in &mut edges {
            // Rounding never turns edges around.
            low = low.max(*edge);
            *edge = low;
        }
        if let Some(last) = edges.last_mut() {
            // Between zeros of both signs there is nothing to add to the first.
            *last = (*last).max(self.between.part(spec, [ends[1]; 2], 0, 1)?);
        }
        Ok(edges)
    }

    /// The greatest key of each bin but the last one, from the least and the greatest value. An empty bin has that of the bin before it.
    ///
    /// # Errors
    /// An execution error for ends that are not finite.
    pub(crate) fn tops(&self, spec: &KeySpec, ends: [KeyBits; 2]) -> Result<Vec<KeyBits>> {
        check_finite(spec, ends)?;
        let edges = self.edges(spec, ends)?;
        let inner = edges.split_last().map_or(&edges[..], |(_, inner)| inner);
        inner.iter().map(|edge| self.top(spec, ends, *edge)).collect()
    }

    /// The greatest key between two ends that an edge is not below; one less the first end if there is none.
    fn top(&self, spec: &KeySpec, ends: [KeyBits; 2], edge: KeyBits) -> Result<KeyBits> {
        let result = &self.between.result;
        if spec.data_type() == result.data_type() {
            return Ok(edge);
        }
        let floor = match result.data_type() {
            // Of integers: those up to the edge are those up to the integer below it.
            DataType::Float64 => float(result, edge)?.floor() as i128,
            // Of dates in days, and the edge in milliseconds.
            _ if *spec.data_type() == DataType::Date32 => result.integer(edge).div_euclid(86_400_000),
            _ => result.integer(edge),
        };
        let [least, greatest] = ends.map(|end| spec.integer(end));
        Ok(match floor {
            // An edge that was rounded down.
            floor if floor < least => ends[0].saturating_sub(1),
            floor => spec.integer_key(floor.min(greatest)),
        })
    }

    /// The bins of the only group, as an array of one list; NULL without ends, which no values have. `through`: numbers of values up to the edges
    /// of all bins.
    ///
    /// # Errors
    /// Internal errors only.
    pub(crate) fn row(
        &self,
        spec: &KeySpec,
        ends: Option<[KeyBits; 2]>,
        through: &[u64],
    ) -> Result<ArrayRef> {
        let mut answers = Bins::default();
        match ends {
            Some(ends) => {
                let edges = self.edges(spec, ends)?;
                self.bins(spec, ends, &edges, through.iter().copied(), &mut answers)?;
            }
            None => answers.end(),
        }
        answers.array(&self.between.result)
    }

    /// Adds the bins of a group between its ends. `edges`: the upper edges of all bins; `through`: numbers of values up to them.
    ///
    /// # Errors
    /// Internal errors only.
    fn bins(
        &self,
        spec: &KeySpec,
        ends: [KeyBits; 2],
        edges: &[KeyBits],
        through: impl Iterator<Item = u64>,
        answers: &mut Bins<KeyBits>,
    ) -> Result<()> {
        let (mut low, mut before) = (self.between.part(spec, ends, 0, 1)?, 0);
        for (bin, (high, through)) in (1..).zip(edges.iter().zip(through)) {
            let is_empty = *high == low && (bin < self.bins || through == before);
            if !is_empty {
                answers.push(low, *high, through - before);
                (low, before) = (*high, through);
            }
        }
        answers.end();
        Ok(())
    }
}

/// Checks that the least and the greatest value have a distance.
fn check_finite(spec: &KeySpec, ends: [KeyBits; 2]) -> Result<()> {
    for end in ends.iter().filter_map(|end| spec.float(*end)) {
        if !end.is_finite() {
            return exec_err!(
                "histogram 'equi-width': there is no width up to {end}: filter such values, or use 'equi-depth'"
            );
        }
    }
    Ok(())
}

impl<K: Key> Asked<Vec<K>> for EquiWidth {
    type Answers = Bins<KeyBits>;

    fn answer(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, answers: &mut Self::Answers) -> Result<()> {
        if sorted.n() == 0 {
            answers.end();
            return Ok(());
        }
        let ends = [key_at(sorted, 1)?, key_at(sorted, sorted.n())?];
        check_finite(spec, ends)?;
        let edges = self.edges(spec, ends)?;
        let (mut through, last) = (Vec::with_capacity(edges.len()), edges.len() - 1);
        for edge in &edges[..last] {
            let top = self.top(spec, ends, *edge)?;
            let before = through.last().copied().unwrap_or(0);
            through.push(sorted.count_while_from(before, |item| key_of(item) <= top));
        }
        through.push(sorted.n());
        self.bins(spec, ends, &edges, through.into_iter(), answers)
    }

    fn finish(&self, _: &KeySpec, _: &Vec<K>, answers: Self::Answers) -> Result<ArrayRef> {
        answers.array(&self.between.result)
    }
}
