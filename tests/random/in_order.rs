//! The naive answers of functions that read all values of a group in order.

use datafusion::arrow::datatypes::DataType;

use crate::exact::between;
use crate::naive::Expect;
use crate::value::{Cell, Order, Value, compare};

/// What such a function asks, besides its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) name: &'static str,
    /// A number of values or of bins, or the share of an end in percent.
    pub(crate) k: u64,
    /// The kind of a histogram, or `""`.
    pub(crate) kind: &'static str,
}

/// The functions with arithmetic.
pub(crate) const NUMBERS: [&str; 3] = ["mad", "trimmed_mean", "winsorized_mean"];

impl Asked {
    /// The constants behind the values.
    pub(crate) fn constants(self) -> String {
        match (self.name, self.kind) {
            ("mode" | "mad" | "count_distinct_exact", _) => String::new(),
            ("trimmed_mean" | "winsorized_mean", _) => format!("0.{:02}", self.k),
            (_, "") => self.k.to_string(),
            (_, kind) => format!("{}, '{kind}'", self.k),
        }
    }

    /// The answer over no values.
    pub(crate) fn of_none(self) -> Expect {
        Expect::Is((self.name == "count_distinct_exact").then_some(Value::Int(0)))
    }

    /// The answer over values, of which there is one at least, in order.
    pub(crate) fn answer(self, values: &[Value], data_type: &DataType) -> Expect {
        let k = self.k as usize;
        let list = |values: Vec<Value>| {
            let items = values.into_iter().map(|value| Expect::Is(Some(value)));
            Expect::List(items.collect())
        };
        match self.name {
            "max" => list(values.iter().rev().take(k).cloned().collect()),
            "min" => list(values.iter().take(k).cloned().collect()),
            "mode" => Expect::Is(Some(frequent(values).swap_remove(0).0)),
            "count_distinct_exact" => Expect::Is(Some(Value::Int(frequent(values).len() as i128))),
            "mad" => mad(values, data_type),
            "trimmed_mean" | "winsorized_mean" => mean(&self.counted(values), data_type),
            "histogram" if self.kind == "equi-width" => equi_width(values, k, data_type),
            "histogram" => equi_depth(values, k),
            "approx_top_k" => {
                let best = frequent(values).into_iter().take(k);
                list(best.map(|(value, _)| value).collect())
            }
            _ => {
                let best = frequent(values).into_iter().take(k);
                let fields = |(value, count)| -> Vec<Cell> { vec![Some(value), Some(Value::Int(count))] };
                list(best.map(fields).map(Value::Many).collect())
            }
        }
    }
}

impl Asked {
    /// The values of which the mean is taken.
    fn counted(self, values: &[Value]) -> Vec<Value> {
        let n = values.len();
        let end = n * self.k as usize / 100;
        let mut counted = values[end..n - end].to_vec();
        if self.name == "winsorized_mean" {
            let ends = [counted[0].clone(), counted[counted.len() - 1].clone()];
            for value in ends {
                counted.extend(std::iter::repeat_n(value, end));
            }
        }
        counted
    }
}

/// How far a floating-point answer about values may be off: some of the last digits of the greatest.
fn tolerance(values: &[f64], data_type: &DataType) -> f64 {
    let digits = match data_type {
        DataType::Float16 => 1e-3,
        DataType::Float32 => 1e-6,
        _ => 1e-12,
    };
    let finite = values.iter().filter(|value| value.is_finite());
    finite
        .fold(0.0_f64, |most, value| most.max(value.abs()))
        .min(1e307)
        * digits
        + 1e-320
}

fn floats(values: &[Value]) -> Option<Vec<f64>> {
    let float = |value: &Value| match value {
        Value::Float(value) => Some(*value),
        _ => None,
    };
    values.iter().map(float).collect()
}

fn integers(values: &[Value]) -> Vec<i128> {
    let integer = |value: &Value| match value {
        Value::Int(value) => *value,
        other => panic!("{other:?} is no number"),
    };
    values.iter().map(integer).collect()
}

/// `sum / count` as the answer for integers, or in the unit of decimals and durations, rounded half away from zero.
fn divided(sum: i128, count: i128, data_type: &DataType) -> Expect {
    if data_type.is_integer() {
        let mean = sum as f64 / count as f64;
        return Expect::Near(mean, mean.abs() * 1e-15);
    }
    let away = if sum < 0 { -(count / 2) } else { count / 2 };
    Expect::Is(Some(Value::Int((sum + away) / count)))
}

fn mad(values: &[Value], data_type: &DataType) -> Expect {
    let n = values.len();
    let middle = [(n - 1) / 2, n / 2];
    let Some(floats) = floats(values) else {
        let values = integers(values);
        let median: i128 = middle.iter().map(|at| values[*at]).sum();
        let mut deviations: Vec<i128> = values.iter().map(|value| (2 * value - median).abs()).collect();
        deviations.sort_unstable();
        return divided(middle.iter().map(|at| deviations[*at]).sum(), 4, data_type);
    };
    let mean = |low: f64, high: f64| {
        let weight = if low == high || n % 2 == 1 { (0, 1) } else { (1, 2) };
        match between(&Value::Float(low), &Value::Float(high), weight, data_type) {
            Expect::Near(mean, _) => mean,
            other => panic!("no mean: {other:?}"),
        }
    };
    let median = mean(floats[middle[0]], floats[middle[1]]);
    let deviation = |value: &f64| {
        if *value == median {
            0.0
        } else {
            (value - median).abs()
        }
    };
    let mut deviations: Vec<f64> = floats.iter().map(deviation).collect();
    deviations.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let most = tolerance(&floats, data_type);
    Expect::Near(mean(deviations[middle[0]], deviations[middle[1]]), most)
}

fn mean(values: &[Value], data_type: &DataType) -> Expect {
    let n = values.len();
    match floats(values) {
        None => divided(integers(values).iter().sum(), n as i128, data_type),
        Some(floats) => {
            // Divided first, so that no sum is beyond all numbers.
            let mut mean: f64 = floats.iter().map(|value| value / n as f64).sum();
            if floats.iter().all(|value| value.is_finite()) {
                // Rounding may carry a sum of the greatest numbers beyond them.
                mean = mean.clamp(f64::MIN, f64::MAX);
            }
            Expect::Near(mean, tolerance(&floats, data_type) * 10.0)
        }
    }
}

pub(crate) fn equi_depth(values: &[Value], bins: usize) -> Expect {
    let n = values.len();
    let same = |a: &Value, b: &Value| compare(a, b, Order::Functions).is_eq();
    let mut edges: Vec<&Value> = (1..=bins)
        .map(|bin| &values[(bin * n).div_ceil(bins) - 1])
        .collect();
    edges.dedup_by(|a, b| same(a, b));
    let (mut low, mut before, mut found) = (&values[0], 0, Vec::new());
    for high in edges {
        let at_or_below = |value: &&Value| compare(value, high, Order::Functions).is_le();
        let through = values.iter().filter(at_or_below).count();
        let bin = vec![
            Some(low.clone()),
            Some(high.clone()),
            Some(Value::Int((through - before) as i128)),
        ];
        found.push(Expect::Is(Some(Value::Many(bin))));
        (low, before) = (high, through);
    }
    Expect::List(found)
}

/// Of integers that Float64 holds exactly.
fn equi_width(values: &[Value], bins: usize, data_type: &DataType) -> Expect {
    let values = integers(values);
    let (least, most, bins) = (values[0], values[values.len() - 1], bins as i128);
    let mut found = Vec::new();
    let (mut low, mut before) = (least as f64, 0);
    for bin in 1..=bins {
        // Edges in parts of 1 / bins.
        let edge = least * bins + (most - least) * bin;
        let through = values.iter().filter(|value| **value * bins <= edge).count();
        let high = edge as f64 / bins as f64;
        if least == most && bin < bins {
            continue;
        }
        let near = |edge: f64| Expect::Near(edge, edge.abs().max(1.0) * 1e-14);
        let count = Expect::Is(Some(Value::Int((through - before) as i128)));
        found.push(Expect::List(vec![near(low), near(high), count]));
        (low, before) = (high, through);
    }
    assert!(data_type.is_integer());
    Expect::List(found)
}

/// Distinct values with their numbers, the most frequent first.
pub(crate) fn frequent(values: &[Value]) -> Vec<(Value, i128)> {
    let mut runs: Vec<(Value, i128)> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some((last, count)) if compare(last, value, Order::Functions).is_eq() => *count += 1,
            _ => runs.push((value.clone(), 1)),
        }
    }
    runs.sort_by_key(|(_, count)| -count);
    runs
}
