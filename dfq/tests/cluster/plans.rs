//! What runs on a cluster: stages, scans, rows and bytes.

use crate::support::machines::{ADAPTIVE, SHARED, query, register, session, write_parquet};
use crate::support::tables::rows;
use quantiles_testing::texts;

async fn shown(ctx: &datafusion::prelude::SessionContext, sql: &str) -> String {
    texts(&query(ctx, sql).await.unwrap()).join("\n")
}

/// Stages in the plan of a scheduler: what `EXPLAIN` prints of it has a line for each.
fn stages(plan: &str) -> usize {
    plan.matches("ShuffleWriterExec").count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_are_constant() {
    let folder = tempfile::tempdir().unwrap();
    let many = (1..100)
        .map(|q| format!("0.{q:02}"))
        .collect::<Vec<_>>()
        .join(", ");
    for count in [1000, 40_000] {
        let table = write_parquet(folder.path(), &format!("t{count}"), &rows(count, 3), 16);
        for adaptive in ADAPTIVE {
            for (partitions, expected) in [(1, 2), (4, 4), (16, 4)] {
                let ctx = session(&SHARED.url, partitions, adaptive).await;
                register(&ctx, "t", &table).await;
                for sql in [
                    "EXPLAIN SELECT exact_quantiles(x, 0.5) FROM t".to_string(),
                    format!("EXPLAIN SELECT exact_quantiles(f, [{many}]), exact_quantiles(x, 0.5) FROM t"),
                ] {
                    let plan = shown(&ctx, &sql).await;
                    assert_eq!(
                        stages(&plan),
                        expected,
                        "{partitions} partitions, adaptive {adaptive}\n{plan}"
                    );
                    if partitions == 16 {
                        for (strategy, expected) in [("distributed_bms", 6), ("dibms", 10), ("auto", 4)] {
                            let set = format!("SET quantiles.strategy = '{strategy}'");
                            query(&ctx, &set).await.unwrap();
                            let plan = shown(&ctx, &sql).await;
                            assert_eq!(stages(&plan), expected, "{strategy}\n{plan}");
                        }
                    }
                    for node in [
                        "RoundExec: sketch",
                        "RoundExec: count",
                        "RefineExec: state",
                        "RefineExec: answers",
                    ] {
                        assert!(plan.contains(node), "no {node} in\n{plan}");
                    }
                }
            }
        }
    }
}

/// 300 partitions: sketches are merged in three groups first, and so are the counts of other strategies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_many_partitions_go_up_a_tree() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(9000, 6), 300);
    let sql = "SELECT exact_quantiles(x, [0, 0.5, 0.99]), exact_quantiles(f, 0.5) FROM t";
    let local = quantiles_testing::session(2);
    register(&local, "t", &table).await;
    let expected = texts(&query(&local, sql).await.unwrap());
    for (adaptive, strategy, count) in [
        (true, "auto", 5),
        (false, "auto", 5),
        (false, "distributed_bms", 7),
    ] {
        let ctx = session(&SHARED.url, 300, adaptive).await;
        register(&ctx, "t", &table).await;
        query(&ctx, &format!("SET quantiles.strategy = '{strategy}'"))
            .await
            .unwrap();
        let plan = shown(&ctx, &format!("EXPLAIN {sql}")).await;
        assert_eq!(stages(&plan), count, "{strategy}, adaptive {adaptive}\n{plan}");
        assert!(plan.contains("groups=3"), "{plan}");
        assert_eq!(
            texts(&query(&ctx, sql).await.unwrap()),
            expected,
            "{strategy}, adaptive {adaptive}"
        );
    }
}

/// Best rows are found in two steps, of which the first sends few of them; without groups, where they are few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn best_rows_are_found_where_they_lie() {
    const ROWS: usize = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(ROWS, 3), 8);
    let first = "SELECT c, s FROM t ORDER BY c, s LIMIT 10";
    let numbered = |group: &str| {
        format!(
            "SELECT id, r FROM (SELECT id, row_number() OVER (PARTITION BY {group} ORDER BY f, id) AS r FROM t) WHERE r <= 2"
        )
    };
    let (few, many) = (numbered("name"), numbered("id % 20000"));
    for adaptive in ADAPTIVE {
        let ctx = session(&SHARED.url, 8, adaptive).await;
        register(&ctx, "t", &table).await;
        for (sql, node, sent) in [
            (first, "SortLimitExec", 0..=80),
            (few.as_str(), "GroupedTopKExec", 0..=800),
            (many.as_str(), "GroupedTopKExec", ROWS / 2..=ROWS),
        ] {
            let (partial, last) = (format!("{node}: mode=Partial"), format!("{node}: mode=Final"));
            let plan = shown(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
            assert_eq!(metric(&plan, &partial, "input_rows"), ROWS as f64, "{plan}");
            let moved = metric(&plan, &last, "input_rows") as usize;
            assert!(sent.contains(&moved) && moved > 0, "{moved} rows\n{plan}");
            query(&ctx, "SET quantiles.topk = false").await.unwrap();
            let plan = shown(&ctx, &format!("EXPLAIN {sql}")).await;
            assert!(!plan.contains(node), "{plan}");
            query(&ctx, "SET quantiles.topk = true").await.unwrap();
        }
    }
}

/// The sum of a metric over the nodes of one name, in the text of EXPLAIN ANALYZE.
fn metric(plan: &str, node: &str, name: &str) -> f64 {
    let lines = plan.lines().filter(|line| line.contains(node));
    let values = lines.filter_map(|line| {
        let text = line.split(&format!("{name}=")).nth(1)?;
        let number: String = text
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        let unit = match text[number.len()..].trim_start().chars().next() {
            Some('K') => 1e3,
            Some('M') => 1e6,
            _ => 1.0,
        };
        Some(number.parse::<f64>().unwrap() * unit)
    });
    values.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_is_read_once_a_round_and_kilobytes_move() {
    const ROWS: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(ROWS, 3), 16);
    for adaptive in ADAPTIVE {
        let ctx = session(&SHARED.url, 16, adaptive).await;
        register(&ctx, "t", &table).await;
        let plan = shown(&ctx, "EXPLAIN ANALYZE SELECT exact_quantiles(c, 0.5) FROM t").await;
        for round in ["RoundExec: sketch", "RoundExec: count"] {
            assert_eq!(metric(&plan, round, "input_rows"), ROWS as f64, "{round}\n{plan}");
            let bytes = metric(&plan, round, "bytes_out");
            assert!(
                bytes > 0.0 && bytes < 0.1 * 8.0 * ROWS as f64,
                "{bytes} bytes\n{plan}"
            );
        }
        let candidates = metric(&plan, "RoundExec: count", "candidates_out");
        assert!(
            candidates > 0.0 && candidates < 0.05 * ROWS as f64,
            "{candidates}\n{plan}"
        );
    }
}
