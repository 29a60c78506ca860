//! `ORDER BY ... LIMIT k` by the operator over files: what scans skip, and columns that are fetched late.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::*;
use tempfile::TempDir;

use quantiles_testing::patterns::Pattern;
use quantiles_testing::topk::{analyzed, numbers};
use quantiles_testing::*;

/// A Parquet file of `n` rows in row groups of 10 000.
async fn parquet(ctx: &SessionContext, table: &RecordBatch, folder: &TempDir) {
    let path = folder.path().join("t.parquet");
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(10_000));
    write_parquet(&path, table, groups.build());
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        path.display()
    );
    query(ctx, &create).await.unwrap();
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
        assert!(physical_plan(&ctx, &sql).await.contains("SortLimitExec"), "{sql}");
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
        let path = folder.path().join(format!("{file}.parquet"));
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(50_000))
            .set_data_page_row_count_limit(1000);
        write_parquet(&path, &part, properties.build());
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
                plan.contains("SortLimitExec") && !plan.contains("LateFetchExec"),
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
