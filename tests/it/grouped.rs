//! `GROUP BY` by the operator, against the ordinary aggregation and against a naive sort.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool};
use datafusion::physical_plan::collect;
use datafusion::prelude::*;
use proptest::prelude::*;

use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::*;

/// Group columns of several types, made of the same numbers; every thirteenth NULL where `nulls`.
fn group_columns(numbers: &[u64], nulls: bool) -> Vec<(&'static str, ArrayRef)> {
    let keep = |i: usize| !nulls || i % 13 != 5;
    let numbered = |number: fn(u64) -> i64| -> ArrayRef {
        let values = numbers.iter().enumerate();
        Arc::new(Int64Array::from_iter(
            values.map(|(i, n)| keep(i).then(|| number(*n))),
        ))
    };
    let wide = numbered(|n| (n as i64).wrapping_mul(0x1234_5678_9abc_def1));
    let small = numbered(|n| n as i64 - 3);
    let strings = numbers.iter().enumerate();
    let strings = strings.map(|(i, n)| keep(i).then(|| format!("group {n}")));
    // Zeros of both signs are one group.
    let floats = numbers.iter().enumerate();
    let floats = floats.map(|(i, n)| keep(i).then(|| if i % 2 == 0 && *n == 0 { -0.0 } else { *n as f64 }));
    vec![
        ("wide", wide),
        ("narrow", cast(&small, &DataType::Int32).unwrap()),
        (
            "date",
            cast(&cast(&small, &DataType::Int32).unwrap(), &DataType::Date32).unwrap(),
        ),
        ("decimal", cast(&small, &DataType::Decimal128(30, 2)).unwrap()),
        (
            "flag",
            Arc::new(BooleanArray::from_iter(
                numbers
                    .iter()
                    .enumerate()
                    .map(|(i, n)| keep(i).then_some(n % 2 == 0)),
            )),
        ),
        ("name", Arc::new(StringArray::from_iter(strings))),
        ("real", Arc::new(Float64Array::from_iter(floats))),
    ]
}

/// What is grouped by: words of 32, 64 and 128 bits, and what has none.
const GROUP_BY: [&str; 9] = [
    "narrow",
    "wide",
    "decimal",
    "narrow, flag",
    "date, flag, narrow",
    "wide, flag, narrow",
    "name",
    "real",
    "name, narrow % 2, flag",
];

const CALLS: [&str; 9] = [
    "exact_quantiles(x, [0.5, 0, 1, 0.9])",
    "exact_quantiles(x, 0.25, 'linear') FILTER (WHERE keep), exact_quantiles(x, [0.1, 0.2], 'midpoint')",
    "exact_quantiles(DISTINCT x, [0.5, 0.1]), exact_quantiles(x, 0.5)",
    "exact_quantiles(x, 0.5), sum(i), count(*), count(x) FILTER (WHERE keep), avg(i), min(s)",
    "exact_quantiles([0.5, 0.75]) WITHIN GROUP (ORDER BY i DESC), exact_quantiles(x, 0.75, 'nearest'), max(i)",
    "exact_quantiles(i + 1, 0.5) FILTER (WHERE keep), exact_quantiles(x, [])",
    "exact_quantiles(s, [0.5, 0, 1]), exact_quantiles(DISTINCT s, 0.4) FILTER (WHERE keep)",
    "exact_quantiles(concat(s, i), 0.5, 'nearest') FILTER (WHERE keep), sum(i), count(*), exact_quantiles(DISTINCT x, 0.5)",
    "exact_quantiles([0.5, 0.75]) WITHIN GROUP (ORDER BY s DESC), exact_quantiles(x, 0.5), min(s), exact_quantiles(s, [])",
];

/// One query over one layout of the data.
#[derive(Debug, Clone)]
struct Case {
    group_by: &'static str,
    calls: &'static str,
    pattern: Pattern,
    groups: u64,
    len: usize,
    partitions: usize,
    batch: usize,
    nulls: bool,
    /// Megabytes, if there is a limit.
    limit: Option<usize>,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let what = (
        proptest::sample::select(GROUP_BY.to_vec()),
        proptest::sample::select(CALLS.to_vec()),
        proptest::sample::select(patterns::ALL.to_vec()),
        // One, few, and more than few.
        prop_oneof![Just(1_u64), 2..40_u64, 300..3000_u64, Just(20_000_u64)],
    );
    let how = (
        prop_oneof![0..30_usize, 500..4000_usize, Just(30_000_usize)],
        1..5_usize,
        50..9000_usize,
        prop_oneof![3 => Just(None), 1 => Just(Some(12)), 1 => Just(Some(40))],
    );
    (what, how, any::<bool>(), any::<u64>()).prop_map(
        |((group_by, calls, pattern, groups), (len, partitions, batch, limit), nulls, seed)| Case {
            group_by,
            calls,
            pattern,
            groups,
            len,
            partitions,
            batch,
            nulls,
            limit,
            seed,
        },
    )
}

fn table(case: &Case) -> RecordBatch {
    let numbers: Vec<u64> = pseudo_random(case.len, case.seed)
        .map(|r| (r >> 20) % case.groups)
        .collect();
    let mut columns = group_columns(&numbers, case.nulls);
    let keep = |i: usize| !case.nulls || i % 7 != 1;
    let floats = case.pattern.floats(case.len, case.seed);
    let ints = case.pattern.words(case.len, case.seed ^ 1);
    let rows = || 0..case.len;
    columns.push((
        "x",
        Arc::new(Float64Array::from_iter(
            rows().map(|i| keep(i).then(|| floats[i])),
        )),
    ));
    columns.push((
        "i",
        Arc::new(Int64Array::from_iter(
            rows().map(|i| keep(i).then(|| ints[i] % 1000)),
        )),
    ));
    columns.push((
        "keep",
        Arc::new(BooleanArray::from_iter(
            rows().map(|i| (i % 5 != 0).then_some(i % 3 != 0)),
        )),
    ));
    columns.push((
        "s",
        Arc::new(StringArray::from_iter(
            rows().map(|i| keep(i).then(|| format!("s{}", ints[i] % 77))),
        )),
    ));
    batch(columns)
}

async fn check(case: &Case) {
    let table = table(case);
    let ctx = match case.limit {
        Some(megabytes) => limited(megabytes, case.partitions),
        None => session(case.partitions),
    };
    register(&ctx, "t", &table, case.partitions, case.batch);
    let reference = ordinary();
    register(&reference, "t", &table, 1, 8192);
    let sql = format!("SELECT {}, {} FROM t GROUP BY {0}", case.group_by, case.calls);
    assert!(
        physical_plan(&ctx, &sql).await.contains("GroupedQuantilesExec"),
        "{sql}"
    );
    assert!(
        !physical_plan(&reference, &sql).await.contains("QuantilesExec"),
        "{sql}"
    );
    let found = sorted_rows(&ctx, &sql).await;
    assert_same(&found, &sorted_rows(&reference, &sql).await, &format!("{case:?}"));
    all_is_given_back(&ctx).await;
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn the_operator_agrees_with_the_ordinary_aggregation(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check(&case));
    }
}

/// Rows of `g` and `x`, where `group` gives the group of a random number.
fn numbers(n: usize, group: impl Fn(u64) -> i64) -> RecordBatch {
    let g = Int64Array::from_iter_values(pseudo_random(n, 5).map(|r| group(r >> 11)));
    let x = Int64Array::from_iter_values(pseudo_random(n, 9).map(|r| (r >> 40) as i64));
    batch(vec![("g", Arc::new(g) as ArrayRef), ("x", Arc::new(x))])
}

/// Value of rank `max(1, ceil(n / 2))` and of the greatest in each group, by a sort.
fn expected(table: &RecordBatch) -> Vec<String> {
    let (g, x) = (
        table.column(0).as_primitive::<Int64Type>(),
        table.column(1).as_primitive::<Int64Type>(),
    );
    let mut groups: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (g, x) in g.values().iter().zip(x.values()) {
        groups.entry(*g).or_default().push(*x);
    }
    let mut expected: Vec<String> = groups
        .into_iter()
        .map(|(g, mut values)| {
            values.sort_unstable();
            let median = values[values.len().div_ceil(2) - 1];
            format!(
                "{g} | [{median}, {}] | {}",
                values[values.len() - 1],
                values.len()
            )
        })
        .collect();
    expected.sort_unstable();
    expected
}

const SQL: &str = "SELECT g, exact_quantiles(x, [0.5, 1]), count(*) FROM t GROUP BY g";

/// Runs the query and returns the operator's line of `EXPLAIN ANALYZE`.
async fn analyzed(ctx: &SessionContext) -> String {
    let lines = rows(ctx, &format!("EXPLAIN ANALYZE {SQL}")).await.join("\n");
    let line = lines.lines().find(|line| line.contains("GroupedQuantilesExec"));
    line.unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_for_every_number_of_groups() {
    // (Group of a number, the way that is taken): cells, parts, and a giant among parts.
    type Group = fn(u64) -> i64;
    let cases: [(Group, &str); 6] = [
        (|_| 7, "few_groups=1"),
        (|r| (r % 10) as i64, "few_groups=1"),
        (|r| (r % 1000) as i64, "few_groups=1"),
        (|r| (r % 40_000) as i64, "many_groups=1"),
        (
            |r| if r % 10 > 0 { -1 } else { (r % 70_001) as i64 },
            "many_groups=1",
        ),
        (|r| r as i64, "many_groups=1"),
    ];
    for (number, (group, way)) in cases.into_iter().enumerate() {
        let table = numbers(600_000, group);
        for partitions in [1, 3] {
            let ctx = session(partitions);
            register(&ctx, "t", &table, partitions, 8192);
            assert_same(
                &sorted_rows(&ctx, SQL).await,
                &expected(&table),
                &format!("case {number}"),
            );
            let line = analyzed(&ctx).await;
            assert!(line.contains(way), "case {number}: {line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_memory_limit_is_exact_or_exhausted() {
    type Group = fn(u64) -> i64;
    let shapes: [Group; 3] = [
        |r| (r % 100) as i64,
        |r| (r % 50_000) as i64,
        |r| if r % 10 > 0 { -1 } else { (r % 70_001) as i64 },
    ];
    for (shape, group) in shapes.into_iter().enumerate() {
        let table = numbers(500_000, group);
        let expected = expected(&table);
        for megabytes in [1, 2, 4, 6, 8, 12, 16, 24, 32, 64] {
            let ctx = limited(megabytes, 2);
            register(&ctx, "t", &table, 2, 8192);
            match query(&ctx, SQL).await {
                Ok(batches) => assert_same(
                    &sorted(texts(&batches)),
                    &expected,
                    &format!("{shape} in {megabytes} MB"),
                ),
                Err(error) => {
                    let root = error.find_root();
                    assert!(
                        matches!(root, DataFusionError::ResourcesExhausted(_)),
                        "{shape} in {megabytes} MB: {error}"
                    );
                    assert!(megabytes < 12, "{shape} in {megabytes} MB: {error}");
                }
            }
            all_is_given_back(&ctx).await;
        }
        // Not by luck: more rows than fit do go to disk.
        let table = numbers(1_200_000, group);
        for pool in [
            Arc::new(GreedyMemoryPool::new(12 << 20)) as Arc<dyn MemoryPool>,
            Arc::new(FairSpillPool::new(12 << 20)),
        ] {
            let ctx = within(pool, 2);
            register(&ctx, "t", &table, 2, 8192);
            let line = analyzed(&ctx).await;
            assert!(
                line.contains("spilled_bytes=") && !line.contains("spilled_bytes=0"),
                "{shape}: {line}"
            );
        }
    }
}

/// Bytes that a query wrote to disk, and its sorted rows.
async fn spilled_and_rows(ctx: &SessionContext, sql: &str) -> (usize, Vec<String>) {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
    let mut plans = vec![plan];
    let mut spilled = 0;
    while let Some(plan) = plans.pop() {
        let metric = plan.metrics().and_then(|all| all.sum_by_name("spilled_bytes"));
        spilled += metric.map_or(0, |metric| metric.as_usize());
        plans.extend(plan.children().into_iter().cloned());
    }
    (spilled, sorted(texts(&batches)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_of_aggregates_beside_go_to_disk_with_their_rows() {
    const ROWS: usize = 600_000;
    let table = numbers(ROWS, |r| (r % 100_000) as i64);
    let (name, first) = (
        table.schema().field(1).name().clone(),
        table.schema().field(0).name().clone(),
    );
    let columns = "sum({x} % 5), sum({x} % 7), max({x} % 11), count({x}) FILTER (WHERE {x} % 3 > 0)"
        .replace("{x}", &name);
    let alone = format!("SELECT {first}, exact_quantiles({name}, 0.5) FROM t GROUP BY {first}");
    let beside = format!("SELECT {first}, exact_quantiles({name}, 0.5), {columns} FROM t GROUP BY {first}");
    let unlimited = session(2);
    register(&unlimited, "t", &table, 2, 8192);
    let expected = sorted_rows(&unlimited, &beside).await;
    let ctx = limited(8, 2);
    register(&ctx, "t", &table, 2, 8192);
    let (keys, _) = spilled_and_rows(&ctx, &alone).await;
    let (all, found) = spilled_and_rows(&ctx, &beside).await;
    assert_same(&found, &expected, "within 8 MB");
    // Four columns of 8 bytes, and a mask; fewer rows stay in memory than with keys alone.
    assert!(keys > 0 && all > keys + 3 * 8 * ROWS, "{all} bytes after {keys}");
    all_is_given_back(&ctx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_stream_ends_the_work() {
    for group in [|r: u64| (r % 100) as i64, |r: u64| (r % 300_000) as i64] {
        let ctx = session(2);
        register(&ctx, "t", &numbers(2_000_000, group), 2, 8192);
        for millis in [1, 10, 30, 60, 100] {
            drop_ends_the_work(&ctx, SQL, millis).await;
        }
    }
}

#[tokio::test]
async fn what_is_grouped_by_the_operator_and_what_is_not() {
    let ctx = session(2);
    register(&ctx, "t", &numbers(100, |r| (r % 3) as i64), 2, 10);
    for (sql, by_operator) in [
        ("SELECT g, exact_quantiles(x, 0.5) FROM t GROUP BY g", true),
        (
            "SELECT exact_quantiles(x, 0.5) FROM t GROUP BY g % 2, x > 3 HAVING count(*) > 1",
            true,
        ),
        (
            "SELECT g, exact_quantiles(x, 0.5), array_agg(x) FROM t GROUP BY g",
            true,
        ),
        (
            "SELECT g, exact_quantiles(x, 0.5) FROM t GROUP BY ROLLUP (g)",
            false,
        ),
        (
            "SELECT g, exact_quantiles(x, 0.5), array_agg(x ORDER BY x) FROM t GROUP BY g",
            false,
        ),
        ("SELECT g, sum(x) FROM t GROUP BY g", false),
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert_eq!(
            plan.contains("GroupedQuantilesExec"),
            by_operator,
            "{sql}\n{plan}"
        );
        query(&ctx, sql).await.unwrap();
    }
    let plan = physical_plan(
        &ctx,
        "SELECT g, exact_quantiles(x, 0.5), max(x) FROM t WHERE x > 1 GROUP BY g",
    )
    .await;
    assert!(
        plan.contains(
            "GroupedQuantilesExec: gby=[g@0], columns=[x@1], calls=[exact_quantiles(x@1, 0.5, disc)], plain=[max(t.x)]"
        ),
        "{plan}"
    );
}

#[tokio::test]
async fn an_expression_sees_only_rows_that_pass_its_filter() {
    let ctx = session(2);
    register(&ctx, "t", &numbers(100, |r| (r % 3) as i64), 2, 10);
    let sql = "SELECT g, exact_quantiles(12 / (g - 1), 0.5) FILTER (WHERE g <> 1) FROM t GROUP BY g";
    assert_eq!(sorted_rows(&ctx, sql).await, ["0 | -12", "1 | NULL", "2 | 12"]);
}

#[tokio::test]
async fn no_rows_no_groups() {
    let ctx = session(2);
    register(&ctx, "t", &numbers(0, |_| 0), 1, 10);
    assert!(rows(&ctx, SQL).await.is_empty());
    register(&ctx, "u", &numbers(10, |_| 0), 2, 3);
    let sql = "SELECT g, exact_quantiles(x, 0.5), count(*) FROM u WHERE x < 0 GROUP BY g";
    assert!(rows(&ctx, sql).await.is_empty());
}
