//! What the first read of a table tells of its columns.

use datafusion::arrow::array::{Array, AsArray, RecordBatch, StructArray};
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{
    DataFusionError, Result, ScalarValue, exec_err, internal_datafusion_err, internal_err,
};

use super::counted::Counted;
use super::measures::{Described, Measure, RANKS};
use super::types::{Bin, ColumnProfile, Fences, Lengths, TOP_VALUES};
use crate::quantile::fences::FencePair;

/// One row of aggregates.
pub(super) struct Answer<'a> {
    rows: &'a RecordBatch,
    row: usize,
}

impl<'a> Answer<'a> {
    /// A row of these.
    pub(super) fn new(rows: &'a RecordBatch, row: usize) -> Self {
        Self { rows, row }
    }

    /// The value of the column of this name; `None` if there is no such column.
    pub(super) fn value(&self, name: &str) -> Result<Option<ScalarValue>> {
        let column = self.rows.column_by_name(name);
        column
            .map(|column| ScalarValue::try_from_array(column, self.row))
            .transpose()
    }

    /// The value of the column of this name.
    pub(super) fn required(&self, name: &str) -> Result<ScalarValue> {
        self.value(name)?
            .ok_or_else(|| internal_datafusion_err!("no '{name}' of a profile"))
    }

    /// A count; 0 for NULL.
    pub(super) fn number(&self, name: &str) -> Result<u64> {
        match self.required(name)?.cast_to(&DataType::UInt64)? {
            ScalarValue::UInt64(number) => Ok(number.unwrap_or(0)),
            other => exec_err!("'{name}' of a profile is {other}"),
        }
    }

    fn float(&self, name: &str) -> Option<f64> {
        let column = self
            .rows
            .column_by_name(name)?
            .as_primitive_opt::<Float64Type>()?;
        column.is_valid(self.row).then(|| column.value(self.row))
    }

    /// What the first read tells of a column.
    pub(super) fn draft(&self, place: usize, column: &Described, rows: u64) -> Result<Draft> {
        let name = |measure: Measure| measure.name(place);
        let values = self.number(&name(Measure::Values))?;
        let has_values = values > 0;
        let counted = match self.rows.column_by_name(&name(Measure::Frequencies)) {
            Some(answers) => Some(Counted::of(&answers.as_struct().slice(self.row, 1))?),
            None => None,
        };
        let percentiles = self.percentiles(&name(Measure::Percentiles))?;
        let found = |percent: u8| {
            let mut all = percentiles.iter();
            all.find(|(found, _)| *found == percent)
                .map(|(_, value)| value.clone())
        };
        let range = match (found(0), found(100)) {
            (Some(least), Some(greatest)) => Some((least, greatest)),
            _ => self
                .value(&name(Measure::Least))?
                .zip(self.value(&name(Measure::Greatest))?),
        };
        let fences = match (self.value(&name(Measure::Fences))?, found(25).zip(found(75))) {
            (Some(fences), _) => counted_fences(&fences)?,
            (None, Some((first, third))) => open_fences(&first, &third)?,
            (None, None) => None,
        };
        let histogram = match self.value(&name(Measure::Histogram))? {
            Some(bins) if has_values => Some(bins_of(&bins)?),
            Some(_) => Some(Vec::new()),
            None => (column.kind.has_percentiles() && !has_values).then(Vec::new),
        };
        let lengths = self.float(&name(Measure::MeanLength)).map(|mean| {
            Ok::<_, DataFusionError>(Lengths {
                shortest: self.number(&name(Measure::Shortest))?,
                mean,
                longest: self.number(&name(Measure::Longest))?,
            })
        });
        let nans = column
            .is_floating()
            .then(|| self.number(&name(Measure::NotANumber)));
        let profile = ColumnProfile {
            name: column.name.clone(),
            data_type: column.data_type.clone(),
            values,
            nulls: rows.saturating_sub(values),
            nans: nans.transpose()?,
            distinct: counted.as_ref().map(|counted| counted.distinct),
            range: range.filter(|_| has_values),
            mean: self.float(&name(Measure::Mean)),
            deviation: self.float(&name(Measure::Deviation)),
            lengths: lengths.transpose()?,
            fences,
            percentiles,
            top: Vec::new(),
            histogram,
        };
        Ok(Draft { profile, counted })
    }

    fn percentiles(&self, name: &str) -> Result<Vec<(u8, ScalarValue)>> {
        let Some(lists) = self.rows.column_by_name(name) else {
            return Ok(Vec::new());
        };
        let lists = lists.as_list::<i32>();
        if lists.is_null(self.row) {
            return Ok(Vec::new());
        }
        let values = lists.value(self.row);
        let pairs = RANKS.iter().enumerate();
        pairs
            .map(|(place, &percent)| Ok((percent, ScalarValue::try_from_array(&values, place)?)))
            .collect()
    }
}

/// A field of a struct of one row.
fn field(answer: &StructArray, name: &str) -> Result<ScalarValue> {
    match answer.column_by_name(name) {
        Some(column) => ScalarValue::try_from_array(column, 0),
        None => internal_err!("no '{name}' of {answer:?}"),
    }
}

/// A field that is a count.
fn count(answer: &StructArray, name: &str) -> Result<u64> {
    match field(answer, name)? {
        ScalarValue::UInt64(Some(count)) => Ok(count),
        other => internal_err!("'{name}' is {other}"),
    }
}

/// The answer of `tukey_fences`.
fn counted_fences(answer: &ScalarValue) -> Result<Option<Fences>> {
    match answer {
        answer if answer.is_null() => Ok(None),
        ScalarValue::Struct(answer) => Ok(Some(Fences {
            low: field(answer, "low")?,
            high: field(answer, "high")?,
            beyond: Some((count(answer, "below")?, count(answer, "above")?)),
        })),
        other => internal_err!("fences are {other}"),
    }
}

/// The fences of values with these quartiles, without counts.
fn open_fences(first: &ScalarValue, third: &ScalarValue) -> Result<Option<Fences>> {
    let pair = FencePair::of(first, third)?;
    Ok(pair.map(|FencePair { low, high }| Fences {
        low,
        high,
        beyond: None,
    }))
}

/// The answer of `histogram`.
fn bins_of(answer: &ScalarValue) -> Result<Vec<Bin>> {
    let ScalarValue::List(list) = answer else {
        return internal_err!("a histogram is {answer}");
    };
    let bins = list.value(0);
    let bins = bins.as_struct();
    (0..bins.len())
        .map(|row| {
            let bin = bins.slice(row, 1);
            Ok(Bin {
                low: field(&bin, "low")?,
                high: field(&bin, "high")?,
                count: count(&bin, "count")?,
            })
        })
        .collect()
}

/// A column's profile after the first read.
pub(super) struct Draft {
    pub(super) profile: ColumnProfile,
    /// Its distinct values, if they are counted.
    pub(super) counted: Option<Counted>,
}

impl Draft {
    /// Whether a second read may tell more.
    pub(super) fn is_open(&self) -> bool {
        let is_counted = |counted: &Counted| counted.is_whole() || counted.short_by == 0 && self.has_bins();
        self.counted.as_ref().is_some_and(|counted| !is_counted(counted))
    }

    /// Whether the histogram is there, and the values beyond the fences are counted, as far as the column has any.
    fn has_bins(&self) -> bool {
        self.profile.percentiles.is_empty() || self.profile.histogram.is_some()
    }

    /// Adds what the counts of all distinct values tell.
    pub(super) fn complete_by_counts(&mut self) -> Result<()> {
        let Some(counted) = &self.counted else {
            return Ok(());
        };
        if counted.short_by == 0 {
            self.profile.top = counted.top(TOP_VALUES)?;
        }
        if !counted.is_whole() || self.has_bins() {
            return Ok(());
        }
        if let Some(least) = self.profile.percentile(0).cloned() {
            self.profile.histogram = Some(counted.histogram(&least)?);
        }
        if let Some(fences) = &mut self.profile.fences {
            fences.beyond = Some(counted.beyond(&fences.low, &fences.high)?);
        }
        Ok(())
    }
}
