//! A query that is broken off, by an error or by its caller, at each phase of the work.
//!
//! Failpoints belong to the whole process, so the tests run in a process of their own: this binary once more, which
//! needs no second link.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};
use datafusion::common::Result;
use datafusion::execution::memory_pool::{GreedyMemoryPool, TrackConsumersPool};
use datafusion::prelude::SessionContext;
use fail::FailScenario;
use tempfile::TempDir;

use quantiles_testing::*;

/// A query that goes through some phases.
struct Shape {
    strategy: &'static str,
    sql: &'static str,
    /// Bytes of the pool: shapes with fewer than [`SPACIOUS`] have more rows.
    limit: usize,
    phases: &'static [&'static str],
}

/// Bytes in which nothing spills.
const SPACIOUS: usize = 256 << 20;

/// What rows of many groups go through.
const PARTITIONED: [&str; 6] = [
    "group_scan",
    "group_scatter",
    "spill_write",
    "spill_read",
    "group_part",
    "group_answer",
];

/// Every place that may fail. The ungrouped query has so many quantiles that every kind of round is asked for.
const SHAPES: [Shape; 13] = [
    Shape {
        strategy: "sample_select",
        sql: "SELECT exact_quantiles(x, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]), count(*) FROM t",
        limit: 8 << 20,
        phases: &[
            "scan",
            "spill_write",
            "spill_read",
            "sample",
            "count",
            "extract",
            "merge",
            "answer",
        ],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT few, exact_quantiles(x, [0.1, 0.9]), sum(few) FROM t GROUP BY few",
        limit: SPACIOUS,
        phases: &["group_scan", "group_count", "group_extract", "group_answer"],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT many, exact_quantiles(x, [0.1, 0.9]), sum(few) FROM t GROUP BY many",
        limit: 32 << 20,
        phases: &PARTITIONED,
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT lopsided, exact_quantiles(x, [0.1, 0.9]), sum(few) FROM t GROUP BY lopsided",
        limit: 32 << 20,
        phases: &[
            "group_scatter",
            "spill_read",
            "group_giant",
            "group_count",
            "group_extract",
            "group_part",
        ],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT few, exact_quantiles(DISTINCT x, 0.5) FROM t WHERE many < 2000 GROUP BY few",
        limit: SPACIOUS,
        phases: &["group_gather"],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT many, exact_quantiles(concat('behind this: ', x), [0.1, 0.9]), sum(few) FROM t GROUP BY many",
        limit: 32 << 20,
        phases: &PARTITIONED,
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT lopsided, exact_quantiles(concat('behind this: ', few, ' or more of ', x), [0.1, 0.9]), max(few) \
              FROM t GROUP BY lopsided",
        limit: 32 << 20,
        phases: &[
            "group_scatter",
            "spill_read",
            "group_giant",
            "group_sizes",
            "group_light",
            "group_heavy",
            "value_keys",
            "value_gather",
            "value_compare",
            "group_part",
        ],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT exact_quantiles(DISTINCT concat('behind this: ', x), [0.1, 0.9]), count(*) FROM t",
        limit: 8 << 20,
        phases: &[
            "scan",
            "spill_write",
            "spill_read",
            "value_deal",
            "value_distinct",
            "value_keys",
            "answer",
        ],
    },
    Shape {
        strategy: "gk_select",
        sql: "SELECT exact_quantiles(x, [0.1, 0.5]) FROM t",
        limit: SPACIOUS,
        phases: &["sketch"],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT exact_quantiles(concat('behind this: ', few, ' or more of ', x), [0.15, 0.55, 0.95]), count(*) FROM t",
        limit: 8 << 20,
        phases: &[
            "scan",
            "spill_write",
            "spill_read",
            "value_keys",
            "sample",
            "count",
            "value_gather",
            "value_compare",
            "answer",
        ],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT few, topk_by(x, many, 3) FROM t GROUP BY few",
        limit: SPACIOUS,
        phases: &["group_scan", "topk_answer"],
    },
    Shape {
        strategy: "sample_select",
        sql: "SELECT many, topk_by(x, few, 3) FROM t GROUP BY many",
        limit: 88 << 20,
        phases: &[
            "group_scan",
            "group_scatter",
            "topk_compact",
            "spill_write",
            "spill_read",
            "group_part",
            "topk_answer",
        ],
    },
    Shape {
        strategy: "sample_select",
        // Each row comes before all that were read before it. Of a batch some 3000 rows are held, so that it takes many batches until some
        // are dropped.
        sql: "SELECT id FROM t ORDER BY id DESC LIMIT 3000",
        limit: SPACIOUS - 1,
        phases: &["top_scan", "top_compact", "top_merge", "top_answer"],
    },
];

/// Set in the process that fails.
const ALONE: &str = "QUANTILES_TEST_ALONE";

/// Runs `test` in a process where nothing else runs, `name` being its path.
fn alone(name: &str, test: impl Future<Output = ()>) {
    if std::env::var_os(ALONE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(16)
            .enable_all()
            .build()
            .unwrap();
        return runtime.block_on(test);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ALONE, "1")
        // Without it the message of a failure is the last thing that the process prints.
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn spilling_session(shape: &Shape, folder: &Path) -> SessionContext {
    // Errors name those who hold most.
    let pool = TrackConsumersPool::new(GreedyMemoryPool::new(shape.limit), NonZeroUsize::new(5).unwrap());
    let ctx = session_on(runtime(Arc::new(pool), folder), 3);
    let rows = if shape.limit < SPACIOUS {
        1_500_000
    } else {
        300_000
    };
    let random = || pseudo_random(rows, 5);
    let values: Float64Array = random().map(|r| (r % 5 > 0).then_some(r as f64)).collect();
    let groups = |of: &dyn Fn(u64) -> u64| -> ArrayRef {
        Arc::new(random().map(|r| Some(of(r >> 8) as i64)).collect::<Int64Array>())
    };
    register(
        &ctx,
        "t",
        &batch(vec![
            ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))),
            ("x", Arc::new(values) as ArrayRef),
            ("few", groups(&|r| r % 10)),
            ("many", groups(&|r| r % 100_000)),
            ("lopsided", groups(&|r| if r % 10 > 0 { 7 } else { r % 100_000 })),
        ]),
        3,
        8192,
    );
    ctx
}

/// Waits until the query has let go of all that it had; how long that took.
async fn all_is_released(ctx: &SessionContext, folder: &Path, what: &str) -> Duration {
    let start = Instant::now();
    let runtime = ctx.runtime_env();
    while runtime.memory_pool.reserved() > 0 || !files_below(folder).is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what}: {} bytes reserved, files {:?}",
            runtime.memory_pool.reserved(),
            files_below(folder)
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(runtime.disk_manager.used_disk_space(), 0, "{what}");
    start.elapsed()
}

/// Rows in some order of their own.
async fn answer(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let batches = query(ctx, sql).await?;
    let mut rows = texts(&batches);
    rows.sort_unstable();
    Ok(rows)
}

#[test]
fn an_error_at_any_phase_is_the_answer_and_leaves_nothing() {
    alone(
        "failures::an_error_at_any_phase_is_the_answer_and_leaves_nothing",
        async {
            let scenario = FailScenario::setup();
            for shape in &SHAPES {
                fail_at_each_phase(shape).await;
            }
            scenario.teardown();
        },
    );
}

async fn fail_at_each_phase(shape: &Shape) {
    let folder = TempDir::new().unwrap();
    let ctx = spilling_session(shape, folder.path());
    query(&ctx, &format!("SET quantiles.strategy = '{}'", shape.strategy))
        .await
        .unwrap();
    let expected = answer(&ctx, shape.sql).await;
    let expected = expected.unwrap_or_else(|error| panic!("{}: {error}", shape.sql));
    for phase in shape.phases {
        // At once, in all partitions; and in one of them, later.
        for (when, actions) in [("at once", "return"), ("later", "1*off->1*return")] {
            // There is but one answer, one giant, and one level of values on one thread.
            let is_single = matches!(
                *phase,
                "answer"
                    | "group_giant"
                    | "group_gather"
                    | "group_sizes"
                    | "group_light"
                    | "group_heavy"
                    | "value_keys"
                    | "value_gather"
                    | "value_compare"
                    | "value_deal"
                    | "top_merge"
                    | "top_answer"
            ) || (*phase, shape.limit) == ("group_answer", SPACIOUS)
                || (*phase, shape.limit) == ("topk_answer", SPACIOUS);
            if is_single && when == "later" {
                continue;
            }
            let what = format!("{phase} {when} of {}", shape.sql);
            let action = actions.replace("return", &format!("return(broken in {phase} {when})"));
            fail::cfg(format!("quantiles::{phase}"), &action).unwrap();
            let error = match answer(&ctx, shape.sql).await {
                Ok(found) => panic!("{what}: {} rows", found.len()),
                Err(error) => error.find_root().strip_backtrace(),
            };
            assert_eq!(
                error,
                format!("Execution error: broken in {phase} {when}"),
                "{what}"
            );
            all_is_released(&ctx, folder.path(), &what).await;
            fail::remove(format!("quantiles::{phase}"));
        }
        let after = answer(&ctx, shape.sql).await;
        let after = after.unwrap_or_else(|error| panic!("after {phase} of {}: {error}", shape.sql));
        assert!(after == expected, "after {phase} of {}", shape.sql);
    }
}

/// Holds whoever comes, until it is opened.
#[derive(Default)]
struct Gate {
    /// How many came, and whether it is open.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        while !state.1 {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    async fn is_reached(&self) {
        while self.state.lock().unwrap().0 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Drops a query when it has reached a phase; how long it goes on after that.
async fn dropped_at(phase: &str, shape: &Shape, ctx: &SessionContext, folder: &Path) -> Duration {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    fail::cfg_callback(format!("quantiles::{phase}"), move || held.pass()).unwrap();
    let asked = ctx.clone();
    let sql = shape.sql;
    let task = tokio::spawn(async move { answer(&asked, sql).await });
    tokio::time::timeout(Duration::from_secs(60), gate.is_reached())
        .await
        .unwrap_or_else(|_| panic!("{phase} was not reached"));
    // The task is dropped now if it waits, or as soon as it has to.
    task.abort();
    gate.open();
    let took = all_is_released(ctx, folder, phase).await;
    let _ = task.await;
    fail::remove(format!("quantiles::{phase}"));
    took
}

#[test]
fn a_query_dropped_at_any_phase_ends_at_once_and_leaves_nothing() {
    alone(
        "failures::a_query_dropped_at_any_phase_ends_at_once_and_leaves_nothing",
        async {
            let scenario = FailScenario::setup();
            for shape in &SHAPES {
                let folder = TempDir::new().unwrap();
                let ctx = spilling_session(shape, folder.path());
                query(&ctx, &format!("SET quantiles.strategy = '{}'", shape.strategy))
                    .await
                    .unwrap();
                for phase in shape.phases {
                    // Other tests keep the processors busy: a query that ends at once does so in one of a few tries.
                    const AT_ONCE: Duration = Duration::from_millis(500);
                    let mut took = Duration::MAX;
                    for _ in 0..5 {
                        took = dropped_at(phase, shape, &ctx, folder.path()).await;
                        if took < AT_ONCE {
                            break;
                        }
                    }
                    assert!(took < AT_ONCE, "{phase} of {}: {took:?}", shape.sql);
                }
                assert!(!answer(&ctx, shape.sql).await.unwrap().is_empty());
            }
            scenario.teardown();
        },
    );
}

#[test]
fn every_place_that_may_fail_does_so_here() {
    fn places(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                places(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let calls = text.split("may_fail!(\"").skip(1);
            found.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    let mut found = Vec::new();
    places(&root().join("src"), &mut found);
    // A device's fail in `cuda`.
    found.retain(|place| !place.starts_with("cuda_"));
    let mut tested: Vec<&str> = SHAPES.iter().flat_map(|shape| shape.phases).copied().collect();
    found.sort_unstable();
    tested.sort_unstable();
    found.dedup();
    tested.dedup();
    assert_eq!(found, tested);
}
