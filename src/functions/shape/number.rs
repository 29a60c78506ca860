//! The numbers that functions with arithmetic give: a column of them, and how they are made of integers.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::{DataType, i256};
use datafusion::common::{Result, internal_datafusion_err, plan_err};

use super::name::ShapeName;
use super::sorted::Sorted;
use crate::functions::topk::firsts;
use crate::key::{Key, KeyBits, KeySpec};

/// The type of the answer of a function with arithmetic: that of floating-point numbers, decimals and durations; Float64 of integers.
///
/// # Errors
/// A planning error that names any other type.
pub(super) fn number_type(sql_name: ShapeName, x: &DataType) -> Result<DataType> {
    use DataType::*;
    match x {
        Float16 | Float32 | Float64 | Decimal32(..) | Decimal64(..) | Decimal128(..) | Duration(_) => {
            Ok(x.clone())
        }
        integer if integer.is_integer() => Ok(Float64),
        other => plan_err!(
            "{sql_name} of values of type {other}: allowed are integers, floating-point numbers, decimals of up to 38 digits, and \
             Duration"
        ),
    }
}

/// What the numbers of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberKind {
    /// Floating-point numbers, as the answer is one.
    Floats,
    /// Integers, of which the answer is a Float64.
    Integers,
    /// Integers in the unit of the type, which is also that of the answer, rounded half away from zero.
    Units,
}

impl NumberKind {
    /// The kind of a column, from its type and that of answers.
    pub(super) fn of(spec: &KeySpec, result: &KeySpec) -> Self {
        match (spec.data_type(), result.data_type()) {
            (DataType::Float16 | DataType::Float32 | DataType::Float64, _) => NumberKind::Floats,
            (_, DataType::Float64) => NumberKind::Integers,
            _ => NumberKind::Units,
        }
    }
}

/// The key of an item.
pub(super) fn key_of<K: Key>(item: K) -> KeyBits {
    item.to_bits()
}

/// The key of a rank, from 1.
///
/// # Errors
/// An internal error for a rank that no value has.
pub(super) fn key_at<K: Key>(sorted: &Sorted<'_, Vec<K>>, rank: u64) -> Result<KeyBits> {
    sorted.at(rank).map(key_of)
}

/// The number that the key of a floating-point type stands for.
///
/// # Errors
/// An internal error for another type.
pub(super) fn float(spec: &KeySpec, key: KeyBits) -> Result<f64> {
    let float = spec.float(key);
    float.ok_or_else(|| internal_datafusion_err!("{} is not a float", spec.data_type()))
}

/// `number / count`, rounded half away from zero; `count` is not 0.
pub(super) fn rounded(number: i256, count: i256) -> Result<i128> {
    let (whole, rest) = (number.wrapping_div(count), number.wrapping_rem(count));
    let is_half = rest.wrapping_abs().wrapping_add(rest.wrapping_abs()) >= count;
    let away = match is_half {
        true if rest < i256::ZERO => i256::MINUS_ONE,
        true => i256::ONE,
        false => i256::ZERO,
    };
    let rounded = whole.wrapping_add(away).to_i128();
    rounded.ok_or_else(|| internal_datafusion_err!("{number} / {count} is no number of the column's type"))
}

/// The answers of groups, a number for each that has values.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    keys: Vec<KeyBits>,
    /// Number of answers of each group: 1 or 0.
    lengths: Vec<usize>,
}

impl Numbers {
    /// Adds the answer of a group, as a key; `None`: the group has no values.
    pub(super) fn push(&mut self, key: Option<KeyBits>) {
        self.keys.extend(key);
        self.lengths.push(usize::from(key.is_some()));
    }

    /// The answers as an array of the type of `result`.
    pub(super) fn finish(&self, result: &KeySpec) -> Result<ArrayRef> {
        firsts(&result.to_array(&self.keys)?, &self.lengths)
    }
}
