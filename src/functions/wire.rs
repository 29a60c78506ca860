//! Encodes the functions of this crate as bytes of a physical plan that travels between machines. Constants that are
//! bound into a function are no arguments, so the function's name alone would lose them.
//!
//! ```text
//! aggregate:  0 | name | quantiles?              exact_quantiles, its other names and methods
//!             1 | name | quantiles, precision?   approximate
//!             2 | aggregate                      with guarded states
//!             3 | name | rows?                   the best rows: one value, or a list of at most `rows`
//!             4                                  count, which is sent inside a guard only
//!             5 | name | cuts?                   ranks of values
//!             6 | name                           of values in order, whose constants are arguments
//! window:     name | quantiles | frame | DISTINCT
//! ```

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::{AggregateUDF, WindowUDF};

use super::guarded::Guarded;
use super::{
    ExactQuantiles, GkFunction, MovingQuantiles, RankFunction, ShapeFunction, TopKBy, all_aggregates,
};
use crate::functions::gk::gk_aggregates;
use crate::functions::ranks::rank_aggregates;
use crate::functions::shape::shape_aggregates;
use crate::functions::topk::topk_aggregates;
use crate::quantile::Quantiles;
use crate::wire::{Reader, put};

const EXACT: u8 = 0;
const APPROXIMATE: u8 = 1;
const GUARDED: u8 = 2;
const TOP_ROWS: u8 = 3;
const COUNT: u8 = 4;
const RANK: u8 = 5;
const SHAPE: u8 = 6;

/// Appends an aggregate function of this crate. For any other function it appends nothing and returns `false`.
pub(crate) fn put_aggregate(function: &AggregateUDF, out: &mut Vec<u8>) -> bool {
    if let Some(exact) = ExactQuantiles::of(function) {
        out.push(EXACT);
        put_name(function.name(), out);
        put_option(exact.bound(), out, Quantiles::put);
        true
    } else if let Some(approximate) = GkFunction::of(function) {
        out.push(APPROXIMATE);
        put_name(function.name(), out);
        approximate.put_constants(out);
        true
    } else if let Some(rows) = TopKBy::of(function) {
        out.push(TOP_ROWS);
        put_name(function.name(), out);
        rows.put_bound(out);
        true
    } else if let Some(rank) = RankFunction::of(function) {
        out.push(RANK);
        put_name(function.name(), out);
        rank.put_bound(out);
        true
    } else if ShapeFunction::of(function).is_some() {
        out.push(SHAPE);
        put_name(function.name(), out);
        true
    } else if let Some(guarded) = Guarded::of(function) {
        let start = out.len();
        out.push(GUARDED);
        let is_count = guarded.inner() == count_udaf().as_ref();
        if is_count {
            out.push(COUNT);
        }
        let ours = is_count || put_aggregate(guarded.inner(), out);
        if !ours {
            out.truncate(start);
        }
        ours
    } else {
        false
    }
}

/// Reads an aggregate function.
///
/// # Errors
/// An execution error for bytes that are no aggregate function of this crate.
pub(crate) fn read_aggregate(input: &mut Reader<'_>) -> Result<AggregateUDF> {
    match input.byte("kind of function")? {
        EXACT => {
            let function = named(all_aggregates(), input)?;
            let exact = ExactQuantiles::of(&function);
            Ok(match (read_option(input, Quantiles::read)?, exact) {
                (Some(bound), Some(exact)) => exact.bound_to(bound).into(),
                _ => function.as_ref().clone(),
            })
        }
        APPROXIMATE => {
            let function = named(gk_aggregates(), input)?;
            Ok(match GkFunction::of(&function) {
                Some(approximate) => approximate.with_constants(input)?.into(),
                None => function.as_ref().clone(),
            })
        }
        COUNT => Ok(count_udaf().as_ref().clone()),
        TOP_ROWS => {
            let function = named(topk_aggregates(), input)?;
            Ok(match TopKBy::of(&function) {
                Some(rows) => rows.with_bound(input)?.into(),
                None => function.as_ref().clone(),
            })
        }
        RANK => {
            let function = named(rank_aggregates(), input)?;
            Ok(match RankFunction::of(&function) {
                Some(rank) => rank.with_bound(input)?.into(),
                None => function.as_ref().clone(),
            })
        }
        SHAPE => Ok(named(shape_aggregates(), input)?.as_ref().clone()),
        // A guard inside a guard is refused: damaged bytes could nest them without a limit.
        GUARDED => match input.peek() {
            Some(EXACT | APPROXIMATE | TOP_ROWS | COUNT | RANK | SHAPE) => {
                Ok(Guarded::new(Arc::new(read_aggregate(input)?)).into())
            }
            kind => input.damaged(format!("a guarded function of kind {kind:?}")),
        },
        kind => input.damaged(format!("a function of kind {kind}")),
    }
}

/// Appends a window function of this crate. For any other function it appends nothing and returns `false`.
pub(crate) fn put_window(function: &WindowUDF, out: &mut Vec<u8>) -> bool {
    let moving = function.inner().downcast_ref::<MovingQuantiles>();
    moving.map(|moving| moving.put(out)).is_some()
}

/// Reads a window function.
///
/// # Errors
/// An execution error for bytes that are no window function of this crate.
pub(crate) fn read_window(input: &mut Reader<'_>) -> Result<WindowUDF> {
    MovingQuantiles::read(input).map(WindowUDF::from)
}

/// Appends the name of a function, after its length in bytes.
pub(super) fn put_name(name: &str, out: &mut Vec<u8>) {
    put(out, name.len() as u64);
    out.extend(name.as_bytes());
}

/// Reads a name, and finds the function of `functions` with that name.
pub(super) fn named(functions: &[Arc<AggregateUDF>], input: &mut Reader<'_>) -> Result<Arc<AggregateUDF>> {
    let length = input.number("length of a name")?;
    let name = input.take(length, "name")?;
    let found = functions
        .iter()
        .find(|function| function.name().as_bytes() == name);
    match found {
        Some(function) => Ok(Arc::clone(function)),
        None => exec_err!(
            "there is no function {} here: do all machines run the same version of datafusion-quantiles?",
            String::from_utf8_lossy(name)
        ),
    }
}

/// Appends whether there is a value, and the value by `put`.
pub(super) fn put_option<T>(value: Option<&T>, out: &mut Vec<u8>, put: impl Fn(&T, &mut Vec<u8>)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(value, out);
    }
}

/// Reads what [`put_option`] appends.
pub(super) fn read_option<T>(
    input: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Result<T>,
) -> Result<Option<T>> {
    if input.flag("whether there is more")? {
        read(input).map(Some)
    } else {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::DataType;
    use datafusion::common::ScalarValue;

    use super::*;
    use crate::functions::topk::TopKName;
    use crate::quantile::Quantile;

    fn quantiles() -> Quantiles {
        Quantiles {
            list: vec![Quantile::try_from_f64(0.25).unwrap()],
            is_list: true,
        }
    }

    fn round_trip(function: &AggregateUDF) {
        let mut out = Vec::new();
        assert!(put_aggregate(function, &mut out));
        let mut reader = Reader::new("function", &out);
        let found = read_aggregate(&mut reader).unwrap();
        reader.end().unwrap();
        assert_eq!(&found, function);
        for end in 0..out.len() {
            assert!(
                read_aggregate(&mut Reader::new("function", &out[..end])).is_err(),
                "{end}"
            );
        }
    }

    #[test]
    fn every_function_comes_back_with_its_constants() {
        for function in all_aggregates() {
            round_trip(function);
            let bound = ExactQuantiles::of(function).unwrap().bound_to(quantiles());
            round_trip(&bound.into());
            round_trip(&Guarded::new(Arc::clone(function)).into());
        }
        gk_aggregates().iter().for_each(|function| round_trip(function));
        for function in topk_aggregates() {
            round_trip(function);
            round_trip(&Guarded::new(Arc::clone(function)).into());
            let rows = TopKBy::of(function).unwrap();
            round_trip(&rows.bound_to(Some(300)).into());
            if rows.sql_name() != TopKName::Topk {
                round_trip(&rows.bound_to(None).into());
            }
        }
    }

    #[test]
    fn ranks_come_back_with_their_cuts() {
        for function in rank_aggregates() {
            round_trip(function);
            round_trip(&Guarded::new(Arc::clone(function)).into());
            let rank = RankFunction::of(function).unwrap();
            for (x, constants) in [
                (DataType::Int64, ScalarValue::from(7_i64)),
                (DataType::Int64, ScalarValue::from(f64::INFINITY)),
                (DataType::Utf8, ScalarValue::from("some text")),
                (DataType::Float64, ScalarValue::Float64(None)),
            ] {
                round_trip(&rank.bound_to(&x, &constants).unwrap().into());
                let list = ScalarValue::new_list(
                    &[constants.clone(), constants.clone()],
                    &constants.data_type(),
                    true,
                );
                round_trip(&rank.bound_to(&x, &ScalarValue::List(list)).unwrap().into());
            }
        }
    }

    #[test]
    fn functions_of_values_in_order_come_back() {
        for function in shape_aggregates() {
            round_trip(function);
            round_trip(&Guarded::new(Arc::clone(function)).into());
        }
    }

    #[test]
    fn numbers_of_rows_that_no_call_has_are_errors() {
        let error = |k: Option<usize>| {
            let function = TopKBy::new(TopKName::Topk, false).bound_to(k);
            let mut out = Vec::new();
            assert!(put_aggregate(&function.into(), &mut out));
            read_aggregate(&mut Reader::new("function", &out))
                .unwrap_err()
                .strip_backtrace()
        };
        assert_eq!(error(Some(0)), "Execution error: a damaged function: 0 rows");
        assert_eq!(
            error(None),
            "Execution error: a damaged function: topk_by without a number of rows"
        );
    }

    #[test]
    fn other_functions_are_left_to_others() {
        let mut out = Vec::new();
        let sum = datafusion::functions_aggregate::sum::sum_udaf();
        assert!(!put_aggregate(&sum, &mut out));
        assert!(out.is_empty());
    }

    #[test]
    fn unknown_bytes_are_errors() {
        let error = |bytes: &[u8]| {
            let error = read_aggregate(&mut Reader::new("function", bytes)).unwrap_err();
            error.strip_backtrace()
        };
        assert_eq!(
            error(&[7]),
            "Execution error: a damaged function: a function of kind 7"
        );
        assert!(error(&[EXACT, 3, b'a', b'b', b'c', 0]).contains("there is no function abc here"));
        assert!(error(&[GUARDED, GUARDED, GUARDED]).contains("a guarded function of kind Some(2)"));
    }
}
