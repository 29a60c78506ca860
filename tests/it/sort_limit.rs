//! `ORDER BY ... LIMIT k` by the operator: against a sort by DataFusion, and what becomes of it otherwise.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::prelude::*;
use futures::StreamExt;
use proptest::prelude::*;

use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::topk::{analyzed, numbers, plain, table};
use quantiles_testing::*;

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
    ("i, t", false),
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

    /// The statement without a limit.
    fn sorted(&self, columns: &str) -> String {
        let filter = if self.filter { "WHERE id % 5 <> 2" } else { "" };
        format!("SELECT {columns} FROM t {filter} ORDER BY {}", self.order.0)
    }

    fn sql(&self, columns: &str) -> String {
        format!("{} LIMIT {} OFFSET {}", self.sorted(columns), self.k, self.offset)
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
        true => "SortLimitExec: mode=Final, k=",
        false => "SortLimitExec: k=",
    };
    assert_eq!(plan.contains(node), case.order.1, "{case:?}\n{plan}");
    assert_eq!(plan.contains("SortExec"), !case.order.1, "{case:?}\n{plan}");
    // With a limit DataFusion 55.2 takes both zeros for equal: once it has k rows it drops a -0.0 that belongs before a 0.0.
    let sorted = rows(&plain(&table), &case.sorted(&keys)).await;
    let expected: Vec<String> = sorted.into_iter().skip(case.offset).take(case.k).collect();
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
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn first_rows_agree_with_a_sort(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check(&case));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_zeros_are_in_the_order_of_a_sort() {
    check(&Case {
        order: ("x", true),
        k: 3500,
        offset: 0,
        pattern: Pattern::FewDistinct,
        len: 100_000,
        partitions: 1,
        batch: 8192,
        output: 8192,
        nulls: false,
        filter: false,
        staged: false,
        seed: 1,
    })
    .await;
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
                assert!(
                    !physical_plan(&off, &sql).await.contains("SortLimitExec"),
                    "{sql}"
                );
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
        plan.contains("SortLimitExec: k=10, by=[x@1 DESC NULLS FIRST, flag@2 NULLS LAST]"),
        "{plan}"
    );
    assert!(plan.contains("GlobalLimitExec: skip=3, fetch=7"), "{plan}");
    let explained = rows(&ctx, "EXPLAIN SELECT id FROM t ORDER BY i LIMIT 5")
        .await
        .join("\n");
    assert!(
        explained.contains("SortLimitExec: k=5, by=[i@1 NULLS LAST]"),
        "{explained}"
    );
    let below = "SELECT g, count(*) FROM (SELECT g FROM t ORDER BY i LIMIT 50) GROUP BY g ORDER BY g";
    assert!(physical_plan(&ctx, below).await.contains("SortLimitExec: k=50"));
    assert_eq!(rows(&ctx, below).await, rows(&plain(&table), below).await);
    let union = "SELECT i FROM t UNION ALL SELECT n FROM t ORDER BY 1 DESC LIMIT 9";
    assert!(physical_plan(&ctx, union).await.contains("SortLimitExec: k=9"));
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
        assert!(!physical_plan(&ctx, sql).await.contains("SortLimitExec"), "{sql}");
    }
    query(&ctx, "SET quantiles.topk = false").await.unwrap();
    let plan = physical_plan(&ctx, "SELECT id FROM t ORDER BY i LIMIT 5").await;
    assert!(!plan.contains("SortLimitExec"), "{plan}");
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
