//! The functions of the values of a column in order, as aggregate functions: types, names, accumulators.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, Signature, Volatility,
};

use super::asked::{Asked, Question, ShapeAccumulator, ShapeGroups};
use super::call::{Constants, check_distinct, evaluated_constants};
use super::deviation::Deviation;
use super::distinct::DistinctCount;
use super::fences::{TukeyFences, fences_fields};
use super::frequency::{Frequency, counted_fields};
use super::histogram::{EquiDepth, EquiWidth, bin_fields, edge_type};
use super::mean::RobustMean;
use super::name::ShapeName;
use super::number::number_type;
use crate::functions::collected::InOrder;
use crate::functions::peak::PeakSize;
use crate::functions::types::ordered_type;
use crate::kernel::byte_strings::ByteStrings;
use crate::key::{KeySpec, Order, Width, with_key};
use crate::quantile::state_type;

/// A function of the values of a column in order. Its arguments are values of any type that can be ordered, and constants.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShapeFunction {
    sql_name: ShapeName,
    signature: Signature,
}

/// Makes an accumulator of a kind for any question over any values.
trait Accumulating {
    type Out;
    fn over<C: InOrder, A: Asked<C>>(question: Question<C, A>) -> Self::Out;
}

/// Makes accumulators of one group.
struct OneGroup;

impl Accumulating for OneGroup {
    type Out = Box<dyn Accumulator>;

    fn over<C: InOrder, A: Asked<C>>(question: Question<C, A>) -> Self::Out {
        Box::new(ShapeAccumulator::new(question))
    }
}

/// Makes accumulators of many groups.
struct ManyGroups;

impl Accumulating for ManyGroups {
    type Out = Box<dyn GroupsAccumulator>;

    fn over<C: InOrder, A: Asked<C>>(question: Question<C, A>) -> Self::Out {
        Box::new(ShapeGroups::new(question))
    }
}

/// An accumulator for a question about values of any type with an order.
fn about_any<M, A>(order: Order, asked: A, is_distinct: bool) -> M::Out
where
    M: Accumulating,
    A: Asked<Vec<u32>> + Asked<Vec<u64>> + Asked<Vec<u128>> + Asked<ByteStrings>,
{
    match order {
        Order::Keys(spec) => with_key!(spec.width(), K => M::over::<Vec<K>, A>(Question {
            spec,
            asked,
            is_distinct,
        })),
        Order::Bytes(spec) => M::over::<ByteStrings, A>(Question {
            spec,
            asked,
            is_distinct,
        }),
    }
}

/// An accumulator for a question about values of a type with keys of fixed width.
fn about_keys<M, A>(spec: KeySpec, asked: A, is_distinct: bool) -> M::Out
where
    M: Accumulating,
    A: Asked<Vec<u32>> + Asked<Vec<u64>> + Asked<Vec<u128>>,
{
    with_key!(spec.width(), K => M::over::<Vec<K>, A>(Question {
        spec,
        asked,
        is_distinct,
    }))
}

impl ShapeFunction {
    fn new(sql_name: ShapeName) -> Self {
        Self {
            sql_name,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }

    /// The `ShapeFunction` behind an aggregate function, if it is one.
    pub(crate) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    /// The name that users write in SQL.
    pub(crate) fn sql_name(&self) -> ShapeName {
        self.sql_name
    }

    /// The accumulator of a call.
    fn accumulator_for<M: Accumulating>(&self, args: &AccumulatorArgs) -> Result<M::Out> {
        check_distinct(self.sql_name, args.is_distinct)?;
        let constants = evaluated_constants(self.sql_name, args)?;
        let (x, is_distinct) = (args.expr_fields[0].data_type(), args.is_distinct);
        let order = Order::try_new(x)?;
        if let Some(frequency) = Frequency::of(self.sql_name, constants) {
            return Ok(about_any::<M, _>(order, frequency, is_distinct));
        }
        match (self.sql_name, constants) {
            (ShapeName::Histogram, Constants::Number(bins)) => {
                Ok(about_any::<M, _>(order, EquiDepth(bins), is_distinct))
            }
            (ShapeName::EquiWidth, Constants::Number(bins)) => {
                edge_type(x)?;
                let spec = KeySpec::try_new(x)?;
                let asked = EquiWidth::try_new(&spec, bins)?;
                Ok(about_keys::<M, _>(spec, asked, is_distinct))
            }
            (ShapeName::CountDistinct, _) => Ok(about_any::<M, _>(order, DistinctCount, true)),
            (ShapeName::Fences, _) => Ok(about_keys::<M, _>(KeySpec::try_new(x)?, TukeyFences, is_distinct)),
            (_, constants) => self.about_numbers::<M>(x, constants, is_distinct),
        }
    }

    /// The accumulator of a call with arithmetic, over values of type `x`.
    fn about_numbers<M: Accumulating>(
        &self,
        x: &DataType,
        constants: Constants,
        is_distinct: bool,
    ) -> Result<M::Out> {
        let result = KeySpec::try_new(&number_type(self.sql_name, x)?)?;
        let spec = KeySpec::try_new(x)?;
        match constants {
            Constants::Share(share) => {
                let is_winsorized = self.sql_name == ShapeName::WinsorizedMean;
                let asked = RobustMean::new(&spec, result, share, is_winsorized);
                Ok(about_keys::<M, _>(spec, asked, is_distinct))
            }
            Constants::None => {
                let asked = Deviation::try_new(&spec, &result)?;
                Ok(about_keys::<M, _>(spec, asked, is_distinct))
            }
            Constants::Number(_) => internal_err!("{} with a number", self.sql_name),
        }
    }
}

impl AggregateUDFImpl for ShapeFunction {
    fn name(&self) -> &str {
        self.sql_name.as_str()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        match arg_types {
            [x, constants @ ..] if arg_types.len() == self.sql_name.arguments() => {
                Ok([&[ordered_type(x)], constants].concat())
            }
            [_, _, _] if self.sql_name == ShapeName::Histogram => plan_err!(
                "{} with the kind of its bins needs its expression planner: register the extension with \
                 datafusion_quantiles::register_all",
                self.sql_name
            ),
            _ => plan_err!("{}", self.sql_name.wrong_arguments(arg_types.len())),
        }
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let Some(x) = arg_types.first().map(ordered_type) else {
            return plan_err!("{}", self.sql_name.wrong_arguments(0));
        };
        Order::try_new(&x)?;
        let list_of = |fields| DataType::new_list(DataType::Struct(fields), true);
        Ok(match self.sql_name {
            ShapeName::Mode => x,
            ShapeName::ApproxTopK => DataType::new_list(x, true),
            ShapeName::TopValues => list_of(counted_fields(&x)),
            ShapeName::Histogram => list_of(bin_fields(&x)),
            ShapeName::EquiWidth => list_of(bin_fields(&edge_type(&x)?)),
            ShapeName::CountDistinct => DataType::Int64,
            ShapeName::Fences => DataType::Struct(fences_fields(&x)),
            name @ (ShapeName::Mad | ShapeName::TrimmedMean | ShapeName::WinsorizedMean) => {
                number_type(name, &x)?
            }
        })
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        match self.sql_name {
            ShapeName::CountDistinct => Ok(ScalarValue::Int64(Some(0))),
            _ => ScalarValue::try_new_null(data_type),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let Some(x) = args.input_fields.first() else {
            return plan_err!("{}", self.sql_name.wrong_arguments(0));
        };
        let field =
            |name, data_type| Arc::new(Field::new(format_state_name(args.name, name), data_type, true));
        Ok(vec![
            field("values", state_type(&ordered_type(x.data_type()))),
            field("counts", state_type(&DataType::UInt64)),
        ])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.accumulator_for::<OneGroup>(&args).map(PeakSize::of)
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.accumulator_for::<ManyGroups>(&args)
    }

    fn supports_null_handling_clause(&self) -> bool {
        true
    }

    fn supports_within_group_clause(&self) -> bool {
        self.sql_name == ShapeName::Mode
    }
}

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let functions = ShapeName::ALL.into_iter().map(ShapeFunction::new);
    functions
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

/// Every function of the values of a column in order, to register.
pub(crate) fn shape_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}

/// The function of a name; the registered one if SQL has it.
pub(crate) fn shape(sql_name: ShapeName) -> Arc<AggregateUDF> {
    let found = AGGREGATES
        .iter()
        .find(|function| function.name() == sql_name.as_str());
    match found {
        Some(function) => Arc::clone(function),
        None => Arc::new(AggregateUDF::from(ShapeFunction::new(sql_name))),
    }
}
