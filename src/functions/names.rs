//! The names under which users call the functions of exact quantiles, and the method that each name fixes.

use std::fmt::{self, Display};

use crate::quantile::Method;

/// A function, by the name that a user writes.
///
/// One implementation serves all names. A name fixes the method, or leaves it to the third argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FunctionName {
    /// `exact_quantiles(x, q [, method])`.
    ExactQuantiles,
    /// `percentile_disc(q) WITHIN GROUP (ORDER BY x)` of the SQL standard.
    PercentileDisc,
    /// DuckDB's `quantile_disc(x, q)`.
    QuantileDisc,
    /// DuckDB's `quantile_cont(x, q)`.
    QuantileCont,
    /// DataFusion's `median(x)`, while `quantiles.replace_builtins` is on.
    Median,
    /// DataFusion's `percentile_cont`, while `quantiles.replace_builtins` is on.
    PercentileCont,
    /// Spark's `percentile(x, p [, frequency])`.
    Percentile,
}

impl FunctionName {
    /// All names.
    pub(crate) const ALL: [FunctionName; 7] = [
        FunctionName::ExactQuantiles,
        FunctionName::PercentileDisc,
        FunctionName::QuantileDisc,
        FunctionName::QuantileCont,
        FunctionName::Median,
        FunctionName::PercentileCont,
        FunctionName::Percentile,
    ];

    /// The name in SQL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            FunctionName::ExactQuantiles => "exact_quantiles",
            FunctionName::PercentileDisc => "percentile_disc",
            FunctionName::QuantileDisc => "quantile_disc",
            FunctionName::QuantileCont => "quantile_cont",
            FunctionName::Median => "median",
            FunctionName::PercentileCont => "percentile_cont",
            FunctionName::Percentile => "percentile",
        }
    }

    /// The methods that calls under this name can have. The first is the default.
    pub(crate) fn methods(self) -> &'static [Method] {
        match self {
            FunctionName::ExactQuantiles => &Method::ALL,
            FunctionName::PercentileDisc | FunctionName::QuantileDisc => &[Method::Disc],
            FunctionName::QuantileCont => &[Method::Linear],
            FunctionName::Median => &[Method::Median],
            FunctionName::PercentileCont => &[Method::PercentileCont],
            FunctionName::Percentile => &[Method::SparkPercentile],
        }
    }

    /// Whether the name is that of DataFusion's own function. The planner replaces that function; no query calls this crate's by this name.
    pub(crate) fn is_builtin(self) -> bool {
        matches!(self, FunctionName::Median | FunctionName::PercentileCont)
    }

    /// Whether a third argument names the method.
    pub(super) fn takes_method(self) -> bool {
        self.methods().len() > 1
    }

    /// Whether the last argument may be how often each row counts.
    pub(super) fn takes_weight(self) -> bool {
        !self.is_builtin()
    }

    /// The registered name of the aggregate function for one of [`Self::methods`] and one direction.
    pub(super) fn registered(self, method: Method, descending: bool) -> String {
        // DataFusion's functions keep their own names in the registry.
        let mut name = match self {
            FunctionName::Median => "exact_median".to_owned(),
            FunctionName::PercentileCont => "exact_percentile_cont".to_owned(),
            _ => self.as_str().to_owned(),
        };
        if method != self.methods()[0] {
            name += &format!("_{method}");
        }
        if descending {
            name += "_desc";
        }
        name
    }

    /// The message for a wrong number of arguments, `count`.
    pub(super) fn wrong_arguments(self, count: usize) -> String {
        let (takes, more) = match (self.takes_method(), self.takes_weight()) {
            (true, _) => (
                "2 to 4",
                ", and optionally the name of a method, and behind it a weight",
            ),
            (false, true) => ("2 or 3", ", and optionally a weight"),
            (false, false) => ("2", ""),
        };
        let and = if more.is_empty() { " and" } else { "," };
        format!(
            "{self} takes {takes} arguments, got {count}: the values{and} a constant quantile or list of quantiles \
             from 0 to 1{more}"
        )
    }
}

impl Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
