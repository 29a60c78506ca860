//! Stages of groups in one process: their messages, too many groups, and the errors that they detect.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int32Array, Int64Array, StringArray};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::TryStreamExt;

use super::super::fingerprint::{ColumnFingerprint, READ_DIFFERENTLY};
use super::*;
use crate::config::QuantilesOptions;
use crate::config::StrategyName;
use crate::key::finalised;
use crate::planner::{QuantilesPlanner, SessionStateBuilderExt};

/// Partitions of group columns `k` and `s` (text) and value columns `x` and `f` (floats), some of them NULL.
fn partitions(rows: u64, groups: u64, partitions: u64) -> Vec<Vec<RecordBatch>> {
    let part = |part: u64| {
        let own: Vec<u64> = (0..rows).filter(|row| row % partitions == part).collect();
        let of = |salt: u64| own.iter().map(move |row| finalised(row * 5 + salt));
        let group: Vec<i32> = of(0).map(|bits| (bits % groups) as i32 - 7).collect();
        let texts = group
            .iter()
            .map(|group| (group % 9 != 0).then(|| format!("group {group}")));
        let k = group.iter().map(|group| (group % 11 != 0).then_some(*group));
        // The values of groups lie apart; some groups have one value only.
        let x = of(1).zip(&group).map(|(bits, group)| match group % 4 {
            0 => 5,
            1 => (i64::from(*group) << 40) + (bits % 1000) as i64,
            _ => bits as i64,
        });
        let f = of(2).map(|bits| (bits % 50 != 0).then(|| (bits >> 40) as f64 / 7.0));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("k", Arc::new(k.collect::<Int32Array>())),
            ("s", Arc::new(texts.collect::<StringArray>())),
            ("x", Arc::new(x.collect::<Int64Array>())),
            ("f", Arc::new(f.collect::<Float64Array>())),
        ];
        let nullable = columns.into_iter().map(|(name, array)| (name, array, true));
        vec![RecordBatch::try_from_iter_with_nullable(nullable).unwrap()]
    };
    (0..partitions).map(part).collect()
}

/// A session with the table `t`, in a pool of this many bytes. It plans stages, or the operators of one process.
fn session(table: &[Vec<RecordBatch>], staged: bool, pool: usize) -> SessionContext {
    let options = QuantilesOptions {
        strategy: StrategyName::GkSelect,
        ..QuantilesOptions::default()
    };
    let config = SessionConfig::new()
        .with_target_partitions(table.len())
        .with_option_extension(options);
    let pool = Arc::new(GreedyMemoryPool::new(pool));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .build_arc()
        .unwrap();
    let planner = if staged {
        QuantilesPlanner::staged()
    } else {
        QuantilesPlanner::new()
    };
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_query_planner(Arc::new(planner))
        .with_quantiles()
        .build();
    let ctx = SessionContext::new_with_state(state);
    let memory = MemTable::try_new(table[0][0].schema(), table.to_vec()).unwrap();
    ctx.register_table("t", Arc::new(memory)).unwrap();
    ctx
}

const ROOMY: usize = 1 << 40;

async fn planned(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

/// The sorted rows of an answer, as text.
fn sorted(batches: &[RecordBatch]) -> Vec<String> {
    let shown = |column: &ArrayRef, row| {
        datafusion::arrow::util::display::array_value_to_string(column.as_ref(), row).unwrap()
    };
    let mut rows = Vec::new();
    for batch in batches {
        let row = |row| {
            let values = batch.columns().iter().map(|column| shown(column, row));
            values.collect::<Vec<_>>().join(" | ")
        };
        rows.extend((0..batch.num_rows()).map(row));
    }
    rows.sort();
    rows
}

fn stage_nodes(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let mut found = Vec::new();
    plan.apply(|node| {
        if node.is::<GroupStageExec>() {
            found.push(Arc::clone(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    found
}

fn stage(plan: &Arc<dyn ExecutionPlan>, step: GroupStage) -> Arc<dyn ExecutionPlan> {
    let is_it = |node: &&Arc<dyn ExecutionPlan>| {
        node.downcast_ref::<GroupStageExec>()
            .is_some_and(|stage| stage.work().step.stage == step)
    };
    Arc::clone(stage_nodes(plan).iter().find(is_it).unwrap())
}

fn metric(node: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    node.metrics()
        .unwrap()
        .sum_by_name(name)
        .map_or(0, |sum| sum.as_usize())
}

const SQL: &str = "SELECT k, exact_quantiles(x, [0, 0.1, 0.5, 1]), exact_quantiles(f, 0.5, 'linear'), \
    exact_quantiles(f, 0.25) FILTER (WHERE x > 0) FROM t GROUP BY k";

#[tokio::test]
async fn answers_are_those_of_one_process() {
    for (rows, groups, parts) in [
        (0, 1, 3),
        (1, 1, 1),
        (500, 40, 4),
        (60_000, 30, 3),
        (60_000, 3, 16),
    ] {
        let table = partitions(rows, groups, parts);
        let (one, staged) = (session(&table, false, ROOMY), session(&table, true, ROOMY));
        for sql in [
            SQL,
            &SQL.replace('k', "s"),
            "SELECT k, s, x % 3, exact_quantiles(x, 0.9) FROM t GROUP BY k, s, x % 3",
        ] {
            let expected = collect(planned(&one, sql).await, one.task_ctx()).await.unwrap();
            let plan = planned(&staged, sql).await;
            assert_eq!(
                stage_nodes(&plan).len(),
                4,
                "{}",
                displayable(plan.as_ref()).indent(false)
            );
            let found = collect(Arc::clone(&plan), staged.task_ctx()).await.unwrap();
            assert_eq!(
                sorted(&found),
                sorted(&expected),
                "{sql}: {rows} rows, {groups} groups, {parts} partitions"
            );
        }
        assert_eq!(staged.runtime_env().memory_pool.reserved(), 0);
    }
}

/// More groups than have brackets: all keys are sent, with the same plan.
#[tokio::test]
async fn too_many_groups_are_answered_too() {
    for (sql, parts) in [
        (
            "SELECT k, exact_quantiles(x, [0.5, 1]), exact_quantiles(f, 0.5) FROM t GROUP BY k",
            4,
        ),
        // A partition notices it.
        (
            "SELECT k, exact_quantiles(x, [0.5, 1]), exact_quantiles(f, 0.5) FROM t GROUP BY k",
            1,
        ),
        ("SELECT s, k, exact_quantiles(f, 0.3) FROM t GROUP BY s, k", 2),
    ] {
        let table = partitions(160_000, 90_000, parts);
        let (one, staged) = (session(&table, false, ROOMY), session(&table, true, ROOMY));
        let expected = collect(planned(&one, sql).await, one.task_ctx()).await.unwrap();
        let plan = planned(&staged, sql).await;
        let found = collect(Arc::clone(&plan), staged.task_ctx()).await.unwrap();
        assert_eq!(sorted(&found), sorted(&expected), "{sql}");
        // There are headers of classes, and no rows of groups.
        let brackets = stage(&plan, GroupStage::Brackets);
        assert!(
            metric(&brackets, "rows_out") <= 64,
            "{sql}: {}",
            metric(&brackets, "rows_out")
        );
    }
}

/// The bytes that groups send: groups of random keys, and groups whose keys lie apart.
#[tokio::test]
async fn few_percent_of_the_keys_travel() {
    let rows = 1_500_000;
    let table = partitions(rows, 100, 8);
    let staged = session(&table, true, ROOMY);
    for (sql, most) in [
        ("SELECT k, exact_quantiles(x, 0.5) FROM t GROUP BY k", 8),
        (
            "SELECT k, exact_quantiles(f, [0.25, 0.5, 0.99]) FROM t GROUP BY k",
            12,
        ),
    ] {
        let plan = planned(&staged, sql).await;
        collect(Arc::clone(&plan), staged.task_ctx()).await.unwrap();
        let sent: Vec<usize> = stage_nodes(&plan)
            .iter()
            .map(|node| metric(node, "bytes_out"))
            .collect();
        println!("{sql}: {sent:?} bytes");
        let share = 100 * sent.iter().sum::<usize>() / (8 * rows as usize);
        assert!(share < most, "{sql}: {share}% of the keys, {sent:?}");
    }
}

/// Where the pool is too small for a partition's keys, they are counted in pieces, or all sent, or the query is an error.
#[tokio::test]
async fn little_memory_makes_no_wrong_answer() {
    let table = partitions(200_000, 50, 2);
    let one = session(&table, false, ROOMY);
    let expected = sorted(&collect(planned(&one, SQL).await, one.task_ctx()).await.unwrap());
    let mut ends = Vec::new();
    for pool in [
        20_000,
        200_000,
        600_000,
        1_500_000,
        3_000_000,
        6_000_000,
        100_000_000,
    ] {
        let staged = session(&table, true, pool);
        match collect(planned(&staged, SQL).await, staged.task_ctx()).await {
            Ok(found) => {
                assert_eq!(sorted(&found), expected, "{pool} bytes");
                ends.push(true);
            }
            Err(error) => {
                let root = error.find_root();
                assert!(
                    matches!(root, DataFusionError::ResourcesExhausted(_)),
                    "{pool} bytes: {error}"
                );
                ends.push(false);
            }
        }
    }
    println!("{ends:?}");
    assert!(!ends[0] && ends[6], "{ends:?}");
}

/// The rows of the second read, partition by partition.
async fn extracted(plan: &Arc<dyn ExecutionPlan>, ctx: &SessionContext) -> Vec<Vec<RecordBatch>> {
    let extract = stage(plan, GroupStage::Extract);
    let mut found = Vec::new();
    for partition in 0..extract.output_partitioning().partition_count() {
        let stream = extract.execute(partition, ctx.task_ctx()).unwrap();
        found.push(stream.try_collect().await.unwrap());
    }
    found
}

/// The answers that one machine selects from rows.
async fn selected(
    plan: &Arc<dyn ExecutionPlan>,
    rows: Vec<RecordBatch>,
    ctx: &SessionContext,
) -> Result<Vec<RecordBatch>> {
    let select = stage(plan, GroupStage::Select);
    let schema = select.children()[0].schema();
    let table = MemTable::try_new(schema, vec![rows]).unwrap();
    let input = datafusion::catalog::TableProvider::scan(&table, &ctx.state(), None, &[], None)
        .await
        .unwrap();
    collect(super::super::tests::reread(&select, input), ctx.task_ctx()).await
}

#[tokio::test]
async fn what_is_lost_or_came_twice_is_noticed() {
    // Few groups, and too many.
    for groups in [20, 150_000] {
        let table = partitions(100_000, groups, 4);
        let staged = session(&table, true, ROOMY);
        let sql = "SELECT k, exact_quantiles(x, 0.5) FROM t GROUP BY k";
        let plan = planned(&staged, sql).await;
        let parts = extracted(&plan, &staged).await;
        let whole = selected(&plan, parts.concat(), &staged).await.unwrap();
        let expected = collect(planned(&staged, sql).await, staged.task_ctx())
            .await
            .unwrap();
        assert_eq!(sorted(&whole), sorted(&expected));
        let error = |rows: Vec<RecordBatch>| {
            let (plan, staged) = (&plan, &staged);
            async move { selected(plan, rows, staged).await.unwrap_err().to_string() }
        };
        for part in 0..parts.len() {
            let mut lost = parts.clone();
            lost.remove(part);
            let error_lost = error(lost.concat()).await;
            assert!(error_lost.contains(READ_DIFFERENTLY), "{error_lost}");
            let mut twice = parts.clone();
            twice.push(parts[part].clone());
            let error_twice = error(twice.concat()).await;
            assert!(error_twice.contains(READ_DIFFERENTLY), "{error_twice}");
        }
        // As many rows of the same groups, one of them with another value.
        let mut changed = partitions(100_000, groups, 4);
        let columns = changed[2][0].columns();
        let x = Int64Array::from_iter(
            columns[2]
                .as_any()
                .downcast_ref::<Int64Array>()
                .unwrap()
                .iter()
                .enumerate()
                .map(|(row, x)| if row == 17 { x.map(|x| x ^ 1) } else { x }),
        );
        let columns = vec![
            columns[0].clone(),
            columns[1].clone(),
            Arc::new(x),
            columns[3].clone(),
        ];
        changed[2] = vec![RecordBatch::try_new(changed[2][0].schema(), columns).unwrap()];
        let other = session(&changed, true, ROOMY);
        let other_plan = planned(&other, sql).await;
        let mut mixed = parts.clone();
        mixed[2] = extracted(&other_plan, &other).await.remove(2);
        let error_mixed = error(mixed.concat()).await;
        assert!(error_mixed.contains(READ_DIFFERENTLY), "{error_mixed}");
    }
}

#[tokio::test]
async fn auto_reads_small_tables_once_and_says_what_it_took() {
    let table = partitions(1000, 5, 4);
    let ctx = session(&table, true, ROOMY);
    let shown = async || {
        displayable(planned(&ctx, SQL).await.as_ref())
            .indent(false)
            .to_string()
    };
    let named = shown().await;
    assert!(
        named.contains("GroupStageExec: select, gby=[g0], columns=3, reads=2\n"),
        "{named}"
    );
    ctx.sql("SET quantiles.strategy = 'auto'")
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let auto = shown().await;
    assert!(
        !auto.contains("GroupStageExec") && auto.contains("AggregateExec: mode=Partial"),
        "{auto}"
    );
}

/// Values that change places between two groups of one class, in different hash partitions.
#[test]
fn values_that_change_places_between_groups_are_noticed() {
    use super::classes::{class_of, of_part};
    use crate::key::mixed;
    let (one, other) = (5, 5 + 64);
    assert_eq!(class_of(one), class_of(other));
    let class = |first: u128, second: u128| {
        let mut read = ColumnFingerprint::default();
        for (part, key) in [(one, first), (other, second)] {
            read.add(of_part(
                ColumnFingerprint {
                    n: 1,
                    check: mixed(key),
                },
                part,
            ));
        }
        read
    };
    assert_ne!(class(70, 90), class(90, 70));
    // The sum of the rows' fingerprints is the fingerprint of the group.
    let sum = ColumnFingerprint {
        n: 2,
        check: mixed(70).wrapping_add(mixed(90)),
    };
    let mut rows = of_part(
        ColumnFingerprint {
            n: 1,
            check: mixed(90),
        },
        one,
    );
    rows.add(of_part(
        ColumnFingerprint {
            n: 1,
            check: mixed(70),
        },
        one,
    ));
    assert_eq!(rows, of_part(sum, one));
}
