//! Methods: the answers where a quantile falls between two values.

use std::fmt::{self, Display};
use std::str::FromStr;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, plan_err};

use crate::key::KeySpec;

/// The answer where a quantile falls between two values, or on one. The number of a variant travels in plans: new ones go to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// The value of rank `max(1, ceil(q n))`: NumPy's `inverted_cdf`.
    #[default]
    Disc,
    /// Linear interpolation at position `q (n - 1)`.
    Linear,
    /// The value at `floor(q (n - 1))`.
    Lower,
    /// The value at `ceil(q (n - 1))`.
    Higher,
    /// The value nearest to `q (n - 1)`; halves go to the even index.
    Nearest,
    /// The mean of `lower` and `higher`.
    Midpoint,
    /// DataFusion's own `median`, whatever the quantile, in its arithmetic. Not a name that users write.
    Median,
    /// DataFusion's own `percentile_cont`, in its arithmetic. Not a name that users write.
    PercentileCont,
    /// The value of rank `q n`, where that is whole the mean of it and the next: NumPy's `averaged_inverted_cdf`.
    AveragedInvertedCdf,
    /// The value of the rank nearest to `q n`; halfway between two, the even rank.
    ClosestObservation,
    /// Linear interpolation at rank `q n`.
    InterpolatedInvertedCdf,
    /// Linear interpolation at rank `q n + 1/2`.
    Hazen,
    /// Linear interpolation at rank `q (n + 1)`: Excel's `PERCENTILE.EXC`.
    Weibull,
    /// Linear interpolation at rank `q (n + 1/3) + 1/3`, which estimates the median of a sample's quantile without bias.
    MedianUnbiased,
    /// Linear interpolation at rank `q (n + 1/4) + 3/8`, nearly without bias for normal distributions.
    NormalUnbiased,
    /// Spark's own `percentile`, in its arithmetic. Not a name that users write.
    SparkPercentile,
    /// ClickHouse's own `quantileExact`: the value of rank `floor(q n) + 1`, and of rank `n` for the quantile 1. Not a name that users write.
    ClickHouse,
    /// ClickHouse's own `quantileExactLow`: [`ClickHouse`](Method::ClickHouse), but for the quantile 0.5, which is [`Disc`](Method::Disc). Not a
    /// name that users write.
    ClickHouseLow,
}

impl Method {
    /// All methods that users can name.
    pub const ALL: [Method; 13] = [
        Method::Disc,
        Method::Linear,
        Method::Lower,
        Method::Higher,
        Method::Nearest,
        Method::Midpoint,
        Method::AveragedInvertedCdf,
        Method::ClosestObservation,
        Method::InterpolatedInvertedCdf,
        Method::Hazen,
        Method::Weibull,
        Method::MedianUnbiased,
        Method::NormalUnbiased,
    ];

    /// The names of the methods that users can name and that are `wanted`, separated by commas.
    pub(crate) fn names(wanted: impl Fn(Method) -> bool) -> String {
        let names = Method::ALL.into_iter().filter(|method| wanted(*method));
        names
            .map(|method| method.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Whether an answer can lie between two values.
    pub fn interpolates(self) -> bool {
        !matches!(
            self,
            Method::Disc
                | Method::Lower
                | Method::Higher
                | Method::Nearest
                | Method::ClosestObservation
                | Method::ClickHouse
                | Method::ClickHouseLow
        )
    }

    /// Whether the answer depends on nothing but the share of the rows at each value, so that it stays when every row is taken equally often.
    pub(crate) fn is_of_shares(self) -> bool {
        matches!(self, Method::Disc | Method::AveragedInvertedCdf)
    }

    /// Whether the rule is DataFusion's own.
    pub(super) fn is_builtin(self) -> bool {
        matches!(self, Method::Median | Method::PercentileCont)
    }

    /// The keys by which values of type `data_type` are ranked, and in which answers of that type are written: in the
    /// functions' order; for DataFusion's own rules in `ORDER BY`'s order.
    ///
    /// # Errors
    /// A planning error if the type has no keys.
    pub fn key_spec(self, data_type: &DataType) -> Result<KeySpec> {
        if self.is_builtin() {
            KeySpec::for_order_by(data_type)
        } else {
            KeySpec::try_new(data_type)
        }
    }
}

impl Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Disc => "disc",
            Method::Linear => "linear",
            Method::Lower => "lower",
            Method::Higher => "higher",
            Method::Nearest => "nearest",
            Method::Midpoint => "midpoint",
            Method::AveragedInvertedCdf => "averaged_inverted_cdf",
            Method::ClosestObservation => "closest_observation",
            Method::InterpolatedInvertedCdf => "interpolated_inverted_cdf",
            Method::Hazen => "hazen",
            Method::Weibull => "weibull",
            Method::MedianUnbiased => "median_unbiased",
            Method::NormalUnbiased => "normal_unbiased",
            Method::Median => "median",
            Method::PercentileCont => "percentile_cont",
            Method::SparkPercentile => "percentile",
            Method::ClickHouse => "clickhouse",
            Method::ClickHouseLow => "clickhouse_low",
        })
    }
}

impl FromStr for Method {
    type Err = DataFusionError;

    fn from_str(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        let found = match lower.as_str() {
            "inverted_cdf" => Some(Method::Disc),
            "cont" => Some(Method::Linear),
            other => Method::ALL.into_iter().find(|method| method.to_string() == other),
        };
        match found {
            Some(method) => Ok(method),
            None => plan_err!(
                "unknown quantile method '{name}': allowed are {} (inverted_cdf is another name of disc, cont of linear)",
                Method::names(|_| true)
            ),
        }
    }
}
