//! The aggregates that a [`QuantilesExec`](super::QuantilesExec) computes: calls of quantiles over shared columns, and plain aggregates.

use std::fmt::{self, Display};
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::functions_aggregate::array_agg::ArrayAgg;
use datafusion::functions_aggregate::string_agg::StringAgg;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use super::operator::comma_separated;
use crate::functions::EXACT_QUANTILES;
use crate::functions::gk::{GkName, Sampled};
use crate::functions::shape::ShapeName;
use crate::key::{ByteSpec, KeySpec};
use crate::quantile::{AnswerForm, AnswerSpec, Quantile, QuantileSpec};

/// One aggregate of the operator: one column of its output.
#[derive(Debug, Clone)]
pub enum ExecAggregate {
    /// Quantiles of a column.
    Quantiles(QuantilesCall),
    /// Any other aggregate, computed by DataFusion's accumulator.
    Plain(PlainAggregate),
}

/// A call of `exact_quantiles`, or of a function that is answered from a sample.
#[derive(Debug, Clone)]
pub struct QuantilesCall {
    argument: Arc<dyn PhysicalExpr>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    answer_spec: AnswerSpec,
    /// How the call is answered from a sample; `None`: it is answered exactly.
    sampled: Option<Sampled>,
    form: AnswerForm,
}

impl QuantilesCall {
    /// A call for the quantiles `quantile_spec` of `argument`, whose values are of `data_type`, over the rows where `filter` is
    /// true. The answer is a list if `is_list`, else one value.
    ///
    /// # Errors
    /// A planning error if the type has no order, or if the method interpolates and the type cannot.
    pub fn try_new(
        argument: Arc<dyn PhysicalExpr>,
        data_type: &DataType,
        filter: Option<Arc<dyn PhysicalExpr>>,
        quantile_spec: QuantileSpec,
        is_list: bool,
    ) -> Result<Self> {
        Ok(Self {
            argument,
            filter,
            answer_spec: AnswerSpec::try_new(data_type, quantile_spec, is_list, false)?,
            sampled: None,
            form: AnswerForm::Values,
        })
    }

    /// The call, whose answer has this form. The argument's type must have keys, unless the form is a count.
    pub(crate) fn in_form(mut self, form: AnswerForm) -> Self {
        self.form = form;
        self
    }

    /// The form of the answer.
    pub(super) fn form(&self) -> AnswerForm {
        self.form
    }

    /// The call, answered by the nearest splitters of a sample. The argument's type must have keys.
    pub(crate) fn sampled(mut self, sampled: Sampled) -> Self {
        self.sampled = Some(sampled);
        self
    }

    /// Whether the call is answered exactly, over all values (not only distinct ones), and by keys.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_exact_by_keys(&self) -> bool {
        self.sampled.is_none()
            && self.form == AnswerForm::Values
            && !self.answer_spec.is_distinct()
            && matches!(self.answer_spec, AnswerSpec::Keys(_))
    }

    /// Whether the answer includes bounds of each value's rank.
    pub(super) fn wants_bounds(&self) -> bool {
        self.sampled.is_some_and(|sampled| sampled.bounds)
    }

    /// The call over the distinct values only.
    pub(crate) fn distinct(mut self) -> Self {
        self.answer_spec = self.answer_spec.distinct();
        self
    }

    /// The column of answers: its type, and the quantiles in it.
    pub(super) fn answer_spec(&self) -> &AnswerSpec {
        &self.answer_spec
    }
}

impl Display for QuantilesCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            AnswerForm::Values => self.fmt_quantiles(f)?,
            AnswerForm::Bins => {
                let bins = self.answer_spec.quantile_spec().quantiles.len() - 1;
                write!(f, "{}({}, {bins})", ShapeName::Histogram, self.argument)?;
            }
            AnswerForm::Fences => write!(f, "{}({})", ShapeName::Fences, self.argument)?,
            AnswerForm::Count => write!(f, "{}({})", ShapeName::CountDistinct, self.argument)?,
        }
        fmt_filter(&self.filter, f)
    }
}

impl QuantilesCall {
    /// The call of quantiles, without its filter.
    fn fmt_quantiles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantile_spec = self.answer_spec.quantile_spec();
        let distinct = if self.answer_spec.is_distinct() {
            "DISTINCT "
        } else {
            ""
        };
        let name: &dyn Display = match self.sampled {
            None => &EXACT_QUANTILES,
            Some(Sampled { bounds: false, .. }) => &GkName::ApproxPercentileSample,
            Some(Sampled { bounds: true, .. }) => &GkName::ApproxPercentileSampleBounds,
        };
        write!(f, "{name}({distinct}{}, ", self.argument)?;
        match (self.answer_spec.is_list(), quantile_spec.quantiles.as_slice()) {
            (false, [quantile]) => write!(f, "{quantile}")?,
            (_, quantiles) => write!(f, "{}", Abbreviated(quantiles))?,
        }
        match self.sampled {
            None => write!(f, ", {}", quantile_spec.method)?,
            Some(sampled) => write!(f, ", {} buckets", sampled.buckets)?,
        }
        write!(f, "{})", if quantile_spec.descending { " desc" } else { "" })
    }
}

fn fmt_filter(filter: &Option<Arc<dyn PhysicalExpr>>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match filter {
        None => Ok(()),
        Some(filter) => write!(f, " FILTER ({filter})"),
    }
}

/// Displays a list of quantiles; a long one is abbreviated: `[0.01, 0.02, .., 0.99; 99 quantiles]`.
pub(super) struct Abbreviated<'a>(pub(super) &'a [Quantile]);

impl Display for Abbreviated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [first, second, .., last] if self.0.len() > 5 => {
                write!(f, "[{first}, {second}, .., {last}; {} quantiles]", self.0.len())
            }
            all => {
                let all: Vec<_> = all.iter().map(Quantile::to_string).collect();
                write!(f, "[{}]", all.join(", "))
            }
        }
    }
}

/// An aggregate that DataFusion computes.
#[derive(Debug, Clone)]
pub struct PlainAggregate {
    pub(super) expr: Arc<AggregateFunctionExpr>,
    pub(super) filter: Option<Arc<dyn PhysicalExpr>>,
}

impl PlainAggregate {
    /// The aggregate `expr`, which must not need sorted input, over the rows where `filter` is true.
    pub fn new(expr: Arc<AggregateFunctionExpr>, filter: Option<Arc<dyn PhysicalExpr>>) -> Self {
        Self { expr, filter }
    }

    /// Whether the aggregate holds on to its input arrays, as `array_agg` does.
    pub(crate) fn keeps_input(&self) -> bool {
        let function: Option<&ArrayAgg> = self.expr.fun().inner().downcast_ref();
        function.is_some() && !self.expr.is_distinct()
    }

    /// Times the bytes of an accumulator that its next rows may take: a hash table of distinct values has one twice as large beside it
    /// while it grows, and so has the one string of `string_agg`.
    pub(super) fn growth(&self) -> usize {
        let is_string = self.expr.fun().inner().is::<StringAgg>();
        if is_string || self.expr.is_distinct() {
            3
        } else {
            1
        }
    }

    /// Whether the call has an `ORDER BY` of its own, for the rows within each group.
    pub(crate) fn needs_order(&self) -> bool {
        !self.expr.order_bys().is_empty()
    }

    /// The expressions that the accumulator is given: the arguments, then those of the call's own `ORDER BY`.
    pub(super) fn inputs(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let order = self.expr.order_bys().iter().map(|order| Arc::clone(&order.expr));
        self.expr.expressions().into_iter().chain(order).collect()
    }
}

impl Display for PlainAggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // DataFusion's name of the call includes its filter.
        f.write_str(self.expr.human_display().unwrap_or_else(|| self.expr.name()))
    }
}

/// A column of values. Calls over the same expression and filter, in the same order, share it.
#[derive(Debug, Clone)]
pub(super) struct KeyColumn {
    pub(super) argument: Arc<dyn PhysicalExpr>,
    pub(super) filter: Option<Arc<dyn PhysicalExpr>>,
    /// How values become keys. The keys of a column of byte strings are prefixes of at most this width.
    pub(super) spec: KeySpec,
    /// How values become byte strings, where they have no keys.
    pub(super) bytes: Option<ByteSpec>,
    /// Whether the calls are over distinct values.
    pub(super) distinct: bool,
    /// Number of buckets, if the calls are answered from a sample.
    pub(super) buckets: Option<u32>,
    /// Whether a call wants the number of values up to those at its ranks.
    pub(super) counts: bool,
    /// Whether a call wants fences.
    pub(super) fences: bool,
}

impl KeyColumn {
    /// Whether the calls over the column can be answered by counting its keys as they pass by.
    pub(super) fn can_be_counted(&self) -> bool {
        self.bytes.is_none() && !self.distinct && self.buckets.is_none()
    }
}

impl Display for KeyColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.argument)?;
        fmt_filter(&self.filter, f)
    }
}

/// The aggregates of an operator, and the columns that they share.
#[derive(Debug, Clone)]
pub(super) struct Aggregates {
    /// Key columns, each once.
    pub(super) columns: Vec<KeyColumn>,
    /// Calls of quantiles, each with the index of its column in `columns`.
    pub(super) calls: Vec<(usize, QuantilesCall)>,
    /// Aggregates that DataFusion's accumulators compute.
    pub(super) plain: Vec<PlainAggregate>,
    /// Source of each output column, in the order of the output.
    pub(super) outputs: Vec<Output>,
}

/// Source of an output column: an index into [`Aggregates::calls`] or [`Aggregates::plain`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Output {
    Call(usize),
    Plain(usize),
}

impl Aggregates {
    pub(super) fn new(list: Vec<ExecAggregate>) -> Self {
        let mut aggregates = Self {
            columns: Vec::new(),
            calls: Vec::new(),
            plain: Vec::new(),
            outputs: Vec::new(),
        };
        for aggregate in list {
            match aggregate {
                ExecAggregate::Quantiles(call) => {
                    let column = aggregates.column(&call);
                    aggregates.outputs.push(Output::Call(aggregates.calls.len()));
                    aggregates.calls.push((column, call));
                }
                ExecAggregate::Plain(plain) => {
                    aggregates.outputs.push(Output::Plain(aggregates.plain.len()));
                    aggregates.plain.push(plain);
                }
            }
        }
        aggregates
    }

    /// Index of the key column that `call` reads, which is added if it is new.
    fn column(&mut self, call: &QuantilesCall) -> usize {
        let (spec, distinct) = (call.answer_spec.spec(), call.answer_spec.is_distinct());
        let buckets = call.sampled.map(|sampled| sampled.buckets);
        let same = |column: &KeyColumn| {
            column.argument.eq(&call.argument)
                && column.filter.eq(&call.filter)
                && column.spec == spec
                && column.distinct == distinct
                && column.buckets == buckets
        };
        let index = self.columns.iter().position(same).unwrap_or_else(|| {
            self.columns.push(KeyColumn {
                argument: Arc::clone(&call.argument),
                filter: call.filter.clone(),
                spec: spec.clone(),
                bytes: call.answer_spec.bytes().cloned(),
                distinct,
                buckets,
                counts: false,
                fences: false,
            });
            self.columns.len() - 1
        });
        let column = &mut self.columns[index];
        column.counts |= call.form == AnswerForm::Bins;
        column.fences |= call.form == AnswerForm::Fences;
        index
    }

    /// The calls over one key column, in the order of the output.
    pub(super) fn calls_of(&self, column: usize) -> impl Iterator<Item = &QuantilesCall> {
        let mine = move |(other, _): &&(usize, QuantilesCall)| *other == column;
        self.calls.iter().filter(mine).map(|(_, call)| call)
    }

    /// The quantiles that the calls over a column want.
    pub(super) fn quantile_specs(&self, column: usize) -> Vec<&QuantileSpec> {
        let calls = self.calls_of(column);
        calls.map(|call| call.answer_spec().quantile_spec()).collect()
    }

    /// Columns, calls and plain aggregates, as `EXPLAIN` shows them on one line.
    pub(super) fn details(&self) -> String {
        let (columns, calls) = (comma_separated(self.columns.iter()), self.shown_calls());
        let plain = match comma_separated(self.plain.iter()) {
            plain if plain.is_empty() => plain,
            plain => format!(", plain=[{plain}]"),
        };
        format!("columns=[{columns}], calls=[{calls}]{plain}")
    }

    /// Calls and plain aggregates, as `EXPLAIN FORMAT TREE` shows them: a line for each kind.
    pub(super) fn tree_details(&self) -> String {
        let plain = match comma_separated(self.plain.iter()) {
            plain if plain.is_empty() => plain,
            plain => format!("\nplain={plain}"),
        };
        format!("calls={}{plain}", self.shown_calls())
    }

    fn shown_calls(&self) -> String {
        comma_separated(self.calls.iter().map(|(_, call)| call))
    }

    /// Every physical expression over the input, for optimizer rules that look into operators.
    pub(super) fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let columns = self.columns.iter().flat_map(|column| {
            let argument = Arc::clone(&column.argument);
            std::iter::once(argument).chain(column.filter.clone())
        });
        let plain = self
            .plain
            .iter()
            .flat_map(|plain| plain.inputs().into_iter().chain(plain.filter.clone()));
        columns.chain(plain).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(quantiles: &[f64]) -> String {
        let list: Vec<_> = quantiles
            .iter()
            .map(|&q| Quantile::try_from_f64(q).unwrap())
            .collect();
        Abbreviated(&list).to_string()
    }

    #[test]
    fn long_lists_are_abbreviated() {
        assert_eq!(shown(&[]), "[]");
        assert_eq!(shown(&[0.25, 0.5]), "[0.25, 0.5]");
        let percentiles: Vec<f64> = (1..100).map(|p| f64::from(p) / 100.0).collect();
        assert_eq!(shown(&percentiles), "[0.01, 0.02, .., 0.99; 99 quantiles]");
    }
}
