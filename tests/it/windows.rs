//! Window frames against a naive sort of every frame.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt64Array};
use datafusion::arrow::compute::{concat_batches, filter, is_not_null, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion_quantiles::Method;
use datafusion_quantiles::key::KeySpec;
use datafusion_quantiles::quantile::{Quantile, QuantileSpec};
use proptest::prelude::*;

use quantiles_testing::fixed_width::{types, values};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::{batch, cases, query, register, row, rows, session};

const LIST: [f64; 4] = [0.5, 0.0, 1.0, 0.07];

/// A frame: rows whose place, value or peer group lies this far from the current row's; `None`: without bound.
#[derive(Debug, Clone, Copy)]
struct Frame {
    unit: &'static str,
    start: Option<i64>,
    end: Option<i64>,
}

impl Frame {
    fn sql(&self) -> String {
        let bound = |offset: Option<i64>, unbounded: &str| match offset {
            None => format!("UNBOUNDED {unbounded}"),
            Some(0) => "CURRENT ROW".to_owned(),
            Some(offset) if offset < 0 => format!("{} PRECEDING", -offset),
            Some(offset) => format!("{offset} FOLLOWING"),
        };
        let order = if self.unit == "ROWS" { "i" } else { "k" };
        let (start, end) = (bound(self.start, "PRECEDING"), bound(self.end, "FOLLOWING"));
        format!("ORDER BY {order} {} BETWEEN {start} AND {end}", self.unit)
    }
}

#[derive(Debug, Clone)]
struct Case {
    data_type: DataType,
    pattern: Pattern,
    method: Method,
    frame: Frame,
    descending: bool,
    distinct: bool,
    filtered: bool,
    groups: i64,
    len: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let bounds = (-12..12_i64, -12..12_i64).prop_map(|(a, b)| (Some(a.min(b)), Some(a.max(b))));
    let bounds = prop_oneof![
        4 => bounds,
        1 => Just((None, None)),
        1 => (-3..3_i64).prop_map(|end| (None, Some(end))),
        1 => (-3..3_i64).prop_map(|start| (Some(start), None)),
    ];
    let frame = (proptest::sample::select(vec!["ROWS", "RANGE", "GROUPS"]), bounds)
        .prop_map(|(unit, (start, end))| Frame { unit, start, end });
    let what = (
        proptest::sample::select(types()),
        proptest::sample::select(patterns::ALL.to_vec()),
        proptest::sample::select(Method::ALL.to_vec()),
        frame,
    );
    let how = (any::<bool>(), any::<bool>(), any::<bool>());
    (what, how, 1..4_i64, 1..160_usize, any::<u64>()).prop_map(
        |((data_type, pattern, method, frame), (descending, distinct, filtered), groups, len, seed)| Case {
            data_type,
            pattern,
            method,
            frame,
            descending,
            distinct,
            filtered,
            groups,
            len,
            seed,
        },
    )
}

/// Order column: not unique, with gaps.
fn order(i: i64) -> i64 {
    i / 3 + i / 7 * 4
}

/// The rows in the frame of row `i`.
fn framed(case: &Case, i: i64) -> Vec<u64> {
    let partition: Vec<i64> = (0..case.len as i64)
        .filter(|other| other % case.groups == i % case.groups)
        .collect();
    let mut orders: Vec<i64> = partition.iter().map(|&row| order(row)).collect();
    orders.dedup();
    let place = |row: i64| -> i64 {
        match case.frame.unit {
            "ROWS" => partition.partition_point(|other| *other < row) as i64,
            "RANGE" => order(row),
            _ => orders.partition_point(|other| *other < order(row)) as i64,
        }
    };
    let within = |row: &i64| {
        let apart = place(*row) - place(i);
        case.frame.start.is_none_or(|start| apart >= start)
            && case.frame.end.is_none_or(|end| apart <= end)
            && (!case.filtered || row % 5 != 2)
    };
    partition
        .iter()
        .filter(|row| within(row))
        .map(|row| *row as u64)
        .collect()
}

/// The answers over some rows, by sorting their keys.
fn naive(case: &Case, values: &ArrayRef, rows: Vec<u64>) -> Vec<ScalarValue> {
    let framed = take(values, &UInt64Array::from(rows), None).unwrap();
    let framed = filter(&framed, &is_not_null(&framed).unwrap()).unwrap();
    let spec = KeySpec::try_new(&case.data_type).unwrap();
    let mut keys = spec.keys(&framed).unwrap();
    keys.sort_unstable();
    if case.distinct {
        keys.dedup();
    }
    let quantile_spec = QuantileSpec {
        quantiles: LIST.map(|q| Quantile::try_from_f64(q).unwrap()).to_vec(),
        method: case.method,
        descending: case.descending,
    };
    let key_at = |rank: u64| Ok(keys[rank as usize - 1]);
    let answers = quantile_spec.answers(&spec, keys.len() as u64, &key_at).unwrap();
    scalars(&answers)
}

fn scalars(array: &ArrayRef) -> Vec<ScalarValue> {
    (0..array.len())
        .map(|row| ScalarValue::try_from_array(array, row).unwrap())
        .collect()
}

async fn check(case: &Case) {
    let values = values(&case.data_type, case.pattern, case.len, case.seed, true);
    let ctx = session(2);
    let integers = |of: &dyn Fn(i64) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..case.len as i64).map(of)))
    };
    let columns = vec![
        ("i", integers(&|i| i)),
        ("k", integers(&order)),
        ("g", integers(&|i| i % case.groups)),
        ("x", Arc::clone(&values)),
    ];
    register(&ctx, "t", &batch(columns), 1, 17);
    let method = if case.method == Method::Disc {
        String::new()
    } else {
        format!("_{}", case.method)
    };
    let function = format!(
        "exact_quantiles{method}{}",
        if case.descending { "_desc" } else { "" }
    );
    let distinct = if case.distinct { "DISTINCT " } else { "" };
    let filter = if case.filtered {
        " FILTER (WHERE i % 5 <> 2)"
    } else {
        ""
    };
    let sql = format!(
        "SELECT {function}({distinct}x, {LIST:?}){filter} OVER w AS a, {function}({distinct}x, {:?}){filter} OVER w AS b \
         FROM t WINDOW w AS (PARTITION BY g {}) ORDER BY i",
        LIST[0],
        case.frame.sql()
    );
    let found = query(&ctx, &sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let found = concat_batches(&found[0].schema(), &found).unwrap();
    let (lists, singles) = (found.column(0).as_list::<i32>(), scalars(found.column(1)));
    assert_eq!(singles.len(), case.len);
    for (i, single) in singles.into_iter().enumerate() {
        let expected = naive(case, &values, framed(case, i as i64));
        assert_eq!(single, expected[0], "row {i} of {sql} {case:?}");
        let is_null = expected[0].is_null();
        assert_eq!(lists.is_null(i), is_null, "row {i} of {sql} {case:?}");
        if !is_null {
            assert_eq!(scalars(&lists.value(i)), expected, "row {i} of {sql} {case:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn frames_agree_with_a_sort(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(check(&case));
    }
}

/// A quadratic way through this frame would take minutes.
#[tokio::test]
async fn frames_that_grow_over_many_rows() {
    let ctx = session(2);
    let n = 200_000;
    let i: ArrayRef = Arc::new(Int64Array::from_iter_values(0..n));
    let peers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..n).map(|i| i / 50_000)));
    register(&ctx, "t", &batch(vec![("i", i), ("peers", peers)]), 1, 8192);
    let checked = "SELECT count(*) FROM (SELECT i, exact_quantiles(i, 0.5) OVER (ORDER BY i) AS m FROM t) WHERE m = i / 2";
    assert_eq!(row(&ctx, checked).await, n.to_string());
    let peers = "SELECT DISTINCT exact_quantiles(i, 0.5) OVER (ORDER BY peers) AS m FROM t ORDER BY m";
    assert_eq!(rows(&ctx, peers).await, ["24999", "49999", "74999", "99999"]);
    let wide = "SELECT count(*) FROM (SELECT i, exact_quantiles(i, 0) OVER (ORDER BY i ROWS 100000 PRECEDING) AS m FROM t) \
                WHERE m = greatest(i - 100000, 0)";
    assert_eq!(row(&ctx, wide).await, n.to_string());
}
