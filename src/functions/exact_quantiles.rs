//! `exact_quantiles`, under each of its names, as an aggregate function: types, names, accumulators.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::expr::{AggregateFunctionParams, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, GroupsAccumulator, Signature, Volatility, lit,
    udaf_default_display_name, udaf_default_human_display, udaf_default_schema_name,
    udaf_default_window_function_display_name, udaf_default_window_function_schema_name,
};

use super::FunctionName;
use super::accumulator::accumulator;
use super::call::{constant, evaluated_quantiles, is_reversed};
use super::groups::groups_accumulator;
use super::peak::PeakSize;
use super::types::{answer_type, is_list, ordered_type};
use super::weighted::weight_type;
use crate::quantile::{AnswerSpec, Method, QuantileSpec, Quantiles, state_type};

/// The aggregate function of exact quantiles, under one name, by one method, counted from one end.
///
/// Arguments: values of any type that can be ordered (NULLs are skipped), a constant number or list of numbers in
/// [0, 1], and optionally a weight, which says how often each row counts. One number gives one value, a list gives a list in the same order.
///
/// Its accumulators buffer the key of each value of fixed width, and the bytes of other values. Where the session's planner is
/// [`QuantilesPlanner`](crate::planner::QuantilesPlanner), aggregations run as operators instead: see
/// [`QuantilesExec`](crate::exec::QuantilesExec).
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ExactQuantiles {
    name: String,
    sql_name: FunctionName,
    method: Method,
    descending: bool,
    /// The quantiles, where they are bound into the function; `None`: they are the second argument.
    bound: Option<Quantiles>,
    aliases: Vec<String>,
    signature: Signature,
}

/// The arguments of a planned call, by what they mean.
pub(crate) struct Arguments<'a, T> {
    /// The values.
    pub(crate) x: &'a T,
    /// The quantiles, unless they are bound into the function.
    pub(crate) quantiles: Option<&'a T>,
    /// How often each row counts; `None`: once.
    pub(crate) weight: Option<&'a T>,
}

impl ExactQuantiles {
    /// The function with the name `sql_name`, for one of its methods ([`FunctionName::methods`]); `descending`
    /// counts from the greatest value.
    pub(crate) fn new(sql_name: FunctionName, method: Method, descending: bool) -> Self {
        let mut parameters = vec!["x", "quantiles"];
        parameters.extend(sql_name.takes_method().then_some("method"));
        parameters.extend(sql_name.takes_weight().then_some("weight"));
        let signature = Signature::user_defined(Volatility::Immutable)
            .with_parameter_names(parameters)
            .expect("a user-defined signature takes any distinct names");
        // They are names of the function that is written, which has the first method and counts from the least value.
        let is_written = method == sql_name.methods()[0] && !descending;
        let aliases = if is_written { sql_name.aliases() } else { &[] };
        Self {
            name: sql_name.registered(method, descending),
            sql_name,
            method,
            descending,
            bound: None,
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            signature,
        }
    }

    /// The `ExactQuantiles` behind an aggregate function, if it is one.
    pub(crate) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    /// The function that has these quantiles bound into it, in place of the argument.
    pub(crate) fn bound_to(&self, quantiles: Quantiles) -> Self {
        Self {
            bound: Some(quantiles),
            ..Self::new(self.sql_name, self.method, self.descending)
        }
    }

    /// The quantiles that are bound into the function.
    pub(crate) fn bound(&self) -> Option<&Quantiles> {
        self.bound.as_ref()
    }

    /// The name that users write in SQL.
    pub(crate) fn sql_name(&self) -> FunctionName {
        self.sql_name
    }

    /// The method, which makes an answer of a position between two values.
    pub(crate) fn method(&self) -> Method {
        self.method
    }

    /// Whether quantiles count from the greatest value.
    pub(crate) fn is_descending(&self) -> bool {
        self.descending
    }

    /// The name under which the function is registered, which has the method and the direction in it.
    pub(super) fn registered_name(&self) -> &str {
        &self.name
    }

    /// The arguments of a planned call, whose method is in the function.
    ///
    /// # Errors
    /// A planning error for a number of arguments that no call has.
    pub(crate) fn arguments<'a, T>(&self, args: &'a [T]) -> Result<Arguments<'a, T>> {
        let (x, quantiles, weight) = match (&self.bound, args) {
            (Some(_), [x]) => (x, None, None),
            (Some(_), [x, weight]) => (x, None, Some(weight)),
            (None, [x, quantiles]) if !self.sql_name.needs_weight() => (x, Some(quantiles), None),
            (None, [x, quantiles, weight]) if self.sql_name.takes_weight() => {
                (x, Some(quantiles), Some(weight))
            }
            _ => return plan_err!("{}", self.sql_name.wrong_arguments(args.len())),
        };
        Ok(Arguments { x, quantiles, weight })
    }

    /// Whether a planned call has weights.
    pub(crate) fn is_weighted<T>(&self, args: &[T]) -> bool {
        self.arguments(args).is_ok_and(|args| args.weight.is_some())
    }

    /// Checks that a planned call has no `DISTINCT` beside weights.
    ///
    /// # Errors
    /// A planning error if it has.
    pub(crate) fn check_distinct<T>(&self, args: &[T], is_distinct: bool) -> Result<()> {
        if is_distinct && self.is_weighted(args) {
            return plan_err!(
                "{} takes DISTINCT or a weight, not both: a distinct value counts once, whatever the weights of its rows",
                self.sql_name
            );
        }
        Ok(())
    }

    /// The quantile specification of a call with these quantiles. `reversed`: they count from the other end.
    pub(crate) fn quantile_spec(&self, quantiles: &Quantiles, reversed: bool) -> QuantileSpec {
        QuantileSpec {
            quantiles: quantiles.list.clone(),
            method: self.method,
            descending: self.descending != reversed,
        }
    }

    /// The column that an accumulator of a call collects, with the call's question.
    fn column(&self, args: &AccumulatorArgs) -> Result<AnswerSpec> {
        self.check_distinct(args.exprs, args.is_distinct)?;
        let quantiles = match (self.arguments(args.exprs)?.quantiles, &self.bound) {
            (Some(quantiles), _) => evaluated_quantiles(self.sql_name, quantiles)?,
            (None, Some(bound)) => bound.clone(),
            (None, None) => return plan_err!("{}", self.sql_name.wrong_arguments(args.exprs.len())),
        };
        AnswerSpec::try_new(
            args.expr_fields[0].data_type(),
            self.quantile_spec(&quantiles, is_reversed(args)),
            quantiles.is_list,
            args.is_distinct,
        )
    }

    /// The type in which values of type `x` are taken. DataFusion's `percentile_cont` takes all numbers as floating point.
    fn values_type(&self, x: &DataType) -> DataType {
        let is_exact = x.is_integer() || x.is_decimal();
        if self.sql_name == FunctionName::PercentileCont && is_exact {
            DataType::Float64
        } else {
            ordered_type(x)
        }
    }

    /// The type in which weights of a type are counted.
    ///
    /// # Errors
    /// A planning error for a type whose numbers are no weights.
    fn weight_type(&self, weight: &DataType) -> Result<DataType> {
        weight_type(self.sql_name, self.method, weight)
    }

    /// Arguments as a user writes them, with the method that the registered name has.
    fn spelled(&self, args: &[Expr]) -> Vec<Expr> {
        let mut args = args.to_vec();
        if self.sql_name == FunctionName::Median {
            args.truncate(1);
        }
        // A weight stands behind the method. Before a call is planned, its third argument is the method itself.
        let is_method =
            |arg: &Expr| matches!(constant(arg), Ok(Some(value)) if value.data_type().is_string());
        let is_weighted = self.is_weighted(&args) && !args.last().is_some_and(is_method);
        if self.method != self.sql_name.methods()[0] || (is_weighted && self.sql_name.takes_method()) {
            args.insert(
                args.len() - usize::from(is_weighted),
                lit(self.method.to_string()),
            );
        }
        args
    }

    /// DataFusion's spelling of a call, with the SQL name in place of the registered one.
    fn renamed(&self, spelling: &str) -> String {
        let call = spelling.strip_prefix(self.name.as_str()).unwrap_or(spelling);
        format!("{}{call}", self.sql_name)
    }

    /// Parameters of which DataFusion's spelling is the user's, except for the name. The direction is spelled as `WITHIN GROUP`.
    fn spelled_params(&self, params: &AggregateFunctionParams) -> AggregateFunctionParams {
        let mut params = params.clone();
        params.args = self.spelled(&params.args);
        if self.descending && params.order_by.is_empty() && params.args.len() > 1 {
            params.order_by = vec![params.args[0].clone().sort(false, true)];
        }
        params
    }

    /// The parameters of a window call in the user's spelling, as [`Self::spelled_params`]. A window has no
    /// `WITHIN GROUP`: the name says the direction.
    fn spelled_window(&self, params: &WindowFunctionParams) -> WindowFunctionParams {
        let mut params = params.clone();
        params.args = self.spelled(&params.args);
        params
    }

    /// DataFusion's spelling of a window call, with the SQL name and the direction in place of the registered name.
    fn renamed_window(&self, spelling: &str) -> String {
        if self.descending {
            let call = spelling.strip_prefix(self.name.as_str()).unwrap_or(spelling);
            return format!("{}_desc{call}", self.sql_name);
        }
        self.renamed(spelling)
    }
}

impl AggregateUDFImpl for ExactQuantiles {
    fn name(&self) -> &str {
        &self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        Ok(self.renamed(&udaf_default_schema_name(self, &self.spelled_params(params))?))
    }

    fn human_display(&self, params: &AggregateFunctionParams) -> Result<String> {
        Ok(self.renamed(&udaf_default_human_display(self, &self.spelled_params(params))?))
    }

    fn display_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        Ok(self.renamed(&udaf_default_display_name(self, &self.spelled_params(params))?))
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> Result<String> {
        let spelled = self.spelled_window(params);
        Ok(self.renamed_window(&udaf_default_window_function_schema_name(self, &spelled)?))
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> Result<String> {
        let spelled = self.spelled_window(params);
        Ok(self.renamed_window(&udaf_default_window_function_display_name(self, &spelled)?))
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        if let [_, _, method, ..] = arg_types
            && self.sql_name.takes_method()
            && method.is_string()
        {
            return plan_err!(
                "{}: the last argument is text, which is no weight (weights are integers or decimals), and no method, unless it is a \
                 constant, and the extension is registered with datafusion_quantiles::register_all",
                self.sql_name
            );
        }
        let Arguments { x, quantiles, weight } = self.arguments(arg_types)?;
        // Types without an order, and those of no weights, are refused by `return_type`, whose error reaches the user as it is.
        let mut types = vec![self.values_type(x)];
        types.extend(quantiles.cloned());
        types.extend(weight.map(|weight| match self.weight_type(weight) {
            Ok(counted) => counted,
            Err(_) => weight.clone(),
        }));
        Ok(types)
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let Arguments { x, quantiles, weight } = self.arguments(arg_types)?;
        weight.map(|weight| self.weight_type(weight)).transpose()?;
        let is_list = match (&self.bound, quantiles) {
            (_, Some(quantiles)) => is_list(quantiles),
            (bound, None) => bound.as_ref().is_some_and(|bound| bound.is_list),
        };
        let one = self.method.result_type(&self.values_type(x))?;
        Ok(answer_type(one, is_list))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let Arguments { x, weight, .. } = self.arguments(args.input_fields)?;
        // Offsets of 64 bits: one group may hold more values than 32 bits count.
        let field = |name, items: &DataType| {
            Arc::new(Field::new(
                format_state_name(args.name, name),
                state_type(items),
                true,
            ))
        };
        let values = field("values", &ordered_type(x.data_type()));
        let weights = weight.map(|_| field("weights", &DataType::UInt64));
        Ok([values].into_iter().chain(weights).collect())
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let column = self.column(&args)?;
        Ok(PeakSize::of(accumulator(column, self.is_weighted(args.exprs))))
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(groups_accumulator(
            self.column(&args)?,
            self.is_weighted(args.exprs),
        ))
    }

    fn supports_null_handling_clause(&self) -> bool {
        true
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }
}
