//! What the first read of a table tells of its columns.

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, internal_datafusion_err};

use super::counted::Counted;
use super::fences::fences;
use super::measures::{Described, Measure, RANKS};
use super::types::{ColumnProfile, Lengths, TOP_VALUES};

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
        let fences = match found(25).zip(found(75)) {
            Some((first, third)) => fences(&first, &third)?,
            None => None,
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
            histogram: (column.kind.has_percentiles() && !has_values).then(Vec::new),
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

/// A column's profile after the first read.
pub(super) struct Draft {
    pub(super) profile: ColumnProfile,
    /// Its distinct values, if they are counted.
    pub(super) counted: Option<Counted>,
}

impl Draft {
    /// Whether a second read tells more.
    pub(super) fn is_open(&self) -> bool {
        self.counted.as_ref().is_some_and(|counted| !counted.is_whole())
    }

    /// Adds what the counts of all distinct values tell.
    pub(super) fn complete_by_counts(&mut self) -> Result<()> {
        let Some(counted) = &self.counted else {
            return Ok(());
        };
        if counted.short_by == 0 {
            self.profile.top = counted.top(TOP_VALUES)?;
        }
        if !counted.is_whole() || self.profile.percentiles.is_empty() {
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
