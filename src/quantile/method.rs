//! Methods: the answers where a quantile falls between two values.

use std::fmt::{self, Display};
use std::str::FromStr;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, plan_err};

use crate::key::KeySpec;

/// The answer where a quantile falls between two values, or on one.
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
}

impl Method {
    /// All methods that users can name.
    pub const ALL: [Method; 6] = [
        Method::Disc,
        Method::Linear,
        Method::Lower,
        Method::Higher,
        Method::Nearest,
        Method::Midpoint,
    ];

    /// Whether an answer can lie between two values.
    pub fn interpolates(self) -> bool {
        matches!(self, Method::Linear | Method::Midpoint) || self.is_builtin()
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
            Method::Median => "median",
            Method::PercentileCont => "percentile_cont",
        })
    }
}

impl FromStr for Method {
    type Err = DataFusionError;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "disc" | "inverted_cdf" => Method::Disc,
            "linear" | "cont" => Method::Linear,
            "lower" => Method::Lower,
            "higher" => Method::Higher,
            "nearest" => Method::Nearest,
            "midpoint" => Method::Midpoint,
            _ => {
                return plan_err!(
                    "unknown quantile method '{name}': allowed are disc (or inverted_cdf), linear (or cont), \
                     lower, higher, nearest, midpoint"
                );
            }
        })
    }
}
