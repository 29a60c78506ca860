//! Defects of DataFusion that statements meet and that are not this crate's: each with its reason, and as narrow a
//! condition as there is. The report counts them.

use datafusion::arrow::datatypes::DataType;

use crate::statement::{Expr, Func, Key, Pred, Shape, Spelling, Statement};
use crate::table::{F, Storage, Table};
use crate::value::{Cell, Value};

/// The reason why a failure is known, if it is.
pub(crate) fn known(why: &str, statement: &Statement, table: &Table) -> Option<&'static str> {
    match why.contains("wrong answer") {
        true => of_answers(why, statement, table),
        false => of_errors(why, statement),
    }
}

/// Errors, by what they say.
fn of_errors(why: &str, statement: &Statement) -> Option<&'static str> {
    let prepared = statement.prepared.is_some();
    match &statement.shape {
        // Windows are sent to executors without their FILTER: the planner refuses them.
        _ if why.contains("which Ballista 55 does not send to executors") => {
            Some("FILTER with OVER is refused on a cluster")
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
        // Statistics of a dictionary column have the type of its values.
        _ if why.starts_with("without our planner")
            && why.contains("Endpoints of an Interval should have the same type") =>
        {
            Some("a window over Parquet with a dictionary of numbers is an error without our planner")
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
    // Statistics of Parquet files leave NaNs out, so row groups are skipped that hold rows of the answer.
    let nan = |row: &Vec<Cell>| matches!(row[F], Some(Value::Float(v)) if v.is_nan());
    let parquet = table.storage == Storage::Parquet;
    if parquet && statement.chooses_by_floats() && table.rows.iter().any(nan) {
        return Some("WHERE over floats in Parquet loses NaNs");
    }
    // For that reason DataFusion also takes columns for constants and ends sorts early; this crate's planner does not.
    let any_nan = |row: &Vec<Cell>| {
        row.iter()
            .any(|cell| matches!(cell, Some(Value::Float(v)) if v.is_nan()))
    };
    if parquet && why.starts_with("without our planner") && table.rows.iter().any(any_nan) {
        return Some("statistics of Parquet lose NaNs without our planner");
    }
    // `k NOT IN (1, NULL)` is never true, but is taken to be when it meets `k IN (..)`.
    if meets_null_in_lists(statement) {
        return Some("NOT IN with a NULL beside IN gives rows");
    }
    match &statement.shape {
        // The frame of a NULL is all NULLs, yet such a frame is taken to need no rows that come later.
        Shape::Window { calls } => calls
            .iter()
            .any(|(_, window)| {
                let nulls = |key: &Key| table.rows.iter().any(|row| row[key.column].is_none());
                let before = matches!(window.frame, Some(("RANGE", _, Some(end))) if end < 0);
                before && window.order.as_ref().is_some_and(nulls)
            })
            .then_some("RANGE frames that end before the current row are cut off for NULLs"),
        // Rows are filtered by comparisons, to which -0.0 is 0.0 and NULLs inside of values are least; the sort that
        // follows sees them otherwise. Sorts of up to 128 bits are this crate's, which must be right.
        Shape::First { keys, .. } => {
            let nested = |key: &Key| is_nested(table, key) && key.nulls_first() == key.desc;
            let floats = |key: &Key| Expr::Column(key.column).data_type(table).is_floating();
            let missed = why.split_once("expected one like ").map_or("", |(_, row)| row);
            let missed = missed.lines().next().unwrap_or("");
            if keys.iter().any(nested) {
                return Some("ORDER BY nested LIMIT loses rows with NULLs inside");
            }
            let zero = missed.split(" | ").any(|cell| cell == "-0.0" || cell == "0.0");
            (zero && is_wide(table, keys) && keys.iter().any(floats))
                .then_some("ORDER BY float, more LIMIT loses -0.0")
        }
        // The states of first_value are compared with NULLs inside of values first.
        Shape::Best {
            spelling: Spelling::DistinctOn,
            keys,
            ..
        } if why.starts_with("without our planner") => {
            let nested = keys.iter().any(|key| is_nested(table, key));
            nested.then_some("first_value by nested values is not that of ORDER BY")
        }
        _ => None,
    }
}

fn is_nested(table: &Table, key: &Key) -> bool {
    table
        .columns
        .get(key.column)
        .is_some_and(|column| column.data_type.is_nested())
}

/// Whether the keys of an order take more than 128 bits, with one for NULL in each.
fn is_wide(table: &Table, keys: &[Key]) -> bool {
    let bits = |key: &Key| match Expr::Column(key.column).data_type(table) {
        DataType::Boolean => 2,
        data_type => data_type.primitive_width().map_or(1000, |bytes| 8 * bytes + 1),
    };
    keys.iter().map(bits).sum::<usize>() > 128
}

fn meets_null_in_lists(statement: &Statement) -> bool {
    let mut lists = Vec::new();
    statement
        .preds()
        .for_each(|pred| in_lists(pred, false, &mut lists));
    let null = |(_, null, not): &(usize, bool, bool)| *null && *not;
    lists.iter().enumerate().any(|(i, one)| {
        let mut others = lists.iter().enumerate().filter(|(j, _)| *j != i);
        null(one) && others.any(|(_, other)| other.0 == one.0)
    })
}

/// Lists of constants: the column, whether NULL is among them, whether it is `NOT IN`.
fn in_lists(pred: &Pred, negated: bool, lists: &mut Vec<(usize, bool, bool)>) {
    match pred {
        Pred::In(column, list, not) => lists.push((*column, list.contains(&None), *not != negated)),
        Pred::And(a, b) | Pred::Or(a, b) => {
            in_lists(a, negated, lists);
            in_lists(b, negated, lists);
        }
        Pred::Not(a) => in_lists(a, !negated, lists),
        _ => {}
    }
}
