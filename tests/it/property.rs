//! SQL answers against a naive sort: types, methods, partitions, batches, strategies, groups, patterns.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, UInt32Array};
use datafusion::arrow::compute::{SortOptions, cast, sort, take};
use datafusion::arrow::datatypes::DataType;
use datafusion_quantiles::Method;
use datafusion_quantiles::compute::quantiles;
use datafusion_quantiles::config::StrategyName;
use datafusion_quantiles::key::KeySpec;
use proptest::prelude::*;

use quantiles_testing::fixed_width::{types, values};
use quantiles_testing::hyndman_fan;
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::{cases, query, register, session, set};

/// The first of each run of equal values.
fn distinct(sorted: &ArrayRef) -> ArrayRef {
    let keys = KeySpec::try_new(sorted.data_type())
        .unwrap()
        .keys(sorted)
        .unwrap();
    let first = |at: &usize| *at == 0 || keys[at - 1] != keys[*at];
    let firsts = UInt32Array::from_iter_values((0..keys.len()).filter(first).map(|at| at as u32));
    take(sorted, &firsts, None).unwrap()
}

/// The values that are not NULL, ascending, NaNs last as one value: by Arrow's sort, not by our keys.
fn sorted(values: &ArrayRef) -> ArrayRef {
    let plain: ArrayRef = match values.data_type() {
        DataType::Float64 => {
            let floats = values.as_primitive::<datafusion::arrow::datatypes::Float64Type>();
            Arc::new(floats.unary::<_, datafusion::arrow::datatypes::Float64Type>(|v| {
                if v.is_nan() { f64::NAN } else { v }
            }))
        }
        DataType::Float32 => {
            let floats = values.as_primitive::<datafusion::arrow::datatypes::Float32Type>();
            Arc::new(floats.unary::<_, datafusion::arrow::datatypes::Float32Type>(|v| {
                if v.is_nan() { f32::NAN } else { v }
            }))
        }
        DataType::Float16 => {
            let floats = values.as_primitive::<datafusion::arrow::datatypes::Float16Type>();
            Arc::new(floats.unary::<_, datafusion::arrow::datatypes::Float16Type>(|v| {
                if v.is_nan() { half::f16::NAN } else { v }
            }))
        }
        _ => Arc::clone(values),
    };
    let sorted = sort(
        &plain,
        Some(SortOptions {
            descending: false,
            nulls_first: false,
        }),
    )
    .unwrap();
    sorted.slice(0, sorted.len() - sorted.null_count())
}

/// Quantiles as fractions, so that the oracle's ranks are integer arithmetic of another kind.
const QUANTILES: [(u64, u64); 9] = [
    (0, 1),
    (1, 1),
    (1, 2),
    (1, 4),
    (1, 100),
    (99, 100),
    (7, 100),
    (1, 10),
    (999, 1000),
];

/// 0-based index from the least value; `None`: the answer lies between two.
fn index(method: Method, (num, den): (u64, u64), n: u64) -> Option<u64> {
    let (floor, rest) = (num * (n - 1) / den, num * (n - 1) % den);
    match method {
        Method::Disc => Some((num * n).div_ceil(den).max(1) - 1),
        Method::Lower => Some(floor),
        Method::Higher => Some(floor + u64::from(rest > 0)),
        Method::Nearest => Some(match (2 * rest).cmp(&den) {
            std::cmp::Ordering::Less => floor,
            std::cmp::Ordering::Greater => floor + 1,
            std::cmp::Ordering::Equal => floor + floor % 2,
        }),
        Method::ClosestObservation => {
            let (rank, ..) = hyndman_fan::position("closest_observation", (num, den), n)?;
            Some(rank - 1)
        }
        _ => None,
    }
}

fn sql_list() -> String {
    let numbers = QUANTILES.map(|(num, den)| (num as f64 / den as f64).to_string());
    format!("[{}]", numbers.join(", "))
}

fn list_of(batches: &[RecordBatch]) -> ArrayRef {
    let list: &ListArray = batches[0].column(0).as_list();
    list.value(0)
}

/// One query over one layout of the data.
#[derive(Debug, Clone)]
struct Case {
    data_type: DataType,
    pattern: Pattern,
    method: Method,
    descending: bool,
    distinct: bool,
    strategy: StrategyName,
    len: usize,
    partitions: usize,
    batch: usize,
    nulls: bool,
    seed: u64,
    read_again: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let names = [
        StrategyName::Auto,
        StrategyName::SampleSelect,
        StrategyName::DistributedBms,
        StrategyName::Dibms,
        StrategyName::GkSelect,
    ];
    let what = (
        proptest::sample::select(types()),
        proptest::sample::select(patterns::ALL.to_vec()),
        proptest::sample::select(Method::ALL.to_vec()),
        proptest::sample::select(names.to_vec()),
    );
    let how = (
        prop_oneof![1..30_usize, 500..4000_usize, Just(70_000_usize)],
        1..6_usize,
        50..9000_usize,
    );
    let flags = (
        any::<bool>(),
        proptest::bool::weighted(0.25),
        any::<bool>(),
        any::<bool>(),
    );
    (what, how, flags, any::<u64>()).prop_map(
        |(
            (data_type, pattern, method, strategy),
            (len, partitions, batch),
            (descending, distinct, nulls, read_again),
            seed,
        )| Case {
            data_type,
            pattern,
            method,
            descending,
            distinct,
            strategy,
            len,
            partitions,
            batch,
            nulls,
            seed,
            read_again,
        },
    )
}

async fn check(case: &Case) {
    let values = values(&case.data_type, case.pattern, case.len, case.seed, case.nulls);
    let ctx = session(case.partitions);
    let rows = RecordBatch::try_from_iter_with_nullable([("x", Arc::clone(&values), true)]).unwrap();
    register(&ctx, "t", &rows, case.partitions, case.batch);
    set(&ctx, "strategy", &case.strategy.to_string()).await;
    set(
        &ctx,
        "read_again",
        if case.read_again { "always" } else { "auto" },
    )
    .await;
    let direction = if case.descending { "DESC" } else { "ASC" };
    let list = sql_list();
    let call = match case.distinct {
        false => format!(
            "exact_quantiles({list}, '{}') WITHIN GROUP (ORDER BY x {direction})",
            case.method
        ),
        true => format!(
            "exact_quantiles{}{}(DISTINCT x, {list})",
            match case.method {
                Method::Disc => String::new(),
                method => format!("_{method}"),
            },
            if case.descending { "_desc" } else { "" }
        ),
    };
    let found = list_of(&query(&ctx, &format!("SELECT {call} FROM t")).await.unwrap());

    let sorted = match case.distinct {
        true => distinct(&sorted(&values)),
        false => sorted(&values),
    };
    let n = sorted.len() as u64;
    if n == 0 {
        assert_eq!(found.len(), found.null_count());
        return;
    }
    let place = |at: u64| if case.descending { n - 1 - at } else { at };
    let indices: Vec<Option<u64>> = QUANTILES.iter().map(|q| index(case.method, *q, n)).collect();
    if let Some(indices) = indices.into_iter().collect::<Option<Vec<u64>>>() {
        let at = UInt32Array::from_iter_values(indices.into_iter().map(|at| place(at) as u32));
        let expected = take(&sorted, &at, None).unwrap();
        assert_eq!(
            found.to_data().buffers(),
            expected.to_data().buffers(),
            "{case:?}"
        );
    } else {
        between(case, &found, &sorted, place);
    }
    // The same answer from the grouped accumulators, and without a session.
    let grouped = list_of(
        &query(
            &ctx,
            &format!("SELECT {call} FROM t GROUP BY x IS NOT DISTINCT FROM x"),
        )
        .await
        .unwrap(),
    );
    assert_eq!(grouped.to_data(), found.to_data(), "grouped {case:?}");
    if !case.descending && !case.distinct {
        let plain = QUANTILES.map(|(num, den)| num as f64 / den as f64);
        let alone = quantiles(&values, &plain, case.method).unwrap();
        assert_eq!(
            alone.to_data().buffers(),
            found.to_data().buffers(),
            "without a session {case:?}"
        );
    }
}

/// An interpolated answer: within rounding of the formula in floating point, where that can hold it.
fn between(case: &Case, found: &ArrayRef, sorted: &ArrayRef, place: impl Fn(u64) -> u64) {
    let n = sorted.len() as u64;
    let scale = if sorted.data_type() == &DataType::Date32 {
        86_400_000.0
    } else {
        1.0
    };
    let (found, sorted) = (numbers(found), numbers(sorted));
    for ((num, den), found) in QUANTILES.iter().zip(found) {
        let (floor, rest) = (num * (n - 1) / den, num * (n - 1) % den);
        let method = case.method.to_string();
        let (low, high, weight) = match hyndman_fan::position(&method, (*num, *den), n) {
            Some((low, high, (part, whole))) => (low - 1, high - 1, part as f64 / whole as f64),
            None => {
                let weight = if case.method == Method::Linear {
                    rest as f64 / *den as f64
                } else {
                    0.5
                };
                (floor, floor + u64::from(rest > 0), weight)
            }
        };
        let [low, high] = [low, high].map(|at| sorted[place(at) as usize] * scale);
        let expected = if low == high {
            low
        } else {
            low * (1.0 - weight) + high * weight
        };
        let magnitude = low.abs().max(high.abs());
        let unit = if case.data_type == DataType::Float16 {
            1e-3
        } else {
            1e-6
        };
        let close = (found - expected).abs() <= magnitude * unit + 0.51;
        assert!(
            close || found == expected || (found.is_nan() && expected.is_nan()),
            "{found} {expected} {case:?}"
        );
    }
}

/// Values as floating point; integers behind decimals and times in their own units.
fn numbers(array: &ArrayRef) -> Vec<f64> {
    use DataType::*;
    let plain: ArrayRef = match array.data_type() {
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Boolean => Arc::clone(array),
        Date32 | Time32(_) => cast(array, &Int32).unwrap(),
        Date64 | Time64(_) | Timestamp(..) | Duration(_) => cast(array, &Int64).unwrap(),
        _ => Arc::clone(array),
    };
    let floats = cast(&plain, &Float64).unwrap();
    floats
        .as_primitive::<datafusion::arrow::datatypes::Float64Type>()
        .values()
        .to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn sql_agrees_with_a_sort(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(check(&case));
    }
}
