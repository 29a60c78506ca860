//! The constant arguments of an approximate call: its quantiles, and how near the answers are to be.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::PhysicalExpr;

use super::name::{BUCKETS, GkName};
use crate::functions::call::{QuantileArgument, constant, evaluated, evaluated_quantiles};
use crate::quantile::Quantiles;
use crate::select::splitters::NearestSplitter;
use crate::sketch::Epsilon;

/// Accuracy of calls that name none.
const DEFAULT_ACCURACY: f64 = 10_000.0;

/// Buckets of calls that name none.
const DEFAULT_BUCKETS: u32 = 1024;

/// A call that is answered by the nearest splitters of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sampled {
    pub(crate) buckets: u32,
    /// Whether the ranks that they have are wanted too.
    pub(crate) bounds: bool,
}

/// What a call asks, besides its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Constants {
    pub(super) quantiles: Quantiles,
    pub(super) precision: Precision,
}

/// How near an answer is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Precision {
    Accuracy(Epsilon),
    Buckets(u32),
}

impl Precision {
    /// Of a call that says nothing.
    fn default_of(called: GkName) -> Result<Self> {
        match called.samples() {
            true => Ok(Precision::Buckets(DEFAULT_BUCKETS)),
            false => Epsilon::try_new(DEFAULT_ACCURACY).map(Precision::Accuracy),
        }
    }

    /// What the third argument says.
    ///
    /// # Errors
    /// A planning error that names the value.
    fn try_new(called: GkName, value: &ScalarValue) -> Result<Self> {
        let number = match value.data_type().is_numeric() {
            true => value.cast_to(&DataType::Float64)?,
            false => ScalarValue::Null,
        };
        let ScalarValue::Float64(Some(number)) = number else {
            return plan_err!("{}", not_constant(called, value));
        };
        if called.samples() {
            let is_allowed =
                number.fract() == 0.0 && (2.0..=f64::from(NearestSplitter::MOST)).contains(&number);
            return match is_allowed {
                true => Ok(Precision::Buckets(number as u32)),
                false => plan_err!("{called}: the number of buckets is {value}: allowed is {BUCKETS}"),
            };
        }
        let eps = Epsilon::try_new(number).map_err(|error| match error {
            DataFusionError::Plan(message) => DataFusionError::Plan(format!("{called}: {message}")),
            other => other,
        });
        eps.map(Precision::Accuracy)
    }
}

impl Constants {
    /// Those of a logical call; `None` if they are not known yet.
    ///
    /// # Errors
    /// A planning error that names a bad value, or a wrong number of arguments.
    pub(super) fn of_call(called: GkName, args: &[Expr]) -> Result<Option<Self>> {
        called.check_count(args.len())?;
        let quantiles = match called.quantile_specs() {
            false => Quantiles::default(),
            true => match QuantileArgument::try_new(called, &args[1])? {
                QuantileArgument::Known(quantiles) => quantiles,
                QuantileArgument::Unbound => return Ok(None),
            },
        };
        let precision = match called.precision_place().and_then(|place| args.get(place)) {
            None => Precision::default_of(called)?,
            Some(expr) => match constant(expr)? {
                Some(value) => Precision::try_new(called, &value)?,
                None => return Ok(None),
            },
        };
        Ok(Some(Self { quantiles, precision }))
    }

    /// Those of a call that is about to run.
    ///
    /// # Errors
    /// A planning error that names a bad value.
    pub(super) fn evaluated(called: GkName, args: &[Arc<dyn PhysicalExpr>]) -> Result<Self> {
        let precision = match called.precision_place().and_then(|place| args.get(place)) {
            None => Precision::default_of(called)?,
            Some(expr) => match evaluated(expr)? {
                Some(value) => Precision::try_new(called, &value)?,
                None => return plan_err!("{}", not_constant(called, expr)),
            },
        };
        let quantiles = match called.quantile_specs() {
            true => evaluated_quantiles(called, &args[1])?,
            false => Quantiles::default(),
        };
        Ok(Self { quantiles, precision })
    }
}

fn not_constant(called: GkName, shown: &dyn Display) -> String {
    match called.samples() {
        true => format!("{called}: the number of buckets must be constant, {BUCKETS}, got {shown}"),
        false => format!(
            "{called}: accuracy must be a constant number, an error fraction in (0, 1) or its reciprocal from 1 on, got \
             {shown}"
        ),
    }
}

/// Checks the constants of a logical call, as far as they are known yet.
///
/// # Errors
/// A planning error that names the value.
pub(crate) fn check_arguments(called: GkName, args: &[Expr]) -> Result<()> {
    called.check_count(args.len())?;
    if called.quantile_specs() {
        QuantileArgument::try_new(called, &args[1])?;
    }
    if let Some(expr) = called.precision_place().and_then(|place| args.get(place)) {
        match constant(expr)? {
            Some(value) => Precision::try_new(called, &value).map(drop)?,
            None if matches!(expr, Expr::Placeholder(_)) => {}
            None => return plan_err!("{}", not_constant(called, expr)),
        }
    }
    Ok(())
}
