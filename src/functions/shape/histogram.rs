//! `histogram(x, bins [, 'equi-depth' | 'equi-width'])`: how many values lie between edges.
//!
//! Each bin holds the values above its low edge, up to and including its high edge; the first one holds its low edge too. Bins whose two
//! edges would be equal are left out, except where there is one value only.
//!
//! - `'equi-depth'`: the edges are values of the column, the least one and those of the ranks ceil(i n / bins).
//! - `'equi-width'`: the edges part the distance from the least to the greatest value evenly. They are rounded to the type in which a
//!   quantile by `linear` is given, and values are compared with the rounded edges.

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
}

impl<E> Bins<E> {
    fn push(&mut self, low: E, high: E, count: u64) {
        self.lows.push(low);
        self.highs.push(high);
        self.counts.push(count);
    }

    /// The bins as lists, from the arrays of their edges.
    fn lists(self, low: ArrayRef, high: ArrayRef) -> Result<ArrayRef> {
        let fields = bin_fields(low.data_type());
        let counts = Arc::new(UInt64Array::from(self.counts));
        let bins = StructArray::try_new(fields, vec![low, high, counts], None)?;
        lists(&(Arc::new(bins) as ArrayRef), &self.lengths)
    }
}

/// Bins with about the same number of values each, at most so many.
#[derive(Debug)]
pub(super) struct EquiDepth(pub(super) usize);

impl<C: InOrder> Asked<C> for EquiDepth {
    type Answers = Bins<C::Item>;

    fn answer(&self, _: &C::Spec, sorted: &Sorted<'_, C>, answers: &mut Self::Answers) -> Result<()> {
        let (n, values, start) = (sorted.n(), sorted.values(), answers.counts.len());
        // More bins than values have no more edges.
        let bins = n.min(self.0 as u64);
        let (mut low, mut before) = (None, 0);
        for bin in 1..=bins {
            let rank = (u128::from(bin) * u128::from(n)).div_ceil(bins.into()) as u64;
            let high = sorted.at(rank)?;
            let is_same = |low| values.compare(low, values, high).is_eq();
            if low.is_some_and(is_same) {
                continue;
            }
            let through = sorted.count_while(|item| values.compare(item, values, high).is_le());
            answers.push(low.unwrap_or(sorted.at(1)?), high, through - before);
            (low, before) = (Some(high), through);
        }
        answers.lengths.push(answers.counts.len() - start);
        Ok(())
    }

    fn finish(&self, spec: &C::Spec, values: &C, answers: Self::Answers) -> Result<ArrayRef> {
        let low = values.array(spec, &answers.lows)?;
        let high = values.array(spec, &answers.highs)?;
        answers.lists(low, high)
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
pub(super) struct EquiWidth {
    bins: usize,
    between: Interpolation,
}

impl EquiWidth {
    /// # Errors
    /// Those of [`edge_type`].
    pub(super) fn try_new(spec: &KeySpec, bins: usize) -> Result<Self> {
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

    /// Number of values at or below an edge.
    fn through<K: Key>(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, edge: KeyBits) -> Result<u64> {
        let result = &self.between.result;
        if spec.data_type() == result.data_type() {
            return Ok(sorted.count_while(|item| key_of(item) <= edge));
        }
        let (unit, edge) = match result.data_type() {
            // Of integers: those up to the edge are those up to the integer below it.
            DataType::Float64 => (1, float(result, edge)?.floor() as i128),
            // Of dates in days, and the edge in milliseconds.
            _ if *spec.data_type() == DataType::Date32 => (86_400_000, result.integer(edge)),
            _ => (1, result.integer(edge)),
        };
        Ok(sorted.count_while(|item| spec.integer(key_of(item)) * unit <= edge))
    }

    /// The least and the greatest value, which are finite.
    fn ends<K: Key>(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>) -> Result<[KeyBits; 2]> {
        let ends = [key_at(sorted, 1)?, key_at(sorted, sorted.n())?];
        for end in ends.iter().filter_map(|end| spec.float(*end)) {
            if !end.is_finite() {
                return exec_err!(
                    "histogram 'equi-width': there is no width up to {end}: filter such values, or use 'equi-depth'"
                );
            }
        }
        Ok(ends)
    }
}

impl<K: Key> Asked<Vec<K>> for EquiWidth {
    type Answers = Bins<KeyBits>;

    fn answer(&self, spec: &KeySpec, sorted: &Sorted<'_, Vec<K>>, answers: &mut Self::Answers) -> Result<()> {
        let (n, start, bins) = (sorted.n(), answers.counts.len(), self.bins as u64);
        if n == 0 {
            answers.lengths.push(0);
            return Ok(());
        }
        let ends = self.ends(spec, sorted)?;
        let (mut low, mut before) = (self.between.part(spec, ends, 0, 1)?, 0);
        for bin in 1..=bins {
            // Rounding never turns edges around.
            let high = self.between.part(spec, ends, bin, bins)?.max(low);
            let through = if bin == bins {
                n
            } else {
                self.through(spec, sorted, high)?
            };
            let is_empty = high == low && (bin < bins || through == before);
            if !is_empty {
                answers.push(low, high, through - before);
                (low, before) = (high, through);
            }
        }
        answers.lengths.push(answers.counts.len() - start);
        Ok(())
    }

    fn finish(&self, _: &KeySpec, _: &Vec<K>, answers: Self::Answers) -> Result<ArrayRef> {
        let low = self.between.result.to_array(&answers.lows)?;
        let high = self.between.result.to_array(&answers.highs)?;
        answers.lists(low, high)
    }
}
