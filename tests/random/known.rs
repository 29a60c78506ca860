//! Defects of DataFusion that statements meet and that are not this crate's: each with its reason, and as narrow a
//! condition as there is. The report counts them.

use crate::config::Config;
use crate::statement::{Shape, Spelling, Statement};
use crate::table::{F, Storage, Table};
use crate::value::{Cell, Value};

/// The reason why a failure is known, if it is.
pub(crate) fn known(
    why: &str,
    statement: &Statement,
    table: &Table,
    _config: &Config,
) -> Option<&'static str> {
    // Statistics of Parquet files leave NaNs out, so row groups are skipped that hold rows of the answer.
    let nan = |row: &Vec<Cell>| matches!(row[F], Some(Value::Float(v)) if v.is_nan());
    let parquet = table.storage == Storage::Parquet;
    if parquet && statement.chooses_by_floats() && why.contains("wrong answer") && table.rows.iter().any(nan)
    {
        return Some("WHERE over floats in Parquet loses NaNs");
    }
    let prepared = statement.prepared.is_some();
    match &statement.shape {
        // `replace_distinct_aggregate.rs`: the optimizer of EXECUTE has no registry of functions.
        Shape::Best {
            spelling: Spelling::DistinctOn,
            ..
        } if prepared && why.contains("a panic: called `Option::unwrap()`") => {
            Some("PREPARE of DISTINCT ON panics")
        }
        // A list such as [0, 0.5] keeps the types of its items until they are brought together, which PREPARE leaves out.
        _ if prepared && why.contains("Arrays with inconsistent types passed to MutableArrayData") => {
            Some("PREPARE of a list of integers and floats panics")
        }
        // The default frame of ROW_NUMBER and RANK is RANGE, which DataFusion has not for every type.
        Shape::Best { .. } if why.contains("Cannot run range queries on datatype") => {
            Some("windows ordered by some types are refused")
        }
        // The frame of a NULL is all NULLs, yet such a frame is taken to need no rows that come later.
        Shape::Window { calls } if why.contains("wrong answer") => calls
            .iter()
            .any(|(_, window)| {
                let order = window
                    .order
                    .is_some_and(|key| table.rows.iter().any(|row| row[key.column].is_none()));
                order && matches!(window.frame, Some(("RANGE", _, Some(end))) if end < 0)
            })
            .then_some("RANGE frames that end before the current row are cut off for NULLs"),
        _ => None,
    }
}
