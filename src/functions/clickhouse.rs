//! ClickHouse's exact quantiles, under its names: the forms of calls that it has alone, and the rows that it skips.
//!
//! ```text
//! quantileExact(0.9)(x)              ->  quantile_exact(x, 0.9)
//! quantilesExact(0.5, 0.9)(x)        ->  quantile_exact(x, [0.5, 0.9])
//! quantileExactWeighted(0.9)(x, w)   ->  quantile_exact_weighted(x, 0.9, w)
//! medianExact(x)                     ->  quantile_exact(x, 0.5)
//! ```
//! DataFusion's planner drops the first pair of parentheses, so the parsed call is rewritten ([`move_parameters`]). ClickHouse skips NaN: values
//! of floating point go through `without_nan`.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray};
use datafusion::arrow::compute::{cast, nullif};
use datafusion::arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::utils::take_function_args;
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::sql::sqlparser::ast::{
    Array as ParsedArray, Expr as ParsedExpr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
};

use super::FunctionName;

/// Moves the levels of a call such as `quantileExact(0.9)(x)` behind its first argument. Other calls stay.
pub(super) fn move_parameters(call: &mut Function) {
    let [name] = call.name.0.as_slice() else { return };
    let Some(name) = name.as_ident().map(|name| name.value.to_ascii_lowercase()) else {
        return;
    };
    let found = FunctionName::ALL.into_iter().find_map(|function| {
        let is_list = function
            .aliases()
            .iter()
            .any(|alias| *alias == name && alias.starts_with("quantiles"));
        let is_one = function.aliases().contains(&name.as_str()) || function.as_str() == name;
        (function.is_of_clickhouse() && is_one).then_some(is_list)
    });
    let (Some(is_list), FunctionArguments::List(levels), FunctionArguments::List(args)) =
        (found, &call.parameters, &mut call.args)
    else {
        return;
    };
    let expr = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    let Some(levels) = levels.args.iter().map(expr).collect::<Option<Vec<_>>>() else {
        return;
    };
    let level = match (is_list, levels.as_slice()) {
        (true, _) => ParsedExpr::Array(ParsedArray {
            elem: levels,
            named: false,
        }),
        (false, [level]) => level.clone(),
        // The wrong number of arguments is an error of the function.
        (false, _) => return,
    };
    let behind = args.args.len().min(1);
    args.args
        .insert(behind, FunctionArg::Unnamed(FunctionArgExpr::Expr(level)));
    call.parameters = FunctionArguments::None;
}

/// One of the functions `median_exact`, which stand for a quantile of ClickHouse at 0.5.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct MedianExact {
    of: FunctionName,
    aliases: Vec<String>,
    signature: Signature,
}

impl MedianExact {
    /// The names in SQL, and the functions whose quantile at 0.5 they are.
    const ALL: [(&str, &str, FunctionName); 4] = [
        ("median_exact", "medianexact", FunctionName::QuantileExact),
        (
            "median_exact_low",
            "medianexactlow",
            FunctionName::QuantileExactLow,
        ),
        (
            "median_exact_high",
            "medianexacthigh",
            FunctionName::QuantileExactHigh,
        ),
        (
            "median_exact_weighted",
            "medianexactweighted",
            FunctionName::QuantileExactWeighted,
        ),
    ];

    /// The `MedianExact` behind an aggregate function, if it is one.
    pub(super) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref()
    }

    /// The function that is meant.
    pub(super) fn function(&self) -> FunctionName {
        self.of
    }

    /// The arguments of that function.
    ///
    /// # Errors
    /// A planning error for a wrong number of arguments.
    pub(super) fn arguments(&self, args: &[Expr]) -> Result<Vec<Expr>> {
        match (args, self.of.needs_weight()) {
            ([x], false) => Ok(vec![x.clone(), lit(0.5)]),
            ([x, weight], true) => Ok(vec![x.clone(), lit(0.5), weight.clone()]),
            (args, false) => plan_err!("{} takes 1 argument, got {}: the values", self.name(), args.len()),
            (args, true) => plan_err!(
                "{} takes 2 arguments, got {}: the values, and how often each row counts",
                self.name(),
                args.len()
            ),
        }
    }
}

fn unplanned<T>() -> Result<T> {
    plan_err!(
        "median_exact needs its expression planner: register the extension with datafusion_quantiles::register_all"
    )
}

impl AggregateUDFImpl for MedianExact {
    fn name(&self) -> &str {
        let found = Self::ALL.iter().find(|(_, _, of)| *of == self.of);
        found.map_or("median_exact", |(name, _, _)| name)
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
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

static MEDIANS: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let functions = MedianExact::ALL.map(|(_, alias, of)| MedianExact {
        of,
        aliases: vec![alias.to_owned()],
        signature: Signature::user_defined(Volatility::Immutable),
    });
    functions
        .into_iter()
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

/// The functions `median_exact`, to register.
pub(crate) fn median_aggregates() -> &'static [Arc<AggregateUDF>] {
    &MEDIANS
}

/// The scalar function `without_nan(x)`: NULL for NaN, and `x` for all other values, of any type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WithoutNan {
    signature: Signature,
}

static WITHOUT_NAN: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(WithoutNan {
        signature: Signature::any(1, Volatility::Immutable),
    }))
});

/// The function `without_nan`, to register.
pub(crate) fn without_nan() -> &'static Arc<ScalarUDF> {
    &WITHOUT_NAN
}

/// The values, with NULL for each that is NaN.
fn nulls_for_nan<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    is_nan: fn(T::Native) -> bool,
) -> Result<ArrayRef> {
    let values = values.as_primitive::<T>();
    let nan: BooleanArray = values.iter().map(|value| value.map(is_nan)).collect();
    Ok(nullif(values, &nan)?)
}

/// The type of floating point that values of a type have, in dictionaries too.
fn floating(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::Dictionary(_, values) => floating(values),
        other => other.is_floating().then_some(other),
    }
}

impl ScalarUDFImpl for WithoutNan {
    fn name(&self) -> &str {
        "without_nan"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [x] = take_function_args(self.name(), arg_types)?;
        Ok(floating(x).unwrap_or(x).clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [x] = take_function_args(self.name(), args.args)?;
        let mut values = x.to_array(args.number_rows)?;
        if let Some(float) = floating(values.data_type()) {
            values = cast(&values, float)?;
        }
        let kept = match values.data_type() {
            DataType::Float16 => nulls_for_nan::<Float16Type>(&values, |value| value.is_nan())?,
            DataType::Float32 => nulls_for_nan::<Float32Type>(&values, |value| value.is_nan())?,
            DataType::Float64 => nulls_for_nan::<Float64Type>(&values, |value| value.is_nan())?,
            _ => values,
        };
        Ok(ColumnarValue::Array(kept))
    }

    /// Values of other types than floating point stay as they are.
    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match args.as_slice() {
            [x] if floating(&info.get_data_type(x)?).is_none() => {
                Ok(ExprSimplifyResult::Simplified(x.clone()))
            }
            _ => Ok(ExprSimplifyResult::Original(args)),
        }
    }
}
