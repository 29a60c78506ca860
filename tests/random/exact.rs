//! Quantiles of sorted values by exact arithmetic. It shares no code with the crate.

use std::cmp::Ordering;

use datafusion::arrow::datatypes::{DataType, i256};

use quantiles_testing::hyndman_fan;

use crate::naive::Expect;
use crate::statement::Q;
use crate::value::Value;

/// The quantile of sorted values, by exact arithmetic.
pub(crate) fn exact(values: &[Value], q: &Q, method: &str, data_type: &DataType) -> Expect {
    if values.is_empty() {
        return Expect::Is(None);
    }
    let n = values.len() as u64;
    let last = n - 1;
    if matches!(method, "" | "disc" | "inverted_cdf") {
        let rank = (q.num * n).div_ceil(q.den).max(1);
        return Expect::Is(Some(values[rank as usize - 1].clone()));
    }
    let at = |i: u64| &values[i as usize];
    if let "clickhouse" | "clickhouse_low" = method {
        let is_low = method == "clickhouse_low" && 2 * q.num == q.den;
        let index = if is_low {
            last / 2
        } else {
            (q.num * n / q.den).min(last)
        };
        return Expect::Is(Some(at(index).clone()));
    }
    if let Some((low, high, weight)) = hyndman_fan::position(method, (q.num, q.den), n) {
        return match method {
            "closest_observation" => Expect::Is(Some(at(low - 1).clone())),
            _ => between(at(low - 1), at(high - 1), weight, data_type),
        };
    }
    let (low, rest) = (q.num * last / q.den, q.num * last % q.den);
    let high = if rest == 0 { low } else { low + 1 };
    match method {
        "lower" => Expect::Is(Some(at(low).clone())),
        "higher" => Expect::Is(Some(at(high).clone())),
        "nearest" => {
            let up = match (2 * rest).cmp(&q.den) {
                Ordering::Less => false,
                Ordering::Equal => low % 2 == 1,
                Ordering::Greater => true,
            };
            Expect::Is(Some(at(if up { high } else { low }).clone()))
        }
        "midpoint" => between(
            at(low),
            at(high),
            if rest == 0 { (0, 1) } else { (1, 2) },
            data_type,
        ),
        _ => between(at(low), at(high), (rest, q.den), data_type),
    }
}

/// Spark's `percentile` of sorted values, by its steps in `f64`.
pub(crate) fn spark(values: &[Value], q: &Q, data_type: &DataType) -> Expect {
    let float = |value: &Value| match (value, data_type) {
        (Value::Float(v), _) => *v,
        (
            Value::Int(v),
            DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale),
        ) => format!("{v}e-{scale}").parse().unwrap(),
        (Value::Int(v), _) => *v as f64,
        _ => panic!("no number: {value:?}"),
    };
    let p: f64 = q.text.parse().unwrap();
    let position = (values.len() - 1) as f64 * p;
    let (low, high) = (
        &values[position.floor() as usize],
        &values[position.ceil() as usize],
    );
    let are_equal = match (low, high) {
        (Value::Float(low), Value::Float(high)) => low == high,
        (Value::Int(low), Value::Int(high)) => low == high,
        _ => false,
    };
    let answer = if are_equal || position.floor() == position.ceil() {
        float(low)
    } else {
        (position.ceil() - position) * float(low) + (position - position.floor()) * float(high)
    };
    Expect::Is(Some(Value::Float(answer)))
}

/// `low + (high - low) * num / den`.
pub(crate) fn between(low: &Value, high: &Value, (num, den): (u64, u64), data_type: &DataType) -> Expect {
    let weight = num as f64 / den as f64;
    let mix = |low: f64, high: f64| {
        if num == 0 {
            low
        } else {
            low * (1.0 - weight) + high * weight
        }
    };
    match (low, high) {
        (Value::Float(low), Value::Float(high)) => {
            let digits = match data_type {
                DataType::Float16 => 1e-3,
                DataType::Float32 => 1e-6,
                _ => 1e-12,
            };
            let most = low.abs().max(high.abs()).min(1e308);
            Expect::Near(
                mix(*low, *high),
                if num == 0 { 0.0 } else { most * digits + 1e-320 },
            )
        }
        (Value::Int(low), Value::Int(high)) if data_type.is_integer() || *data_type == DataType::Boolean => {
            let (low, high) = (*low as f64, *high as f64);
            Expect::Near(mix(low, high), low.abs().max(high.abs()) * 1e-15)
        }
        (Value::Int(low), Value::Int(high)) => {
            let unit = if *data_type == DataType::Date32 {
                86_400_000
            } else {
                1
            };
            Expect::Is(Some(Value::Int(rounded(low * unit, high * unit, num, den))))
        }
        _ => panic!("nothing lies between {low:?} and {high:?}"),
    }
}

/// Rounded half away from zero.
fn rounded(low: i128, high: i128, num: u64, den: u64) -> i128 {
    let wide = |v: i128| i256::from_i128(v);
    let (num, den) = (wide(num.into()), wide(den.into()));
    let scaled = wide(low) * (den - num) + wide(high) * num;
    let two = wide(2);
    let away = if scaled < i256::ZERO {
        scaled * two - den
    } else {
        scaled * two + den
    };
    (away / (den * two)).to_i128().unwrap()
}
