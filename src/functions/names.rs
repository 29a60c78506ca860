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
    /// ClickHouse's `quantileExact(q)(x)`.
    QuantileExact,
    /// ClickHouse's `quantileExactLow(q)(x)`.
    QuantileExactLow,
    /// ClickHouse's `quantileExactHigh(q)(x)`.
    QuantileExactHigh,
    /// ClickHouse's `quantileExactInclusive(q)(x)`.
    QuantileExactInclusive,
    /// ClickHouse's `quantileExactExclusive(q)(x)`.
    QuantileExactExclusive,
    /// ClickHouse's `quantileExactWeighted(q)(x, w)`.
    QuantileExactWeighted,
}

impl FunctionName {
    /// All names.
    pub(crate) const ALL: [FunctionName; 13] = [
        FunctionName::ExactQuantiles,
        FunctionName::PercentileDisc,
        FunctionName::QuantileDisc,
        FunctionName::QuantileCont,
        FunctionName::Median,
        FunctionName::PercentileCont,
        FunctionName::Percentile,
        FunctionName::QuantileExact,
        FunctionName::QuantileExactLow,
        FunctionName::QuantileExactHigh,
        FunctionName::QuantileExactInclusive,
        FunctionName::QuantileExactExclusive,
        FunctionName::QuantileExactWeighted,
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
            FunctionName::QuantileExact => "quantile_exact",
            FunctionName::QuantileExactLow => "quantile_exact_low",
            FunctionName::QuantileExactHigh => "quantile_exact_high",
            FunctionName::QuantileExactInclusive => "quantile_exact_inclusive",
            FunctionName::QuantileExactExclusive => "quantile_exact_exclusive",
            FunctionName::QuantileExactWeighted => "quantile_exact_weighted",
        }
    }

    /// Other names of the function, as SQL has them without quotes: ClickHouse's for one level and for several.
    pub(super) fn aliases(self) -> &'static [&'static str] {
        match self {
            FunctionName::QuantileExact => &["quantileexact", "quantilesexact", "quantiles_exact"],
            FunctionName::QuantileExactLow => {
                &["quantileexactlow", "quantilesexactlow", "quantiles_exact_low"]
            }
            FunctionName::QuantileExactHigh => {
                &["quantileexacthigh", "quantilesexacthigh", "quantiles_exact_high"]
            }
            FunctionName::QuantileExactInclusive => &[
                "quantileexactinclusive",
                "quantilesexactinclusive",
                "quantiles_exact_inclusive",
            ],
            FunctionName::QuantileExactExclusive => &[
                "quantileexactexclusive",
                "quantilesexactexclusive",
                "quantiles_exact_exclusive",
            ],
            FunctionName::QuantileExactWeighted => &[
                "quantileexactweighted",
                "quantilesexactweighted",
                "quantiles_exact_weighted",
            ],
            _ => &[],
        }
    }

    /// Whether the name, and the meaning, is ClickHouse's.
    pub(super) fn is_of_clickhouse(self) -> bool {
        !self.aliases().is_empty()
    }

    /// The methods that calls under this name can have. The first is the default.
    pub(crate) fn methods(self) -> &'static [Method] {
        match self {
            FunctionName::ExactQuantiles => &Method::ALL,
            FunctionName::PercentileDisc
            | FunctionName::QuantileDisc
            | FunctionName::QuantileExactWeighted => &[Method::Disc],
            FunctionName::QuantileCont | FunctionName::QuantileExactInclusive => &[Method::Linear],
            FunctionName::Median => &[Method::Median],
            FunctionName::PercentileCont => &[Method::PercentileCont],
            FunctionName::Percentile => &[Method::SparkPercentile],
            FunctionName::QuantileExact | FunctionName::QuantileExactHigh => &[Method::ClickHouse],
            FunctionName::QuantileExactLow => &[Method::ClickHouseLow],
            FunctionName::QuantileExactExclusive => &[Method::Weibull],
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
        self.needs_weight() || !self.is_builtin() && !self.is_of_clickhouse()
    }

    /// Whether the last argument is always how often each row counts.
    pub(super) fn needs_weight(self) -> bool {
        self == FunctionName::QuantileExactWeighted
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
            (false, true) if self.needs_weight() => ("3", ", and a weight"),
            (false, true) => ("2 or 3", ", and optionally a weight"),
            // DataFusion's planner drops ClickHouse's first pair of parentheses.
            (false, false) if self.is_of_clickhouse() => (
                "2",
                "; the form of ClickHouse, with the quantiles in front, is known to datafusion_quantiles::statement::sql",
            ),
            (false, false) => ("2", ""),
        };
        let and = if more.starts_with(',') { "," } else { " and" };
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
