//! The names under which users call the functions of the best rows.

use std::fmt::{self, Display};

/// A function of the best rows, by the name that a user writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TopKName {
    /// `topk_by(v, x, k [, 'asc' | 'desc'])`.
    Topk,
    /// `max_by(v, x [, k])`.
    Max,
    /// `min_by(v, x [, k])`.
    Min,
    /// DuckDB's `arg_max(v, x [, k])`: another name of `max_by`.
    ArgMax,
    /// DuckDB's `arg_min(v, x [, k])`: another name of `min_by`.
    ArgMin,
}

impl TopKName {
    /// The name in SQL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            TopKName::Topk => "topk_by",
            TopKName::Max => "max_by",
            TopKName::Min => "min_by",
            TopKName::ArgMax => "arg_max",
            TopKName::ArgMin => "arg_min",
        }
    }

    /// Whether a call may leave out `k`, and gets one value then.
    pub(super) fn answers_one(self) -> bool {
        self != TopKName::Topk
    }

    /// The message for a wrong number of arguments, `count`.
    pub(super) fn wrong_arguments(self, count: usize) -> String {
        let takes = match self {
            TopKName::Topk => {
                "3 or 4 arguments: values, keys, a constant number of rows, and optionally 'asc' or 'desc'"
            }
            _ => "2 or 3 arguments: values, keys, and optionally a constant number of rows",
        };
        format!("{self} takes {takes}; got {count}")
    }
}

impl Display for TopKName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
