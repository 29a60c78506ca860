//! The constant arguments of an approximate call: its quantiles, and how precise the answers are to be.

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

/// Accuracy of calls that give none: the reciprocal of the error fraction.
const DEFAULT_ACCURACY: f64 = 10_000.0;

/// Number of buckets of calls that give none.
const DEFAULT_BUCKETS: u32 = 1024;

/// A call that is answered by the splitters of a sample that are nearest to the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sampled {
    /// Number of buckets between splitters.
    pub(crate) buckets: u32,
    /// Whether the answer has the ranks of the splitters too.
    pub(crate) bounds: bool,
}

/// The constants of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Constants {
    pub(super) quantiles: Quantiles,
    pub(super) precision: Precision,
}

/// The precision of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Precision {
    /// The error fraction of a sketch.
    Accuracy(Epsilon),
    /// The number of buckets between a sample's splitters.
    Buckets(u32),
}

impl Precision {
    /// The precision of a call that gives none.
    fn default_of(sql_name: GkName) -> Result<Self> {
        if sql_name.samples() {
            Ok(Precision::Buckets(DEFAULT_BUCKETS))
        } else {
            Epsilon::try_new(DEFAULT_ACCURACY).map(Precision::Accuracy)
        }
    }

    /// The precision that an argument says.
    ///
    /// # Errors
    /// A planning error that names the value.
    fn try_new(sql_name: GkName, value: &ScalarValue) -> Result<Self> {
        let number = if value.data_type().is_numeric() {
            value.cast_to(&DataType::Float64)?
        } else {
            ScalarValue::Null
        };
        let ScalarValue::Float64(Some(number)) = number else {
            return plan_err!("{}", not_constant(sql_name, value));
        };
        if sql_name.samples() {
            let is_allowed =
                number.fract() == 0.0 && (2.0..=f64::from(NearestSplitter::MOST)).contains(&number);
            return if is_allowed {
                Ok(Precision::Buckets(number as u32))
            } else {
                plan_err!("{sql_name}: the number of buckets is {value}: allowed is {BUCKETS}")
            };
        }
        let eps = Epsilon::try_new(number).map_err(|error| match error {
            DataFusionError::Plan(message) => DataFusionError::Plan(format!("{sql_name}: {message}")),
            other => other,
        });
        eps.map(Precision::Accuracy)
    }
}

impl Constants {
    /// The constants of a logical call; `None` if they are not known yet.
    ///
    /// # Errors
    /// A planning error that names a bad value, or a wrong number of arguments.
    pub(super) fn of_call(sql_name: GkName, args: &[Expr]) -> Result<Option<Self>> {
        sql_name.check_count(args.len())?;
        let quantiles = if sql_name.takes_quantiles() {
            match QuantileArgument::try_new(sql_name, &args[1])? {
                QuantileArgument::Known(quantiles) => quantiles,
                QuantileArgument::Unbound => return Ok(None),
            }
        } else {
            Quantiles::default()
        };
        let precision = match sql_name.precision_index().and_then(|place| args.get(place)) {
            None => Precision::default_of(sql_name)?,
            Some(expr) => match constant(expr)? {
                Some(value) => Precision::try_new(sql_name, &value)?,
                None => return Ok(None),
            },
        };
        Ok(Some(Self { quantiles, precision }))
    }

    /// The constants of a call that is about to run.
    ///
    /// # Errors
    /// A planning error that names a bad value.
    pub(super) fn evaluated(sql_name: GkName, args: &[Arc<dyn PhysicalExpr>]) -> Result<Self> {
        let precision = match sql_name.precision_index().and_then(|place| args.get(place)) {
            None => Precision::default_of(sql_name)?,
            Some(expr) => match evaluated(expr)? {
                Some(value) => Precision::try_new(sql_name, &value)?,
                None => return plan_err!("{}", not_constant(sql_name, expr)),
            },
        };
        let quantiles = if sql_name.takes_quantiles() {
            evaluated_quantiles(sql_name, &args[1])?
        } else {
            Quantiles::default()
        };
        Ok(Self { quantiles, precision })
    }
}

/// The message for a precision that is no constant of the right type.
fn not_constant(sql_name: GkName, shown: &dyn Display) -> String {
    if sql_name.samples() {
        format!("{sql_name}: the number of buckets must be constant, {BUCKETS}, got {shown}")
    } else {
        format!(
            "{sql_name}: accuracy must be a constant number, an error fraction in (0, 1) or its reciprocal from 1 on, got \
             {shown}"
        )
    }
}

/// Checks the constants of a logical call, as far as they are known yet.
///
/// # Errors
/// A planning error that names the value.
pub(crate) fn check_arguments(sql_name: GkName, args: &[Expr]) -> Result<()> {
    sql_name.check_count(args.len())?;
    if sql_name.takes_quantiles() {
        QuantileArgument::try_new(sql_name, &args[1])?;
    }
    if let Some(expr) = sql_name.precision_index().and_then(|place| args.get(place)) {
        match constant(expr)? {
            Some(value) => Precision::try_new(sql_name, &value).map(drop)?,
            None if matches!(expr, Expr::Placeholder(_)) => {}
            None => return plan_err!("{}", not_constant(sql_name, expr)),
        }
    }
    Ok(())
}
