//! From summaries to answers.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BinaryArray, StructArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, ScalarValue};

use crate::quantile::SelectedColumn;
use crate::sketch::{AnySketch, AnySummary, Epsilon, Variant};

/// What a call gives for each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Values,
    /// Structs of [`bounds_type`].
    Bounds,
    /// Stored sketches.
    Sketch,
}

/// What is asked of sketches of one column.
#[derive(Debug, Clone)]
pub(super) struct GkColumn {
    selected: SelectedColumn,
    eps: Epsilon,
    output: Output,
    /// Type of the values, as sketches carry it.
    tag: String,
}

/// A value, the least and the greatest rank that it may have (1-based), the number of values.
pub(super) fn bounds_type(value: DataType) -> DataType {
    DataType::Struct(bounds_fields(value))
}

fn bounds_fields(value: DataType) -> Fields {
    let rank = |name| Field::new(name, DataType::UInt64, true);
    Fields::from(vec![
        Field::new("value", value, true),
        rank("rank_min"),
        rank("rank_max"),
        rank("n"),
    ])
}

/// The answers over `n` values with the least and the greatest rank that the key of each rank has, in the order of the
/// quantiles.
///
/// # Errors
/// Those of `place_at`.
pub(crate) fn with_bounds(
    column: &SelectedColumn,
    answers: ArrayRef,
    n: u64,
    place_at: impl Fn(u64) -> Result<(u64, u64)>,
) -> Result<ScalarValue> {
    let quantile_spec = column.quantile_spec();
    let places = quantile_spec
        .quantiles
        .iter()
        .map(|quantile| match (n, quantile_spec.descending) {
            (0, _) => Ok((0, 0)),
            (_, false) => place_at(quantile.rank(n)),
            (_, true) => place_at(n + 1 - quantile.rank(n)),
        });
    let places = places.collect::<Result<Vec<_>>>()?;
    let counts = vec![n; places.len()];
    let (least, most) = places.into_iter().unzip();
    column.row(bounds_rows(answers, least, most, counts)?, n)
}

/// Structs of [`bounds_type`].
fn bounds_rows(values: ArrayRef, least: Vec<u64>, most: Vec<u64>, counts: Vec<u64>) -> Result<ArrayRef> {
    let ranks = |ranks: Vec<u64>| Arc::new(UInt64Array::from(ranks)) as ArrayRef;
    let fields = bounds_fields(values.data_type().clone());
    let columns = vec![values, ranks(least), ranks(most), ranks(counts)];
    Ok(Arc::new(StructArray::try_new(fields, columns, None)?))
}

impl GkColumn {
    pub(super) fn new(selected: SelectedColumn, eps: Epsilon, output: Output) -> Self {
        Self {
            tag: selected.spec().data_type().to_string(),
            selected,
            eps,
            output,
        }
    }

    pub(super) fn selected(&self) -> &SelectedColumn {
        &self.selected
    }

    pub(super) fn into_selected(self) -> SelectedColumn {
        self.selected
    }

    /// A sketch without values.
    pub(super) fn sketch(&self) -> AnySketch {
        AnySketch::new(self.selected.spec().width(), self.eps, Variant::Modified)
    }

    /// The state that travels: the sketch in its stored form.
    ///
    /// # Errors
    /// None but internal ones.
    pub(super) fn state(&self, sketch: AnySketch) -> Result<Vec<u8>> {
        Ok(sketch.partial()?.write(self.tag.as_bytes()))
    }

    /// The summary of a state.
    ///
    /// # Errors
    /// An execution error for a state that is damaged, or of values of another type.
    pub(super) fn read(&self, state: &[u8]) -> Result<AnySummary> {
        AnySummary::read(state, self.tag.as_bytes())
    }

    /// The summary from which an answer is made.
    ///
    /// # Errors
    /// None but internal ones.
    pub(super) fn summary(&self, sketch: AnySketch) -> Result<AnySummary> {
        match self.output {
            // Whoever stores it may merge it.
            Output::Sketch => sketch.partial(),
            Output::Values | Output::Bounds => sketch.finish(),
        }
    }

    /// A row for each group; `None`: no values.
    ///
    /// # Errors
    /// None but internal ones.
    pub(super) fn rows(&self, groups: &[Option<AnySummary>]) -> Result<ArrayRef> {
        if self.output == Output::Sketch {
            let stored = groups
                .iter()
                .map(|summary| summary.as_ref().map(|s| s.write(self.tag.as_bytes())));
            return Ok(Arc::new(stored.collect::<BinaryArray>()));
        }
        let quantile_spec = self.selected.quantile_spec();
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
        let values = self.selected.spec().to_array(&keys)?;
        let answers: ArrayRef = match self.output {
            Output::Bounds => bounds_rows(values, least, most, counts)?,
            _ => values,
        };
        self.selected.group_rows(answers, &lengths)
    }
}
