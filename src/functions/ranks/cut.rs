//! Cuts: where the order of a column's values is parted by a constant.
//!
//! A value is counted by its key, so a constant must become a key too, one that parts the values in the same way. A constant of another type
//! lies on a value of the column's type, between two of them, or beyond all: nothing is rounded.
//!
//! ```text
//! Int64 column, v = 2.5      values below v: 1 2 | 3 4      the cut is the key of 3, with or without the values equal to v
//! Int64 column, v = 3        values below v: 1 2 | 3 4      values at or below v: 1 2 3 | 4
//! ```

use std::cmp::Ordering;

use datafusion::arrow::array::Array;
use datafusion::arrow::datatypes::{DataType, IntervalUnit, i256};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};

use super::grid::{Grid, OnGrid, float};
use crate::functions::types::is_list;
use crate::key::{ByteSpec, KeyBits, KeySpec, Order};

/// A place in the order of a column's values: what comes before it is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Cut {
    /// Before the values of this key.
    Key(KeyBits),
    /// Before the first byte string that is not less than this one.
    Bytes(Vec<u8>),
    /// Behind all values.
    End,
}

/// The cuts of the constants of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cuts {
    /// One for each constant; `None`: the constant is NULL.
    pub(super) list: Vec<Option<Cut>>,
    /// Whether the constants are a list, even if of one.
    pub(super) is_list: bool,
}

/// Whether a constant of type `v` is a list of constants for values of type `x`, and not one constant that is a list itself.
pub(super) fn are_several(x: &DataType, v: &DataType) -> bool {
    let items = match v {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type()
        }
        _ => return false,
    };
    !is_list(x) || is_list(items)
}

impl Cuts {
    /// The cuts that the constant, or list of constants, `value` makes among values of type `x`. `behind`: behind the values that are equal
    /// to a constant, and not before them.
    ///
    /// # Errors
    /// A planning error for a constant that is not compared with values of this type.
    pub(super) fn try_new(x: &DataType, value: &ScalarValue, behind: bool) -> Result<Self> {
        let order = Order::try_new(x)?;
        let cut = |value: &ScalarValue| match value {
            ScalarValue::Dictionary(_, value) => Cut::of(&order, value, behind),
            value => Cut::of(&order, value, behind),
        };
        if !are_several(x, &value.data_type()) {
            return Ok(Self {
                list: vec![cut(value)?],
                is_list: false,
            });
        }
        if value.is_null() {
            return plan_err!("the list of constants must not be NULL");
        }
        let items = match value {
            ScalarValue::List(list) => list.value(0),
            ScalarValue::LargeList(list) => list.value(0),
            ScalarValue::FixedSizeList(list) => list.value(0),
            _ => return internal_err!("{value} is no list"),
        };
        let items = (0..items.len()).map(|row| cut(&ScalarValue::try_from_array(&items, row)?));
        Ok(Self {
            list: items.collect::<Result<_>>()?,
            is_list: true,
        })
    }
}

impl Cut {
    /// The cut that a constant makes; `None` if it is NULL.
    ///
    /// # Errors
    /// A planning error for a constant that is not compared with values of this order.
    pub(crate) fn of(order: &Order, value: &ScalarValue, behind: bool) -> Result<Option<Self>> {
        if value.is_null() {
            return Ok(None);
        }
        match order {
            Order::Keys(spec) => among_keys(spec, value, behind),
            Order::Bytes(spec) => among_bytes(spec, value, behind),
        }
        .map(Some)
    }
}

/// The cut at a key or, if `behind`, after it.
fn at_key(spec: &KeySpec, key: KeyBits, behind: bool) -> Cut {
    match (behind, key == spec.width().max_key()) {
        (false, _) => Cut::Key(key),
        (true, false) => Cut::Key(key + 1),
        (true, true) => Cut::End,
    }
}

fn among_keys(spec: &KeySpec, value: &ScalarValue, behind: bool) -> Result<Cut> {
    let data_type = spec.data_type();
    if let Some(grid) = Grid::of(data_type) {
        let first = match grid.place(data_type, value)? {
            OnGrid::At { floor, exact } if exact && !behind => floor,
            OnGrid::At { floor, .. } => floor.checked_add(i256::ONE).unwrap_or(i256::MAX),
            OnGrid::Beyond(Ordering::Less) => i256::MIN,
            OnGrid::Beyond(_) => i256::MAX,
        };
        let least = i256::from_i128(spec.integer(0));
        let greatest = i256::from_i128(spec.integer(spec.width().max_key()));
        return Ok(match first.to_i128() {
            _ if first <= least => Cut::Key(0),
            Some(first_) if first <= greatest => Cut::Key(spec.integer_key(first_)),
            _ => Cut::End,
        });
    }
    if data_type.is_floating() {
        return among_floats(spec, value, behind);
    }
    let own = match (data_type, value) {
        (DataType::Boolean, ScalarValue::Boolean(_)) => value.clone(),
        (DataType::Interval(IntervalUnit::YearMonth), ScalarValue::IntervalYearMonth(_)) => value.clone(),
        (DataType::Interval(IntervalUnit::YearMonth), ScalarValue::IntervalMonthDayNano(Some(interval)))
            if interval.days == 0 && interval.nanoseconds == 0 =>
        {
            ScalarValue::IntervalYearMonth(Some(interval.months))
        }
        _ => return not_compared(data_type, value),
    };
    match spec.keys(own.to_array()?.as_ref())?.first() {
        Some(key) => Ok(at_key(spec, *key, behind)),
        None => internal_err!("{own} has no key"),
    }
}

/// The cut among floating-point values. A decimal constant means the Float64 next to it, as it does in comparisons.
fn among_floats(spec: &KeySpec, value: &ScalarValue, behind: bool) -> Result<Cut> {
    let data_type = value.data_type();
    let (number, integer) = match (float(value), value) {
        (Some(number), _) => (number, None),
        (None, ScalarValue::UInt64(Some(integer))) => (*integer as f64, Some(i128::from(*integer))),
        (None, _) if data_type.is_integer() => match value.cast_to(&DataType::Int64)? {
            ScalarValue::Int64(Some(integer)) => (integer as f64, Some(i128::from(integer))),
            other => return internal_err!("{other} is no integer"),
        },
        (None, _) if data_type.is_decimal() => match decimal_text(value).map(|text| text.parse::<f64>()) {
            Some(Ok(number)) => (number, None),
            _ => return internal_err!("{value} is no number"),
        },
        _ => return not_compared(spec.data_type(), value),
    };
    let rounded = spec.rounded(number);
    let beside = if rounded == number || rounded.is_nan() {
        // An integer of 64 bits may have been rounded to Float64.
        integer.map_or(Ordering::Equal, |integer| (rounded as i128).cmp(&integer))
    } else {
        rounded.total_cmp(&number)
    };
    let key = spec.float_key(rounded);
    Ok(match beside {
        Ordering::Equal => at_key(spec, key, behind),
        // All values at or above the rounded one are above the constant.
        Ordering::Greater => Cut::Key(key),
        Ordering::Less => at_key(spec, key, true),
    })
}

/// A decimal constant in scientific notation.
fn decimal_text(value: &ScalarValue) -> Option<String> {
    let (digits, scale) = match value {
        ScalarValue::Decimal32(Some(digits), _, scale) => (digits.to_string(), *scale),
        ScalarValue::Decimal64(Some(digits), _, scale) => (digits.to_string(), *scale),
        ScalarValue::Decimal128(Some(digits), _, scale) => (digits.to_string(), *scale),
        ScalarValue::Decimal256(Some(digits), _, scale) => (digits.to_string(), *scale),
        _ => return None,
    };
    Some(format!("{digits}e{}", -i32::from(scale)))
}

fn among_bytes(spec: &ByteSpec, value: &ScalarValue, behind: bool) -> Result<Cut> {
    use DataType::{Binary, BinaryView, Decimal256, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8, Utf8View};
    let data_type = spec.data_type();
    let bytes = match (data_type, value) {
        (Decimal256(precision, scale), _) => {
            return among_wide_decimals(spec, (*precision, *scale), value, behind);
        }
        (Utf8 | LargeUtf8 | Utf8View, _) => text(value).map(<[u8]>::to_vec),
        (Binary | LargeBinary | BinaryView | FixedSizeBinary(_), _) => {
            text(value).or(binary(value)).map(<[u8]>::to_vec)
        }
        _ => same_value(data_type, value)
            .map(|own| bytes_of(spec, &own))
            .transpose()?,
    };
    match bytes {
        Some(bytes) => Ok(at_bytes(bytes, behind)),
        None => not_compared(data_type, value),
    }
}

/// The cut at a byte string or, if `behind`, after it: the byte string that follows has one zero byte more.
fn at_bytes(mut bytes: Vec<u8>, behind: bool) -> Cut {
    if behind {
        bytes.push(0);
    }
    Cut::Bytes(bytes)
}

fn among_wide_decimals(
    spec: &ByteSpec,
    (precision, scale): (u8, i8),
    value: &ScalarValue,
    behind: bool,
) -> Result<Cut> {
    let Some(grid) = Grid::of(spec.data_type()) else {
        return internal_err!("decimals are multiples of a step");
    };
    match grid.place(spec.data_type(), value)? {
        OnGrid::At { floor, exact } => {
            let own = ScalarValue::Decimal256(Some(floor), precision, scale);
            Ok(at_bytes(bytes_of(spec, &own)?, behind || !exact))
        }
        OnGrid::Beyond(Ordering::Less) => Ok(Cut::Bytes(Vec::new())),
        OnGrid::Beyond(_) => Ok(Cut::End),
    }
}

/// The byte string of a value of the type of `spec`.
fn bytes_of(spec: &ByteSpec, value: &ScalarValue) -> Result<Vec<u8>> {
    let mut found = Vec::new();
    spec.each(value.to_array()?.as_ref(), None, |bytes| {
        found.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(found)
}

/// The same value in another type; `None` if that type does not have it.
fn same_value(data_type: &DataType, value: &ScalarValue) -> Option<ScalarValue> {
    let own = value.cast_to(data_type).ok()?;
    (own.cast_to(&value.data_type()).ok()? == *value).then_some(own)
}

fn text(value: &ScalarValue) -> Option<&[u8]> {
    value.try_as_str().flatten().map(str::as_bytes)
}

fn binary(value: &ScalarValue) -> Option<&[u8]> {
    match value {
        ScalarValue::Binary(bytes)
        | ScalarValue::LargeBinary(bytes)
        | ScalarValue::BinaryView(bytes)
        | ScalarValue::FixedSizeBinary(_, bytes) => bytes.as_deref(),
        _ => None,
    }
}

fn not_compared<T>(data_type: &DataType, value: &ScalarValue) -> Result<T> {
    plan_err!(
        "{value} of type {} is not compared with values of type {data_type}",
        value.data_type()
    )
}

/// The edges that some cuts are made at, ascending and distinct.
#[derive(Debug, Clone)]
pub(super) enum Edges {
    Keys(crate::cells::Edges),
    Bytes(Vec<Vec<u8>>),
}

impl Edges {
    /// The edges of cuts among values of this order.
    ///
    /// # Errors
    /// A planning error for more constants than one count can tell apart; an execution error for cuts of another type, which only damaged
    /// plans have.
    pub(super) fn try_new(order: &Order, cuts: &Cuts) -> Result<Self> {
        let places = cuts.list.iter().flatten().filter(|cut| **cut != Cut::End);
        match order {
            Order::Keys(spec) => {
                let greatest = spec.width().max_key();
                let mut keys = Vec::new();
                for cut in places {
                    match cut {
                        Cut::Key(key) if *key <= greatest => keys.push(*key),
                        _ => {
                            return exec_err!(
                                "{cut:?} is no place among values of type {}",
                                spec.data_type()
                            );
                        }
                    }
                }
                keys.sort_unstable();
                keys.dedup();
                check_count(keys.len())?;
                crate::cells::Edges::try_new(keys).map(Edges::Keys)
            }
            Order::Bytes(spec) => {
                let mut edges = Vec::new();
                for cut in places {
                    match cut {
                        Cut::Bytes(bytes) => edges.push(bytes.clone()),
                        _ => {
                            return exec_err!(
                                "{cut:?} is no place among values of type {}",
                                spec.data_type()
                            );
                        }
                    }
                }
                edges.sort_unstable();
                edges.dedup();
                check_count(edges.len())?;
                Ok(Edges::Bytes(edges))
            }
        }
    }

    /// Number of cells between the edges.
    pub(super) fn cells(&self) -> usize {
        match self {
            Edges::Keys(edges) => edges.as_slice().len() + 1,
            Edges::Bytes(edges) => edges.len() + 1,
        }
    }

    /// Number of cells before a cut.
    pub(super) fn cells_before(&self, cut: &Cut) -> usize {
        match (self, cut) {
            (_, Cut::End) => self.cells(),
            (Edges::Keys(_), Cut::Key(0)) => 0,
            (Edges::Keys(edges), Cut::Key(key)) => edges.as_slice().partition_point(|edge| edge < key) + 1,
            (Edges::Bytes(edges), Cut::Bytes(bytes)) => edges.partition_point(|edge| edge < bytes) + 1,
            _ => 0,
        }
    }
}

/// Refuses more edges than cells have numbers.
fn check_count(edges: usize) -> Result<()> {
    if edges >= MOST_CUTS {
        return plan_err!("{edges} different constants: allowed are fewer than {MOST_CUTS}");
    }
    Ok(())
}

/// More cuts than one count can tell apart.
pub(super) const MOST_CUTS: usize = crate::cells::MAX_CELLS;
