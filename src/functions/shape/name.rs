//! The functions of the values of a column in order, by the names that users write.

use std::fmt::{self, Display};

/// A function of the values of a column in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ShapeName {
    /// `mode(x)`.
    Mode,
    /// `top_values(x, k)`.
    TopValues,
    /// DuckDB's `approx_top_k(x, k)`, answered exactly.
    ApproxTopK,
    /// `mad(x)`, the median absolute deviation.
    Mad,
    /// `trimmed_mean(x, p)`.
    TrimmedMean,
    /// `winsorized_mean(x, p)`.
    WinsorizedMean,
    /// `histogram(x, bins [, 'equi-depth'])`.
    Histogram,
    /// `histogram(x, bins, 'equi-width')`: the type of its answer is another.
    EquiWidth,
    /// `count_distinct_exact(x)`.
    CountDistinct,
    /// `tukey_fences(x)` of profiles, which SQL does not have.
    Fences,
}

impl ShapeName {
    /// All names in SQL.
    pub(crate) const ALL: [ShapeName; 9] = [
        ShapeName::Mode,
        ShapeName::TopValues,
        ShapeName::ApproxTopK,
        ShapeName::Mad,
        ShapeName::TrimmedMean,
        ShapeName::WinsorizedMean,
        ShapeName::Histogram,
        ShapeName::EquiWidth,
        ShapeName::CountDistinct,
    ];

    /// The name in SQL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ShapeName::Mode => "mode",
            ShapeName::TopValues => "top_values",
            ShapeName::ApproxTopK => "approx_top_k",
            ShapeName::Mad => "mad",
            ShapeName::TrimmedMean => "trimmed_mean",
            ShapeName::WinsorizedMean => "winsorized_mean",
            ShapeName::Histogram => "histogram",
            ShapeName::EquiWidth => "histogram_equi_width",
            ShapeName::CountDistinct => "count_distinct_exact",
            ShapeName::Fences => "tukey_fences",
        }
    }

    /// Number of arguments.
    pub(super) fn arguments(self) -> usize {
        match self {
            ShapeName::Mode | ShapeName::Mad | ShapeName::CountDistinct | ShapeName::Fences => 1,
            _ => 2,
        }
    }

    /// The message for a wrong number of arguments, `count`.
    pub(super) fn wrong_arguments(self, count: usize) -> String {
        let takes = match self {
            ShapeName::Mode | ShapeName::Mad | ShapeName::CountDistinct | ShapeName::Fences => {
                "1 argument: the values"
            }
            ShapeName::TopValues | ShapeName::ApproxTopK => {
                "2 arguments: the values, and a constant number of them"
            }
            ShapeName::TrimmedMean | ShapeName::WinsorizedMean => {
                "2 arguments: the values, and the constant share of them that is cut from each end"
            }
            ShapeName::Histogram => {
                "2 or 3 arguments: the values, a constant number of bins, and optionally 'equi-depth' or 'equi-width'"
            }
            ShapeName::EquiWidth => "2 arguments: the values, and a constant number of bins",
        };
        format!("{self} takes {takes}; got {count}")
    }

    /// Why the function takes no `DISTINCT`; `None`: it takes it.
    pub(super) fn without_distinct(self) -> Option<&'static str> {
        match self {
            ShapeName::Mode | ShapeName::TopValues | ShapeName::ApproxTopK => {
                Some("every distinct value is there once")
            }
            _ => None,
        }
    }
}

impl Display for ShapeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
