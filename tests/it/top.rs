//! `ORDER BY ... LIMIT k` by the operator: against a sort by DataFusion, and what becomes of it otherwise.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::common::DataFusionError;
use datafusion::prelude::*;
use futures::StreamExt;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::grouped::limited;
use crate::patterns::{self, Pattern};
use crate::staged::staged_session;
use crate::support::*;
use crate::topk::{plain, table};

/// Orders, and whether 128 bits hold them.
const ORDERS: [(&str, bool); 16] = [
    ("i", true),
    ("i DESC NULLS LAST", true),
    ("x", true),
    ("x DESC", true),
    ("x NULLS FIRST", true),
    ("x DESC NULLS LAST", true),
    ("n DESC, flag", true),
    ("few, n NULLS FIRST", true),
    ("few DESC, flag NULLS FIRST", true),
    ("flag, x DESC NULLS LAST", true),
    ("-i", true),
    ("i % 7 DESC, abs(n)", true),
    ("t DESC, n NULLS FIRST", true),
    ("i, x", false),
    ("d, few", false),
    ("s DESC, n", false),
];

#[derive(Debug, Clone)]
struct Case {
    order: (&'static str, bool),
    k: usize,
    offset: usize,
    pattern: Pattern,
    len: usize,
    partitions: usize,
    batch: usize,
    output: usize,
    nulls: bool,
    filter: bool,
    /// Whether it is planned for many machines.
    staged: bool,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let k = prop_oneof![4 => 1..6_usize, 2 => 6..300_usize, 1 => Just(3000_usize), 1 => Just(50_000_usize)];
    let what = (
        proptest::sample::select(ORDERS.to_vec()),
        k,
        prop_oneof![3 => Just(0_usize), 1 => 1..40_usize],
        proptest::sample::select(patterns::ALL.to_vec()),
        prop_oneof![0..30_usize, 100..4000_usize, Just(30_000_usize)],
    );
    let how = (1..5_usize, 50..9000_usize, 1..9000_usize);
    (what, how, any::<[bool; 3]>(), any::<u64>()).prop_map(
        |((order, k, offset, pattern, len), (partitions, batch, output), [nulls, filter, staged], seed)| {
            Case {
                order,
                k,
                offset,
                pattern,
                len,
                partitions,
                batch,
                output,
                nulls,
                filter,
                staged,
                seed,
            }
        },
    )
}

impl Case {
    /// What rows are ordered by, without directions.
    fn keys(&self) -> String {
        let words = [" DESC", " NULLS FIRST", " NULLS LAST"];
        let plain = words
            .iter()
            .fold(self.order.0.to_owned(), |keys, word| keys.replace(word, ""));
        // A call has a comma of its own in no order.
        let named = plain
            .split(", ")
            .enumerate()
            .map(|(at, key)| format!("{key} AS c{at}"));
        named.collect::<Vec<_>>().join(", ")
    }

    fn sql(&self, columns: &str) -> String {
        let filter = if self.filter { "WHERE id % 5 <> 2" } else { "" };
        let (by, k, offset) = (self.order.0, self.k, self.offset);
        format!("SELECT {columns} FROM t {filter} ORDER BY {by} LIMIT {k} OFFSET {offset}")
    }
}

/// The keys are those of a sort, in its order; the rows are rows of the table, none twice.
async fn check(case: &Case) {
    let table = table(case.pattern, case.len, 9, case.nulls, case.seed);
    let ctx = match case.staged {
        true => staged_session(case.partitions),
        false => session(case.partitions),
    };
    register(&ctx, "t", &table, case.partitions, case.batch);
    query(
        &ctx,
        &format!("SET datafusion.execution.batch_size = {}", case.output),
    )
    .await
    .unwrap();
    let keys = case.keys();
    let plan = physical_plan(&ctx, &case.sql(&keys)).await;
    let node = match case.staged {
        true => "TopKByExec: mode=Final, k=",
        false => "TopKByExec: k=",
    };
    assert_eq!(plan.contains(node), case.order.1, "{case:?}\n{plan}");
    assert_eq!(plan.contains("SortExec"), !case.order.1, "{case:?}\n{plan}");
    let expected = rows(&plain(&table), &case.sql(&keys)).await;
    let found = rows(&ctx, &case.sql(&keys)).await;
    assert!(found == expected, "{case:?}\n{found:?}\n{expected:?}");
    let columns = format!("id, s, d, x, {keys}");
    let all: HashMap<String, String> = rows(&ctx, &format!("SELECT {columns} FROM t"))
        .await
        .into_iter()
        .map(|row| (row.split(" | ").next().unwrap_or_default().to_owned(), row))
        .collect();
    let mut seen = std::collections::HashSet::new();
    let whole = rows(&ctx, &case.sql(&columns)).await;
    assert_eq!(whole.len(), expected.len(), "{case:?}");
    for (row, keys) in whole.iter().zip(&expected) {
        let id = row.split(" | ").next().unwrap_or_default();
        assert!(seen.insert(id.to_owned()), "{case:?}: row {id} twice");
        assert_eq!(all.get(id), Some(row), "{case:?}");
        assert!(row.ends_with(keys.as_str()), "{case:?}: {row} for {keys}");
    }
    let batches = query(&ctx, &case.sql("id")).await.unwrap();
    assert!(
        batches
            .iter()
            .all(|batch| batch.num_rows() <= case.output.max(case.batch))
    );
    all_is_given_back(&ctx).await;
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: crate::select::cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn first_rows_agree_with_a_sort(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check(&case));
    }
}

/// Rows of `id`, `x` in a pattern, and a text.
fn numbers(n: usize, pattern: Pattern) -> RecordBatch {
    let ids = Int64Array::from_iter_values(0..n as i64);
    let x = Int64Array::from(pattern.words(n, 3));
    let text = StringArray::from_iter_values((0..n).map(|i| format!("row number {i} of a table")));
    batch(vec![
        ("id", Arc::new(ids) as ArrayRef),
        ("x", Arc::new(x)),
        ("text", Arc::new(text)),
    ])
}

/// The operator's line of `EXPLAIN ANALYZE`, and those below.
async fn analyzed(ctx: &SessionContext, sql: &str) -> String {
    let lines = rows(ctx, &format!("EXPLAIN ANALYZE {sql}")).await.join("\n");
    let from = lines
        .find("TopKByExec")
        .unwrap_or_else(|| panic!("{sql}: {lines}"));
    lines[from..].to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_in_any_order() {
    for pattern in [
        Pattern::Random,
        Pattern::Sorted,
        Pattern::Reversed,
        Pattern::FewDistinct,
    ] {
        let table = numbers(300_000, pattern);
        let off = session(2);
        register(&off, "t", &table, 1, 8192);
        query(&off, "SET quantiles.topk = false").await.unwrap();
        for partitions in [1, 3] {
            let ctx = session(partitions);
            register(&ctx, "t", &table, partitions, 8192);
            for (k, by) in [
                (1, "x"),
                (10, "x DESC"),
                (3000, "x, id::INT"),
                (100_000, "x DESC, id::INT"),
                (400_000, "x, id::INT DESC"),
            ] {
                let sql = format!("SELECT x FROM t ORDER BY {by} LIMIT {k}");
                assert!(!physical_plan(&off, &sql).await.contains("TopKByExec"), "{sql}");
                let line = analyzed(&ctx, &sql).await;
                let expected = k.min(300_000);
                assert!(
                    line.contains(&format!("output_rows={expected}")) || k > 999,
                    "{line}"
                );
                assert!(line.contains("input_rows=300.0 K"), "{line}");
                if k <= 10 && pattern == Pattern::Random {
                    assert!(!line.contains("rejected_rows=0"), "{line}");
                }
                assert!(
                    rows(&ctx, &sql).await == rows(&off, &sql).await,
                    "{pattern:?}: {sql}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_show_the_operator_where_it_runs() {
    let table = table(Pattern::Random, 500, 30, true, 2);
    let ctx = session(2);
    register(&ctx, "t", &table, 2, 100);
    let plan = physical_plan(&ctx, "SELECT id, x FROM t ORDER BY x DESC, flag LIMIT 7 OFFSET 3").await;
    assert!(
        plan.contains("TopKByExec: k=10, by=[x@1 DESC NULLS FIRST, flag@2 NULLS LAST]"),
        "{plan}"
    );
    assert!(plan.contains("GlobalLimitExec: skip=3, fetch=7"), "{plan}");
    let explained = rows(&ctx, "EXPLAIN SELECT id FROM t ORDER BY i LIMIT 5")
        .await
        .join("\n");
    assert!(
        explained.contains("TopKByExec: k=5, by=[i@1 NULLS LAST]"),
        "{explained}"
    );
    let below = "SELECT g, count(*) FROM (SELECT g FROM t ORDER BY i LIMIT 50) GROUP BY g ORDER BY g";
    assert!(physical_plan(&ctx, below).await.contains("TopKByExec: k=50"));
    assert_eq!(rows(&ctx, below).await, rows(&plain(&table), below).await);
    let union = "SELECT i FROM t UNION ALL SELECT n FROM t ORDER BY 1 DESC LIMIT 9";
    assert!(physical_plan(&ctx, union).await.contains("TopKByExec: k=9"));
    assert_eq!(rows(&ctx, union).await, rows(&plain(&table), union).await);
    assert_eq!(rows(&ctx, "SELECT id FROM t ORDER BY i LIMIT 0").await, [""; 0]);
    assert_eq!(
        rows(&ctx, "SELECT id FROM t WHERE id < 0 ORDER BY i LIMIT 3").await,
        [""; 0]
    );
    assert_eq!(
        rows(&ctx, "SELECT 1 FROM t ORDER BY random() LIMIT 3").await,
        ["1"; 3]
    );
    let kept = [
        "SELECT id FROM t ORDER BY i",
        "SELECT id FROM t ORDER BY i LIMIT 1048577",
        "SELECT id FROM t ORDER BY s LIMIT 3",
        "SELECT id FROM t ORDER BY d, i LIMIT 3",
        "SELECT id FROM t LIMIT 3",
    ];
    for sql in kept {
        assert!(!physical_plan(&ctx, sql).await.contains("TopKByExec"), "{sql}");
    }
    query(&ctx, "SET quantiles.topk = false").await.unwrap();
    let plan = physical_plan(&ctx, "SELECT id FROM t ORDER BY i LIMIT 5").await;
    assert!(!plan.contains("TopKByExec"), "{plan}");
}

#[tokio::test]
async fn the_rule_is_there_once_and_not_in_stages() {
    use datafusion::execution::session_state::SessionStateBuilder;
    use datafusion_quantiles::{QuantilesPlanner, SessionStateBuilderExt, register_all};

    let rules = |ctx: &SessionContext| {
        let state = ctx.state();
        let rules = state.physical_optimizers().iter();
        rules.filter(|rule| rule.name() == "topk_by").count()
    };
    let ctx = session(2);
    register_all(&ctx).unwrap();
    assert_eq!(rules(&ctx), 1);
    let build = |planner: Option<QuantilesPlanner>| {
        let builder = SessionStateBuilder::new().with_default_features();
        let builder = match planner {
            Some(planner) => builder.with_query_planner(Arc::new(planner)),
            None => builder,
        };
        let ctx = SessionContext::new_with_state(builder.with_quantiles().with_quantiles().build());
        register_all(&ctx).unwrap();
        rules(&ctx)
    };
    assert_eq!(build(None), 1);
    assert_eq!(build(Some(QuantilesPlanner::new())), 1);
    assert_eq!(build(Some(QuantilesPlanner::staged())), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recursive_queries_keep_their_sort() {
    let ctx = session(2);
    let sql = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL \
               (SELECT n + 1 FROM r WHERE n < 10 ORDER BY n DESC LIMIT 1)) SELECT * FROM r ORDER BY n LIMIT 20";
    let found = rows(&ctx, sql).await;
    assert_eq!(found, (1..=10).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_memory_limit_is_exact_or_exhausted() {
    let table = numbers(400_000, Pattern::Random);
    let reference = session(2);
    register(&reference, "t", &table, 2, 8192);
    for k in [10, 3000, 50_000] {
        let sql = format!("SELECT * FROM t ORDER BY x DESC LIMIT {k}");
        let expected = rows(&reference, &sql).await;
        let mut exact = Vec::new();
        for megabytes in [1, 2, 4, 8, 16, 32, 64] {
            let small = limited(megabytes, 2);
            register(&small, "t", &table, 2, 8192);
            match query(&small, &sql).await {
                Ok(batches) => {
                    assert!(texts(&batches) == expected, "{megabytes} MB: {sql}");
                    exact.push(megabytes);
                }
                Err(error) => {
                    let root = error.find_root();
                    assert!(matches!(root, DataFusionError::ResourcesExhausted(_)), "{error}");
                    assert!(
                        error.to_string().contains(&format!("the first {k} rows")),
                        "{error}"
                    );
                }
            }
            all_is_given_back(&small).await;
        }
        let enough: &[usize] = match k {
            10 => &[2, 4, 8, 16, 32, 64],
            3000 => &[4, 8, 16, 32, 64],
            _ => &[32, 64],
        };
        assert!(exact.ends_with(enough), "k={k}: exact within {exact:?} MB");
        assert!(
            k < 50_000 || !exact.contains(&1),
            "k={k}: exact within {exact:?} MB"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_queries_and_errors_leave_nothing() {
    let table = numbers(400_000, Pattern::Random);
    let ctx = limited(200, 3);
    register(&ctx, "t", &table, 3, 1000);
    for k in [10, 100_000] {
        let sql = format!("SELECT * FROM t ORDER BY x LIMIT {k}");
        drop(ctx.sql(&sql).await.unwrap().execute_stream().await.unwrap());
        all_is_given_back(&ctx).await;
        let mut stream = ctx.sql(&sql).await.unwrap().execute_stream().await.unwrap();
        assert!(stream.next().await.unwrap().unwrap().num_rows() > 0);
        drop(stream);
        all_is_given_back(&ctx).await;
        for micros in [100, 3000, 20_000] {
            let mut stream = ctx.sql(&sql).await.unwrap().execute_stream().await.unwrap();
            let first = std::time::Duration::from_micros(micros);
            drop(tokio::time::timeout(first, stream.next()).await);
            drop(stream);
            all_is_given_back(&ctx).await;
        }
        let failing = sql.replace("ORDER BY x", "ORDER BY 10 / (id - 300000)");
        let said = error(&ctx, &failing).await;
        assert!(said.contains("Divide by zero"), "{said}");
        all_is_given_back(&ctx).await;
    }
}

/// A Parquet file of `n` rows in row groups of 10 000.
async fn parquet(ctx: &SessionContext, table: &RecordBatch, folder: &TempDir) {
    register(ctx, "rows", table, 1, 8192);
    let path = folder.path().join("t.parquet");
    let path = path.display();
    let copy = format!(
        "COPY (SELECT * FROM rows) TO '{path}' STORED AS PARQUET \
         OPTIONS ('format.max_row_group_size' '10000')"
    );
    query(ctx, &copy).await.unwrap();
    query(
        ctx,
        &format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}'"),
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_skip_what_cannot_be_among_the_first() {
    for (pattern, by) in [
        (Pattern::Sorted, "x"),
        (Pattern::Reversed, "x DESC"),
        (Pattern::Sorted, "x, id::INT DESC"),
        (Pattern::Sorted, "x NULLS FIRST"),
    ] {
        let folder = TempDir::new().unwrap();
        let ctx = session(1);
        let table = numbers(200_000, pattern);
        parquet(&ctx, &table, &folder).await;
        let sql = format!("SELECT id, x FROM t ORDER BY {by} LIMIT 100");
        let found = analyzed(&ctx, &sql).await;
        assert!(found.contains("DynamicFilter ["), "{found}");
        let read = found
            .split("input_rows=")
            .nth(1)
            .and_then(|rest| rest.split([',', ']']).next());
        let read = read.unwrap_or_default();
        assert!(
            read.contains('K') && !read.contains("200.0"),
            "{read} rows read: {found}"
        );
        assert_eq!(
            rows(&ctx, &sql).await,
            rows(&plain_of(&table), &sql).await,
            "{sql}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_skip_no_nans() {
    // Statistics of the last row groups say that their numbers are small, and nothing of the NaNs among them.
    let ids = Int64Array::from_iter_values(0..60_000);
    let number = |i: usize| match i {
        57_001 => f64::NAN,
        58_002 => -f64::NAN,
        i if i % 2 == 0 => (60_000 - i) as f64,
        i => i as f64 - 60_000.0,
    };
    let x = Float64Array::from_iter_values((0..60_000).map(number));
    let table = batch(vec![("id", Arc::new(ids) as ArrayRef), ("x", Arc::new(x))]);
    for order in ["x DESC", "x", "x DESC NULLS LAST, id::INT"] {
        let folder = TempDir::new().unwrap();
        let ctx = session(1);
        parquet(&ctx, &table, &folder).await;
        let sql = format!("SELECT id, x FROM t ORDER BY {order} LIMIT 5");
        assert!(physical_plan(&ctx, &sql).await.contains("TopKByExec"), "{sql}");
        let expected = rows(&plain_of(&table), &sql).await;
        assert!(expected[0].contains("NaN"), "{expected:?}");
        assert_eq!(rows(&ctx, &sql).await, expected, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_skip_floats_that_are_trusted() {
    let ids = Int64Array::from_iter_values(0..60_000);
    // Both zeros, and the greatest and least numbers, far from each other.
    let number = |i: usize| match i {
        0 | 59_999 => f64::INFINITY,
        30_000 => f64::NEG_INFINITY,
        i if i % 20_000 == 7 => -0.0,
        i => (i as f64 - 30_000.0).abs(),
    };
    let x = Float64Array::from_iter_values((0..60_000).map(number));
    let table = batch(vec![("id", Arc::new(ids) as ArrayRef), ("x", Arc::new(x))]);
    for order in ["x DESC", "x", "x, id::INT", "x DESC, id::INT DESC"] {
        for k in [1, 5, 30] {
            let folder = TempDir::new().unwrap();
            let ctx = session(1);
            parquet(&ctx, &table, &folder).await;
            let sql = format!("SELECT x FROM t ORDER BY {order} LIMIT {k}");
            let expected = rows(&plain_of(&table), &sql).await;
            assert_eq!(rows(&ctx, &sql).await, expected, "{sql}");
            query(&ctx, "SET quantiles.trust_float_statistics = true")
                .await
                .unwrap();
            assert_eq!(rows(&ctx, &sql).await, expected, "trusted: {sql}");
            let found = analyzed(&ctx, &sql).await;
            let pruned = found.split("row_groups_pruned_dynamic_filter=").nth(1);
            let pruned = pruned
                .and_then(|rest| rest.split([',', ']']).next())
                .unwrap_or("0");
            assert!(
                order.starts_with("x,") || order == "x" || pruned != "0",
                "{pruned}: {found}"
            );
        }
    }
}

/// A session that knows nothing of this crate, over the same rows in memory.
fn plain_of(table: &RecordBatch) -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    register(&ctx, "t", table, 1, 8192);
    ctx
}

/// Files of `t` in a folder, each with so many of the rows.
async fn files(ctx: &SessionContext, table: &RecordBatch, folder: &TempDir, count: usize) {
    let rows = table.num_rows().div_ceil(count);
    for file in 0..count {
        let from = (file * rows).min(table.num_rows());
        let part = table.slice(from, rows.min(table.num_rows() - from));
        let name = format!("part{file}");
        register(ctx, &name, &part, 1, 8192);
        let path = folder.path().join(format!("{file}.parquet"));
        let copy = format!(
            "COPY {name} TO '{}' STORED AS PARQUET \
             OPTIONS ('format.max_row_group_size' '50000', 'format.data_page_row_count_limit' '1000')",
            path.display()
        );
        query(ctx, &copy).await.unwrap();
    }
    let path = folder.path().display();
    query(
        ctx,
        &format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}/'"),
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wide_columns_are_fetched_late() {
    for (pattern, count, partitions) in [
        (Pattern::Random, 1, 2),
        (Pattern::Random, 3, 2),
        (Pattern::Sorted, 3, 1),
        (Pattern::FewDistinct, 1, 3),
    ] {
        let folder = TempDir::new().unwrap();
        let ctx = session(partitions);
        let table = numbers(200_000, pattern);
        files(&ctx, &table, &folder, count).await;
        query(&ctx, "SET datafusion.execution.batch_size = 100")
            .await
            .unwrap();
        let off = session(1);
        register(&off, "t", &table, 1, 8192);
        for (columns, by, k) in [
            ("id, text, x", "x DESC", 5),
            ("text, x", "-x", 5),
            ("text, x, id", "(x % 5)::INT, x DESC NULLS FIRST", 1),
        ] {
            let sql = format!("SELECT {columns} FROM t ORDER BY {by} LIMIT {k}");
            let plan = physical_plan(&ctx, &sql).await;
            assert!(plan.contains("LateFetchExec: columns=["), "{plan}");
            assert!(plan.contains("file_row_index"), "{plan}");
            assert_eq!(plan.contains("file_number"), count > 1, "{plan}");
            let found = rows(&ctx, &sql).await;
            let keys = format!("SELECT x FROM t ORDER BY {by} LIMIT {k}");
            let all: Vec<String> = rows(&off, &format!("SELECT {columns} FROM t")).await;
            let x = |row: &String| row.split(" | ").find_map(|value| value.parse::<i64>().ok());
            let expected = rows(&off, &keys).await;
            if columns.starts_with("text, x") {
                let found: Vec<_> = found.iter().filter_map(x).map(|x| x.to_string()).collect();
                assert_eq!(found, expected, "{sql}");
            }
            assert!(found.iter().all(|row| all.contains(row)), "{sql}: {found:?}");
            let distinct: std::collections::HashSet<_> = found.iter().collect();
            assert_eq!((distinct.len(), found.len()), (k, k), "{sql}: {found:?}");
            all_is_given_back(&ctx).await;
        }
        let line = rows(&ctx, "EXPLAIN ANALYZE SELECT text, x FROM t ORDER BY x LIMIT 6")
            .await
            .join("\n");
        assert!(
            line.contains("fetched_rows=6") && line.contains("output_rows=6"),
            "{line}"
        );
        // A filter in the scan has done its part when rows are fetched.
        query(&ctx, "SET datafusion.execution.parquet.pushdown_filters = true")
            .await
            .unwrap();
        let sql = "SELECT text, x FROM t WHERE id % 3 = 1 ORDER BY x LIMIT 4";
        assert!(
            physical_plan(&ctx, sql)
                .await
                .contains("LateFetchExec: columns=[")
        );
        let keys = "SELECT x FROM t WHERE id % 3 = 1 ORDER BY x LIMIT 4";
        let found = rows(&ctx, sql).await;
        let found: Vec<_> = found.iter().filter_map(|row| row.rsplit(" | ").next()).collect();
        assert_eq!(found, rows(&off, keys).await);
        query(&ctx, "SET datafusion.execution.parquet.pushdown_filters = false")
            .await
            .unwrap();
        // Where it does not pay, columns come at once.
        for sql in [
            "SELECT text, x FROM t ORDER BY x LIMIT 1000",
            "SELECT x FROM t ORDER BY x LIMIT 1",
            "SELECT text, x FROM t WHERE id > 3 ORDER BY x LIMIT 1",
        ] {
            let plan = physical_plan(&ctx, sql).await;
            assert!(
                plan.contains("TopKByExec") && !plan.contains("LateFetchExec"),
                "{sql}: {plan}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_changed_between_the_reads_are_an_error() {
    use datafusion::catalog::memory::MemorySourceConfig;
    use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

    let folder = TempDir::new().unwrap();
    // One partition: rows stay where they are.
    let ctx = session(1);
    let table = numbers(100_000, Pattern::Sorted);
    files(&ctx, &table, &folder, 1).await;
    let planned = ctx
        .sql("SELECT x, text FROM t ORDER BY x DESC LIMIT 2")
        .await
        .unwrap();
    let plan = planned.create_physical_plan().await.unwrap();
    assert_eq!(plan.name(), "LateFetchExec");
    let found = plan.children()[0].schema();
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    // Another first read: keys and rows as it says.
    let run = async |x: i64, row: i64| {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![x])),
            Arc::new(Int64Array::from(vec![row])),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&found), columns).unwrap();
        let input = MemorySourceConfig::try_new_exec(&[vec![batch]], Arc::clone(&found), None).unwrap();
        let plan = Arc::clone(&plan).replace_children(vec![input], options).unwrap();
        datafusion::physical_plan::collect(plan, ctx.task_ctx()).await
    };
    let x = |row: usize| Pattern::Sorted.words(100_000, 3)[row];
    assert_eq!(
        texts(&run(x(77_777), 77_777).await.unwrap()),
        [format!("{} | row number 77777 of a table", x(77_777))]
    );
    for (key, row, said) in [
        (x(77_777), 77_776, "x of a row is not what it was"),
        (x(77_777), 100_000, "row 100000 of"),
    ] {
        let error = run(key, row).await.unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("the input changed between two reads"),
            "{error}"
        );
    }
    all_is_given_back(&ctx).await;
}
