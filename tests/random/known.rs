//! Defects of DataFusion that statements meet and that are not this crate's: each with its reason, and as narrow a
//! condition as there is. The report counts them.
//!
//! What nothing of this crate took part in needs no reason: see [`is_foreign`].

use crate::statement::{Call, Expr, Func, Key, Pred, Shape, Spelling, Statement, Window};
use crate::table::{F, Storage, Table};
use crate::value::{Cell, Value};

/// Names of this crate's operators in plans, as far as they do more than to pass rows on.
const OPERATORS: [&str; 13] = [
    "QuantilesExec",
    "SampleThenReadExec",
    "SortLimitExec",
    "TopKExec",
    "LateFetchExec",
    "NearestJoinExec",
    "PinnedExec",
    "ReservingWindowExec",
    "RoundExec",
    "RefineExec",
    "StageExec",
    "BranchExec",
    "BoundaryExec",
];

/// Whether neither a function nor an operator of this crate is in a plan of the statement, as `EXPLAIN` shows it.
pub(crate) fn is_foreign(statement: &Statement, plan: &str) -> bool {
    !statement.calls_ours() && !OPERATORS.iter().any(|name| plan.contains(name))
}

/// Whether DataFusion's answer depends on how far other partitions are: its sort with a limit, and its `first_value` of several
/// partitions, compare rows in a way to which NULLs inside of values are least (and the sort -0.0 is 0.0), and order them otherwise.
pub(crate) fn depends_on_time(statement: &Statement, table: &Table) -> bool {
    let (keys, floats) = match &statement.shape {
        Shape::First { keys, .. } => (keys, true),
        Shape::Nearest { .. } => return true,
        Shape::Best {
            spelling: Spelling::DistinctOn,
            keys,
            ..
        } => (keys, false),
        _ => return false,
    };
    let misjudged = |key: &Key| {
        let data_type = Expr::Column(key.column).data_type(table);
        data_type.is_nested() || floats && data_type.is_floating()
    };
    keys.iter().any(misjudged)
}

/// The reason why a failure is known, if it is.
pub(crate) fn known(why: &str, statement: &Statement, table: &Table) -> Option<&'static str> {
    match why.contains("wrong answer") || why.contains("DataFusion says") {
        true => of_answers(why, statement, table),
        false => of_errors(why, statement),
    }
}

/// Errors, by what they say.
fn of_errors(why: &str, statement: &Statement) -> Option<&'static str> {
    let prepared = statement.prepared.is_some();
    match &statement.shape {
        // Of a plain aggregation that is refused the memory of its first groups.
        _ if why.contains("Single hash aggregate ran out of memory with no aggregated groups") => {
            Some("an aggregation without memory for its first groups is an internal error")
        }
        // `sum(CAST(x AS ..))` and `sum(x)` are one name too.
        Shape::Aggregate { .. } if why.contains("Schema contains duplicate unqualified field name") => {
            Some("two calls whose arguments differ by a cast have one name")
        }
        // Windows are sent to executors without their FILTER: the planner refuses them.
        _ if why.contains("which Ballista 55 does not send to executors") => {
            Some("FILTER with OVER is refused on a cluster")
        }
        Shape::Summary { .. } if why.contains("run on a cluster, which cannot run SUMMARIZE") => {
            Some("SUMMARIZE is refused on a cluster")
        }
        Shape::Neighbours(_)
            if why.contains("run on a cluster, which cannot run the table function nearest") =>
        {
            Some("nearest is refused on a cluster")
        }
        _ if why.contains("Job failed due to stage")
            && (why.contains("column types must match schema types, expected Dictionary(")
                || why.contains("RowConverter column schema mismatch")) =>
        {
            Some("dictionaries with adaptive planning are an error of Ballista")
        }
        // A function has its constants inside only where this crate's planner has put them there.
        _ if why.starts_with("without our planner")
            && why.contains("of a list of constants over no rows") =>
        {
            Some("ranks of a list over an empty frame are an error without our planner")
        }
        // What the optimizer finds to be empty reaches the scheduler without its columns.
        _ if why.contains("PlanParsingFailure") && why.contains("No field named") => {
            Some("an empty relation loses its columns on the way to a scheduler")
        }
        // `replace_distinct_aggregate.rs`: the optimizer of EXECUTE has no registry of functions.
        Shape::Best {
            spelling: Spelling::DistinctOn,
            ..
        } if prepared && why.contains("a panic: called `Option::unwrap()`") => {
            Some("PREPARE of DISTINCT ON panics")
        }
        // A list such as [0, 0.5] keeps the types of its items until they are coerced, which PREPARE leaves out.
        _ if prepared && why.contains("Arrays with inconsistent types passed to MutableArrayData") => {
            Some("PREPARE of a list of integers and floats panics")
        }
        // As above: of two comparisons with a text, one is coerced.
        _ if prepared && why.contains("Uncomparable values: Utf8(") => {
            Some("PREPARE with two comparisons of a text of other types is an error")
        }
        // The default frame of ROW_NUMBER and RANK is RANGE, which DataFusion has not for every type.
        Shape::Best { .. } if why.contains("Cannot run range queries on datatype") => {
            Some("windows ordered by some types are refused")
        }
        // A column that WHERE makes constant is no part of an order, and the window asks for one by it.
        Shape::Window { calls } if why.contains("SanityCheckPlan") && why.contains("WindowAggExec") => {
            let bound = |column: usize| statement.preds().any(|pred| pred.names(column));
            let partitions = calls.iter().filter_map(|(_, window)| window.partition);
            partitions
                .into_iter()
                .any(bound)
                .then_some("a window partitioned by a column that WHERE makes constant is an error")
        }
        // Statistics of a dictionary column have the type of its values.
        _ if why.contains("Endpoints of an Interval should have the same type") => {
            Some("a filter or window over Parquet with a dictionary of numbers is an error")
        }
        // The rule counts the different arguments of DISTINCT aggregates, not their number.
        Shape::Aggregate { calls, .. }
            if why.contains("DISTINCT aggregate should have exactly one argument") =>
        {
            calls
                .iter()
                .any(|call| {
                    let one = matches!(call.func, Func::Top { k: None, .. });
                    one && call.distinct && call.x.sql() == call.v.sql()
                })
                .then_some("DISTINCT over two equal arguments is an error")
        }
        _ => None,
    }
}

fn of_answers(why: &str, statement: &Statement, table: &Table) -> Option<&'static str> {
    // Statistics of Parquet files leave NaNs out, so that DataFusion skips rows, takes columns for constants and ends sorts
    // early. This crate's planner does not.
    let any_nan = |row: &Vec<Cell>| {
        row.iter()
            .any(|cell| matches!(cell, Some(Value::Float(v)) if v.is_nan()))
    };
    let parquet = table.storage == Storage::Parquet;
    if parquet && why.starts_with("without our planner") && table.rows.iter().any(any_nan) {
        return Some("statistics of Parquet lose NaNs without our planner");
    }
    // `k NOT IN (1, NULL)` is never true, but is taken to be when it meets `k IN (..)`; and `k NOT IN (1) OR k NOT IN (2)`
    // is taken to be true where k is NULL.
    if meets_null_in_lists(statement, table) {
        return Some("two lists of constants for one column, one NOT IN, lose NULL");
    }
    // Of `f >= 0.0 AND f > -0.0` the first is kept, as if it were the stronger one, though zeros are equal.
    if compares_both_zeros(statement) {
        return Some("a comparison with 0.0 and one with -0.0 become one");
    }
    match &statement.shape {
        // What `WHERE` compares with one value is taken for constant, and left out of the order, though -0.0 is before 0.0.
        Shape::First { keys, .. } | Shape::Nearest { then: keys, .. }
            if keys.iter().any(|key| key.column == F) =>
        {
            leaves(statement)
                .any(|(leaf, negated)| {
                    let equal = if negated { "<>" } else { "=" };
                    matches!(leaf, Pred::Float(op, v) if *op == equal && *v == 0.0)
                })
                .then_some(
                    "ORDER BY of a column that WHERE compares with 0.0 takes zeros of either sign for one",
                )
        }
        // A function has its constants inside only where this crate's planner has put them there.
        Shape::Window { calls } if why.starts_with("without our planner") && calls.iter().any(ranks_null) => {
            Some("exact_rank of NULL over an empty frame is 0 without our planner")
        }
        // The frame of a NULL is all NULLs, yet such a frame is taken to need no rows that come later.
        Shape::Window { calls } => calls
            .iter()
            .any(|(_, window)| {
                let nulls = |key: &Key| table.rows.iter().any(|row| row[key.column].is_none());
                let before = matches!(window.frame, Some(("RANGE", _, Some(end))) if end < 0);
                before && window.order.as_ref().is_some_and(nulls)
            })
            .then_some("RANGE frames that end before the current row are cut off for NULLs"),
        // Partitions are not brought together by the column: a group comes once from each.
        Shape::Aggregate {
            groups, rollup: true, ..
        } if why.contains(" rows, not ") => {
            let compared = |pred: &Pred| groups.iter().any(|group| pred.names(*group));
            let compared = statement.preds().any(compared) || statement.prepared.is_some();
            compared.then_some("ROLLUP over a column that WHERE bounds gives a group several times")
        }
        _ => None,
    }
}

/// Whether a call asks for the rank of NULL in a frame that can be empty.
fn ranks_null((call, window): &(Call, Window)) -> bool {
    let asks =
        matches!(&call.func, Func::Rank { name: "exact_rank", at, .. } if at.iter().any(Option::is_none));
    asks && window.frame.is_some()
}

/// All conditions on one column in the statement, each with whether a `NOT` around it negates it.
fn leaves(statement: &Statement) -> impl Iterator<Item = (&Pred, bool)> {
    let preds = statement.preds().chain(statement.filters());
    preds.flat_map(Pred::leaves)
}

fn compares_both_zeros(statement: &Statement) -> bool {
    let compares = |negative: bool| {
        leaves(statement).any(
            |(leaf, _)| matches!(leaf, Pred::Float(_, v) if *v == 0.0 && v.is_sign_negative() == negative),
        )
    };
    compares(false) && compares(true)
}

fn meets_null_in_lists(statement: &Statement, table: &Table) -> bool {
    // The column of each list, whether NULL is in it, and whether it is `NOT IN`.
    let list = |(leaf, negated): (&Pred, bool)| match leaf {
        Pred::In(column, list, not) => Some((*column, list.contains(&None), *not != negated)),
        _ => None,
    };
    let lists: Vec<_> = leaves(statement).filter_map(list).collect();
    let null = |(column, null, not): &(usize, bool, bool)| {
        let nulls = || {
            table
                .rows
                .iter()
                .any(|row| row.get(*column).is_none_or(Option::is_none))
        };
        *not && (*null || nulls())
    };
    lists.iter().enumerate().any(|(i, one)| {
        let mut others = lists.iter().enumerate().filter(|(j, _)| *j != i);
        null(one) && others.any(|(_, other)| other.0 == one.0)
    })
}
