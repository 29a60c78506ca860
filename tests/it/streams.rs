//! Input without an end, and input that comes in the order of its groups.

use datafusion::prelude::SessionContext;
use tempfile::TempDir;

use quantiles_testing::{error, physical_plan, query, rows, session};

/// A table of the CSV file, in the order of its columns; `kind`: `UNBOUNDED`, or nothing.
async fn ordered(ctx: &SessionContext, name: &str, kind: &str, folder: &TempDir) {
    let path = folder.path().join("s.csv");
    std::fs::write(&path, "1,1\n1,2\n1,3\n2,1\n3,5\n3,6\n").unwrap();
    let create = format!(
        "CREATE {kind} EXTERNAL TABLE {name} (g INT NOT NULL, x INT NOT NULL) STORED AS CSV \
         WITH ORDER (g ASC, x ASC) LOCATION '{}' OPTIONS ('format.has_header' 'false')",
        path.display()
    );
    query(ctx, &create).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_the_order_of_groups_stream_through_a_window() {
    let folder = TempDir::new().unwrap();
    let ctx = session(1);
    ordered(&ctx, "endless", "UNBOUNDED", &folder).await;
    ordered(&ctx, "finite", "", &folder).await;
    for table in ["endless", "finite"] {
        for (condition, expected) in [
            (
                "rn <= 2",
                vec!["1 | 1 | 1", "1 | 2 | 2", "2 | 1 | 1", "3 | 5 | 1", "3 | 6 | 2"],
            ),
            ("rn <= 2 AND x > 1", vec!["1 | 2 | 2", "3 | 5 | 1", "3 | 6 | 2"]),
            ("rn = 1", vec!["1 | 1 | 1", "2 | 1 | 1", "3 | 5 | 1"]),
        ] {
            let sql = format!(
                "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY g ORDER BY x) AS rn FROM {table}) \
                 WHERE {condition}"
            );
            let plan = physical_plan(&ctx, &sql).await;
            assert!(
                plan.contains("BoundedWindowAggExec") && plan.contains("mode=[Sorted]"),
                "{plan}"
            );
            assert!(!plan.contains("GroupedTopKExec"), "{plan}");
            assert_eq!(rows(&ctx, &sql).await, expected, "{sql}");
        }
        let sql = format!("SELECT DISTINCT ON (g) g, x FROM {table} ORDER BY g, x");
        let plan = physical_plan(&ctx, &sql).await;
        assert!(!plan.contains("GroupedTopKExec"), "{plan}");
        assert_eq!(rows(&ctx, &sql).await, ["1 | 1", "2 | 1", "3 | 5"], "{sql}");
    }
    // In any other order, all rows are read first.
    let sql = "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY g ORDER BY x DESC) AS rn FROM finite) WHERE rn <= 1";
    let plan = physical_plan(&ctx, sql).await;
    assert!(plan.contains("GroupedTopKExec"), "{plan}");
    let mut found = rows(&ctx, sql).await;
    found.sort();
    assert_eq!(found, ["1 | 3 | 1", "2 | 1 | 1", "3 | 6 | 1"]);
}

#[tokio::test]
async fn answers_at_the_end_of_endless_input_are_refused() {
    let folder = TempDir::new().unwrap();
    let ctx = session(2);
    ordered(&ctx, "endless", "UNBOUNDED", &folder).await;
    for sql in [
        "SELECT exact_quantiles(x, 0.5) FROM endless",
        "SELECT x, exact_quantiles(g, 0.5) FROM endless GROUP BY x",
        "SELECT x, topk_by(g, x, 2) FROM endless GROUP BY x",
    ] {
        let said = error(&ctx, sql).await;
        assert!(said.contains("this input is endless"), "{sql}: {said}");
    }
}
