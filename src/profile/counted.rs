//! The figures of a column that follow from its distinct values and how often each occurs.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar, StructArray, UInt64Array};
use datafusion::arrow::compute::kernels::cmp::{gt, lt};
use datafusion::arrow::compute::{SortColumn, SortOptions, cast, lexsort_to_indices, sort_to_indices};
use datafusion::arrow::datatypes::{DataType, UInt64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_datafusion_err};

use super::types::{BINS, Bin, Distinct, TOP_VALUES};

/// Distinct values of a column with how often each occurs, as `value_frequencies` gives them.
pub(super) struct Counted {
    /// Number of distinct values of the column.
    pub(super) distinct: Distinct,
    /// By how much each count may be short.
    pub(super) short_by: u64,
    values: ArrayRef,
    counts: Vec<u64>,
}

impl Counted {
    /// Reads the one row of an answer.
    pub(super) fn of(answer: &StructArray) -> Result<Self> {
        let part = |name| {
            answer
                .column_by_name(name)
                .filter(|part| part.len() == 1)
                .ok_or_else(|| internal_datafusion_err!("no '{name}' of frequencies"))
        };
        let number = |name| Ok::<_, DataFusionError>(part(name)?.as_primitive::<UInt64Type>().value(0));
        let distinct = number("distinct")?;
        let is_exact = part("is_exact")?.as_boolean().value(0);
        let counts = part("counts")?.as_list::<i32>().value(0);
        Ok(Self {
            distinct: if is_exact {
                Distinct::Exact(distinct)
            } else {
                Distinct::Estimated(distinct)
            },
            short_by: number("short_by")?,
            values: part("values")?.as_list::<i32>().value(0),
            counts: counts.as_primitive::<UInt64Type>().values().to_vec(),
        })
    }

    /// Whether all distinct values are there.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.distinct, Distinct::Exact(_))
    }

    /// The most frequent values with their counts, most frequent first, then by value.
    pub(super) fn top(&self, most: usize) -> Result<Vec<(ScalarValue, u64)>> {
        let descending = SortOptions {
            descending: true,
            nulls_first: false,
        };
        let counts: ArrayRef = Arc::new(UInt64Array::from(self.counts.clone()));
        let columns = [
            SortColumn {
                values: counts,
                options: Some(descending),
            },
            SortColumn {
                values: Arc::clone(&self.values),
                options: None,
            },
        ];
        let order = lexsort_to_indices(&columns, Some(most))?;
        order
            .values()
            .iter()
            .map(|&row| {
                let row = row as usize;
                Ok((
                    ScalarValue::try_from_array(&self.values, row)?,
                    self.counts.get(row).copied().unwrap_or(0),
                ))
            })
            .collect()
    }

    /// Values that may be among the most frequent ones, with counts that may be short; and how often any other value occurs at most.
    pub(super) fn contenders(&self) -> Result<(Vec<(ScalarValue, u64)>, u64)> {
        let ranked = self.top(CONTENDERS + 1)?;
        let others = ranked.get(CONTENDERS).map_or(0, |(_, count)| *count);
        let floor = ranked.get(TOP_VALUES - 1).map_or(0, |(_, count)| *count);
        let may_be = |count: u64| count > self.short_by && count + self.short_by >= floor;
        let mut contenders = ranked;
        contenders.truncate(CONTENDERS);
        let first_other = contenders.iter().position(|(_, count)| !may_be(*count));
        let others = first_other
            .and_then(|place| contenders.get(place))
            .map_or(others, |(_, count)| *count);
        contenders.truncate(first_other.unwrap_or(CONTENDERS));
        Ok((contenders, others + self.short_by))
    }

    /// The bins of an equi-depth histogram, over all distinct values, of which `least` is the least one.
    pub(super) fn histogram(&self, least: &ScalarValue) -> Result<Vec<Bin>> {
        let order = sort_to_indices(&self.values, None, None)?;
        let total: u64 = self.counts.iter().sum();
        let bins = total.min(BINS);
        let (mut histogram, mut low, mut before, mut through, mut bin) = (Vec::new(), least.clone(), 0, 0, 1);
        for &row in order.values() {
            let row = row as usize;
            through += self.counts.get(row).copied().unwrap_or(0);
            let rank = |bin: u64| (u128::from(bin) * u128::from(total)).div_ceil(bins.max(1).into());
            let value = ScalarValue::try_from_array(&self.values, row)?;
            if bin > bins || rank(bin) > through.into() {
                continue;
            }
            while bin <= bins && rank(bin) <= through.into() {
                bin += 1;
            }
            let low = std::mem::replace(&mut low, value.clone());
            histogram.push(Bin {
                low,
                high: value,
                count: through - before,
            });
            before = through;
        }
        Ok(histogram)
    }

    /// Number of values below and above these, over all distinct values.
    pub(super) fn beyond(&self, low: &ScalarValue, high: &ScalarValue) -> Result<(u64, u64)> {
        let values = match low.data_type() {
            DataType::Float64 => cast(&self.values, &DataType::Float64)?,
            _ => Arc::clone(&self.values),
        };
        let sum = |chosen: &BooleanArray| {
            let counts = chosen.values().iter().zip(&self.counts);
            counts
                .filter(|(is_chosen, _)| *is_chosen)
                .map(|(_, count)| count)
                .sum()
        };
        let below = lt(&values, &Scalar::new(low.to_array()?))?;
        let above = gt(&values, &Scalar::new(high.to_array()?))?;
        Ok((sum(&below), sum(&above)))
    }
}

/// Values whose counts a second read looks at, at most.
const CONTENDERS: usize = 64;
