//! Types without a fixed-width key in the operators, by group and over distinct values, against a naive sort: types,
//! methods, shapes of queries, layouts, memory limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Decimal256Array, Int64Array, ListArray, RecordBatch, StringArray, UInt32Array,
    make_comparator,
};
use datafusion::arrow::compute::{SortOptions, concat_batches, take};
use datafusion::arrow::datatypes::{Decimal256Type, Int64Type, i256};
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool};
use datafusion::prelude::SessionContext;
use tempfile::TempDir;

use quantiles_testing::kinds::{KINDS, Kind, TEXTS, Text, plain, sorted, values};
use quantiles_testing::patterns::Pattern;
use quantiles_testing::*;

const PER_MILLE: [usize; 6] = [500, 0, 1000, 250, 125, 999];

fn sql_list() -> String {
    let list = PER_MILLE.map(|q| (q as f64 / 1000.0).to_string());
    format!("[{}]", list.join(", "))
}

/// The places of the two values that an answer lies between, and how much of the way it is from the first one, in
/// thousandths.
fn pick(method: &str, per_mille: usize, n: usize) -> (usize, usize, usize) {
    let (floor, rest) = (per_mille * (n - 1) / 1000, per_mille * (n - 1) % 1000);
    let above = floor + usize::from(rest > 0);
    let at = match method {
        "disc" => (per_mille * n).div_ceil(1000).max(1) - 1,
        "lower" => floor,
        "higher" => above,
        "nearest" if rest * 2 == 1000 => floor + floor % 2,
        "nearest" => floor + usize::from(rest * 2 > 1000),
        "linear" => return (floor, above, rest),
        "midpoint" => return (floor, above, if rest > 0 { 500 } else { 0 }),
        other => panic!("{other}"),
    };
    (at, at, 0)
}

/// The answers over sorted rows, in the order of [`PER_MILLE`]; `None` without any.
fn answers(values: &ArrayRef, sorted: &[u32], method: &str) -> Option<ArrayRef> {
    if sorted.is_empty() {
        return None;
    }
    let picks = PER_MILLE.map(|q| pick(method, q, sorted.len()));
    if picks.iter().all(|(low, high, _)| low == high) || !matches!(method, "linear" | "midpoint") {
        let rows: UInt32Array = picks.iter().map(|(at, ..)| Some(sorted[*at])).collect();
        return Some(take(values, &rows, None).unwrap());
    }
    let decimals = values.as_primitive::<Decimal256Type>();
    let thousand = i256::from_i128(1000);
    let between = picks.map(|(low, high, weight)| {
        let [low, high] = [low, high].map(|at| decimals.value(sorted[at] as usize));
        let scaled = low * thousand + (high - low) * i256::from_i128(weight as i128);
        let half = i256::from_i128(if scaled.is_negative() { -500 } else { 500 });
        (scaled + half) / thousand
    });
    let between = Decimal256Array::from_iter_values(between);
    Some(Arc::new(between.with_data_type(values.data_type().clone())))
}

fn distinct(values: &ArrayRef, mut sorted: Vec<u32>) -> Vec<u32> {
    let compare = make_comparator(values, values, SortOptions::default()).unwrap();
    sorted.dedup_by(|a, b| compare(*a as usize, *b as usize).is_eq());
    sorted
}

fn methods(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Decimal256 => &["disc", "lower", "higher", "nearest", "linear", "midpoint"],
        _ => &["disc", "lower", "higher", "nearest"],
    }
}

/// One call's modifier, its filter, whether a row passes, and whether it is over distinct values.
type Shape = (&'static str, &'static str, fn(i64) -> bool, bool);

const SHAPES: [Shape; 4] = [
    ("", "", |_| true, false),
    ("DISTINCT ", "", |_| true, true),
    ("", " FILTER (WHERE id % 3 = 1)", |id| id % 3 == 1, false),
    ("DISTINCT ", " FILTER (WHERE id % 7 <> 2)", |id| id % 7 != 2, true),
];

fn calls(kind: Kind) -> Vec<(Shape, &'static str, String)> {
    let shapes = SHAPES
        .iter()
        .flat_map(|shape| methods(kind).iter().map(move |method| (*shape, *method)));
    let calls = shapes.map(|(shape, method)| {
        let (modifier, filter, ..) = shape;
        let call = format!("exact_quantiles({modifier}x, {}, '{method}'){filter}", sql_list());
        (shape, method, call)
    });
    calls.collect()
}

async fn one_batch(ctx: &SessionContext, sql: &str) -> RecordBatch {
    let batches = query(ctx, sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

fn same(found: &ArrayRef, row: usize, expected: &Option<ArrayRef>, what: &str) {
    let found: &ListArray = found.as_list();
    let found = found.is_valid(row).then(|| found.value(row).to_data());
    assert_eq!(found, expected.as_ref().map(|array| array.to_data()), "{what}");
}

/// Every call of a kind, by group and without.
async fn check(kind: Kind, text: Text, (partitions, batch_rows): (usize, usize), limit: Option<usize>) {
    const LEN: usize = 1200;
    let what = format!("{kind:?} {text:?}, {partitions} partitions of {batch_rows} rows, {limit:?}");
    let words: Vec<i64> = Pattern::Random
        .words(LEN, 3)
        .iter()
        .map(|word| word % 90)
        .collect();
    let array = values(kind, text, &words);
    let plain = plain(kind, &array);
    // The last group has no values, and one is that of NULL.
    let group = |id: usize| (id % 6 != 4).then_some(if id % 11 == 3 { 5 } else { (id % 6 % 3) as i64 });
    let groups = Int64Array::from_iter((0..LEN).map(group));
    let ids = Int64Array::from_iter_values(0..LEN as i64);
    let rows = batch(vec![
        ("x", Arc::clone(&array)),
        ("g", Arc::new(groups.clone())),
        ("id", Arc::new(ids)),
    ]);
    let folder = TempDir::new().unwrap();
    let ctx = match limit {
        Some(limit) => session_on(
            runtime(Arc::new(GreedyMemoryPool::new(limit)), folder.path()),
            partitions,
        ),
        None => session(partitions),
    };
    register(&ctx, "t", &rows, partitions, batch_rows);
    let calls = calls(kind);
    let list: Vec<&str> = calls.iter().map(|(.., call)| call.as_str()).collect();
    let list = list.join(", ");
    let expect = |passes: &dyn Fn(usize) -> bool, (shape, method): (Shape, &str)| {
        let rows = (0..LEN)
            .filter(|id| passes(*id) && shape.2(*id as i64))
            .map(|id| id as u32);
        let mut rows = sorted(&plain, rows.collect());
        if shape.3 {
            rows = distinct(&plain, rows);
        }
        answers(&plain, &rows, method)
    };
    let sql = format!("SELECT {list} FROM t");
    assert_runs_in(&ctx, &sql, "QuantilesExec: strategy=").await;
    let found = one_batch(&ctx, &sql).await;
    for ((shape, method, call), column) in calls.iter().zip(found.columns()) {
        let expected = expect(&|_| true, (*shape, method));
        same(column, 0, &expected, &format!("{call} {what}"));
    }
    for by in ["g", "g, g > 1", "concat(g, ''), g"] {
        let sql = format!("SELECT g, count(x), {list} FROM t GROUP BY {by}");
        assert_runs_in(&ctx, &sql, "GroupedQuantilesExec: gby=").await;
        let found = one_batch(&ctx, &sql).await;
        let keys = found.column(0).as_primitive::<Int64Type>();
        let distinct: BTreeSet<Option<i64>> = keys.iter().collect();
        assert_eq!(
            distinct,
            [None, Some(0), Some(1), Some(2), Some(5)].into(),
            "{what}"
        );
        assert_eq!(keys.len(), distinct.len(), "{what}");
        for ((shape, method, call), column) in calls.iter().zip(&found.columns()[2..]) {
            for (row, key) in keys.iter().enumerate() {
                let expected = expect(
                    &|id| groups.is_valid(id) == key.is_some() && group(id) == key,
                    (*shape, method),
                );
                same(
                    column,
                    row,
                    &expected,
                    &format!("{call} of {key:?} by {by}, {what}"),
                );
            }
        }
    }
    all_is_given_back(&ctx).await;
    assert_nothing_left(&ctx, folder.path(), &what);
}

/// The operator is in the plan, and DataFusion's aggregation is not.
async fn assert_runs_in(ctx: &SessionContext, sql: &str, operator: &str) {
    let plan = physical_plan(ctx, sql).await;
    assert!(
        plan.contains(operator) && !plan.contains("AggregateExec"),
        "{sql}\n{plan}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_method_and_shape_agrees_with_a_sort() {
    for kind in KINDS {
        check(kind, Text::Prefixed, (3, 128), None).await;
        check(kind, Text::Clusters, (1, 8192), Some(16 << 20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layouts_and_limits_do_not_change_an_answer() {
    for text in TEXTS {
        for layout in [(1, 8192), (2, 7), (5, 100)] {
            for limit in [None, Some(8 << 20)] {
                check(Kind::Utf8View, text, layout, limit).await;
            }
        }
    }
}

/// Groups and texts of many rows.
struct Table {
    name: &'static str,
    rows: RecordBatch,
    /// By group: values of ranks, and of ranks among the distinct values; and all of them.
    expected: Vec<String>,
}

const QUANTILES: &str = "[0.5, 0.01, 1]";

fn table(name: &'static str, n: usize, group: impl Fn(u64) -> i64, text: impl Fn(u64) -> String) -> Table {
    let g: Int64Array = pseudo_random(n, 5)
        .map(|r| (r % 97 > 0).then(|| group(r >> 11)))
        .collect();
    let texts = pseudo_random(n, 9).map(|r| (r % 31 > 0).then(|| text(r >> 8)));
    let s: StringArray = texts.collect();
    let mut groups: BTreeMap<Option<i64>, Vec<&str>> = BTreeMap::new();
    for (g, s) in g.iter().zip(&s) {
        groups.entry(g).or_default().extend(s);
    }
    let list = |sorted: &[&str]| {
        let n = sorted.len();
        let at = [n.div_ceil(2), n.div_ceil(100), n];
        match n {
            0 => "NULL".to_owned(),
            _ => format!("[{}]", at.map(|rank| sorted[rank - 1]).join(", ")),
        }
    };
    let rows = groups.into_iter().map(|(g, mut values)| {
        let count = values.len();
        values.sort_unstable();
        let all = list(&values);
        values.dedup();
        let g = g.map_or("NULL".to_owned(), |g| g.to_string());
        format!("{g} | {all} | {} | {count}", list(&values))
    });
    let mut expected: Vec<String> = rows.collect();
    expected.sort_unstable();
    let columns: Vec<(&str, ArrayRef)> = vec![("g", Arc::new(g)), ("s", Arc::new(s))];
    Table {
        name,
        rows: batch(columns),
        expected,
    }
}

fn tables() -> Vec<Table> {
    let long = |r: u64| format!("{}{}", "a prefix of some length ".repeat(4), r % 1_000_003);
    let lopsided = |r: u64| match r % 10 {
        0 => (r % 30_011) as i64,
        _ => 7,
    };
    vec![
        table("one group", 250_000, |_| 1, long),
        table("a few groups", 250_000, |r| (r % 12) as i64, |r| format!("{r}")),
        table(
            "many groups",
            300_000,
            |r| (r % 60_000) as i64,
            |r| format!("{}", r % 100_000),
        ),
        table("a lopsided group", 400_000, lopsided, long),
        table("few texts", 400_000, lopsided, |r| {
            format!("one of five texts that go on {}", r % 5)
        }),
        table(
            "texts of any length",
            12_000,
            |r| (r % 9) as i64,
            |r| "x".repeat((r % 3000) as usize),
        ),
    ]
}

const SQL: &str = "SELECT g, exact_quantiles(s, [0.5, 0.01, 1]), exact_quantiles(DISTINCT s, [0.5, 0.01, 1]), count(s) \
                   FROM t GROUP BY g";

fn pool(partitions: usize, limit: usize) -> Arc<dyn MemoryPool> {
    match partitions {
        2 => Arc::new(FairSpillPool::new(limit)),
        _ => Arc::new(GreedyMemoryPool::new(limit)),
    }
}

/// From this limit on a table here must be answered.
const ENOUGH: usize = 12 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limit_gives_the_exact_groups_or_says_that_it_is_too_small() {
    assert!(SQL.contains(QUANTILES));
    let folder = TempDir::new().unwrap();
    let (mut is_tried, mut exact_below_enough) = (tried(3), 0);
    for table in tables() {
        for partitions in [1, 2, 4] {
            for limit in [1, 2, 3, 4, 6, 8, 12, 24, 64].map(|mib| mib << 20) {
                if !is_tried() {
                    continue;
                }
                let what = format!("{}, {partitions} partitions, {limit} bytes", table.name);
                let ctx = session_on(runtime(pool(partitions, limit), folder.path()), partitions);
                register(&ctx, "t", &table.rows, partitions, 8192);
                match query(&ctx, SQL).await {
                    Ok(found) => {
                        let mut found = texts(&found);
                        found.sort_unstable();
                        assert!(found == table.expected, "{what}");
                        exact_below_enough += usize::from(limit < ENOUGH);
                    }
                    Err(error) => {
                        let is_exhausted =
                            matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
                        assert!(is_exhausted && limit < ENOUGH, "{what}: {error}");
                    }
                }
                all_is_given_back(&ctx).await;
                assert_nothing_left(&ctx, folder.path(), &what);
            }
        }
    }
    println!("{exact_below_enough} exact below {ENOUGH} bytes");
    assert!(exact_below_enough >= 10, "{exact_below_enough}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_limit_all_threads_agree() {
    for table in tables() {
        for partitions in [1, 3] {
            let ctx = session(partitions);
            register(&ctx, "t", &table.rows, partitions, 4000);
            let mut found = rows(&ctx, SQL).await;
            found.sort_unstable();
            assert!(found == table.expected, "{}, {partitions} partitions", table.name);
            all_is_given_back(&ctx).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_analyze_says_what_was_spilled() {
    let table = table(
        "many groups",
        200_000,
        |r| (r % 5000) as i64,
        |r| format!("{r}{r}"),
    );
    let folder = TempDir::new().unwrap();
    for (limit, spills) in [(16 << 20, true), (1 << 30, false)] {
        let ctx = session_on(runtime(pool(1, limit), folder.path()), 2);
        register(&ctx, "t", &table.rows, 2, 8192);
        let plan = rows(&ctx, &format!("EXPLAIN ANALYZE {SQL}")).await.join("\n");
        let line = plan
            .lines()
            .find(|line| line.contains("GroupedQuantilesExec"))
            .unwrap();
        assert!(
            line.contains("many_groups=1") && line.contains("groups=5.00 K"),
            "{line}"
        );
        assert_eq!(line.contains("spilled_bytes=0"), !spills, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_aggregates_and_keys_share_the_groups() {
    let n = 60_000;
    // As many groups that plain aggregates are kept by number, and so many that they are not.
    for groups in [100, 20_000] {
        let table = table("both", n, |r| (r % groups) as i64, |r| format!("{}", r % 999));
        for limit in [None, Some(24 << 20)] {
            let folder = TempDir::new().unwrap();
            let ctx = match limit {
                Some(limit) => session_on(runtime(pool(1, limit), folder.path()), 3),
                None => session(3),
            };
            register(&ctx, "t", &table.rows, 3, 1000);
            let sql = "SELECT g, exact_quantiles(s, 0.5) q, max(s) m, exact_quantiles(s, 1) o, exact_quantiles(length(s), 1) l, \
                       exact_quantiles(DISTINCT length(s), 0) d, max(length(s)) ml, min(length(s)) md, count(*) c FROM t GROUP BY g";
            assert_runs_in(&ctx, sql, "GroupedQuantilesExec: gby=").await;
            let check = format!(
                "SELECT count(*), count(m), sum(c) FROM ({sql}) WHERE (o IS NOT DISTINCT FROM m) \
                 AND (l IS NOT DISTINCT FROM ml) AND (d IS NOT DISTINCT FROM md) AND (q <= m OR m IS NULL)"
            );
            let with_values = table
                .expected
                .iter()
                .filter(|row| !row.contains("| NULL |"))
                .count();
            let expected = format!("{} | {with_values} | {n}", table.expected.len());
            assert_eq!(row(&ctx, &check).await, expected, "{groups} groups, {limit:?}");
            all_is_given_back(&ctx).await;
        }
    }
}
