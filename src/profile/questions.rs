//! What a second read is asked of a column with many distinct values.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, DataFusionError, Result, ScalarValue};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{Expr, ExprFunctionExt, cast, lit};

use super::answer::{Answer, Draft};
use super::measures::Described;
use super::types::{BINS, Bin, ColumnProfile, Fences, TOP_VALUES};

/// The name of the table with the constants of each group.
pub(super) const CONSTANTS: &str = "constants of groups";

/// The name of its column with the number of the group.
pub(super) const GROUP: &str = "group";

/// Constants that rows are compared with: literals, or columns of a table with a row for each group.
pub(super) struct Constants {
    by_group: bool,
    groups: usize,
    columns: Vec<(String, ArrayRef)>,
}

impl Constants {
    /// No constants yet.
    pub(super) fn new(by_group: bool, groups: usize) -> Self {
        Self {
            by_group,
            groups,
            columns: Vec::new(),
        }
    }

    /// The expression for a constant with this value in each group; `None` if it is NULL in all.
    fn add(&mut self, values: Vec<Option<ScalarValue>>) -> Result<Option<Expr>> {
        let Some(some) = values.iter().flatten().next() else {
            return Ok(None);
        };
        if !self.by_group {
            return Ok(Some(lit(some.clone())));
        }
        let null = ScalarValue::try_new_null(&some.data_type())?;
        let values = values
            .into_iter()
            .map(|value| value.unwrap_or_else(|| null.clone()));
        let name = format!("constant {}", self.columns.len());
        self.columns
            .push((name.clone(), ScalarValue::iter_to_array(values)?));
        Ok(Some(Expr::Column(Column::new(Some(CONSTANTS), name))))
    }

    /// The table: the group's number, `keys`, and all constants.
    pub(super) fn batch(self, keys: Vec<(String, ArrayRef)>) -> Result<RecordBatch> {
        let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..self.groups as u64));
        let columns = [(GROUP.to_owned(), numbers)]
            .into_iter()
            .chain(keys)
            .chain(self.columns);
        let columns = columns.map(|(name, column)| (name, column, true));
        Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
    }
}

/// What a second read is asked of a column, group by group.
pub(super) struct Questions(Vec<Question>);

/// The values of one column, in one group, that the second read counts.
#[derive(Default)]
struct Question {
    /// Values that may be among the most frequent ones.
    contenders: Vec<ScalarValue>,
    /// How often any other value occurs at most.
    others: u64,
    /// The least value, and the upper edges of the bins, each once.
    least: Option<ScalarValue>,
    edges: Vec<ScalarValue>,
}

impl Question {
    fn of(draft: &Draft, column: &Described) -> Result<Self> {
        let mut question = Self::default();
        let Some(counted) = draft.counted.as_ref().filter(|_| draft.is_open()) else {
            return Ok(question);
        };
        if counted.short_by > 0 {
            let (contenders, others) = counted.contenders()?;
            question.contenders = contenders.into_iter().map(|(value, _)| value).collect();
            question.others = others;
        }
        if column.kind.has_percentiles() && draft.profile.histogram.is_none() {
            let percents = (0..=BINS).map(|bin| (bin * 100 / BINS) as u8);
            let mut edges = percents.filter_map(|percent| draft.profile.percentile(percent).cloned());
            question.least = edges.next();
            question.edges = edges.collect();
            question.edges.dedup();
        }
        Ok(question)
    }
}

/// The name of an output column: a figure of the column in this place.
fn name(figure: &str, place: usize) -> String {
    format!("{figure} of {place}")
}

impl Questions {
    /// Adds the calls that a column with these drafts, one for each group, needs.
    pub(super) fn ask(
        place: usize,
        column: &Described,
        drafts: &[&Draft],
        constants: &mut Constants,
        calls: &mut Vec<Expr>,
    ) -> Result<Self> {
        let questions = drafts
            .iter()
            .map(|draft| Question::of(draft, column))
            .collect::<Result<Vec<_>>>()?;
        let mut ask = |figure: &str, condition: Expr| {
            calls.push(
                count(lit(1))
                    .filter(condition)
                    .build()?
                    .alias(name(figure, place)),
            );
            Ok::<_, DataFusionError>(())
        };
        let value = || column.value.clone();
        let longest = |part: fn(&Question) -> usize| questions.iter().map(part).max().unwrap_or(0);
        for number in 0..longest(|question| question.contenders.len()) {
            let values = questions
                .iter()
                .map(|question| question.contenders.get(number).cloned());
            if let Some(constant) = constants.add(values.collect())? {
                ask(&format!("contender {number}"), value().eq(constant))?;
            }
        }
        let fence = |edge: fn(&Fences) -> &ScalarValue| {
            let open = drafts.iter().map(|draft| {
                draft
                    .profile
                    .fences
                    .as_ref()
                    .filter(|fences| fences.beyond.is_none() && draft.is_open())
            });
            open.map(|fences| fences.map(|fences| edge(fences).clone()))
                .collect::<Vec<_>>()
        };
        let (lows, highs) = (fence(|fences| &fences.low), fence(|fences| &fences.high));
        let is_float = lows
            .iter()
            .flatten()
            .any(|low| low.data_type() == DataType::Float64);
        let compared = || match is_float {
            // Both zeros are one value.
            true => cast(value(), DataType::Float64) + lit(0.0),
            false => value(),
        };
        if let (Some(low), Some(high)) = (constants.add(lows)?, constants.add(highs)?) {
            ask("below", compared().lt(low))?;
            ask("above", compared().gt(high))?;
        }
        for number in 0..longest(|question| question.edges.len()) {
            let values = questions
                .iter()
                .map(|question| question.edges.get(number).cloned());
            if let Some(constant) = constants.add(values.collect())? {
                ask(&format!("edge {number}"), value().lt_eq(constant))?;
            }
        }
        Ok(Self(questions))
    }

    /// Adds the answers to the profile of the column in this place, in this group.
    pub(super) fn complete(
        &self,
        place: usize,
        group: usize,
        answer: &Answer<'_>,
        profile: &mut ColumnProfile,
    ) -> Result<()> {
        let Some(question) = self.0.get(group) else {
            return Ok(());
        };
        if !question.contenders.is_empty() {
            let mut top = Vec::new();
            for (number, value) in question.contenders.iter().enumerate() {
                let count = answer.number(&name(&format!("contender {number}"), place))?;
                if count > question.others {
                    top.push((value.clone(), count));
                }
            }
            top.sort_by(|(value, count), (other_value, other)| {
                let by_value = || value.partial_cmp(other_value).unwrap_or(Ordering::Equal);
                other.cmp(count).then_with(by_value)
            });
            top.truncate(TOP_VALUES);
            profile.top = top;
        }
        if let Some(fences) = profile.fences.as_mut().filter(|fences| fences.beyond.is_none()) {
            fences.beyond = Some((
                answer.number(&name("below", place))?,
                answer.number(&name("above", place))?,
            ));
        }
        if let Some(least) = &question.least {
            profile.histogram = Some(question.bins(least, place, answer)?);
        }
        Ok(())
    }
}

impl Question {
    /// The bins, from the number of values up to each edge.
    fn bins(&self, least: &ScalarValue, place: usize, answer: &Answer<'_>) -> Result<Vec<Bin>> {
        let edges = 0..self.edges.len();
        let through = edges.map(|number| answer.number(&name(&format!("edge {number}"), place)));
        let through = through.collect::<Result<Vec<u64>>>()?;
        let (mut low, mut before, mut bins) = (least.clone(), 0, Vec::new());
        for (high, through) in self.edges.iter().zip(through) {
            bins.push(Bin {
                low,
                high: high.clone(),
                count: through.saturating_sub(before),
            });
            (low, before) = (high.clone(), through);
        }
        Ok(bins)
    }
}
