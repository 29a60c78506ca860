//! The names under which users call the approximate functions, with the arguments and the answer of each.

use std::fmt::{self, Display};

use datafusion::common::{Result, plan_err};

use super::column::Output;

/// The allowed numbers of buckets, for messages.
pub(super) const BUCKETS: &str = "a whole number from 2 to 16384";

/// An approximate function, by the name that a user writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum GkName {
    /// `approx_percentile_gk(x, q [, accuracy])`.
    ApproxPercentileGk,
    /// Spark's `percentile_approx(x, q [, accuracy])`: another name of `approx_percentile_gk`.
    PercentileApprox,
    /// `approx_percentile_gk_bounds(x, q [, accuracy])`: the value, the ranks that it may have, the number of values.
    ApproxPercentileGkBounds,
    /// `approx_percentile_sample(x, q [, buckets])`: the splitter of a sample that is nearest to the rank.
    ApproxPercentileSample,
    /// `approx_percentile_sample_bounds(x, q [, buckets])`: that splitter, the ranks that it has, the number of values.
    ApproxPercentileSampleBounds,
    /// `gk_sketch(x [, accuracy])`: the sketch itself.
    GkSketch,
    /// `gk_merge(sketch)`: one sketch merged from many.
    GkMerge,
}

impl GkName {
    /// All names.
    pub(crate) const ALL: [GkName; 7] = [
        GkName::ApproxPercentileGk,
        GkName::PercentileApprox,
        GkName::ApproxPercentileGkBounds,
        GkName::ApproxPercentileSample,
        GkName::ApproxPercentileSampleBounds,
        GkName::GkSketch,
        GkName::GkMerge,
    ];

    /// The name in SQL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            GkName::ApproxPercentileGk => "approx_percentile_gk",
            GkName::PercentileApprox => "percentile_approx",
            GkName::ApproxPercentileGkBounds => "approx_percentile_gk_bounds",
            GkName::ApproxPercentileSample => "approx_percentile_sample",
            GkName::ApproxPercentileSampleBounds => "approx_percentile_sample_bounds",
            GkName::GkSketch => "gk_sketch",
            GkName::GkMerge => "gk_merge",
        }
    }

    /// Whether a call has quantiles, as its second argument.
    pub(crate) fn takes_quantiles(self) -> bool {
        !matches!(self, GkName::GkSketch | GkName::GkMerge)
    }

    /// Whether the answer is a value alone. The exact value is then a valid answer.
    pub(crate) fn answers_values(self) -> bool {
        matches!(
            self,
            GkName::ApproxPercentileGk | GkName::PercentileApprox | GkName::ApproxPercentileSample
        )
    }

    /// Whether the answer is a splitter of a sample.
    pub(crate) fn samples(self) -> bool {
        matches!(
            self,
            GkName::ApproxPercentileSample | GkName::ApproxPercentileSampleBounds
        )
    }

    /// The answer of a call for each group.
    pub(super) fn output(self) -> Output {
        match self {
            GkName::ApproxPercentileGk | GkName::PercentileApprox => Output::Values,
            GkName::ApproxPercentileSample => Output::Values,
            GkName::ApproxPercentileGkBounds | GkName::ApproxPercentileSampleBounds => Output::Bounds,
            GkName::GkSketch | GkName::GkMerge => Output::Sketch,
        }
    }

    /// Index, from 0, of the argument that gives the accuracy or the number of buckets; `None`: there is no such argument.
    pub(crate) fn precision_index(self) -> Option<usize> {
        match self {
            GkName::GkMerge => None,
            GkName::GkSketch => Some(1),
            _ => Some(2),
        }
    }

    /// Checks the number of arguments.
    ///
    /// # Errors
    /// A planning error that says what is allowed.
    pub(crate) fn check_count(self, count: usize) -> Result<()> {
        let precision = if self.samples() {
            format!("and optionally the number of buckets, {BUCKETS}")
        } else {
            "and optionally the accuracy, an error fraction in (0, 1) or its reciprocal".to_owned()
        };
        let (allowed, what) = match self {
            GkName::GkMerge => (1..=1, "sketches".to_owned()),
            GkName::GkSketch => (1..=2, format!("the values, {precision}")),
            _ => (
                2..=3,
                format!("the values, a constant quantile or list of quantiles from 0 to 1, {precision}"),
            ),
        };
        match allowed.contains(&count) {
            true => Ok(()),
            false if allowed.start() == allowed.end() => {
                plan_err!("{self} takes 1 argument, got {count}: {what}")
            }
            false => plan_err!(
                "{self} takes {} or {} arguments, got {count}: {what}",
                allowed.start(),
                allowed.end()
            ),
        }
    }
}

impl Display for GkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
