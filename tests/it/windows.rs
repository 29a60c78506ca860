//! Window frames against a naive sort of every frame.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array};
use datafusion::arrow::compute::{concat_batches, filter, is_not_null, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion_quantiles::Method;
use datafusion_quantiles::key::KeySpec;
use datafusion_quantiles::quantile::{Quantile, QuantileSpec};
use proptest::prelude::*;
use tempfile::TempDir;

use quantiles_testing::fixed_width::{types, values};
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

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

/// Rows enough for several steps and chunks: groups of few and of many rows, NULLs, peers, and gaps.
fn many_rows(n: i64) -> RecordBatch {
    let words = Pattern::Random.words(n as usize, 7);
    let x = words
        .iter()
        .enumerate()
        .map(|(row, word)| (row % 11 != 3).then_some(word % 5000));
    // Group 0 has most rows, each other one 50.
    let group = |row: i64| if row < n / 4 * 3 { 0 } else { 1 + row / 50 };
    let k = (0..n).map(|row| (row % 1009 != 0).then_some(row / 3 + row / 700 * 40));
    batch(vec![
        ("i", Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef),
        ("g", Arc::new(Int64Array::from_iter_values((0..n).map(group)))),
        ("k", Arc::new(Int64Array::from_iter(k))),
        ("x", Arc::new(Int64Array::from_iter(x))),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_many_rows_are_those_of_datafusion() {
    let (table, theirs) = (many_rows(70_000), ordinary());
    register(&theirs, "t", &table, 1, 8192);
    for (over, calls) in [
        ("ORDER BY i ROWS BETWEEN 9 PRECEDING AND 3 FOLLOWING", "0.5"),
        (
            "ORDER BY i ROWS BETWEEN 20000 PRECEDING AND 10000 PRECEDING",
            "[0, 0.3, 1]",
        ),
        (
            "PARTITION BY g ORDER BY i ROWS BETWEEN 2000 PRECEDING AND 40000 FOLLOWING",
            "0.9",
        ),
        (
            "PARTITION BY g ORDER BY i DESC ROWS 400 PRECEDING",
            "0.5, 'linear'",
        ),
        (
            "PARTITION BY g ORDER BY i ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
            "0.25",
        ),
        ("PARTITION BY g ORDER BY k", "0.5"),
        ("ORDER BY k RANGE BETWEEN 300 PRECEDING AND 5 FOLLOWING", "0.5"),
        (
            "ORDER BY k DESC NULLS LAST RANGE BETWEEN 90 FOLLOWING AND 2000 FOLLOWING",
            "[0.1, 0.9]",
        ),
        (
            "PARTITION BY g ORDER BY k GROUPS BETWEEN 70 PRECEDING AND 2 PRECEDING",
            "0.5",
        ),
    ] {
        let sql = format!(
            "SELECT i, exact_quantiles(x, {calls}) OVER w AS a, count(x) OVER w AS n, \
             exact_quantiles(DISTINCT x, 0.5) FILTER (WHERE i % 3 > 0) OVER w AS b \
             FROM t WINDOW w AS ({over}) ORDER BY i"
        );
        let expected = rows(&theirs, &sql).await;
        for partitions in [1, 3] {
            let ours = session(partitions);
            register(&ours, "t", &table, partitions, 1000);
            let plan = physical_plan(&ours, &sql).await;
            assert!(plan.contains("MovingQuantilesExec: "), "{plan}");
            assert!(rows(&ours, &sql).await == expected, "{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_hold_the_rows_that_they_need_and_reserve_them() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.parquet");
    write_parquet(&path, &many_rows(220_000), WriterProperties::default());
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}' WITH ORDER (i ASC)",
        path.display()
    );
    let sql = |before: &str| {
        format!(
            "SELECT count(m) FROM \
             (SELECT exact_quantiles(x, 0.5) OVER (ORDER BY i ROWS {before} PRECEDING) AS m FROM t)"
        )
    };
    let ctx = limited(20, 2);
    query(&ctx, &create).await.unwrap();
    assert_eq!(row(&ctx, &sql("1000")).await, "220000");
    let error = query(&ctx, &sql("UNBOUNDED")).await.unwrap_err().to_string();
    assert!(
        error.contains("the rows of moving frames") && error.contains("bytes wanted"),
        "{error}"
    );
    all_is_given_back(&ctx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_beyond_the_values_of_a_type_are_those_of_the_group() {
    let ends = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    let k: ArrayRef = Arc::new(Int64Array::from_iter_values(ends));
    let u: ArrayRef = Arc::new(UInt64Array::from_iter_values([
        0,
        1,
        2,
        5,
        6,
        u64::MAX - 1,
        u64::MAX,
    ]));
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values(0..7));
    let table = batch(vec![("k", k), ("u", u), ("x", x)]);
    let (ours, theirs) = (session(1), ordinary());
    register(&ours, "t", &table, 1, 2);
    register(&theirs, "t", &table, 1, 2);
    for column in ["k", "u", "k DESC", "u DESC"] {
        for frame in [
            "2 PRECEDING AND 2 FOLLOWING",
            "3 FOLLOWING AND 5 FOLLOWING",
            "5 PRECEDING AND 1 PRECEDING",
        ] {
            let sql = format!(
                "SELECT x, exact_quantiles(x, [0, 0.5, 1]) OVER (ORDER BY {column} RANGE BETWEEN {frame}) FROM t ORDER BY x"
            );
            assert_eq!(rows(&ours, &sql).await, rows(&theirs, &sql).await, "{sql}");
        }
    }
}
