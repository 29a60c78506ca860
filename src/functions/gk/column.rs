//! Makes answers of summaries.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BinaryArray, StructArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, ScalarValue};

use crate::quantile::TypedAnswerSpec;
use crate::sketch::{AnySketch, AnySummary, Epsilon, Variant};

/// The answer of a call for each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// Values of the column.
    Values,
    /// Structs of [`bounds_type`].
    Bounds,
    /// Sketches in their stored form.
    Sketch,
}

/// What a call asks of the sketches of one column.
#[derive(Debug, Clone)]
pub(super) struct GkColumn {
    answer_spec: TypedAnswerSpec,
    eps: Epsilon,
    output: Output,
    /// Name of the values' type, which stored sketches carry.
    tag: String,
}

/// The type of an answer with bounds: a value, the least and the greatest rank (from 1) that it may have, the number of values.
pub(super) fn bounds_type(value: DataType) -> DataType {
    DataType::Struct(bounds_fields(value))
}

/// The fields of [`bounds_type`].
fn bounds_fields(value: DataType) -> Fields {
    let rank = |name| Field::new(name, DataType::UInt64, true);
    Fields::from(vec![
        Field::new("value", value, true),
        rank("rank_min"),
        rank("rank_max"),
        rank("n"),
    ])
}

/// The answers over `n` values with the bounds of their ranks, in the order of the quantiles. `rank_bounds_at` gives
/// the least and the greatest rank, from 1, of the key that has a rank.
///
/// # Errors
/// Those of `rank_bounds_at`.
pub(crate) fn with_bounds(
    column: &TypedAnswerSpec,
    answers: ArrayRef,
    n: u64,
    rank_bounds_at: impl Fn(u64) -> Result<(u64, u64)>,
) -> Result<ScalarValue> {
    let quantile_spec = column.quantile_spec();
    let bounds = quantile_spec
        .quantiles
        .iter()
        .map(|quantile| match (n, quantile_spec.descending) {
            (0, _) => Ok((0, 0)),
            (_, false) => rank_bounds_at(quantile.rank(n)),
            (_, true) => rank_bounds_at(n + 1 - quantile.rank(n)),
        });
    let bounds = bounds.collect::<Result<Vec<_>>>()?;
    let counts = vec![n; bounds.len()];
    let (least, most) = bounds.into_iter().unzip();
    column.row(bounds_rows(answers, least, most, counts)?, n)
}

/// An array of [`bounds_type`] structs.
fn bounds_rows(values: ArrayRef, least: Vec<u64>, most: Vec<u64>, counts: Vec<u64>) -> Result<ArrayRef> {
    let ranks = |ranks: Vec<u64>| Arc::new(UInt64Array::from(ranks)) as ArrayRef;
    let fields = bounds_fields(values.data_type().clone());
    let columns = vec![values, ranks(least), ranks(most), ranks(counts)];
    Ok(Arc::new(StructArray::try_new(fields, columns, None)?))
}

impl GkColumn {
    /// The column of a call: what it selects, the error fraction of its sketches, and the form of its answers.
    pub(super) fn new(answer_spec: TypedAnswerSpec, eps: Epsilon, output: Output) -> Self {
        Self {
            tag: answer_spec.spec().data_type().to_string(),
            answer_spec,
            eps,
            output,
        }
    }

    /// The column, and the quantiles that are selected from it.
    pub(super) fn answer_spec(&self) -> &TypedAnswerSpec {
        &self.answer_spec
    }

    /// The column, for an exact answer.
    pub(super) fn into_answer_spec(self) -> TypedAnswerSpec {
        self.answer_spec
    }

    /// A sketch without values.
    pub(super) fn sketch(&self) -> AnySketch {
        AnySketch::new(self.answer_spec.spec().width(), self.eps, Variant::Modified)
    }

    /// The partial state of a sketch: its stored form.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn state(&self, sketch: AnySketch) -> Result<Vec<u8>> {
        Ok(sketch.partial()?.write(self.tag.as_bytes()))
    }

    /// The summary of a state.
    ///
    /// # Errors
    /// An execution error for a state that is damaged, or whose values have another type.
    pub(super) fn read(&self, state: &[u8]) -> Result<AnySummary> {
        AnySummary::read(state, self.tag.as_bytes())
    }

    /// The summary from which an answer is made.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn summary(&self, sketch: AnySketch) -> Result<AnySummary> {
        match self.output {
            // A stored sketch may be merged later.
            Output::Sketch => sketch.partial(),
            Output::Values | Output::Bounds => sketch.finish(),
        }
    }

    /// The answers, a row for each group; `None` for a group without values.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn rows(&self, groups: &[Option<AnySummary>]) -> Result<ArrayRef> {
        if self.output == Output::Sketch {
            let stored = groups
                .iter()
                .map(|summary| summary.as_ref().map(|s| s.write(self.tag.as_bytes())));
            return Ok(Arc::new(stored.collect::<BinaryArray>()));
        }
        let quantile_spec = self.answer_spec.quantile_spec();
        let mut lengths = Vec::with_capacity(groups.len());
        let (mut keys, mut least, mut most, mut counts) = (vec![], vec![], vec![], vec![]);
        for summary in groups {
            let n = summary.as_ref().map_or(0, AnySummary::n);
            lengths.push(n);
            for (quantile, summary) in quantile_spec.quantiles.iter().zip(std::iter::repeat(summary)) {
                let Some(summary) = summary else { break };
                let rank = quantile.rank(n);
                let rank = if quantile_spec.descending {
                    n + 1 - rank
                } else {
                    rank
                };
                let (key, rank_min, rank_max) = summary.value_at(rank)?;
                keys.push(key);
                least.push(rank_min);
                most.push(rank_max);
                counts.push(n);
            }
        }
        let values = self.answer_spec.spec().to_array(&keys)?;
        let answers: ArrayRef = match self.output {
            Output::Bounds => bounds_rows(values, least, most, counts)?,
            _ => values,
        };
        self.answer_spec.group_rows(answers, &lengths)
    }
}
