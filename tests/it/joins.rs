//! Joins of DataFusion's without equal columns: exact within any memory limit, and ended with their query.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
use datafusion::common::{DataFusionError, Result};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::*;
use tempfile::TempDir;

use quantiles_testing::*;

/// Joins of `l`, whose rows are large, and `r`.
const JOINS: [&str; 8] = [
    "SELECT count(*), count(y), sum(length(s)), sum(id) FROM l JOIN r ON id < y",
    "SELECT count(*), count(y), sum(length(s)), sum(id) FROM l LEFT JOIN r ON id < y",
    "SELECT count(*), count(y), sum(length(s)), sum(id) FROM l RIGHT JOIN r ON id < y AND id + y < 1750",
    "SELECT count(*), count(y), sum(length(s)), sum(id) FROM l FULL JOIN r ON id < y AND id + y < 1750",
    "SELECT count(*), sum(length(s)), sum(id) FROM l WHERE EXISTS (SELECT 1 FROM r WHERE id < y AND length(s) < y)",
    "SELECT count(*), sum(length(s)), sum(id) FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE id < y AND length(s) < y)",
    // Scans below a sort with a limit leave out what cannot be among its rows, and ties with the last one.
    "SELECT count(*), count(y) FROM (SELECT s, id % 2 AS c FROM l ORDER BY c LIMIT 1500) AS l JOIN r ON length(s) + 10000 > y",
    "SELECT count(*), sum(n) FROM (SELECT id, max(s) AS s, count(*) AS n FROM l GROUP BY id) AS l JOIN r ON id < y AND s > ''",
];

/// Numbers of rows in `l` and in `r`.
const ROWS: [i64; 2] = [2000, 40];

/// A row of `l`, without its text, which has 200 characters and `id`. They are in no order.
fn id(row: i64) -> i64 {
    (row * 7919) % ROWS[0]
}

/// A row of `r`.
fn y(row: i64) -> i64 {
    row * 30
}

/// Writes both tables, in 8 files and in 4.
async fn write(folder: &Path) {
    let ctx = session(1);
    let text = |row| format!("{}{}", "x".repeat(200), id(row));
    for part in 0..8 {
        let rows = || (0..ROWS[0]).skip(part).step_by(8);
        let l = batch(vec![
            (
                "id",
                Arc::new(Int64Array::from_iter_values(rows().map(id))) as ArrayRef,
            ),
            ("s", Arc::new(StringArray::from_iter_values(rows().map(text)))),
        ]);
        let r = (0..ROWS[1]).skip(part).step_by(4).map(y);
        let r = batch(vec![("y", Arc::new(Int64Array::from_iter_values(r)) as ArrayRef)]);
        for (name, batch) in [("l", Some(l)), ("r", (part < 4).then_some(r))] {
            let path = folder.join(name).join(format!("{part}.parquet"));
            if let Some(batch) = batch {
                let frame = ctx.read_batch(batch).unwrap();
                let options = DataFrameWriteOptions::new().with_single_file_output(true);
                frame
                    .write_parquet(path.to_str().unwrap(), options, None)
                    .await
                    .unwrap();
            }
        }
    }
}

/// The answers of [`JOINS`] by comparing all rows with all.
fn naive() -> Vec<String> {
    let length = |id: i64| 200 + id.to_string().len() as i64;
    let ids = || (0..ROWS[0]).map(id);
    let ys = || (0..ROWS[1]).map(y);
    let narrow = |id, y| id < y && id + y < 1750;
    let joined = |on: &dyn Fn(i64, i64) -> bool, keeps_l: bool, keeps_r: bool| {
        let mut found: Vec<(Option<i64>, Option<i64>)> = Vec::new();
        for id in ids() {
            let pairs = ys().filter(|y| on(id, *y)).map(|y| (Some(id), Some(y)));
            let before = found.len();
            found.extend(pairs);
            if keeps_l && found.len() == before {
                found.push((Some(id), None));
            }
        }
        if keeps_r {
            found.extend(
                ys().filter(|y| !ids().any(|id| on(id, *y)))
                    .map(|y| (None, Some(y))),
            );
        }
        let lengths: i64 = found.iter().filter_map(|row| row.0).map(length).sum();
        let sum: i64 = found.iter().filter_map(|row| row.0).sum();
        let matched = found.iter().filter(|row| row.1.is_some()).count();
        format!("{} | {matched} | {lengths} | {sum}", found.len())
    };
    let existing = |exists: bool| {
        let wanted = |id: &i64| ys().any(|y| *id < y && length(*id) < y) == exists;
        let found: Vec<i64> = ids().filter(wanted).collect();
        let lengths: i64 = found.iter().copied().map(length).sum();
        format!("{} | {lengths} | {}", found.len(), found.iter().sum::<i64>())
    };
    let wide = |id, y| id < y;
    vec![
        joined(&wide, false, false),
        joined(&wide, true, false),
        joined(&narrow, false, true),
        joined(&narrow, true, true),
        existing(true),
        existing(false),
        format!("{0} | {0}", 1500 * ROWS[1]),
        format!(
            "{0} | {0}",
            ids().map(|id| ys().filter(|y| id < *y).count()).sum::<usize>()
        ),
    ]
}

/// A join whose first side does not fit in memory reads it a second time, is exact or says that memory does not suffice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn joins_are_exact_within_any_limit() -> Result<()> {
    let folder = TempDir::new().unwrap();
    write(folder.path()).await;
    let expected = naive();
    let (mut spilled, mut refused) = ([0; JOINS.len()], [0; JOINS.len()]);
    for partitions in [1, 4] {
        for reorders in [true, false] {
            for kilobytes in [usize::MAX, 16_000, 700, 300] {
                let pool: Arc<dyn MemoryPool> = match kilobytes {
                    usize::MAX => Arc::new(UnboundedMemoryPool::default()),
                    _ => Arc::new(GreedyMemoryPool::new(kilobytes << 10)),
                };
                let ctx = within(pool, partitions);
                query(
                    &ctx,
                    &format!("SET datafusion.optimizer.join_reordering = {reorders}"),
                )
                .await?;
                query(&ctx, "SET datafusion.execution.batch_size = 100").await?;
                for name in ["l", "r"] {
                    let path = folder.path().join(name);
                    ctx.register_parquet(name, path.to_str().unwrap(), Default::default())
                        .await?;
                }
                for (at, sql) in JOINS.iter().enumerate() {
                    let what =
                        format!("{sql}\n{partitions} partitions, {kilobytes} KB, reordered: {reorders}");
                    match query(&ctx, sql).await {
                        Ok(found) => {
                            assert_eq!(texts(&found), [expected[at].as_str()], "{what}");
                            // Partitions that read at the same time may leave less memory now.
                            if let Ok(plan) = query(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await {
                                let plan = texts(&plan).join("\n");
                                assert!(plan.contains("BuildSideExec"), "{what}\n{plan}");
                                let counts = plan.split("spill_count=").skip(1);
                                spilled[at] += counts.filter(|count| !count.starts_with('0')).count();
                            }
                        }
                        Err(error) => {
                            let root = error.find_root();
                            assert!(
                                matches!(root, DataFusionError::ResourcesExhausted(_)),
                                "{what}\n{error}"
                            );
                            assert!(kilobytes < 16_000, "{what}\n{error}");
                            let is_guarded = root.strip_backtrace().contains("for this kind of join");
                            refused[at] += usize::from(is_guarded);
                        }
                    }
                    all_is_given_back(&ctx).await;
                }
            }
        }
    }
    // Inner joins, LEFT, EXISTS and NOT EXISTS go to disk; RIGHT and FULL do not.
    assert!([0, 1, 4, 5].iter().all(|at| spilled[*at] > 0), "{spilled:?}");
    assert!([2, 3].iter().all(|at| refused[*at] > 0), "{refused:?}");
    Ok(())
}

/// A join that looks at many pairs for each batch that it reads is stopped with its query, whether it finds rows or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_join_ends_before_its_last_pair() -> Result<()> {
    let joins = [
        ("NestedLoopJoinExec", "a JOIN b ON a.x + b.x < 0"),
        ("NestedLoopJoinExec", "a JOIN b ON a.x + b.x >= 0"),
        ("CrossJoinExec", "a CROSS JOIN b"),
        ("HashJoinExec", "a JOIN b ON a.x % 2 = b.x % 2"),
        ("HashJoinExec", "a JOIN b ON a.x % 2 = b.x % 2 AND a.x + b.x < 0"),
    ];
    for (operator, join) in joins {
        let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
        datafusion_quantiles::register_all(&ctx)?;
        for (table, rows) in [("a", 20_000), ("b", 800_000)] {
            let sql = format!("CREATE TABLE {table} AS SELECT value AS x FROM range({rows})");
            ctx.sql(&sql).await?.collect().await?;
        }
        let sql = format!("SELECT sum(a.x) FROM {join}");
        let plan = ctx.sql(&sql).await?.create_physical_plan().await?;
        let shown = displayable(plan.as_ref()).indent(false).to_string();
        assert!(shown.contains(operator), "{shown}");
        let context = ctx.task_ctx();
        let task = tokio::spawn(collect(plan, context));
        tokio::time::sleep(Duration::from_millis(100)).await;
        task.abort();
        let ended = task.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "{join}\n{shown}");
    }
    Ok(())
}
