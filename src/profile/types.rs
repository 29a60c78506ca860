//! What a profile is made of.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;

/// Most distinct values of a column that are counted exactly, unless the memory limit makes it fewer.
pub const MOST_DISTINCT: usize = 100_000;

/// Most groups of a profile by groups.
pub const MOST_GROUPS: usize = 100;

/// Bins of a histogram, at most.
pub const BINS: u64 = 20;

/// Most values that are told with how often they occur.
pub const TOP_VALUES: usize = 10;

/// Percentages of the percentiles that a profile shows.
pub const PERCENTAGES: [u8; 7] = [1, 5, 25, 50, 75, 95, 99];

/// What a table holds.
#[derive(Debug, Clone)]
pub struct TableProfile {
    /// Number of rows.
    pub rows: u64,
    /// Its columns in order, each field of a struct as a column.
    pub columns: Vec<ColumnProfile>,
}

/// What the rows of a group hold.
#[derive(Debug, Clone)]
pub struct GroupProfile {
    /// The values that the rows have in common; none of a profile without groups.
    pub group: Vec<ScalarValue>,
    /// What the rows hold.
    pub profile: TableProfile,
}

/// What a column holds.
#[derive(Debug, Clone)]
pub struct ColumnProfile {
    /// Its name. That of a struct's field follows the name of the struct and a dot.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// Number of values that are not NULL.
    pub values: u64,
    /// Number of NULLs.
    pub nulls: u64,
    /// Number of values that are no number (NaN); floating point only.
    pub nans: Option<u64>,
    /// Number of distinct values; `None` for types whose values are not compared, such as lists.
    pub distinct: Option<Distinct>,
    /// The least and the greatest value; numbers, times, text and binary values.
    pub range: Option<(ScalarValue, ScalarValue)>,
    /// The mean of numbers.
    pub mean: Option<f64>,
    /// The standard deviation of numbers, as of a sample.
    pub deviation: Option<f64>,
    /// The values at the percentages 0, 1, 5, 10, 15 .. 95, 99 and 100; none without values, and of types without percentiles.
    pub(super) percentiles: Vec<(u8, ScalarValue)>,
    /// Lengths: characters of text, bytes of binary values, items of lists, entries of maps.
    pub lengths: Option<Lengths>,
    /// Tukey's fences, and how many values lie beyond; numbers and times.
    pub fences: Option<Fences>,
    /// The most frequent values with how often they occur, most frequent first. Where there are too many distinct values to count them all,
    /// only those that are proved to be the most frequent.
    pub top: Vec<(ScalarValue, u64)>,
    /// Numbers and times: the values between edges that part them into [`BINS`] bins of about the same number of values. `None` if it would take
    /// a second read of a query that may give other rows then, as profiles by groups do.
    pub histogram: Option<Vec<Bin>>,
}

impl ColumnProfile {
    /// The value at this percentage, one of 0, 1, 5, 10, 15 .. 95, 99 and 100.
    pub fn percentile(&self, percentage: u8) -> Option<&ScalarValue> {
        let found = self
            .percentiles
            .iter()
            .find(|(percent, _)| *percent == percentage);
        found.map(|(_, value)| value)
    }
}

/// A number of distinct values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distinct {
    /// It is exact.
    Exact(u64),
    /// There are too many to hold: an estimate, with a standard error of 0.8%.
    Estimated(u64),
}

impl Distinct {
    /// The number.
    pub fn number(self) -> u64 {
        match self {
            Self::Exact(number) | Self::Estimated(number) => number,
        }
    }
}

/// Lengths of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lengths {
    /// The shortest.
    pub shortest: u64,
    /// The mean.
    pub mean: f64,
    /// The longest.
    pub longest: u64,
}

/// Tukey's fences: one and a half times the interquartile range beyond the quartiles.
#[derive(Debug, Clone, PartialEq)]
pub struct Fences {
    /// The lower fence; the least value that is not beyond it, for types that are no floating point.
    pub low: ScalarValue,
    /// The upper fence; the greatest value that is not beyond it, for types that are no floating point.
    pub high: ScalarValue,
    /// Number of values below and above; `None` if it would take a second read of a query that may give other rows then, as profiles by
    /// groups do.
    pub beyond: Option<(u64, u64)>,
}

/// Values between two edges.
#[derive(Debug, Clone, PartialEq)]
pub struct Bin {
    /// The lower edge, which the first bin holds alone.
    pub low: ScalarValue,
    /// The upper edge, which is held.
    pub high: ScalarValue,
    /// Number of values.
    pub count: u64,
}
