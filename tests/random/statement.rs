//! Statements as trees.

use crate::in_order::Asked;
use crate::nearest::{Distance, Neighbours};
use crate::table::F;

/// Names of the columns that a statement can use; `w` comes from a join only.
pub(crate) const NAMES: [&str; 9] = ["id", "g", "h", "k", "f", "s", "x", "y", "w"];
/// Place of the joined column.
pub(crate) const W: usize = 8;
/// The table `d(h, w)` that `t` is joined with.
pub(crate) const JOINED: [(Option<i64>, Option<i64>); 5] = [
    (Some(0), Some(10)),
    (Some(1), Some(20)),
    (Some(1), Some(21)),
    (Some(2), None),
    (None, Some(5)),
];

/// A condition in three-valued logic. `usize` is the place of a column.
#[derive(Debug, Clone)]
pub(crate) enum Pred {
    /// A whole number column beside a constant, or beside NULL.
    Compare(usize, &'static str, Option<i64>),
    /// `f` beside a constant that is not 0.
    Float(&'static str, f64),
    /// A text beside a constant.
    Text(&'static str, &'static str),
    IsNull(usize, bool),
    In(usize, Vec<Option<i64>>, bool),
    Between(usize, i64, i64),
    And(Box<Pred>, Box<Pred>),
    Or(Box<Pred>, Box<Pred>),
    Not(Box<Pred>),
}

#[derive(Debug, Clone)]
pub(crate) enum Expr {
    Column(usize),
    /// A whole number column and a constant.
    Plus(usize, i64),
    /// A whole number column as decimals.
    Decimal(usize),
    Case(Pred, usize),
}

#[derive(Debug, Clone)]
pub(crate) enum From {
    Table,
    Subquery(Pred),
    View(Pred),
    Union(Pred, Pred),
    /// Joined with `d` by equal `h`, or by a greater one.
    Join {
        left: bool,
        greater: bool,
    },
    /// Rows with a smaller `h` in `d`, or those without.
    Exists {
        not: bool,
    },
}

/// A decimal from 0 to 1.
#[derive(Debug, Clone)]
pub(crate) struct Q {
    pub(crate) num: u64,
    pub(crate) den: u64,
    pub(crate) text: String,
}

/// A constant that values are compared with.
#[derive(Debug, Clone)]
pub(crate) enum Point {
    /// Half of a whole number, beside whole numbers.
    Half(i64),
    Float(f64),
    Text(&'static str),
}

#[derive(Debug, Clone)]
pub(crate) enum Func {
    /// Exact quantiles and their other names: name, method or `""`, whether it stands in `WITHIN GROUP`.
    Quantile {
        name: &'static str,
        method: &'static str,
        within: Option<bool>,
    },
    /// `approx_percentile_gk` and `percentile_approx`: an error of ranks, in 1 / `accuracy`.
    Gk {
        name: &'static str,
        accuracy: u64,
        within: Option<bool>,
    },
    GkBounds {
        accuracy: u64,
    },
    Sample {
        buckets: u64,
        within: Option<bool>,
    },
    SampleBounds {
        buckets: u64,
    },
    /// `gk_quantile(gk_sketch(x, accuracy), q)`.
    Sketch {
        accuracy: u64,
    },
    /// `gk_rank(gk_sketch(x, accuracy), at)`, x being a whole number.
    SketchRank {
        accuracy: u64,
        at: i64,
    },
    /// Ranks of values: `exact_rank`, `exact_cdf`, and the hypothetical-set functions, whose direction and place of NULLs are given.
    Rank {
        name: &'static str,
        within: Option<bool>,
        nulls_first: Option<bool>,
        at: Vec<Option<Point>>,
    },
    /// `iqr(x [, method])`.
    Iqr {
        method: &'static str,
    },
    /// A function of all values in order.
    InOrder(Asked),
    /// `topk_by`, `max_by`, `min_by`; `asc` is the third name's direction.
    Top {
        name: &'static str,
        k: Option<u64>,
        asc: Option<bool>,
    },
    /// DataFusion's `median` and `percentile_cont`.
    Builtin {
        name: &'static str,
        within: Option<bool>,
    },
    /// `count(*)`, `count`, `sum`, `min`, `max`.
    Plain(&'static str),
    FirstValue {
        desc: bool,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) func: Func,
    /// What is ranked.
    pub(crate) x: Expr,
    /// What `topk_by` gives.
    pub(crate) v: Expr,
    pub(crate) qs: Vec<Q>,
    pub(crate) list: bool,
    pub(crate) distinct: bool,
    /// Whether a call that counts from the greatest value is spelled by the function's name with `_desc`, not by `WITHIN GROUP`.
    pub(crate) by_suffix: bool,
    /// How often each row counts in exact quantiles; a number that is not negative, or NULL.
    pub(crate) weight: Option<Expr>,
    pub(crate) filter: Option<Pred>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Key {
    pub(crate) column: usize,
    pub(crate) desc: bool,
    pub(crate) nulls_first: Option<bool>,
}

impl Key {
    pub(crate) fn ascending(column: usize) -> Self {
        Self {
            column,
            desc: false,
            nulls_first: None,
        }
    }

    pub(crate) fn nulls_first(&self) -> bool {
        self.nulls_first.unwrap_or(self.desc)
    }
}

/// Rows or values or groups before (negative) or behind; none is unbounded.
pub(crate) type Bound = Option<i64>;

#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) partition: Option<usize>,
    pub(crate) order: Option<Key>,
    pub(crate) frame: Option<(&'static str, Bound, Bound)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Shape {
    Aggregate {
        groups: Vec<usize>,
        rollup: bool,
        calls: Vec<Call>,
        having: Option<i64>,
    },
    Window {
        calls: Vec<(Call, Window)>,
    },
    First {
        keys: Vec<Key>,
        limit: usize,
        offset: usize,
    },
    /// Rows by a distance, then by columns.
    Nearest {
        distance: Distance,
        desc: bool,
        nulls_first: Option<bool>,
        then: Vec<Key>,
        limit: usize,
        offset: usize,
    },
    /// Rows by their distance from those of the table.
    Neighbours(Neighbours),
    Best {
        spelling: Spelling,
        rank: bool,
        partition: Vec<usize>,
        keys: Vec<Key>,
        k: usize,
    },
    /// Sketches of groups, merged: `gk_quantile(gk_merge(s), q)`.
    Merged {
        x: usize,
        accuracy: u64,
        q: Q,
    },
    /// Rows at or above a quantile, by a subquery.
    Above {
        q: Q,
    },
    /// `SUMMARIZE` of these columns, of whole numbers or text.
    Summary {
        columns: Vec<usize>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Spelling {
    Subquery,
    Qualify,
    DistinctOn,
}

#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) from: From,
    pub(crate) filter: Option<Pred>,
    /// A prepared statement with the condition `k >= $1`.
    pub(crate) prepared: Option<i64>,
    pub(crate) shape: Shape,
}

impl Pred {
    /// Whether it looks at this column.
    pub(crate) fn names(&self, column: usize) -> bool {
        self.leaves().into_iter().any(|(leaf, _)| match leaf {
            Pred::Float(..) => column == F,
            Pred::Text(..) => NAMES[column] == "s",
            Pred::Compare(c, ..) | Pred::IsNull(c, _) | Pred::In(c, ..) | Pred::Between(c, ..) => {
                *c == column
            }
            Pred::And(..) | Pred::Or(..) | Pred::Not(_) => false,
        })
    }

    /// The conditions on one column that it is made of, each with whether a `NOT` around it negates it.
    pub(crate) fn leaves(&self) -> Vec<(&Pred, bool)> {
        match self {
            Pred::And(a, b) | Pred::Or(a, b) => [a.leaves(), b.leaves()].concat(),
            Pred::Not(a) => a.leaves().into_iter().map(|(leaf, not)| (leaf, !not)).collect(),
            _ => vec![(self, false)],
        }
    }
}
