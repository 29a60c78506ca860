//! Plans of sessions whose memory has a limit: operators of ours in the place of those of DataFusion's that reserve nothing.

use std::num::NonZeroUsize;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringViewArray, StructArray,
};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, UnboundedMemoryPool};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::*;
use datafusion_quantiles::session::SessionLimits;
use tempfile::TempDir;

use quantiles_testing::*;

/// Rows in no order, in groups `g` of none to hundreds of rows and `f` of special values; some are NULL.
fn table(rows: i64) -> RecordBatch {
    let numbers = || (0..rows).map(move |i| i * 7919 % rows);
    let floats = [f64::NAN, -0.0, 0.0, f64::INFINITY, 1.5, -f64::NAN];
    let g: Int64Array = numbers()
        .map(|i| (i % 11 > 0).then_some((i * i) % 97 % 40))
        .collect();
    let f: Float64Array = numbers()
        .map(|i| (i % 7 > 0).then_some(floats[i as usize % 6]))
        .collect();
    let s = StringViewArray::from_iter(
        numbers().map(|i| (i % 5 > 0).then(|| format!("a value that is longer than a view {i}"))),
    );
    let columns: [(&str, ArrayRef); 4] = [
        ("i", Arc::new(Int64Array::from_iter_values(numbers()))),
        ("g", Arc::new(g)),
        ("f", Arc::new(f)),
        ("s", Arc::new(s)),
    ];
    batch(columns.into())
}

fn limited(bytes: usize, partitions: usize, folder: &TempDir) -> SessionContext {
    session_on(
        runtime(Arc::new(GreedyMemoryPool::new(bytes)), folder.path()),
        partitions,
    )
}

/// A session in whose pool each operator that spills has the same share.
fn fair(bytes: usize, partitions: usize, folder: &TempDir) -> SessionContext {
    session_on(
        runtime(Arc::new(FairSpillPool::new(bytes)), folder.path()),
        partitions,
    )
}

#[tokio::test]
async fn windows_of_a_limited_session_are_those_of_datafusion() {
    let statements = [
        "SELECT i, s, exact_quantiles(i, 0.5) OVER (PARTITION BY g), sum(f) OVER (PARTITION BY g), \
         count(s) OVER (PARTITION BY g) FROM t ORDER BY i",
        "SELECT i, count(*) OVER (PARTITION BY f), exact_quantiles(s, 0.9) OVER (PARTITION BY f) FROM t ORDER BY i",
        "SELECT i, count(*) OVER (PARTITION BY g, s), max(i) OVER (PARTITION BY g, s) FROM t ORDER BY i",
        "SELECT i, sum(i) OVER (), exact_quantiles(s, 0.5) OVER () FROM t ORDER BY i",
        "SELECT count(*) FROM (SELECT count(*) OVER () AS n FROM t) WHERE n = (SELECT count(*) FROM t)",
        "SELECT sum(n) FROM (SELECT count(*) OVER (PARTITION BY g) AS n FROM t WHERE i < 0)",
    ];
    let folder = TempDir::new().unwrap();
    for partitions in [1, 3] {
        let free = session_on(
            runtime(Arc::new(UnboundedMemoryPool::default()), folder.path()),
            partitions,
        );
        let limited = limited(1 << 30, partitions, &folder);
        for ctx in [&free, &limited] {
            let batch_rows = "SET datafusion.execution.batch_size = 13";
            query(ctx, batch_rows).await.unwrap();
            register(ctx, "t", &table(2003), partitions, 13);
        }
        for sql in statements {
            let plans = [
                physical_plan(&free, sql).await,
                physical_plan(&limited, sql).await,
            ];
            let reserves = plans
                .each_ref()
                .map(|plan| plan.contains("ReservingWindowExec: wdw=["));
            assert_eq!(reserves, [false, true], "{plans:?}");
            assert_eq!(rows(&limited, sql).await, rows(&free, sql).await, "{sql}");
        }
        assert_nothing_left(&limited, folder.path(), "windows");
    }
}

#[tokio::test]
async fn a_window_over_more_than_memory_says_how_much_it_wants() {
    let folder = TempDir::new().unwrap();
    let ctx = limited(1 << 20, 2, &folder);
    register(&ctx, "t", &table(20_011), 2, 1024);
    let error = query(&ctx, "SELECT i, s, count(*) OVER () FROM t")
        .await
        .unwrap_err();
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
    let message = error.to_string();
    assert!(
        message.contains("the rows of a window's group") && message.contains("bytes wanted"),
        "{message}"
    );
    drop(error);
    all_is_given_back(&ctx).await;
}

/// An array of views that is joined from others keeps the bytes behind all of their views.
#[tokio::test]
async fn strings_that_a_window_over_frames_keeps_are_reserved() {
    let folder = TempDir::new().unwrap();
    let free = session_on(
        runtime(Arc::new(UnboundedMemoryPool::default()), folder.path()),
        2,
    );
    let (narrow, wide) = (limited(2 << 20, 2, &folder), limited(64 << 20, 2, &folder));
    // 70 011 strings of some 40 bytes are 2.3 MB, of which four in five are not NULL.
    for ctx in [&free, &narrow, &wide] {
        let no_spare = "SET datafusion.execution.sort_spill_reservation_bytes = 0";
        query(ctx, no_spare).await.unwrap();
        register(ctx, "t", &table(70_011), 2, 1024);
    }
    let sql = "SELECT i, max(s) OVER (ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS m FROM (SELECT i, s FROM t ORDER BY i LIMIT 70000)";
    let plan = physical_plan(&wide, sql).await;
    assert!(plan.contains("KeptViewsExec"), "{plan}");
    assert!(!physical_plan(&free, sql).await.contains("KeptViewsExec"));
    let partitioned = "SELECT i, max(s) OVER (PARTITION BY g ORDER BY i ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS m FROM t";
    assert!(!physical_plan(&wide, partitioned).await.contains("KeptViewsExec"));
    let numbers = "SELECT i, max(g) OVER (ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS m FROM t";
    assert!(!physical_plan(&wide, numbers).await.contains("KeptViewsExec"));
    let total = format!("SELECT count(m), min(m), max(m) FROM ({sql})");
    assert_eq!(rows(&wide, &total).await, rows(&free, &total).await);
    let unordered =
        "SELECT count(m) FROM (SELECT max(s) OVER (ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS m FROM t)";
    let error = query(&narrow, unordered).await.unwrap_err();
    let message = error.to_string();
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
            && message.contains("keeps the strings of all its rows")
            && message.contains("bytes wanted"),
        "{message}"
    );
    drop(error);
    all_is_given_back(&narrow).await;
}

/// Rows in no order: their number, a text of it, and both in a struct.
fn texts_of(rows: i64) -> RecordBatch {
    let numbers = Int64Array::from_iter_values((0..rows).map(|i| i * 7919 % rows));
    let texts = numbers.iter().flatten().map(|i| match i % 9 {
        0 => None,
        _ => Some(format!("a value that is longer than a view {i}")),
    });
    let texts: ArrayRef = Arc::new(StringViewArray::from_iter(texts));
    let numbers: ArrayRef = Arc::new(numbers);
    let fields = vec![
        (
            Arc::new(Field::new("i", DataType::Int64, false)),
            Arc::clone(&numbers),
        ),
        (
            Arc::new(Field::new("s", DataType::Utf8View, true)),
            Arc::clone(&texts),
        ),
    ];
    let both: ArrayRef = Arc::new(StructArray::from(fields));
    batch(vec![("i", numbers), ("s", texts), ("both", both)])
}

/// A sort with a limit holds its rows; where that is more than there is memory for, all rows are sorted on disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorts_of_a_limited_session_go_to_disk() {
    let folder = TempDir::new().unwrap();
    let free = session_on(
        runtime(Arc::new(UnboundedMemoryPool::default()), folder.path()),
        2,
    );
    let k = (1 << 20) + 1;
    let first = format!("SELECT i, s, both FROM t ORDER BY i DESC LIMIT {k}");
    let sums =
        format!("SELECT count(*), sum(i), max(s), count(s), sum(both['i']), min(both['s']) FROM ({first})");
    let table = texts_of(i64::from(k) + 99_999);
    register(&free, "t", &table, 2, 8192);
    let expected = rows(&free, &sums).await;
    // The sorts of two partitions may leave each other no memory to merge.
    for (partitions, megabytes, must_spill) in [(1, 96, true), (2, 512, false)] {
        let limited = fair(megabytes << 20, partitions, &folder);
        let spare = "SET datafusion.execution.sort_spill_reservation_bytes = 1000000";
        query(&limited, spare).await.unwrap();
        register(&limited, "t", &table, partitions, 8192);
        let plan = physical_plan(&limited, &first).await;
        assert!(
            plan.contains("RestoredTypesExec") && plan.contains("LocalLimitExec") && !plan.contains("TopK"),
            "{plan}"
        );
        assert_eq!(rows(&limited, &sums).await, expected, "{partitions}");
        let ran = rows_joined(&limited, &format!("EXPLAIN ANALYZE {first}")).await;
        let mut sorts = ran.lines().filter(|line| line.contains("SortExec:"));
        let has_spilled = sorts.any(|line| !line.contains("spill_count=0,"));
        assert!(has_spilled || !must_spill, "{ran}");
        // Few rows are held.
        let few = "SELECT i, s FROM t ORDER BY i LIMIT 100";
        let plan = physical_plan(&limited, few).await;
        assert!(!plan.contains("RestoredTypesExec"), "{plan}");
        assert_eq!(rows(&limited, few).await, rows(&free, few).await);
        assert_nothing_left(&limited, folder.path(), "sorts");
    }
}

/// Windows whose rows are sorted by strings, and carry others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strings_of_windows_are_sorted_without_views_and_dictionaries() {
    let folder = TempDir::new().unwrap();
    let free = session_on(
        runtime(Arc::new(UnboundedMemoryPool::default()), folder.path()),
        3,
    );
    let limited = fair(256 << 20, 3, &folder);
    for ctx in [&free, &limited] {
        let spare = "SET datafusion.execution.sort_spill_reservation_bytes = 1000000";
        query(ctx, spare).await.unwrap();
        register(ctx, "t", &texts_of(200_003), 3, 1024);
    }
    for sql in [
        "SELECT i, s, count(*) OVER (PARTITION BY s), max(s) OVER (PARTITION BY i % 1000) FROM t ORDER BY i",
        "SELECT i, both, sum(i) OVER (PARTITION BY i % 500), exact_quantiles(s, 0.5) OVER (PARTITION BY i % 500) FROM t ORDER BY i",
        "SELECT i, lag(s) OVER (ORDER BY s, i), row_number() OVER (ORDER BY s DESC, i) FROM t ORDER BY i",
        "SELECT i, d, arrow_typeof(d), lag(e) OVER (ORDER BY d DESC, i) AS l FROM (SELECT i, \
         arrow_cast(i % 300, 'Dictionary(Int16, Utf8)') AS d, arrow_cast(arrow_cast(CAST(i % 100 AS VARCHAR), 'Binary'), 'Dictionary(UInt32, Binary)') AS e FROM t) \
         ORDER BY i",
    ] {
        let plan = physical_plan(&limited, sql).await;
        assert!(plan.contains("RestoredTypesExec"), "{plan}");
        assert!(!physical_plan(&free, sql).await.contains("RestoredTypesExec"));
        assert_eq!(rows(&limited, sql).await, rows(&free, sql).await, "{sql}");
    }
    assert_nothing_left(&limited, folder.path(), "windows");
}

#[tokio::test]
async fn aggregations_of_a_limited_session_that_keep_rows_are_hosted() {
    let folder = TempDir::new().unwrap();
    let free = session_on(
        runtime(Arc::new(UnboundedMemoryPool::default()), folder.path()),
        3,
    );
    let limited = limited(24 << 20, 3, &folder);
    for ctx in [&free, &limited] {
        // The sorts of the answers, one a partition, are to leave memory to the aggregations.
        let no_spare = "SET datafusion.execution.sort_spill_reservation_bytes = 0";
        query(ctx, no_spare).await.unwrap();
        register(ctx, "t", &table(60_013), 3, 1024);
    }
    let hosted = [
        "SELECT g, array_sort(array_agg(i)), max_by(s, i), count(*) FROM t WHERE i < 3000 GROUP BY g ORDER BY g",
        "SELECT g, array_length(array_agg(s) FILTER (WHERE f > 0)), sum(i) FROM t GROUP BY g ORDER BY g",
        "SELECT i % 9001 AS k, array_sort(array_agg(s)), max(i) FROM t GROUP BY k ORDER BY k",
        "SELECT sum(array_length(a)), sum(array_length(b)) FROM (SELECT g, array_agg(i) AS a FROM t GROUP BY g) AS x \
         JOIN (SELECT g, array_agg(s) AS b FROM t GROUP BY g) AS y ON x.g = y.g",
    ];
    for sql in hosted {
        let plans = [
            physical_plan(&free, sql).await,
            physical_plan(&limited, sql).await,
        ];
        let hosted = plans
            .each_ref()
            .map(|plan| plan.contains("columns=[], calls=[], plain=["));
        assert_eq!(hosted, [false, true], "{plans:?}");
        assert_eq!(rows(&limited, sql).await, rows(&free, sql).await, "{sql}");
    }
    // Rows in an order, one group of all, and what keeps no rows, stay DataFusion's.
    let others = [
        "SELECT g, array_agg(i ORDER BY i) FROM t WHERE i < 3000 GROUP BY g ORDER BY g",
        "SELECT array_length(array_agg(i)) FROM t",
        "SELECT g, sum(i) FROM t GROUP BY g ORDER BY g",
    ];
    for sql in others {
        let plan = physical_plan(&limited, sql).await;
        assert!(!plan.contains("GroupedQuantilesExec"), "{plan}");
        assert_eq!(rows(&limited, sql).await, rows(&free, sql).await, "{sql}");
    }
    assert_nothing_left(&limited, folder.path(), "groups");
}

/// A session as `dfq --memory-limit` has it.
fn with_limits(megabytes: usize, partitions: usize) -> SessionContext {
    let limits = SessionLimits {
        memory: Some(megabytes << 20),
        partitions: NonZeroUsize::new(partitions),
        spill_dir: None,
    };
    let ctx = SessionContext::new_with_config_rt(limits.config().unwrap(), limits.runtime().unwrap());
    datafusion_quantiles::register_all(&ctx).unwrap();
    ctx
}

/// The sum of a metric over the operators of this type in a plan.
fn metric<P: ExecutionPlan>(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let mut sum = 0;
    plan.apply(|node| {
        let metrics = node.metrics().filter(|_| node.is::<P>());
        for metric in metrics.iter().flat_map(|metrics| metrics.iter()) {
            let is_wanted = metric.value().name() == name;
            sum += if is_wanted { metric.value().as_usize() } else { 0 };
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    sum
}

/// Long rows are sorted in batches of few rows, so that a merge reads many of the files that were written, and rows are written at most three times in all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_rows_are_sorted_in_short_batches() {
    const ROWS: usize = 12_000;
    const BYTES: usize = 5000;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("t.parquet").display().to_string();
    let free = session_on(
        runtime(Arc::new(UnboundedMemoryPool::default()), folder.path()),
        2,
    );
    let write = format!(
        "COPY (SELECT value * 7919 % {ROWS} AS o, repeat(CAST(100000 + value * 31 % 899 AS VARCHAR), {}) AS long FROM range({ROWS})) TO '{file}'",
        BYTES / 6
    );
    query(&free, &write).await.unwrap();
    let limited = with_limits(16, 2);
    for ctx in [&free, &limited] {
        let create = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{file}'");
        query(ctx, &create).await.unwrap();
    }
    for (sql, must_spill) in [
        (
            "SELECT count(*), sum(a * length(m)) FROM (SELECT o % 10 AS a, max(long) OVER (PARTITION BY o % 3000) AS m FROM t)",
            true,
        ),
        (
            "SELECT sum(n * o), count(l) FROM (SELECT o, row_number() OVER (PARTITION BY o % 100 ORDER BY o) AS n, lag(long) OVER (PARTITION BY o % 100 ORDER BY o) AS l FROM t)",
            true,
        ),
        // Short rows.
        (
            "SELECT sum(n * o) FROM (SELECT o, row_number() OVER (ORDER BY o) AS n FROM t)",
            false,
        ),
    ] {
        let shown = physical_plan(&limited, sql).await;
        assert_eq!(shown.contains("ShortBatchesExec: rows="), must_spill, "{shown}");
        assert_eq!(rows(&limited, sql).await, rows(&free, sql).await, "{sql}");
        let plan = limited
            .sql(sql)
            .await
            .unwrap()
            .create_physical_plan()
            .await
            .unwrap();
        collect(Arc::clone(&plan), limited.task_ctx()).await.unwrap();
        let spilled = metric::<SortExec>(&plan, "spilled_bytes");
        assert!(
            spilled <= 3 * ROWS * (BYTES + 100) && (spilled > ROWS * BYTES / 2) == must_spill,
            "{spilled}: {sql}"
        );
    }
}

/// The number of batches that the scans of a query gave.
async fn scanned_batches(ctx: &SessionContext, sql: &str) -> usize {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
    metric::<DataSourceExec>(&plan, "output_batches")
}

/// Under a memory limit operators of this crate read short rows in batches of DataFusion's length, and rows that are long, may become long or
/// are of unknown length in the session's, which are short.
#[tokio::test]
async fn scans_of_short_rows_read_long_batches() {
    let folder = TempDir::new().unwrap();
    let ctx = with_limits(200, 16);
    let file = folder.path().join("t.parquet").display().to_string();
    let write = format!(
        "COPY (SELECT value AS x, value % 7 AS g, CAST(value AS VARCHAR) AS name, repeat('ab', 2500 + CAST(value % 3 AS INT)) AS long, [value] AS list \
         FROM range(2000)) TO '{file}'"
    );
    query(&ctx, &write).await.unwrap();
    let create = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{file}'");
    query(&ctx, &create).await.unwrap();
    let short = [
        "SELECT g, exact_quantiles(x, 0.5) FROM t GROUP BY g",
        "SELECT exact_quantiles(name, 0.5) FROM t WHERE x > 7",
        "SELECT g, topk_by(x, 'behind this: ' || name, 3) FROM t WHERE length(name) > 0 GROUP BY g",
        "SELECT x, g FROM t ORDER BY x LIMIT 3",
    ];
    for sql in short {
        assert_eq!(scanned_batches(&ctx, sql).await, 1, "{sql}");
    }
    let csv = folder.path().join("t.csv").display().to_string();
    query(&ctx, &format!("COPY (SELECT x, long FROM t) TO '{csv}'"))
        .await
        .unwrap();
    let create =
        format!("CREATE EXTERNAL TABLE c STORED AS CSV LOCATION '{csv}' OPTIONS ('has_header' 'true')");
    query(&ctx, &create).await.unwrap();
    let mut long = Vec::new();
    for sql in [
        // By operators of DataFusion.
        "SELECT max(x % 2) FROM t",
        // Long values, read for the answer or for a condition.
        "SELECT exact_quantiles(long, 0.5) FROM t",
        "SELECT exact_quantiles(x, 0.5) FROM t WHERE long > 'a'",
        "SELECT exact_quantiles(x, 0.5), count(list) FROM t",
        // Records of text are held whole.
        "SELECT exact_quantiles(x, 0.5) FROM c",
        // Values that become long.
        "SELECT exact_quantiles(repeat(name, 1000), 0.5) FROM t",
        "SELECT exact_quantiles(length(repeat(name, 1000)), 0.5) FROM t",
        "SELECT exact_quantiles(CASE WHEN x > 7 THEN repeat('a', 5000) ELSE repeat('b', 5000) END, 0.5) FROM t",
    ] {
        long.extend((scanned_batches(&ctx, sql).await < 4).then_some(sql));
    }
    assert!(long.is_empty(), "in long batches: {long:#?}");
    // A choice of the user stays.
    query(&ctx, "SET datafusion.execution.batch_size = 300")
        .await
        .unwrap();
    assert!(scanned_batches(&ctx, short[0]).await > 5);
}
