//! Ordered-set aggregates over windows: `percentile_cont(q) WITHIN GROUP (ORDER BY x [DESC]) OVER (..)`.
//!
//! DataFusion's planner refuses the two clauses together before it asks a planner of calls. So the parsed call takes its order along as an
//! argument ([`move_order`]), and the planner of calls takes it out again ([`take_order`]):
//!
//! ```text
//! f(q) WITHIN GROUP (ORDER BY x DESC) OVER (..)  ->  f(within_group(x, false), q) OVER (..)  ->  f_desc(x, q) OVER (..)
//! ```
//! Functions of DataFusion have no descending form. Their quantile is counted from the other end, as DataFusion does it without a window.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    lit,
};
use datafusion::sql::sqlparser::ast::{
    Expr as ParsedExpr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, OrderByExpr, Value,
};

use super::FunctionName;
use super::call::constant;
use super::gk::GkName;
use super::ranks::RankName;

/// DataFusion's functions that take `WITHIN GROUP` without saying so, and at which argument their quantile is.
const BUILT_IN: [(&str, usize); 3] = [
    ("percentile_cont", 1),
    ("approx_percentile_cont", 1),
    ("approx_percentile_cont_with_weight", 2),
];

/// The scalar function `within_group(x, ascending)`: an argument of a call over a window, and its order.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WithinGroup {
    signature: Signature,
}

impl WithinGroup {
    const NAME: &str = "within_group";
}

static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(WithinGroup {
        signature: Signature::any(2, Volatility::Immutable),
    }))
});

/// The function that stands for `WITHIN GROUP` in a call over a window, to register.
pub(crate) fn within_group() -> &'static Arc<ScalarUDF> {
    &FUNCTION
}

impl ScalarUDFImpl for WithinGroup {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        plan_err!(
            "WITHIN GROUP together with OVER is only supported for ordered-set aggregate functions ({} stands for it there)",
            Self::NAME
        )
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!("{} has no value", Self::NAME)
    }
}

/// Whether a function of this name takes `WITHIN GROUP`.
fn is_ordered_set(name: &str) -> bool {
    FunctionName::ALL
        .iter()
        .any(|function| function.as_str() == name || function.aliases().contains(&name))
        || RankName::ALL.iter().any(|function| function.as_str() == name)
        || GkName::ALL.iter().any(|function| function.as_str() == name)
        || BUILT_IN.iter().any(|(function, _)| *function == name)
}

/// Makes `f(x, q) WITHIN GROUP (ORDER BY y)` of `f(x, q ORDER BY y)`, which is refused. DataFusion 55 puts y in the place of x, and tells nobody.
pub(super) fn move_inline_order(call: &mut Function) {
    let (name, FunctionArguments::List(list)) = (call.name.0.as_slice(), &mut call.args) else {
        return;
    };
    let [name] = name else { return };
    let name = name.as_ident().map(|name| name.value.to_ascii_lowercase());
    if list.args.len() < 2 || !call.within_group.is_empty() || !name.is_some_and(|name| is_ordered_set(&name))
    {
        return;
    }
    let is_order = |clause: &FunctionArgumentClause| matches!(clause, FunctionArgumentClause::OrderBy(_));
    let at = list.clauses.iter().position(is_order);
    if let Some(FunctionArgumentClause::OrderBy(order)) = at.map(|at| list.clauses.remove(at)) {
        call.within_group = order;
    }
}

/// Moves the order of a call with `WITHIN GROUP` and `OVER` into its first argument. Other calls stay.
pub(super) fn move_order(call: &mut Function) {
    let ([order], FunctionArguments::List(list)) = (call.within_group.as_slice(), &mut call.args) else {
        return;
    };
    if call.over.is_none() || order.with_fill.is_some() {
        return;
    }
    list.args.insert(0, unnamed(ordered(order)));
    call.within_group.clear();
}

/// `within_group(x, ascending)` for `ORDER BY x [DESC]`. Where NULLs are in the order is left out: functions over windows skip them.
fn ordered(order: &OrderByExpr) -> ParsedExpr {
    let is_ascending = Value::Boolean(order.options.asc.unwrap_or(true));
    let args = vec![
        unnamed(order.expr.clone()),
        unnamed(ParsedExpr::value(is_ascending)),
    ];
    ParsedExpr::Function(Function {
        name: ObjectName::from(vec![Ident::new(WithinGroup::NAME)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn unnamed(expr: ParsedExpr) -> FunctionArg {
    FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))
}

/// Takes the order out of a call over a window; its expression stays as the first argument. `None` for a call without `WITHIN GROUP`.
///
/// # Errors
/// A planning error for a function that is no ordered-set aggregate.
pub(super) fn take_order(function: &AggregateUDF, args: &mut [Expr]) -> Result<Option<Sort>> {
    let Some(first) = args.first_mut() else {
        return Ok(None);
    };
    let Expr::ScalarFunction(call) = &*first else {
        return Ok(None);
    };
    if !call.func.inner().is::<WithinGroup>() {
        return Ok(None);
    }
    let [x, Expr::Literal(ScalarValue::Boolean(Some(ascending)), _)] = call.args.as_slice() else {
        return plan_err!(
            "{} stands for WITHIN GROUP, and is not called by name",
            WithinGroup::NAME
        );
    };
    let order = Sort::new(x.clone(), *ascending, !ascending);
    if !function.supports_within_group_clause() && quantile_at(function).is_none() {
        return plan_err!(
            "WITHIN GROUP is only supported for ordered-set aggregate functions: {} is none",
            function.name()
        );
    }
    *first = order.expr.clone();
    Ok(Some(order))
}

/// At which argument a function of DataFusion that takes `WITHIN GROUP` has its quantile.
fn quantile_at(function: &AggregateUDF) -> Option<usize> {
    let found = BUILT_IN.iter().find(|(name, _)| *name == function.name());
    found.map(|(_, at)| *at)
}

/// The arguments that make a function of another crate count from the greatest value, over a window: the quantile is one minus what was written.
///
/// # Errors
/// A planning error for a function that is none of DataFusion's, and for a quantile out of range.
pub(super) fn from_the_top(function: &AggregateUDF, mut args: Vec<Expr>) -> Result<Vec<Expr>> {
    let name = function.name();
    let quantile = quantile_at(function).and_then(|at| args.get_mut(at));
    let Some(quantile) = quantile else {
        return plan_err!(
            "{name} with WITHIN GROUP (ORDER BY .. DESC) and OVER is not supported: write it without DESC"
        );
    };
    let value = constant(quantile)?.map(|value| value.cast_to(&DataType::Float64));
    *quantile = match value.transpose()? {
        Some(ScalarValue::Float64(Some(value))) if (0.0..=1.0).contains(&value) => lit(1.0 - value),
        Some(value) => {
            return plan_err!("{name}: quantile {value} is out of range: allowed is a number from 0 to 1");
        }
        // A parameter of a prepared statement.
        None => lit(1.0) - quantile.clone(),
    };
    Ok(args)
}
