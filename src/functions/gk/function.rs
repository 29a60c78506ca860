//! The approximate aggregate functions: their types, their names, their accumulators.

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
use crate::functions::exact_quantiles::ordered_type;
use crate::functions::groups::groups_accumulator;
use crate::key::{KeySpec, Order};
use crate::quantile::{Method, QuantileSpec, Quantiles, Selected, state_type};

/// An approximate aggregate function, counted from one end.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct GkFunction {
    name: String,
    pub(super) called: GkName,
    pub(super) descending: bool,
    /// Constants that are not arguments.
    pub(super) bound: Option<Constants>,
    signature: Signature,
}

/// How a call is answered where it runs as an accumulator.
enum Way {
    Sketch(GkColumn),
    /// Over distinct values, and values without keys.
    Exact(Selected),
}

impl GkFunction {
    pub(super) fn new(called: GkName, descending: bool) -> Self {
        let suffix = if descending { "_desc" } else { "" };
        Self {
            name: format!("{called}{suffix}"),
            called,
            descending,
            bound: None,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }

    /// This type behind a registered function, if it is one of ours.
    pub fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    /// The name that users write.
    pub fn called(&self) -> GkName {
        self.called
    }

    /// Whether quantiles count from the greatest value.
    pub fn is_descending(&self) -> bool {
        self.descending
    }

    /// Whether its constants are no arguments any more.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The same function counting from one end.
    pub(crate) fn counting_from(&self, descending: bool) -> Arc<AggregateUDF> {
        let same = |function: &&Arc<AggregateUDF>| {
            GkFunction::of(function).is_some_and(|other| {
                other.called == self.called
                    && other.descending == (descending && self.called.quantile_specs())
            })
        };
        let found = AGGREGATES.iter().find(same);
        Arc::clone(found.expect("there is one for each name and each end"))
    }

    /// The same function of one argument, with the constants of a logical call inside; `None` if they are not known yet.
    ///
    /// # Errors
    /// A planning error that names a bad value.
    pub(crate) fn bound_to(&self, args: &[Expr]) -> Result<Option<Self>> {
        let constants = Constants::of_call(self.called, args)?;
        Ok(constants.map(|constants| Self {
            bound: Some(constants),
            ..Self::new(self.called, self.descending)
        }))
    }

    /// The quantiles of a bound call that is answered from a sample, and its buckets.
    pub(crate) fn sampled(&self) -> Option<(&Quantiles, Sampled)> {
        match &self.bound {
            Some(Constants {
                quantiles,
                precision: Precision::Buckets(buckets),
            }) => Some((
                quantiles,
                Sampled {
                    buckets: *buckets,
                    bounds: !self.called.answers_values(),
                },
            )),
            _ => None,
        }
    }

    fn check_count(&self, count: usize) -> Result<()> {
        match (&self.bound, count) {
            (Some(_), 1) => Ok(()),
            _ => self.called.check_count(count),
        }
    }

    fn way(&self, args: &AccumulatorArgs) -> Result<Way> {
        self.check_count(args.exprs.len())?;
        let Constants { quantiles, precision } = match &self.bound {
            Some(bound) => bound.clone(),
            None => Constants::evaluated(self.called, args.exprs)?,
        };
        // An ordering is left only where no `QuantilesExprPlanner` has turned it into the function's name.
        let reversed = args
            .order_bys
            .first()
            .is_some_and(|order| order.options.descending);
        let quantile_spec = QuantileSpec {
            quantiles: quantiles.list,
            method: Method::Disc,
            descending: self.descending != reversed,
        };
        let data_type = args.expr_fields[0].data_type();
        let selected = Selected::try_new(data_type, quantile_spec, quantiles.is_list, args.is_distinct)?;
        let sketched = match precision {
            Precision::Accuracy(eps) if !args.is_distinct => Some(eps),
            _ => None,
        };
        match (selected, sketched) {
            (Selected::Keys(column), Some(eps)) => {
                Ok(Way::Sketch(GkColumn::new(column, eps, self.called.output())))
            }
            (selected, _) if self.called.answers_values() => Ok(Way::Exact(selected)),
            (Selected::Bytes(_), _) => plan_err!("{}", no_keys(self.called, data_type)),
            _ if args.is_distinct => plan_err!("{} takes no DISTINCT", self.called),
            _ => plan_err!(
                "{} works without GROUP BY and OVER only, beside aggregates that need no sorted rows, with this crate's planner",
                self.called
            ),
        }
    }
}

fn no_keys(called: GkName, data_type: &DataType) -> String {
    format!(
        "{called} takes values of fixed width: numbers, decimals of up to 128 bits, Booleans, dates, times, got {data_type}"
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
        types[0] = match self.called {
            GkName::GkMerge => binary(&self.called, &arg_types[0])?,
            _ => ordered_type(&arg_types[0]),
        };
        Ok(types)
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.check_count(arg_types.len())?;
        if !self.called.quantile_specs() {
            if self.called == GkName::GkSketch && !KeySpec::supports(&ordered_type(&arg_types[0])) {
                return plan_err!("{}", no_keys(self.called, &arg_types[0]));
            }
            return Ok(DataType::Binary);
        }
        let x = ordered_type(&arg_types[0]);
        Order::try_new(&x)?;
        let one = match self.called.answers_values() {
            true => x,
            false if KeySpec::supports(&x) => bounds_type(x),
            false => return plan_err!("{}", no_keys(self.called, &x)),
        };
        use DataType::{FixedSizeList, LargeList, List};
        let is_list = match &self.bound {
            Some(bound) => bound.quantiles.is_list,
            None => matches!(arg_types[1], List(_) | LargeList(_) | FixedSizeList(..)),
        };
        Ok(match is_list {
            true => DataType::new_list(one, true),
            false => one,
        })
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        let types: Vec<DataType> = arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let field = Field::new(self.name(), self.return_type(&types)?, true);
        let values = match self.called {
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
        let is_exact = self.called.answers_values()
            && (args.is_distinct || self.called.samples() || !KeySpec::supports(&x));
        let (name, data_type) = match is_exact {
            true => ("values", state_type(&x)),
            false => ("sketch", DataType::Binary),
        };
        Ok(vec![Arc::new(Field::new(
            format_state_name(args.name, name),
            data_type,
            true,
        ))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if self.called == GkName::GkMerge {
            return Ok(Box::new(MergeAccumulator::default()));
        }
        Ok(match self.way(&args)? {
            Way::Sketch(column) => Box::new(GkAccumulator::new(column)),
            Way::Exact(selected) => exact::accumulator(selected),
        })
    }

    /// What leaves a frame cannot leave a sketch: values are kept, and answers are exact.
    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if !self.called.answers_values() {
            return plan_err!(
                "{} works over frames that grow only, not over those that move",
                self.called
            );
        }
        Ok(match self.way(&args)? {
            Way::Sketch(column) => exact::accumulator(Selected::Keys(column.into_selected())),
            Way::Exact(selected) => exact::accumulator(selected),
        })
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        self.called != GkName::GkMerge
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(match self.way(&args)? {
            Way::Sketch(column) => Box::new(GkGroupsAccumulator::new(column)),
            Way::Exact(selected) => groups_accumulator(selected),
        })
    }

    fn supports_null_handling_clause(&self) -> bool {
        true
    }

    fn supports_within_group_clause(&self) -> bool {
        self.called.quantile_specs()
    }
}

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let ends = |called: GkName| match called.quantile_specs() {
        true => vec![false, true],
        false => vec![false],
    };
    GkName::ALL
        .into_iter()
        .flat_map(|called| {
            ends(called)
                .into_iter()
                .map(move |end| GkFunction::new(called, end))
        })
        .map(|function| Arc::new(AggregateUDF::from(function)))
        .collect()
});

/// Every aggregate function over sketches to register.
pub fn gk_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}
