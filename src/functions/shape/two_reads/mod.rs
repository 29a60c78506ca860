//! Functions of ungrouped values in two reads of them, of which none is held.
//!
//! ```text
//! mad(x)                           first:   median(x)                      second:  median of |x - median|
//! histogram(x, n, 'equi-width')    first:   the least and greatest value   second:  numbers of values in bins between them
//! ```
//! The planner ([`in_two_reads`](crate::planner)) makes a scalar subquery of the first read, for an input that gives the same rows again. The
//! answers are those of the accumulators of this module's parent, bit by bit.

mod answer;
mod argument;
mod bin_search;
mod bins;
mod deviations;

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{AggregateUDF, Expr, ScalarUDF, lit};

use self::answer::{AnswerOf, Form};
use self::bins::{BinOf, Binning, CountsOf};
use self::deviations::{DeviationFrom, deviation_type};
use super::call::{Constants, constants_of};
use super::function::ShapeFunction;
use super::name::ShapeName;
use crate::functions::{aggregate, call_of as call};
use crate::key::KeySpec;
use crate::quantile::Method;

/// A call that is answered in two reads.
pub(crate) struct TwoReads {
    /// The values.
    x: Expr,
    /// The type of the answer.
    result: DataType,
    way: Way,
}

enum Way {
    /// The median absolute deviation.
    Deviation {
        /// Whether deviations are rounded to a type of floating-point numbers; if not, they are whole.
        is_float: bool,
    },
    /// A histogram with bins of the same width.
    Bins(Binning),
}

/// Decimal digits of a part of one.
const PART_DIGITS: u8 = 37;

/// The numbers 0, 1 / n, 2 / n, .. 1. The parts have 37 digits and are not rounded up, so that the rank of a part of any number
/// of values is that of the fraction.
pub(super) fn parts_of_one(n: usize) -> Vec<ScalarValue> {
    let (one, n) = (10_i128.pow(PART_DIGITS.into()), n as i128);
    let part = |at: i128| {
        // one * at / n, without overflow.
        let digits = one / n * at + one % n * at / n;
        ScalarValue::Decimal128(Some(digits), PART_DIGITS + 1, PART_DIGITS as i8)
    };
    (0..=n).map(part).collect()
}

/// The bin of a value. `first`: the values of the first read.
fn bin_of(x: &Expr, first: Vec<Expr>, binning: &Binning) -> Expr {
    let args = std::iter::once(x.clone()).chain(first).collect();
    ScalarUDF::from(BinOf::new(binning.clone())).call(args)
}

impl TwoReads {
    /// How a call over values of type `data_type` is answered in two reads; `None` if it is not.
    ///
    /// # Errors
    /// A planning error that names a constant which is not allowed.
    pub(crate) fn of(asked: &AggregateFunction, data_type: &DataType) -> Result<Option<Self>> {
        let (Some(function), Some(x)) = (ShapeFunction::of(&asked.func), asked.params.args.first()) else {
            return Ok(None);
        };
        let name = function.sql_name();
        if asked.params.distinct || !asked.params.order_by.is_empty() {
            return Ok(None);
        }
        let way = match (name, constants_of(name, &asked.params.args)?) {
            (ShapeName::Mad, _) if deviation_type(data_type).is_some() => Way::Deviation {
                is_float: data_type.is_floating(),
            },
            (ShapeName::EquiWidth, Some(Constants::Number(bins))) if KeySpec::supports(data_type) => {
                Way::Bins(Binning {
                    bins,
                    x: data_type.clone(),
                })
            }
            _ => return Ok(None),
        };
        let result = asked.func.return_type(std::slice::from_ref(data_type))?;
        let x = x.clone();
        Ok(Some(Self { x, result, way }))
    }

    /// The calls of the first read.
    pub(crate) fn first(&self) -> Vec<Expr> {
        let quantile = |method, descending, quantile: Expr| {
            call(aggregate(method, descending), vec![self.x.clone(), quantile])
        };
        let mut calls = match &self.way {
            Way::Deviation { is_float: true } => vec![quantile(Method::Linear, false, lit(0.5))],
            Way::Deviation { is_float: false } => vec![
                quantile(Method::Lower, false, lit(0.5)),
                quantile(Method::Higher, false, lit(0.5)),
            ],
            Way::Bins(_) => vec![
                quantile(Method::Disc, false, lit(0.0)),
                quantile(Method::Disc, false, lit(1.0)),
            ],
        };
        calls.push(count(self.x.clone()));
        calls
    }

    /// Columns that the second read has beside those of its input. `first`: the values of the first read's calls.
    pub(crate) fn columns(&self, first: &[Expr]) -> Vec<Expr> {
        match &self.way {
            Way::Deviation { .. } => vec![ScalarUDF::from(DeviationFrom::default()).call(self.beside(first))],
            Way::Bins(binning) => {
                let first = self.beside(first).split_off(1);
                vec![bin_of(&self.x, first, binning)]
            }
        }
    }

    /// The values `x`, and beside them those of the first read, without their number.
    fn beside(&self, first: &[Expr]) -> Vec<Expr> {
        let first = first.iter().take(first.len().saturating_sub(1));
        std::iter::once(&self.x).chain(first).cloned().collect()
    }

    /// The calls of the second read, over [`Self::columns`].
    pub(crate) fn second(&self, columns: &[Expr]) -> Vec<Expr> {
        match (&self.way, columns) {
            (Way::Deviation { is_float }, [deviation]) => {
                let methods: &[Method] = if *is_float {
                    &[Method::Linear]
                } else {
                    &[Method::Lower, Method::Higher]
                };
                let median =
                    |method: &Method| call(aggregate(*method, false), vec![deviation.clone(), lit(0.5)]);
                let medians = methods.iter().map(median);
                medians.chain([count(deviation.clone())]).collect()
            }
            (Way::Bins(_), [bin]) => {
                let counts = Arc::new(AggregateUDF::from(CountsOf::default()));
                vec![call(counts, vec![bin.clone()]), count(bin.clone())]
            }
            (Way::Deviation { .. } | Way::Bins(_), _) => Vec::new(),
        }
    }

    /// The answer, from the values of the calls of both reads.
    pub(crate) fn answer(&self, first: &[Expr], second: &[Expr]) -> Expr {
        let args = first.iter().chain(second).cloned().collect();
        let form = match &self.way {
            Way::Deviation { is_float: false } => Form::Deviation,
            Way::Deviation { is_float: true } => Form::Value,
            Way::Bins(binning) => Form::Histogram(binning.clone()),
        };
        ScalarUDF::from(AnswerOf::new(form, self.result.clone(), first.len())).call(args)
    }
}
