//! The functions that rank a value, as aggregate functions: types, names, accumulators.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{DataFusionError, Result, ScalarValue, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, Signature, Volatility,
};

use super::accumulator::{RankAccumulator, RankGroups};
use super::cut::{Cut, Cuts, are_several};
use super::distinct::{DistinctAccumulator, DistinctGroups};
use super::name::RankName;
use super::spec::{Direction, RankSpec, result_type};
use crate::functions::call::evaluated;
use crate::functions::types::ordered_type;
use crate::key::Order;
use crate::quantile::state_type;

/// A function that ranks a value among those of a column, in one direction.
///
/// Arguments: values of any type that can be ordered, and a constant or list of constants that are compared with them.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct RankFunction {
    name: String,
    pub(super) sql_name: RankName,
    pub(super) direction: Direction,
    /// The constants' places in the order, where they are bound into the function; `None`: they are the second argument.
    pub(super) bound: Option<Cuts>,
    signature: Signature,
}

impl RankFunction {
    /// The function with the name `sql_name` that counts in one direction.
    pub(super) fn new(sql_name: RankName, direction: Direction) -> Self {
        let mut name = sql_name.as_str().to_owned();
        if direction.descending {
            name += "_desc";
        }
        if direction != Direction::of(direction.descending) {
            name += if direction.nulls_first {
                "_nulls_first"
            } else {
                "_nulls_last"
            };
        }
        Self {
            name,
            sql_name,
            direction,
            bound: None,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }

    /// The `RankFunction` behind an aggregate function, if it is one.
    pub(crate) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    /// The name that users write in SQL.
    pub(crate) fn sql_name(&self) -> RankName {
        self.sql_name
    }

    /// Whether the constants are bound into the function.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The function of one argument of type `x` with its constants bound into it.
    ///
    /// # Errors
    /// A planning error for constants that are not compared with values of type `x`.
    pub(crate) fn bound_to(&self, x: &DataType, constants: &ScalarValue) -> Result<Self> {
        Ok(self.with_cuts(self.cuts(x, constants)?))
    }

    /// The function of one argument with these cuts.
    pub(super) fn with_cuts(&self, cuts: Cuts) -> Self {
        Self {
            bound: Some(cuts),
            ..Self::new(self.sql_name, self.direction)
        }
    }

    /// The places of constants in the order of values of type `x`.
    fn cuts(&self, x: &DataType, constants: &ScalarValue) -> Result<Cuts> {
        // What is counted comes before the constant or, where equal values count too, up to it. From the greatest value on, these are all
        // values but those before the other side of the constant.
        let behind = self.sql_name.counts_equal() != self.direction.descending;
        Cuts::try_new(&ordered_type(x), constants, behind).map_err(|error| match error {
            DataFusionError::Plan(message) => DataFusionError::Plan(format!("{}: {message}", self.sql_name)),
            other => other,
        })
    }

    /// What a call asks of its column.
    fn spec(&self, args: &AccumulatorArgs) -> Result<RankSpec> {
        let x = args.expr_fields.first().map(|field| field.data_type());
        let (x, cuts) = match (x, &self.bound, args.exprs) {
            (Some(x), Some(bound), [_]) => (x, bound.clone()),
            (Some(x), None, [_, constants]) => match evaluated(constants)? {
                Some(constants) => (x, self.cuts(x, &constants)?),
                None => return plan_err!("{}", not_constant(self.sql_name, constants)),
            },
            _ => return plan_err!("{}", self.sql_name.wrong_arguments(args.exprs.len())),
        };
        if args.is_distinct && self.sql_name.is_hypothetical() {
            return plan_err!("{}", no_distinct(self.sql_name));
        }
        RankSpec::try_new(self.sql_name, self.direction, x, cuts)
    }

    /// The answer for one constant over no rows.
    fn without_rows(&self, cut: Option<&Cut>) -> ScalarValue {
        match self.sql_name {
            RankName::ExactRank => ScalarValue::UInt64(cut.map(|_| 0)),
            RankName::Rank | RankName::DenseRank => ScalarValue::UInt64(Some(1)),
            RankName::ExactCdf => ScalarValue::Float64(None),
            RankName::PercentRank => ScalarValue::Float64(Some(0.0)),
            RankName::CumeDist => ScalarValue::Float64(Some(1.0)),
        }
    }

    /// Whether a call holds the distinct values.
    fn holds_values(&self, is_distinct: bool) -> bool {
        is_distinct || self.sql_name == RankName::DenseRank
    }
}

/// The message for a second argument that is no constant.
pub(super) fn not_constant(sql_name: RankName, shown: &dyn std::fmt::Display) -> String {
    format!("{sql_name}: the ranked value must be a constant or a list of constants, got {shown}")
}

/// The message for `DISTINCT` in a hypothetical-set function.
pub(super) fn no_distinct(sql_name: RankName) -> String {
    format!("{sql_name} takes no DISTINCT: dense_rank counts equal rows once")
}

impl AggregateUDFImpl for RankFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        match (arg_types, &self.bound) {
            ([x], Some(_)) => Ok(vec![ordered_type(x)]),
            ([x, constants], None) => Ok(vec![ordered_type(x), constants.clone()]),
            _ => plan_err!("{}", self.sql_name.wrong_arguments(arg_types.len())),
        }
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let (x, is_list) = match (arg_types, &self.bound) {
            ([x], Some(bound)) => (ordered_type(x), bound.is_list),
            ([x, constants], None) => (ordered_type(x), are_several(&ordered_type(x), constants)),
            _ => return plan_err!("{}", self.sql_name.wrong_arguments(arg_types.len())),
        };
        Order::try_new(&x)?;
        Ok(result_type(self.sql_name, is_list))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let Some(x) = args.input_fields.first() else {
            return plan_err!("{}", self.sql_name.wrong_arguments(0));
        };
        let field =
            |name, data_type| Arc::new(Field::new(format_state_name(args.name, name), data_type, true));
        if self.holds_values(args.is_distinct) {
            let values = state_type(&ordered_type(x.data_type()));
            return Ok(vec![field("values", values), field("nulls", DataType::UInt64)]);
        }
        Ok(vec![field("counts", state_type(&DataType::UInt64))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let spec = self.spec(&args)?;
        Ok(if self.holds_values(args.is_distinct) {
            Box::new(DistinctAccumulator::new(spec))
        } else {
            Box::new(RankAccumulator::new(spec))
        })
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let spec = self.spec(&args)?;
        Ok(if self.holds_values(args.is_distinct) {
            Box::new(DistinctGroups::new(spec))
        } else {
            Box::new(RankGroups::new(spec))
        })
    }

    /// The answer over no rows, which DataFusion puts in place of a correlated subquery or a window frame without rows. It
    /// does not say for which constant: where none is bound into the function, the answer is that of a constant that is not NULL.
    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        if self.sql_name == RankName::ExactCdf {
            return ScalarValue::try_from(data_type);
        }
        let is_list = matches!(data_type, DataType::List(_));
        match &self.bound {
            Some(cuts) => {
                let items = cuts.list.iter().map(|cut| self.without_rows(cut.as_ref()));
                let items: Vec<ScalarValue> = items.collect();
                match items.as_slice() {
                    [one] if !is_list => Ok(one.clone()),
                    _ => {
                        let item = self.without_rows(None).data_type();
                        Ok(ScalarValue::List(ScalarValue::new_list(&items, &item, true)))
                    }
                }
            }
            None if is_list => not_impl_err!(
                "{} of a list of constants over no rows, without this crate's planner: ask for each constant on its own",
                self.sql_name
            ),
            None => Ok(self.without_rows(Some(&Cut::End))),
        }
    }

    fn supports_null_handling_clause(&self) -> bool {
        !self.sql_name.is_hypothetical()
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }
}

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let directions = |sql_name: RankName| {
        let all = [(false, false), (false, true), (true, true), (true, false)];
        let all = all.map(|(descending, nulls_first)| Direction {
            descending,
            nulls_first,
        });
        let counts = |direction: &Direction| {
            sql_name.is_hypothetical() || *direction == Direction::of(direction.descending)
        };
        all.into_iter().filter(counts).collect::<Vec<_>>()
    };
    RankName::ALL
        .into_iter()
        .flat_map(|sql_name| {
            directions(sql_name)
                .into_iter()
                .map(move |one| RankFunction::new(sql_name, one))
        })
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

/// Every function that ranks a value, to register.
pub(crate) fn rank_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}

/// The registered function of one name and one direction. Functions that skip NULLs do not ask where they come.
pub(crate) fn ranking(sql_name: RankName, direction: Direction) -> Arc<AggregateUDF> {
    let direction = if sql_name.is_hypothetical() {
        direction
    } else {
        Direction::of(direction.descending)
    };
    let same = |function: &&Arc<AggregateUDF>| {
        RankFunction::of(function)
            .is_some_and(|other| other.sql_name == sql_name && other.direction == direction)
    };
    let found = AGGREGATES.iter().find(same);
    Arc::clone(found.expect("there is one for each name and each direction"))
}
