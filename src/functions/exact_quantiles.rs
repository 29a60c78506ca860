//! `exact_quantiles`, under each of its names, as an aggregate function: its types, its names, its accumulators.

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
use super::call::evaluated_quantiles;
use super::groups::groups_accumulator;
use crate::quantile::{Method, QuantileSpec, Quantiles, Selected, state_type};

/// Exact quantiles of a column under one name, by one method, counted from one end.
///
/// Arguments: values of any type that can be ordered (NULLs are skipped), and a constant number or list of numbers in
/// [0, 1]. One number gives one value, a list gives a list in the same order.
///
/// As an aggregate inside a grouped query it buffers the key of each value of fixed width, and the bytes of others;
/// ungrouped calls run as
/// [`QuantilesExec`](crate::exec::QuantilesExec) instead where the session's planner is
/// [`QuantilesPlanner`](crate::planner::QuantilesPlanner).
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct ExactQuantiles {
    name: String,
    called: FunctionName,
    method: Method,
    descending: bool,
    /// Quantiles that are not an argument.
    bound: Option<Quantiles>,
    signature: Signature,
}

impl ExactQuantiles {
    /// The function that users call as `called`, for one of its methods ([`FunctionName::methods`]); `descending`
    /// counts from the greatest value.
    pub fn new(called: FunctionName, method: Method, descending: bool) -> Self {
        let parameters = ["x", "quantiles", "method"];
        let count = if called.takes_method() { 3 } else { 2 };
        let signature = Signature::user_defined(Volatility::Immutable)
            .with_parameter_names(parameters[..count].to_vec())
            .expect("a user-defined signature takes any distinct names");
        Self {
            name: called.registered(method, descending),
            called,
            method,
            descending,
            bound: None,
            signature,
        }
    }

    /// This type behind a registered function, if it is one of ours.
    pub fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    /// The same function of one argument, for these quantiles.
    pub(crate) fn bound_to(&self, quantiles: Quantiles) -> Self {
        Self {
            bound: Some(quantiles),
            ..Self::new(self.called, self.method, self.descending)
        }
    }

    /// Quantiles that are not an argument.
    #[cfg(feature = "ballista")]
    pub(super) fn bound(&self) -> Option<&Quantiles> {
        self.bound.as_ref()
    }

    /// The name that users write.
    pub fn called(&self) -> FunctionName {
        self.called
    }

    /// How a position between two values becomes an answer.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Whether quantiles count from the greatest value.
    pub fn is_descending(&self) -> bool {
        self.descending
    }

    /// The name that this method and direction have among functions.
    pub(super) fn registered_name(&self) -> &str {
        &self.name
    }

    /// What the function asks for these quantiles; `reversed`: from the other end.
    pub(super) fn quantile_spec(&self, quantiles: &Quantiles, reversed: bool) -> QuantileSpec {
        QuantileSpec {
            quantiles: quantiles.list.clone(),
            method: self.method,
            descending: self.descending != reversed,
        }
    }

    fn column(&self, args: &AccumulatorArgs) -> Result<Selected> {
        let quantiles = match (&self.bound, args.exprs) {
            (Some(bound), [_]) => bound.clone(),
            (None, [_, quantiles]) => evaluated_quantiles(self.called, quantiles)?,
            _ => return plan_err!("{}", self.called.wrong_arguments(args.exprs.len())),
        };
        // An ordering is left only where no `QuantilesExprPlanner` has turned it into the function's name.
        let reversed = args
            .order_bys
            .first()
            .is_some_and(|order| order.options.descending);
        Selected::try_new(
            args.expr_fields[0].data_type(),
            self.quantile_spec(&quantiles, reversed),
            quantiles.is_list,
            args.is_distinct,
        )
    }

    /// Arguments as a user writes them, which say what the hidden name says.
    fn spelled(&self, args: &[Expr]) -> Vec<Expr> {
        let mut args = args.to_vec();
        if self.called == FunctionName::Median {
            args.truncate(1);
        }
        if self.method != self.called.methods()[0] {
            args.push(lit(self.method.to_string()));
        }
        args
    }

    /// `name(rest)` of a default spelling under the user's name, the direction before other clauses.
    fn renamed(&self, spelling: &str) -> String {
        let call = spelling.strip_prefix(self.name.as_str()).unwrap_or(spelling);
        format!("{}{call}", self.called)
    }

    /// Parameters whose default spelling is the user's, except for the name.
    fn spelled_params(&self, params: &AggregateFunctionParams) -> AggregateFunctionParams {
        let mut params = params.clone();
        params.args = self.spelled(&params.args);
        if self.descending && params.order_by.is_empty() && params.args.len() > 1 {
            params.order_by = vec![params.args[0].clone().sort(false, true)];
        }
        params
    }

    /// As [`Self::spelled_params`]; a window has no `WITHIN GROUP`, so the name says the direction.
    fn spelled_window(&self, params: &WindowFunctionParams) -> WindowFunctionParams {
        let mut params = params.clone();
        params.args = self.spelled(&params.args);
        params
    }

    fn renamed_window(&self, spelling: &str) -> String {
        if self.descending {
            let call = spelling.strip_prefix(self.name.as_str()).unwrap_or(spelling);
            return format!("{}_desc{call}", self.called);
        }
        self.renamed(spelling)
    }
}

/// The type in which values are ordered: a dictionary counts as its values, also inside lists and structs, and NULLs
/// without a type as Float64.
pub(crate) fn ordered_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Null => DataType::Float64,
        other => without_dictionaries(other),
    }
}

fn without_dictionaries(data_type: &DataType) -> DataType {
    use DataType::*;
    let field = |field: &FieldRef| {
        let plain = without_dictionaries(field.data_type());
        match plain == *field.data_type() {
            true => Arc::clone(field),
            false => Arc::new(field.as_ref().clone().with_data_type(plain)),
        }
    };
    match data_type {
        Dictionary(_, values) => without_dictionaries(values),
        List(item) => List(field(item)),
        LargeList(item) => LargeList(field(item)),
        FixedSizeList(item, size) => FixedSizeList(field(item), *size),
        Struct(fields) => Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

fn is_list(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List};
    matches!(data_type, List(_) | LargeList(_) | FixedSizeList(..))
}

impl AggregateUDFImpl for ExactQuantiles {
    fn name(&self) -> &str {
        &self.name
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
        match arg_types {
            [x] if self.bound.is_some() => Ok(vec![ordered_type(x)]),
            [x, quantiles] => {
                // Types without an order are refused by `return_type`, whose error reaches the user as it is.
                Ok(vec![ordered_type(x), quantiles.clone()])
            }
            [_, _, _] if self.called.takes_method() => plan_err!(
                "{} with a method needs its expression planner: register the extension with \
                 datafusion_quantiles::register_all",
                self.called
            ),
            _ => plan_err!("{}", self.called.wrong_arguments(arg_types.len())),
        }
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let (x, is_list) = match (&self.bound, arg_types) {
            (Some(bound), [x]) => (x, bound.is_list),
            (None, [x, quantiles]) => (x, is_list(quantiles)),
            _ => return plan_err!("{}", self.called.wrong_arguments(arg_types.len())),
        };
        let one = self.method.result_type(&ordered_type(x))?;
        Ok(match is_list {
            true => DataType::new_list(one, true),
            false => one,
        })
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let Some(x) = args.input_fields.first() else {
            return plan_err!("{}", self.called.wrong_arguments(0));
        };
        let x = ordered_type(x.data_type());
        // Offsets of 64 bits: one group may hold more values than 32 bits count.
        Ok(vec![Arc::new(Field::new(
            format_state_name(args.name, "values"),
            state_type(&x),
            true,
        ))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(accumulator(self.column(&args)?))
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(groups_accumulator(self.column(&args)?))
    }

    fn supports_null_handling_clause(&self) -> bool {
        true
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }
}
