use std::sync::Arc;

use super::*;
use crate::key::KeySpec;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array};
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::arrow::datatypes::{Float64Type, Int64Type};
use datafusion::common::ScalarValue;

fn quantile(value: f64) -> Quantile {
    Quantile::try_from_f64(value).unwrap()
}

fn quantile_spec(quantiles: &[f64], method: Method, descending: bool) -> QuantileSpec {
    QuantileSpec {
        quantiles: quantiles.iter().map(|q| quantile(*q)).collect(),
        method,
        descending,
    }
}

/// The answers over a small array, by sorting its keys.
fn answer(values: ArrayRef, quantile_spec: &QuantileSpec) -> ArrayRef {
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut keys = spec.keys(&values).unwrap();
    keys.sort_unstable();
    quantile_spec
        .answers(&spec, keys.len() as u64, &|rank| Ok(keys[rank as usize - 1]))
        .unwrap()
}

fn floats(values: &[f64], quantiles: &[f64], method: Method) -> Vec<f64> {
    let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
    answer(values, &quantile_spec(quantiles, method, false))
        .as_primitive::<Float64Type>()
        .values()
        .to_vec()
}

#[test]
fn ranks_are_exact() {
    assert_eq!(quantile(0.1).rank(10), 1);
    assert_eq!(quantile(0.07).rank(100), 7);
    assert_eq!(quantile(0.29).rank(100), 29);
    assert_eq!(quantile(0.0).rank(5), 1);
    assert_eq!(quantile(-0.0).rank(5), 1);
    assert_eq!(quantile(1.0).rank(5), 5);
    assert_eq!(quantile(1.0).rank(u64::MAX), u64::MAX);
    assert_eq!(quantile(0.5).rank(u64::MAX), u64::MAX / 2 + 1);
    assert_eq!(quantile(5e-324).rank(u64::MAX), 1);
    assert_eq!(quantile(1e-19).rank(u64::MAX), 2);
    assert_eq!(quantile(0.9999999999999999).rank(10), 10);
}

/// The examples of ClickHouse's documentation, and the indices of its source (`QuantileExact.h`), which count from 0.
#[test]
fn ranks_of_clickhouse() {
    let index =
        |q: f64, method: Method, n: u64| quantile_spec(&[q], method, false).pick(quantile(q), n).low - 1;
    for (q, n, exact, low) in [
        (0.5, 10, 5, 4),
        (0.5, 9, 4, 4),
        (0.5, 1, 0, 0),
        (0.1, 10, 1, 1),
        (0.25, 10, 2, 2),
        (0.75, 10, 7, 7),
        (0.999, 10, 9, 9),
        (0.0, 10, 0, 0),
        (1.0, 10, 9, 9),
    ] {
        assert_eq!(index(q, Method::ClickHouse, n), exact, "{q} of {n}");
        assert_eq!(index(q, Method::ClickHouseLow, n), low, "{q} of {n}, low");
    }
}

#[test]
fn positions_stay_among_as_many_values_as_are_counted() {
    let others = [Method::SparkPercentile, Method::ClickHouse, Method::ClickHouseLow];
    let methods = Method::ALL.into_iter().chain(others);
    for method in methods {
        for n in [1, 2, 3, u64::MAX - 1, u64::MAX] {
            for q in [0.0, 1e-300, 0.07, 0.5, 0.999_999_999_999_999_9, 1.0] {
                for descending in [false, true] {
                    let pick = quantile_spec(&[q], method, descending).pick(quantile(q), n);
                    let (least, most) = (pick.low.min(pick.high), pick.low.max(pick.high));
                    assert!(
                        1 <= least && most <= n && most - least <= 1,
                        "{method} {q} of {n}: {pick:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn narrow_products_are_those_of_any_width() {
    for q in [
        0.0,
        1.0,
        0.5,
        0.07,
        1e-9,
        0.123456789,
        0.9999999999999999,
        1e-19,
        5e-324,
    ] {
        for n in [0, 1, 2, 10, 99, 1000, 1 << 32, u64::MAX - 1, u64::MAX] {
            assert_eq!(quantile(q).times(n), quantile(q).times_wide(n), "{q} of {n}");
        }
    }
}

#[test]
fn a_quantile_gives_its_float_back() {
    for q in [
        0.0,
        1.0,
        0.1,
        0.07,
        1.0 / 3.0,
        0.9999999999999999,
        1e-30,
        5e-324,
        0.1_f32.into(),
    ] {
        assert_eq!(quantile(q).to_f64().to_bits(), q.to_bits(), "{q}");
    }
}

#[test]
fn quantiles_print_as_decimals() {
    for (value, text) in [
        (0.0, "0"),
        (1.0, "1"),
        (0.5, "0.5"),
        (0.01, "0.01"),
        (0.25, "0.25"),
        (1e-39, "1e-39"),
    ] {
        assert_eq!(quantile(value).to_string(), text);
    }
}

#[test]
fn constants_of_all_number_types() {
    let tenth = quantile(0.1);
    for value in [
        ScalarValue::Float64(Some(0.1)),
        ScalarValue::Float32(Some(0.1)),
        ScalarValue::Decimal128(Some(10), 5, 2),
        ScalarValue::Decimal64(Some(1), 5, 1),
    ] {
        assert_eq!(Quantile::try_from_scalar(&value).unwrap(), tenth, "{value:?}");
    }
    for value in [
        ScalarValue::Int64(Some(1)),
        ScalarValue::UInt8(Some(1)),
        ScalarValue::Decimal128(Some(100), 5, 2),
    ] {
        assert_eq!(Quantile::try_from_scalar(&value).unwrap(), quantile(1.0));
    }
    let smallest = ScalarValue::Decimal128(Some(1), 38, 38);
    assert_eq!(Quantile::try_from_scalar(&smallest).unwrap().rank(u64::MAX), 1);
}

#[test]
fn refusals_name_the_value() {
    for (value, expected) in [
        (
            ScalarValue::Float64(Some(1.5)),
            "quantile 1.5 is out of range: allowed is a number from 0 to 1",
        ),
        (ScalarValue::Float64(Some(-0.1)), "quantile -0.1 is out of range"),
        (
            ScalarValue::Float64(Some(f64::NAN)),
            "quantile NaN is out of range",
        ),
        (
            ScalarValue::Float64(Some(f64::INFINITY)),
            "quantile inf is out of range",
        ),
        (ScalarValue::Float64(Some(1e300)), "out of range"),
        (ScalarValue::Int64(Some(2)), "quantile 2 is out of range"),
        (ScalarValue::Int64(Some(-1)), "quantile -1 is out of range"),
        (
            ScalarValue::UInt64(Some(u64::MAX)),
            "quantile 18446744073709551615 is out of range",
        ),
        (ScalarValue::Decimal128(Some(11), 5, 1), "is out of range"),
        (ScalarValue::Float64(None), "a quantile must not be NULL"),
        (ScalarValue::Null, "a quantile must not be NULL"),
        (
            ScalarValue::from("0.5"),
            "a quantile must be a number from 0 to 1, got 0.5 of type Utf8",
        ),
        (
            ScalarValue::Boolean(Some(true)),
            "a quantile must be a number from 0 to 1, got true of type Boolean",
        ),
    ] {
        let error = Quantile::try_from_scalar(&value).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = "mean".parse::<Method>().unwrap_err().to_string();
    assert!(
        error.contains("unknown quantile method 'mean': allowed are disc"),
        "{error}"
    );
}

#[test]
fn methods_answer_as_numpy_does() {
    // numpy.quantile([1, 2, 3, 4], [0, .25, .5, .75, 1], method=...)
    let (values, quantiles) = ([4.0, 2.0, 1.0, 3.0], [0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(
        floats(&values, &quantiles, Method::Disc),
        [1.0, 1.0, 2.0, 3.0, 4.0]
    );
    assert_eq!(
        floats(&values, &quantiles, Method::Linear),
        [1.0, 1.75, 2.5, 3.25, 4.0]
    );
    assert_eq!(
        floats(&values, &quantiles, Method::Lower),
        [1.0, 1.0, 2.0, 3.0, 4.0]
    );
    assert_eq!(
        floats(&values, &quantiles, Method::Higher),
        [1.0, 2.0, 3.0, 4.0, 4.0]
    );
    assert_eq!(
        floats(&values, &quantiles, Method::Nearest),
        [1.0, 2.0, 3.0, 3.0, 4.0]
    );
    assert_eq!(
        floats(&values, &quantiles, Method::Midpoint),
        [1.0, 1.5, 2.5, 3.5, 4.0]
    );
}

#[test]
fn interpolation_never_overflows_nor_reads_a_neighbour_of_weight_zero() {
    let (max, inf) = (f64::MAX, f64::INFINITY);
    assert_eq!(floats(&[-max, max], &[0.5], Method::Linear), [0.0]);
    assert_eq!(floats(&[-max, max], &[0.0, 1.0], Method::Linear), [-max, max]);
    assert_eq!(floats(&[1.0, 2.0, inf], &[0.5], Method::Linear), [2.0]);
    assert_eq!(
        floats(&[1.0, inf], &[0.0, 0.25, 0.75], Method::Linear),
        [1.0, inf, inf]
    );
    assert_eq!(floats(&[-inf, 1.0], &[0.75], Method::Linear), [-inf]);
    assert!(floats(&[-inf, inf], &[0.5], Method::Midpoint)[0].is_nan());
    assert_eq!(floats(&[inf, inf], &[0.5], Method::Linear), [inf]);
    assert!(floats(&[1.0, f64::NAN], &[0.5], Method::Linear)[0].is_nan());
    assert_eq!(floats(&[1.0, 2.0, f64::NAN], &[0.5], Method::Linear), [2.0]);
}

#[test]
fn integers_stay_exact_where_no_interpolation_is_asked() {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, i64::MAX - 1, i64::MIN]));
    let exact = answer(
        Arc::clone(&values),
        &quantile_spec(&[0.0, 0.5, 1.0], Method::Lower, false),
    );
    assert_eq!(
        exact.as_primitive::<Int64Type>().values(),
        &[i64::MIN, i64::MAX - 1, i64::MAX]
    );
    let linear = answer(values, &quantile_spec(&[0.25], Method::Linear, false));
    assert_eq!(linear.as_primitive::<Float64Type>().values(), &[-1.0]);
}

#[test]
fn decimals_round_half_away_from_zero() {
    let decimals = |values: Vec<i128>| -> ArrayRef {
        Arc::new(
            Decimal128Array::from(values)
                .with_precision_and_scale(38, 2)
                .unwrap(),
        )
    };
    let middle = |values| answer(decimals(values), &quantile_spec(&[0.5], Method::Linear, false));
    assert_eq!(middle(vec![1, 2]).as_ref(), decimals(vec![2]).as_ref());
    assert_eq!(middle(vec![-1, -2]).as_ref(), decimals(vec![-2]).as_ref());
    assert_eq!(middle(vec![-1, 2]).as_ref(), decimals(vec![1]).as_ref());
    let huge = 10_i128.pow(38) - 1;
    assert_eq!(middle(vec![-huge, huge]).as_ref(), decimals(vec![0]).as_ref());
    let third = answer(
        decimals(vec![0, huge]),
        &quantile_spec(&[0.1], Method::Linear, false),
    );
    assert_eq!(third.as_ref(), decimals(vec![10_i128.pow(37)]).as_ref());
}

#[test]
fn descending_counts_from_the_top() {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
    for (method, expected) in [
        (Method::Disc, 4),
        (Method::Lower, 4),
        (Method::Higher, 3),
        (Method::Nearest, 3),
    ] {
        let top = answer(Arc::clone(&values), &quantile_spec(&[0.25], method, true));
        assert_eq!(top.as_primitive::<Int64Type>().value(0), expected, "{method}");
    }
    let linear = answer(values, &quantile_spec(&[0.25], Method::Linear, true));
    assert_eq!(linear.as_primitive::<Float64Type>().value(0), 3.25);
}

#[test]
fn nothing_gives_null_of_the_right_type() {
    let spec = KeySpec::try_new(&DataType::Date32).unwrap();
    let empty = quantile_spec(&[0.1, 0.2], Method::Linear, false)
        .answers(&spec, 0, &|_| unreachable!())
        .unwrap();
    assert_eq!(
        empty.data_type(),
        &DataType::Timestamp(TimeUnit::Millisecond, None)
    );
    assert_eq!((empty.len(), empty.null_count()), (2, 2));
}
