//! `topk_by`, `max_by` and `min_by` as aggregate functions: types, names, accumulators.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, Signature, Volatility,
};

use super::TopKName;
use super::accumulator::TopKAccumulator;
use super::call::{constant_k, evaluated_k};
use super::column::{Call, TopKColumn, check_types};
use super::groups::TopKGroupsAccumulator;
use super::sliding::SlidingTopKAccumulator;
use crate::functions::peak::PeakSize;
use crate::functions::types::{answer_type, ordered_type};
use crate::key::{Width, with_key};
use crate::quantile::state_type;

/// The aggregate function of the best values by another column. Its arguments are values of any type, keys of any type with an order, and a
/// constant number of rows from 1 on.
///
/// Its accumulator holds at most about twice `k` rows of each group, and 65536 rows besides. Grouped calls that stand alone run as
/// [`GroupedTopKExec`](crate::exec::GroupedTopKExec) where the session's planner is
/// [`QuantilesPlanner`](crate::planner::QuantilesPlanner).
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct TopKBy {
    pub(super) name: String,
    pub(super) sql_name: TopKName,
    pub(super) ascending: bool,
    /// The number of rows, where it is bound into the function. The inner `None`: the answer is one value.
    pub(super) bound: Option<Option<usize>>,
    signature: Signature,
}

impl TopKBy {
    /// The function with the name `sql_name`. `ascending`: the least keys of `topk_by` are the best; `max_by` and `min_by` ignore it.
    pub(crate) fn new(sql_name: TopKName, ascending: bool) -> Self {
        let ascending = match sql_name {
            TopKName::Topk => ascending,
            TopKName::Max | TopKName::ArgMax => false,
            TopKName::Min | TopKName::ArgMin => true,
        };
        let mut name = sql_name.as_str().to_owned();
        if sql_name == TopKName::Topk && ascending {
            name += "_asc";
        }
        Self {
            name,
            sql_name,
            ascending,
            bound: None,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }

    /// The `TopKBy` behind an aggregate function, if it is one.
    pub(crate) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    /// The name that users write in SQL.
    pub(crate) fn sql_name(&self) -> TopKName {
        self.sql_name
    }

    /// Whether the least keys are the best.
    pub(crate) fn is_ascending(&self) -> bool {
        self.ascending
    }

    /// The function of two arguments, values and keys, with the number of rows bound into it; `None`: the answer is one value.
    pub(crate) fn bound_to(&self, k: Option<usize>) -> Self {
        Self {
            bound: Some(k),
            ..Self::new(self.sql_name, self.ascending)
        }
    }

    /// Whether the number of rows is bound into the function.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The number of rows that a call with these logical arguments asks for; `None`: the answer is one value.
    ///
    /// # Errors
    /// A planning error that names the number if it is not a constant integer from 1 on.
    pub(crate) fn k_of(&self, args: &[datafusion::logical_expr::Expr]) -> Result<Option<usize>> {
        match (&self.bound, args) {
            (Some(bound), _) => Ok(*bound),
            (None, [_, _]) if self.sql_name.answers_one() => Ok(None),
            (None, [_, _, k]) => constant_k(self.sql_name, k).map(Some),
            _ => plan_err!("{}", self.sql_name.wrong_arguments(args.len())),
        }
    }

    /// The columns that an accumulator of a call keeps, with the call's question.
    fn column(&self, args: &AccumulatorArgs) -> Result<TopKColumn> {
        let k = match (&self.bound, args.exprs) {
            (Some(bound), [_, _]) => *bound,
            (None, [_, _]) if self.sql_name.answers_one() => None,
            (None, [_, _, k]) => Some(evaluated_k(self.sql_name, k)?),
            _ => return plan_err!("{}", self.sql_name.wrong_arguments(args.exprs.len())),
        };
        let call = Call {
            sql_name: self.sql_name,
            ascending: self.ascending,
            k,
        };
        TopKColumn::try_new(
            call,
            args.expr_fields[0].data_type(),
            args.expr_fields[1].data_type(),
            args.is_distinct,
        )
    }
}

impl AggregateUDFImpl for TopKBy {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        match (arg_types, self.sql_name, self.is_bound()) {
            ([value, key], _, true) => Ok(vec![ordered_type(value), ordered_type(key)]),
            ([value, key], name, false) if name.answers_one() => {
                Ok(vec![ordered_type(value), ordered_type(key)])
            }
            ([value, key, k], _, false) => Ok(vec![ordered_type(value), ordered_type(key), k.clone()]),
            ([_, _, _, _], TopKName::Topk, false) => plan_err!(
                "{} with a direction needs its expression planner: register the extension with \
                 datafusion_quantiles::register_all",
                self.sql_name
            ),
            _ => plan_err!("{}", self.sql_name.wrong_arguments(arg_types.len())),
        }
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [value, key, rest @ ..] = arg_types else {
            return plan_err!("{}", self.sql_name.wrong_arguments(arg_types.len()));
        };
        check_types(self.sql_name, value, key)?;
        let is_list = self.bound.map_or(!rest.is_empty(), |k| k.is_some());
        Ok(answer_type(ordered_type(value), is_list))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let [_, _, ..] = args.input_fields else {
            return plan_err!("{}", self.sql_name.wrong_arguments(args.input_fields.len()));
        };
        let field = |index: usize, name: &str| {
            let data_type = ordered_type(args.input_fields[index].data_type());
            let name = format_state_name(args.name, name);
            Arc::new(Field::new(name, state_type(&data_type), true))
        };
        Ok(vec![field(0, "values"), field(1, "keys")])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let column = self.column(&args)?;
        Ok(PeakSize::of(
            with_key!(column.width(), K => Box::new(TopKAccumulator::<K>::new(column))),
        ))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(SlidingTopKAccumulator::try_new(self.column(&args)?)?))
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let column = self.column(&args)?;
        Ok(with_key!(column.width(), K => Box::new(TopKGroupsAccumulator::<K>::new(column))))
    }
}

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let all = [
        (TopKName::Topk, false),
        (TopKName::Topk, true),
        (TopKName::Max, false),
        (TopKName::Min, true),
        (TopKName::ArgMax, false),
        (TopKName::ArgMin, true),
    ];
    let function = |(sql_name, ascending)| Arc::new(AggregateUDF::from(TopKBy::new(sql_name, ascending)));
    all.into_iter().map(function).collect()
});

/// The registered function of a name and a direction, which only `topk_by` can choose.
pub(crate) fn topk_aggregate(sql_name: TopKName, ascending: bool) -> Arc<AggregateUDF> {
    let name = TopKBy::new(sql_name, ascending).name;
    let found = AGGREGATES.iter().find(|function| function.name() == name);
    Arc::clone(found.expect("there is one for each name and its directions"))
}

/// Every aggregate function of the best rows, to register.
pub(crate) fn topk_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}
