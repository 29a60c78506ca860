//! The functions that rank a value, by the names that users write, and the answer of each.

use std::fmt::{self, Display};

use datafusion::arrow::datatypes::DataType;

/// A function that ranks a value among those of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RankName {
    /// `exact_rank(x, v)`: the number of values at or below v.
    ExactRank,
    /// `exact_cdf(x, v)`: their share of all values.
    ExactCdf,
    /// `rank(v) WITHIN GROUP (ORDER BY x)`: the rank that a row with v would have.
    Rank,
    /// `dense_rank(v) WITHIN GROUP (ORDER BY x)`: the same, where equal rows count once.
    DenseRank,
    /// `percent_rank(v) WITHIN GROUP (ORDER BY x)`: the share of rows before it.
    PercentRank,
    /// `cume_dist(v) WITHIN GROUP (ORDER BY x)`: the share of rows up to it and its equals, itself included.
    CumeDist,
}

impl RankName {
    /// All names.
    pub(crate) const ALL: [RankName; 6] = [
        RankName::ExactRank,
        RankName::ExactCdf,
        RankName::Rank,
        RankName::DenseRank,
        RankName::PercentRank,
        RankName::CumeDist,
    ];

    /// The name in SQL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RankName::ExactRank => "exact_rank",
            RankName::ExactCdf => "exact_cdf",
            RankName::Rank => "rank",
            RankName::DenseRank => "dense_rank",
            RankName::PercentRank => "percent_rank",
            RankName::CumeDist => "cume_dist",
        }
    }

    /// Whether it is one of the SQL standard's hypothetical-set functions: v is a row among the rows, which are ordered with their NULLs.
    pub(crate) fn is_hypothetical(self) -> bool {
        !matches!(self, RankName::ExactRank | RankName::ExactCdf)
    }

    /// Whether values equal to v count as those before it do.
    pub(super) fn counts_equal(self) -> bool {
        matches!(
            self,
            RankName::ExactRank | RankName::ExactCdf | RankName::CumeDist
        )
    }

    /// The type of the answer for one v.
    pub(super) fn answer_type(self) -> DataType {
        match self {
            RankName::ExactRank | RankName::Rank | RankName::DenseRank => DataType::UInt64,
            RankName::ExactCdf | RankName::PercentRank | RankName::CumeDist => DataType::Float64,
        }
    }

    /// The message for a wrong number of arguments, `count`.
    pub(super) fn wrong_arguments(self, count: usize) -> String {
        if self.is_hypothetical() {
            format!(
                "{self} takes 1 argument and an order: {self}(v) WITHIN GROUP (ORDER BY x), v a constant or a list of constants"
            )
        } else {
            format!("{self} takes 2 arguments, got {count}: the values and a constant or a list of constants")
        }
    }
}

impl Display for RankName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
