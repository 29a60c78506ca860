//! Approximate percentiles, with a proved bound or with exact ranks, and Greenwald-Khanna sketches as values.
//!
//! ```sql
//! SELECT approx_percentile_gk(fare, 0.99, 10000) FROM trips                -- rank error <= n / 10000
//! SELECT approx_percentile_gk_bounds(fare, 0.99, 100) FROM trips           -- and which ranks it may have
//! CREATE TABLE daily AS SELECT day, gk_sketch(fare, 1000) AS s FROM trips GROUP BY day
//! SELECT gk_quantile(gk_merge(s), 0.5) FROM daily                          -- monthly, from daily sketches
//! SELECT approx_percentile_sample_bounds(fare, 0.99, 1024) FROM trips      -- near, and which rank it has
//! ```
//! Ungrouped calls run as accumulators over [`crate::sketch`]: memory for `O(1 / eps)` keys, states of one binary value.
//! Where the exact operators are the faster way, or the only one, the planner takes them: with `GROUP BY`, `DISTINCT`
//! and `OVER` the answer is exact, which is within any bound. So it is for types without keys of fixed width. Percentiles
//! from a sample are rounds of [`QuantilesExec`](crate::exec::QuantilesExec); as accumulators they are exact too.

mod accumulator;
mod column;
mod groups;
mod merge;
#[cfg(test)]
mod mutated;
mod stored;
#[cfg(feature = "ballista")]
mod wire;

use std::fmt::{self, Display};
use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, GroupsAccumulator, ScalarUDF, Signature, Volatility,
};

use self::accumulator::GkAccumulator;
pub(crate) use self::column::with_bounds;
use self::column::{GkColumn, Output, bounds_type};
use self::groups::GkGroupsAccumulator;
use self::merge::MergeAccumulator;
use self::stored::StoredFunction;
use super::accumulator::QuantilesAccumulator;
use super::call::{QuantileArgument, constant, evaluated, evaluated_quantiles};
use super::exact_quantiles::ordered_type;
use super::frame::SlidingQuantilesAccumulator;
use super::frame_values::SlidingValuesAccumulator;
use super::groups::groups_accumulator;
use super::rows::{ValuesAccumulator, ValuesGroupsAccumulator};
use crate::key::{KeySpec, Order};
use crate::quantile::{Ask, Method, Quantiles};
use crate::quantile::{Selected, state_type};
use crate::select::splitters::NearestSplitter;
use crate::sketch::Epsilon;

/// Accuracy of calls that name none.
const DEFAULT_ACCURACY: f64 = 10_000.0;

/// Buckets of calls that name none.
const DEFAULT_BUCKETS: u32 = 1024;

/// What a number of buckets may be.
const BUCKETS: &str = "a whole number from 2 to 16384";

/// Metadata of a column of sketches: the type of their values.
pub(crate) const VALUES: &str = "quantiles.values";

/// An approximate function, by the name that a user writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GkName {
    /// `approx_percentile_gk(x, q [, accuracy])`.
    ApproxPercentileGk,
    /// Spark's `percentile_approx(x, q [, accuracy])`: the same.
    PercentileApprox,
    /// `approx_percentile_gk_bounds(x, q [, accuracy])`: the value, the ranks that it may have, the number of values.
    ApproxPercentileGkBounds,
    /// `approx_percentile_sample(x, q [, buckets])`: the splitter nearest to the rank.
    ApproxPercentileSample,
    /// `approx_percentile_sample_bounds(x, q [, buckets])`: the splitter, the ranks that it has, the number of values.
    ApproxPercentileSampleBounds,
    /// `gk_sketch(x [, accuracy])`: the sketch itself.
    GkSketch,
    /// `gk_merge(sketch)`: one sketch from many.
    GkMerge,
}

impl GkName {
    /// All names.
    pub const ALL: [GkName; 7] = [
        GkName::ApproxPercentileGk,
        GkName::PercentileApprox,
        GkName::ApproxPercentileGkBounds,
        GkName::ApproxPercentileSample,
        GkName::ApproxPercentileSampleBounds,
        GkName::GkSketch,
        GkName::GkMerge,
    ];

    /// The name in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            GkName::ApproxPercentileGk => "approx_percentile_gk",
            GkName::PercentileApprox => "percentile_approx",
            GkName::ApproxPercentileGkBounds => "approx_percentile_gk_bounds",
            GkName::ApproxPercentileSample => "approx_percentile_sample",
            GkName::ApproxPercentileSampleBounds => "approx_percentile_sample_bounds",
            GkName::GkSketch => "gk_sketch",
            GkName::GkMerge => "gk_merge",
        }
    }

    /// Whether a call asks for quantiles, by its second argument.
    pub(crate) fn asks(self) -> bool {
        !matches!(self, GkName::GkSketch | GkName::GkMerge)
    }

    /// Whether the answer is a value alone, for which the exact one will do.
    pub(crate) fn answers_values(self) -> bool {
        matches!(
            self,
            GkName::ApproxPercentileGk | GkName::PercentileApprox | GkName::ApproxPercentileSample
        )
    }

    /// Whether the answer is a splitter of a sample.
    pub(crate) fn samples(self) -> bool {
        matches!(
            self,
            GkName::ApproxPercentileSample | GkName::ApproxPercentileSampleBounds
        )
    }

    /// Where the accuracy, or the number of buckets, stands among the arguments, if it is given.
    pub(crate) fn precision_place(self) -> Option<usize> {
        match self {
            GkName::GkMerge => None,
            GkName::GkSketch => Some(1),
            _ => Some(2),
        }
    }

    /// Refuses a wrong number of arguments.
    ///
    /// # Errors
    /// A planning error that says what is allowed.
    pub(crate) fn check_count(self, count: usize) -> Result<()> {
        let precision = match self.samples() {
            true => format!("and optionally the number of buckets, {BUCKETS}"),
            false => "and optionally the accuracy, an error fraction in (0, 1) or its reciprocal".to_owned(),
        };
        let (allowed, what) = match self {
            GkName::GkMerge => (1..=1, "sketches".to_owned()),
            GkName::GkSketch => (1..=2, format!("the values, {precision}")),
            _ => (
                2..=3,
                format!("the values, a constant quantile or list of quantiles from 0 to 1, {precision}"),
            ),
        };
        match allowed.contains(&count) {
            true => Ok(()),
            false if allowed.start() == allowed.end() => {
                plan_err!("{self} takes 1 argument, got {count}: {what}")
            }
            false => plan_err!(
                "{self} takes {} or {} arguments, got {count}: {what}",
                allowed.start(),
                allowed.end()
            ),
        }
    }
}

impl Display for GkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An approximate aggregate function, counted from one end.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct GkFunction {
    name: String,
    called: GkName,
    descending: bool,
    /// Constants that are not arguments.
    bound: Option<Constants>,
    signature: Signature,
}

/// What a call asks, besides its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Constants {
    quantiles: Quantiles,
    precision: Precision,
}

/// How near an answer is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Precision {
    Accuracy(Epsilon),
    Buckets(u32),
}

impl Precision {
    /// Of a call that says nothing.
    fn default_of(called: GkName) -> Result<Self> {
        match called.samples() {
            true => Ok(Precision::Buckets(DEFAULT_BUCKETS)),
            false => Epsilon::try_new(DEFAULT_ACCURACY).map(Precision::Accuracy),
        }
    }

    /// What the third argument says.
    ///
    /// # Errors
    /// A planning error that names the value.
    fn try_new(called: GkName, value: &ScalarValue) -> Result<Self> {
        let number = match value.data_type().is_numeric() {
            true => value.cast_to(&DataType::Float64)?,
            false => ScalarValue::Null,
        };
        let ScalarValue::Float64(Some(number)) = number else {
            return plan_err!("{}", not_constant(called, value));
        };
        if called.samples() {
            let is_allowed =
                number.fract() == 0.0 && (2.0..=f64::from(NearestSplitter::MOST)).contains(&number);
            return match is_allowed {
                true => Ok(Precision::Buckets(number as u32)),
                false => plan_err!("{called}: the number of buckets is {value}: allowed is {BUCKETS}"),
            };
        }
        let eps = Epsilon::try_new(number).map_err(|error| match error {
            DataFusionError::Plan(message) => DataFusionError::Plan(format!("{called}: {message}")),
            other => other,
        });
        eps.map(Precision::Accuracy)
    }
}

/// A call that is answered by the nearest splitters of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sampled {
    pub(crate) buckets: u32,
    /// Whether the ranks that they have are wanted too.
    pub(crate) bounds: bool,
}

/// How a call is answered where it runs as an accumulator.
enum Way {
    Sketch(GkColumn),
    /// Over distinct values, and values without keys.
    Exact(Selected),
}

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(|| {
    let ends = |called: GkName| match called.asks() {
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

static SCALARS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
    StoredFunction::all()
        .map(|function| Arc::new(ScalarUDF::from(function)))
        .to_vec()
});

/// Every aggregate function over sketches to register.
pub fn gk_aggregates() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}

/// The functions that read stored sketches.
pub fn gk_scalars() -> &'static [Arc<ScalarUDF>] {
    &SCALARS
}

impl GkFunction {
    fn new(called: GkName, descending: bool) -> Self {
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
                other.called == self.called && other.descending == (descending && self.called.asks())
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
        self.called.check_count(args.len())?;
        let quantiles = match self.called.asks() {
            false => Quantiles::default(),
            true => match QuantileArgument::try_new(self.called, &args[1])? {
                QuantileArgument::Known(quantiles) => quantiles,
                QuantileArgument::Unbound => return Ok(None),
            },
        };
        let precision = match self.called.precision_place().and_then(|place| args.get(place)) {
            None => Precision::default_of(self.called)?,
            Some(expr) => match constant(expr)? {
                Some(value) => Precision::try_new(self.called, &value)?,
                None => return Ok(None),
            },
        };
        Ok(Some(Self {
            bound: Some(Constants { quantiles, precision }),
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

    fn constants(&self, args: &AccumulatorArgs) -> Result<Constants> {
        if let Some(bound) = &self.bound {
            return Ok(bound.clone());
        }
        let given = self
            .called
            .precision_place()
            .and_then(|place| args.exprs.get(place));
        let precision = match given {
            None => Precision::default_of(self.called)?,
            Some(expr) => match evaluated(expr)? {
                Some(value) => Precision::try_new(self.called, &value)?,
                None => return plan_err!("{}", not_constant(self.called, expr)),
            },
        };
        let quantiles = match self.called.asks() {
            true => evaluated_quantiles(self.called, &args.exprs[1])?,
            false => Quantiles::default(),
        };
        Ok(Constants { quantiles, precision })
    }

    fn way(&self, args: &AccumulatorArgs) -> Result<Way> {
        self.check_count(args.exprs.len())?;
        let Constants { quantiles, precision } = self.constants(args)?;
        // An ordering is left only where no `QuantilesExprPlanner` has turned it into the function's name.
        let reversed = args
            .order_bys
            .first()
            .is_some_and(|order| order.options.descending);
        let ask = Ask {
            quantiles: quantiles.list,
            method: Method::Disc,
            descending: self.descending != reversed,
        };
        let data_type = args.expr_fields[0].data_type();
        let selected = Selected::try_new(data_type, ask, quantiles.is_list, args.is_distinct)?;
        let sketched = match precision {
            Precision::Accuracy(eps) if !args.is_distinct => Some(eps),
            _ => None,
        };
        match (selected, sketched) {
            (Selected::Keys(column), Some(eps)) => Ok(Way::Sketch(GkColumn::new(column, eps, self.output()))),
            (selected, _) if self.called.answers_values() => Ok(Way::Exact(selected)),
            (Selected::Bytes(_), _) => plan_err!("{}", no_keys(self.called, data_type)),
            _ if args.is_distinct => plan_err!("{} takes no DISTINCT", self.called),
            _ => plan_err!(
                "{} works without GROUP BY and OVER only, beside aggregates that need no sorted rows, with this crate's planner",
                self.called
            ),
        }
    }

    fn output(&self) -> Output {
        match self.called {
            GkName::ApproxPercentileGk | GkName::PercentileApprox => Output::Values,
            GkName::ApproxPercentileSample => Output::Values,
            GkName::ApproxPercentileGkBounds | GkName::ApproxPercentileSampleBounds => Output::Bounds,
            GkName::GkSketch | GkName::GkMerge => Output::Sketch,
        }
    }
}

fn no_keys(called: GkName, data_type: &DataType) -> String {
    format!(
        "{called} takes values of fixed width: numbers, decimals of up to 128 bits, Booleans, dates, times, got {data_type}"
    )
}

fn not_constant(called: GkName, shown: &dyn Display) -> String {
    match called.samples() {
        true => format!("{called}: the number of buckets must be constant, {BUCKETS}, got {shown}"),
        false => format!(
            "{called}: accuracy must be a constant number, an error fraction in (0, 1) or its reciprocal from 1 on, got \
             {shown}"
        ),
    }
}

/// Checks the constants of a logical call, as far as they are known yet.
///
/// # Errors
/// A planning error that names the value.
pub(crate) fn check_arguments(called: GkName, args: &[Expr]) -> Result<()> {
    called.check_count(args.len())?;
    if called.asks() {
        QuantileArgument::try_new(called, &args[1])?;
    }
    if let Some(expr) = called.precision_place().and_then(|place| args.get(place)) {
        match constant(expr)? {
            Some(value) => Precision::try_new(called, &value).map(drop)?,
            None if matches!(expr, Expr::Placeholder(_)) => {}
            None => return plan_err!("{}", not_constant(called, expr)),
        }
    }
    Ok(())
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
            GkName::GkMerge => stored::binary(&self.called, &arg_types[0])?,
            _ => ordered_type(&arg_types[0]),
        };
        Ok(types)
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.check_count(arg_types.len())?;
        if !self.called.asks() {
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
            Way::Exact(Selected::Keys(column)) => Box::new(QuantilesAccumulator::new(column)),
            Way::Exact(Selected::Bytes(column)) => Box::new(ValuesAccumulator::new(column)),
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
            Way::Sketch(column) => Box::new(SlidingQuantilesAccumulator::try_new(column.into_selected())?),
            Way::Exact(Selected::Keys(column)) => Box::new(SlidingQuantilesAccumulator::try_new(column)?),
            Way::Exact(Selected::Bytes(column)) => Box::new(SlidingValuesAccumulator::new(column)),
        })
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        self.called != GkName::GkMerge
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(match self.way(&args)? {
            Way::Sketch(column) => Box::new(GkGroupsAccumulator::new(column)),
            Way::Exact(Selected::Keys(column)) => groups_accumulator(column),
            Way::Exact(Selected::Bytes(column)) => Box::new(ValuesGroupsAccumulator::new(column)),
        })
    }

    fn supports_null_handling_clause(&self) -> bool {
        true
    }

    fn supports_within_group_clause(&self) -> bool {
        self.called.asks()
    }
}
