//! `iqr(x [, method [, weight]])`: the distance between the quartiles.
//!
//! ```text
//! iqr(x)  ->  exact_quantiles_linear(x, 0.75) - exact_quantiles_linear(x, 0.25)
//! ```
//! The name alone is a function: [`QuantilesExprPlanner`](super::QuantilesExprPlanner) plans each call as that difference, whose quantiles share
//! the column and the scan with all others.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, Signature, Volatility, lit,
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
        call(aggregate(method, false), args.collect())
    })
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
