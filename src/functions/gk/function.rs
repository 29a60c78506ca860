//! The approximate aggregate functions: types, names, accumulators.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, GroupsAccumulator, Signature, Volatility,
};

use super::accumulator::GkAccumulator;
use super::column::{GkColumn, bounds_type};
use super::constants::{Constants, Precision, Sampled};
use super::groups::GkGroupsAccumulator;
use super::merge::MergeAccumulator;
use super::name::GkName;
use super::stored::{VALUES, binary};
use crate::functions::accumulator as exact;
use crate::functions::call::is_reversed;
use crate::functions::groups::groups_accumulator;
use crate::functions::peak::PeakSize;
use crate::functions::types::{answer_type, is_list, ordered_type};
use crate::key::{KeySpec, Order};
use crate::quantile::{AnswerSpec, Method, QuantileSpec, Quantiles, state_type};

/// An approximate aggregate function, counted from one end.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct GkFunction {
    name: String,
    pub(super) sql_name: GkName,
    pub(super) descending: bool,
    /// The constants, where they are bound into the function; `None`: they are arguments.
    pub(super) bound: Option<Constants>,
    signature: Signature,
}

/// How the accumulators of a call answer it.
enum AccumulatorKind {
    /// By sketches.
    Sketch(GkColumn),
    /// Exactly: over distinct values, and over values without keys of fixed width.
    Exact(AnswerSpec),
}

impl GkFunction {
    pub(super) fn new(sql_name: GkName, descending: bool) -> Self {
        let suffix = if descending { "_desc" } else { "" };
        Self {
            name: format!("{sql_name}{suffix}"),
            sql_name,
            descending,
            bound: None,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }

    /// The `GkFunction` behind an aggregate function, if it is one.
    pub(crate) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    /// The name that users write in SQL.
    pub(crate) fn sql_name(&self) -> GkName {
        self.sql_name
    }

    /// Whether quantiles count from the greatest value.
    pub(crate) fn is_descending(&self) -> bool {
        self.descending
    }

    /// Whether the constants are bound into the function.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The registered function of the same name that counts from the given end.
    pub(crate) fn counting_from(&self, descending: bool) -> Arc<AggregateUDF> {
        let same = |function: &&Arc<AggregateUDF>| {
            GkFunction::of(function).is_some_and(|other| {
                other.sql_name == self.sql_name
                    && other.descending == (descending && self.sql_name.takes_quantiles())
            })
        };
        let found = AGGREGATES.iter().find(same);
        Arc::clone(found.expect("there is one for each name and each end"))
    }

    /// The function of one argument with the constants of a logical call bound into it; `None` if they are not known yet.
    ///
    /// # Errors
    /// A planning error that names a bad value.
    pub(crate) fn bound_to(&self, args: &[Expr]) -> Result<Option<Self>> {
        let constants = Constants::of_call(self.sql_name, args)?;
        Ok(constants.map(|constants| Self {
            bound: Some(constants),
            ..Self::new(self.sql_name, self.descending)
        }))
    }

    /// The quantiles of a bound call that is answered from a sample, and how; `None` for other calls.
    pub(crate) fn sampled(&self) -> Option<(&Quantiles, Sampled)> {
        match &self.bound {
            Some(Constants {
                quantiles,
                precision: Precision::Buckets(buckets),
            }) => Some((
                quantiles,
                Sampled {
                    buckets: *buckets,
                    bounds: !self.sql_name.answers_values(),
                },
            )),
            _ => None,
        }
    }

    /// Checks the number of arguments: one for a bound function.
    fn check_count(&self, count: usize) -> Result<()> {
        match (&self.bound, count) {
            (Some(_), 1) => Ok(()),
            _ => self.sql_name.check_count(count),
        }
    }

    /// How the accumulators of a call answer it.
    ///
    /// # Errors
    /// A planning error for bad constants, and for a call that no accumulator can answer.
    fn accumulator_kind(&self, args: &AccumulatorArgs) -> Result<AccumulatorKind> {
        self.check_count(args.exprs.len())?;
        let Constants { quantiles, precision } = match &self.bound {
            Some(bound) => bound.clone(),
            None => Constants::evaluated(self.sql_name, args.exprs)?,
        };
        let quantile_spec = QuantileSpec {
            quantiles: quantiles.list,
            method: Method::Disc,
            descending: self.descending != is_reversed(args),
        };
        let data_type = args.expr_fields[0].data_type();
        let selected = AnswerSpec::try_new(data_type, quantile_spec, quantiles.is_list, args.is_distinct)?;
        let sketched = match precision {
            Precision::Accuracy(eps) if !args.is_distinct => Some(eps),
            _ => None,
        };
        match (selected, sketched) {
            (AnswerSpec::Keys(column), Some(eps)) => Ok(AccumulatorKind::Sketch(GkColumn::new(
                column,
                eps,
                self.sql_name.output(),
            ))),
            (selected, _) if self.sql_name.answers_values() => Ok(AccumulatorKind::Exact(selected)),
            (AnswerSpec::Bytes(_), _) => plan_err!("{}", no_keys(self.sql_name, data_type)),
            _ if args.is_distinct => plan_err!("{} takes no DISTINCT", self.sql_name),
            _ => plan_err!(
                "{} works without GROUP BY and OVER only, beside aggregates that need no sorted rows, with this crate's planner",
                self.sql_name
            ),
        }
    }
}

/// The message for values without keys of fixed width.
fn no_keys(sql_name: GkName, data_type: &DataType) -> String {
    format!(
        "{sql_name} takes values of fixed width: numbers, decimals of up to 128 bits, Booleans, dates, times, got {data_type}"
    )
}

impl AggregateUDFImpl for GkFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.check_count(arg_types.len())?;
        let mut types = arg_types.to_vec();
        types[0] = match self.sql_name {
            GkName::GkMerge => binary(&self.sql_name, &arg_types[0])?,
            _ => ordered_type(&arg_types[0]),
        };
        Ok(types)
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.check_count(arg_types.len())?;
        if !self.sql_name.takes_quantiles() {
            if self.sql_name == GkName::GkSketch && !KeySpec::supports(&ordered_type(&arg_types[0])) {
                return plan_err!("{}", no_keys(self.sql_name, &arg_types[0]));
            }
            return Ok(DataType::Binary);
        }
        let x = ordered_type(&arg_types[0]);
        Order::try_new(&x)?;
        let one = match self.sql_name.answers_values() {
            true => x,
            false if KeySpec::supports(&x) => bounds_type(x),
            false => return plan_err!("{}", no_keys(self.sql_name, &x)),
        };
        let is_list = match &self.bound {
            Some(bound) => bound.quantiles.is_list,
            None => is_list(&arg_types[1]),
        };
        Ok(answer_type(one, is_list))
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        let types: Vec<DataType> = arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let field = Field::new(self.name(), self.return_type(&types)?, true);
        let values = match self.sql_name {
            GkName::GkSketch => Some(ordered_type(&types[0]).to_string()),
            GkName::GkMerge => arg_fields[0].metadata().get(VALUES).cloned(),
            _ => None,
        };
        Ok(Arc::new(match values {
            Some(values) => field.with_metadata([(VALUES.to_owned(), values)].into()),
            None => field,
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.check_count(args.input_fields.len())?;
        let x = ordered_type(args.input_fields[0].data_type());
        let is_exact = self.sql_name.answers_values()
            && (args.is_distinct || self.sql_name.samples() || !KeySpec::supports(&x));
        let (name, data_type) = if is_exact {
            ("values", state_type(&x))
        } else {
            ("sketch", DataType::Binary)
        };
        Ok(vec![Arc::new(Field::new(
            format_state_name(args.name, name),
            data_type,
            true,
        ))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if self.sql_name == GkName::GkMerge {
            return Ok(PeakSize::of(Box::new(MergeAccumulator::default())));
        }
        Ok(match self.accumulator_kind(&args)? {
            AccumulatorKind::Sketch(column) => PeakSize::of(Box::new(GkAccumulator::new(column))),
            AccumulatorKind::Exact(selected) => exact::accumulator(selected, false),
        })
    }

    /// Values that leave a frame cannot be taken out of a sketch. So all values of the frame are kept, and answers are exact.
    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if !self.sql_name.answers_values() {
            return plan_err!(
                "{} works over frames that grow only, not over those that move",
                self.sql_name
            );
        }
        Ok(match self.accumulator_kind(&args)? {
            AccumulatorKind::Sketch(column) => {
                exact::accumulator(AnswerSpec::Keys(column.into_answer_spec()), false)
            }
            AccumulatorKind::Exact(selected) => exact::accumulator(selected, false),
        })
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        self.sql_name != GkName::GkMerge
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(match self.accumulator_kind(&args)? {
            AccumulatorKind::Sketch(column) => Box::new(GkGroupsAccumulator::new(column)),
            AccumulatorKind::Exact(selected) => groups_accumulator(selected, false),
        })
    }

    fn supports_null_handling_clause(&self) -> bool {
        true
    }

    fn supports_within_group_clause(&self) -> bool {
        self.sql_name.takes_quantiles()
    }
}

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let ends = |sql_name: GkName| {
        if sql_name.takes_quantiles() {
            vec![false, true]
        } else {
            vec![false]
        }
    };
    GkName::ALL
        .into_iter()
        .flat_map(|sql_name| {
            ends(sql_name)
                .into_iter()
                .map(move |end| GkFunction::new(sql_name, end))
        })
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

/// Every approximate aggregate function, to register.
pub(crate) fn gk_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}
