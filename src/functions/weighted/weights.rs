//! Weights as arguments: their types, and the numbers that they are counted by.
//!
//! A weight is an integer, or a decimal. A decimal is counted in units of the last digit of its type: `1.50` is 150, so that sums are exact. That
//! multiplies all weights by the same number, which leaves the answers of methods that know only the share of the weights at each value
//! ([`Method::is_of_shares`]). Others count rows, and take whole weights only.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray, UInt64Array};
use datafusion::arrow::buffer::{BooleanBuffer, ScalarBuffer};
use datafusion::arrow::compute::filter;
use datafusion::arrow::datatypes::{ArrowPrimitiveType, DataType, Decimal128Type, Int64Type, UInt64Type};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_err, plan_err};

use crate::key::kept;
use crate::quantile::Method;

/// Digits of the decimals that weights are taken as.
const DIGITS: u8 = 38;

/// The type in which weights of a type are counted.
///
/// # Errors
/// A planning error for a type whose numbers are no weights for the method.
pub(in crate::functions) fn weight_type(
    sql_name: impl Display,
    method: Method,
    weight: &DataType,
) -> Result<DataType> {
    use DataType::*;
    match weight {
        Int8 | Int16 | Int32 | Int64 | Null => Ok(Int64),
        UInt8 | UInt16 | UInt32 | UInt64 => Ok(UInt64),
        Dictionary(_, values) => weight_type(sql_name, method, values),
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) => {
            let scale = (*scale).max(0);
            if scale > 0 && !method.is_of_shares() {
                return plan_err!(
                    "{sql_name}: method '{method}' counts rows, so weights must be whole: allowed are integers and decimals \
                     without a fraction, got {weight} (other decimals are allowed for {})",
                    Method::names(Method::is_of_shares)
                );
            }
            if scale > DIGITS as i8 {
                return plan_err!("{sql_name}: weights may have {DIGITS} digits, got {weight}");
            }
            Ok(Decimal128(DIGITS, scale))
        }
        Float16 | Float32 | Float64 => plan_err!(
            "{sql_name}: weights must be integers or decimals, got {weight}: the sum of floating-point numbers depends on \
             the order of the rows, and with it the answer would"
        ),
        other => plan_err!("{sql_name}: weights must be integers or decimals, got {other}"),
    }
}

/// The rows that count, by their values and their weights: see [`Collected::counted`](crate::functions::collected::Collected::counted).
///
/// # Errors
/// An execution error for a weight below 0, and for one past 64 bits.
pub(crate) fn counted(
    args: &[ArrayRef],
    mask: Option<&BooleanArray>,
) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
    let [values, .., weights] = args else {
        return internal_err!("weights of {} arguments", args.len());
    };
    let valid = kept(values.as_ref(), mask)?;
    let weights = numbers(weights.as_ref(), valid.as_ref())?;
    let least = weights
        .values()
        .iter()
        .fold(u64::MAX, |least, weight| least.min(*weight));
    if valid.is_none() && least > 0 {
        return Ok((vec![Arc::clone(values), Arc::new(weights)], None));
    }
    let positive = BooleanBuffer::from_iter(weights.values().iter().map(|weight| *weight > 0));
    let counted = match &valid {
        None => positive,
        Some(valid) => valid.values() & &positive,
    };
    let counted = BooleanArray::new(counted, None);
    let columns = vec![filter(values.as_ref(), &counted)?, filter(&weights, &counted)?];
    Ok((columns, Some(counted)))
}

/// Weights as numbers without NULL, which is 0. What stands where `valid` is false is any number.
fn numbers(weights: &dyn Array, valid: Option<&BooleanArray>) -> Result<UInt64Array> {
    match weights.data_type() {
        DataType::UInt64 => {
            let weights = weights.as_primitive::<UInt64Type>();
            if weights.null_count() == 0 {
                return Ok(weights.clone());
            }
            each_number(weights, valid, |_, weight| Ok(weight))
        }
        DataType::Int64 => {
            let weights = weights.as_primitive::<Int64Type>();
            let least = weights
                .values()
                .iter()
                .fold(i64::MAX, |least, weight| least.min(*weight));
            if weights.null_count() == 0 && least >= 0 {
                // Numbers that are not negative have the same bits in both types.
                let bits = ScalarBuffer::from(weights.values().inner().clone());
                return Ok(UInt64Array::new(bits, None));
            }
            each_number(weights, valid, |_, weight| {
                u64::try_from(weight).map_err(|_| negative(&weight))
            })
        }
        DataType::Decimal128(..) => {
            let weights = weights.as_primitive::<Decimal128Type>();
            each_number(weights, valid, |row, weight| {
                u64::try_from(weight).map_err(|_| match weight {
                    ..0 => negative(&weights.value_as_string(row)),
                    _ => exec_datafusion_err!(
                        "a weight of {} is too large: {} units of its type's last digit are counted at most",
                        weights.value_as_string(row),
                        u64::MAX
                    ),
                })
            })
        }
        other => internal_err!("weights of type {other}"),
    }
}

fn negative(weight: &dyn Display) -> DataFusionError {
    exec_datafusion_err!("a weight must not be negative, got {weight}")
}

/// The number of each row; 0 for NULL and where `valid` is false. `number` gets the row and its weight.
fn each_number<T: ArrowPrimitiveType>(
    weights: &PrimitiveArray<T>,
    valid: Option<&BooleanArray>,
    number: impl Fn(usize, T::Native) -> Result<u64>,
) -> Result<UInt64Array> {
    let numbers = (0..weights.len()).map(|row| {
        if weights.is_null(row) || valid.is_some_and(|valid| !valid.value(row)) {
            return Ok(0);
        }
        number(row, weights.value(row))
    });
    Ok(UInt64Array::from(numbers.collect::<Result<Vec<u64>>>()?))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Decimal128Array, Int64Array, StringArray};

    use super::*;

    fn kept_weights(values: &[Option<&str>], weights: ArrayRef, mask: Option<Vec<bool>>) -> Result<Vec<u64>> {
        let values: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
        let mask = mask.map(BooleanArray::from);
        let (columns, kept) = counted(&[values, weights], mask.as_ref())?;
        assert_eq!(columns[0].len(), columns[1].len());
        assert!(kept.is_none_or(|kept| kept.true_count() == columns[0].len()));
        Ok(columns[1].as_primitive::<UInt64Type>().values().to_vec())
    }

    fn integers(weights: &[Option<i64>]) -> ArrayRef {
        Arc::new(Int64Array::from(weights.to_vec()))
    }

    #[test]
    fn rows_count_as_often_as_their_weight_says() {
        let rows = [Some("a"), None, Some("b"), Some("c"), Some("d")];
        let weights = || integers(&[Some(3), Some(-7), Some(0), None, Some(i64::MAX)]);
        assert_eq!(
            kept_weights(&rows, weights(), None).unwrap(),
            [3, i64::MAX as u64]
        );
        let mask = Some(vec![false, true, true, true, true]);
        assert_eq!(kept_weights(&rows, weights(), mask).unwrap(), [i64::MAX as u64]);
        let all = [Some("a"), Some("b")];
        assert_eq!(
            kept_weights(&all, integers(&[Some(1), Some(2)]), None).unwrap(),
            [1, 2]
        );
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![Some(u64::MAX), None]));
        assert_eq!(kept_weights(&all, large, None).unwrap(), [u64::MAX]);
    }

    #[test]
    fn negative_weights_of_rows_that_count_are_errors() {
        let rows = [Some("a"), Some("b"), None];
        let error = |weights: ArrayRef| kept_weights(&rows, weights, None).unwrap_err().strip_backtrace();
        let weights = [Some(1), Some(-2), Some(-3)];
        assert!(error(integers(&weights)).contains("a weight must not be negative, got -2"));
        let mask = Some(vec![true, false, true]);
        assert_eq!(kept_weights(&rows, integers(&weights), mask).unwrap(), [1]);
        let decimals = |values: Vec<i128>| -> ArrayRef {
            Arc::new(
                Decimal128Array::from(values)
                    .with_precision_and_scale(38, 2)
                    .unwrap(),
            )
        };
        assert_eq!(
            kept_weights(&rows, decimals(vec![150, 0, 5]), None).unwrap(),
            [150]
        );
        assert!(error(decimals(vec![1, -250, 0])).contains("a weight must not be negative, got -2.50"));
        let most = i128::from(u64::MAX);
        assert_eq!(
            kept_weights(&rows, decimals(vec![most, 0, 0]), None).unwrap(),
            [u64::MAX]
        );
        assert!(
            error(decimals(vec![most + 1, 0, 0])).contains("a weight of 184467440737095516.16 is too large")
        );
    }

    #[test]
    fn types_are_those_whose_sums_are_exact() {
        use DataType::*;
        let taken = |method, weight: &DataType| {
            weight_type("f", method, weight).map_err(|error| error.strip_backtrace())
        };
        assert_eq!(taken(Method::Linear, &Int8), Ok(Int64));
        assert_eq!(taken(Method::Linear, &UInt32), Ok(UInt64));
        assert_eq!(taken(Method::Linear, &Decimal128(20, 0)), Ok(Decimal128(38, 0)));
        assert_eq!(taken(Method::Linear, &Decimal128(20, -2)), Ok(Decimal128(38, 0)));
        assert_eq!(taken(Method::Disc, &Decimal64(10, 2)), Ok(Decimal128(38, 2)));
        assert!(taken(Method::AveragedInvertedCdf, &Decimal256(50, 38)).is_ok());
        for method in Method::ALL {
            let is_taken = taken(method, &Decimal64(10, 2)).is_ok();
            assert_eq!(is_taken, method.is_of_shares(), "{method}");
        }
        let error = taken(Method::Disc, &Float64).unwrap_err();
        assert!(error.contains("depends on the order of the rows"), "{error}");
        assert!(taken(Method::Disc, &Utf8).unwrap_err().contains("got Utf8"));
        assert!(taken(Method::Disc, &Boolean).unwrap_err().contains("got Boolean"));
    }
}
