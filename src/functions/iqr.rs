//! `iqr(x [, method [, weight]])`: the distance between the quartiles.
//!
//! ```text
//! iqr(x)  ->  exact_quantiles_linear(x, 0.75) - exact_quantiles_linear(x, 0.25)
//! ```
//! The name alone is a function: [`QuantilesExprPlanner`](super::QuantilesExprPlanner) plans each call as that difference, whose quantiles share
//! the column and the scan with all others. Where decimals have all digits of their type, the distance may need one more: `widened` gives the
//! quartiles a wider type.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION,
    DataType,
};
use datafusion::common::utils::take_function_args;
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, cast, lit,
};

use super::aggregate;
use crate::quantile::Method;

/// The function `iqr`, which stands for its difference.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Iqr {
    signature: Signature,
}

impl Iqr {
    /// The name in SQL.
    pub(super) const NAME: &str = "iqr";

    /// Whether a function is `iqr`.
    pub(super) fn is(function: &AggregateUDF) -> bool {
        function.inner().is::<Self>()
    }

    /// The message for a wrong number of arguments, `count`.
    pub(super) fn wrong_arguments(count: usize) -> String {
        format!(
            "{} takes 1 to 3 arguments, got {count}: the values, and optionally the name of a method, and behind it a weight",
            Self::NAME
        )
    }
}

/// The upper and the lower quartile of `x`, where each row counts as often as `weight` says, or once. `call` makes a call of a function and its
/// arguments.
pub(super) fn quartiles(
    x: &Expr,
    method: Method,
    weight: Option<&Expr>,
    call: impl Fn(Arc<AggregateUDF>, Vec<Expr>) -> Expr,
) -> [Expr; 2] {
    [0.75, 0.25].map(|quantile| {
        let args = [x.clone(), lit(quantile)].into_iter().chain(weight.cloned());
        widened().call(vec![call(aggregate(method, false), args.collect())])
    })
}

/// The scalar function `widened(x)`: decimals with all digits of their type in the next wider type, with one digit more; all other values
/// as they are.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Widened {
    signature: Signature,
}

static WIDENED: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(Widened {
        signature: Signature::any(1, Volatility::Immutable),
    }))
});

/// The function `widened`, to register.
pub(crate) fn widened() -> &'static Arc<ScalarUDF> {
    &WIDENED
}

/// The type in which the difference of two values of type `x` has room.
///
/// # Errors
/// A planning error for the widest decimals.
fn with_room(x: &DataType) -> Result<DataType> {
    Ok(match x {
        DataType::Decimal32(DECIMAL32_MAX_PRECISION, scale) => {
            DataType::Decimal64(DECIMAL32_MAX_PRECISION + 1, *scale)
        }
        DataType::Decimal64(DECIMAL64_MAX_PRECISION, scale) => {
            DataType::Decimal128(DECIMAL64_MAX_PRECISION + 1, *scale)
        }
        DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale) => {
            DataType::Decimal256(DECIMAL128_MAX_PRECISION + 1, *scale)
        }
        DataType::Decimal256(DECIMAL256_MAX_PRECISION, _) => {
            return plan_err!(
                "{} of values of type {x}: their distance may have a digit more than any type; cast them to at most {} digits",
                Iqr::NAME,
                DECIMAL256_MAX_PRECISION - 1
            );
        }
        other => other.clone(),
    })
}

impl ScalarUDFImpl for Widened {
    fn name(&self) -> &str {
        "widened"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [x] = take_function_args(self.name(), arg_types)?;
        with_room(x)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [x] = take_function_args(self.name(), args.args)?;
        x.cast_to(args.return_field.data_type(), None)
    }

    /// Nothing is left of the call but a cast, where one is needed.
    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let [x] = take_function_args(self.name(), args)?;
        let data_type = info.get_data_type(&x)?;
        let wide = with_room(&data_type)?;
        Ok(ExprSimplifyResult::Simplified(match wide == data_type {
            true => x,
            false => cast(x, wide),
        }))
    }
}

fn unplanned<T>() -> Result<T> {
    plan_err!(
        "{} needs its expression planner: register the extension with datafusion_quantiles::register_all, or call expr_fn::iqr",
        Iqr::NAME
    )
}

impl AggregateUDFImpl for Iqr {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        unplanned()
    }

    fn coerce_types(&self, _arg_types: &[DataType]) -> Result<Vec<DataType>> {
        unplanned()
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        unplanned()
    }

    fn supports_null_handling_clause(&self) -> bool {
        true
    }
}

static FUNCTION: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| {
    Arc::new(AggregateUDF::from(Iqr {
        signature: Signature::user_defined(Volatility::Immutable),
    }))
});

/// The function, to register.
pub(crate) fn iqr_aggregate() -> &'static Arc<AggregateUDF> {
    &FUNCTION
}
