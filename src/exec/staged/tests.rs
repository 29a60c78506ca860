//! Staged plans in one process: the messages that they send, and their answers.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::MemTable;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, UnboundedMemoryPool};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::TryStreamExt;

use super::fingerprint::READ_DIFFERENTLY;
use super::merge::merge_levels;
use super::merged::Merged;
use super::plan::gathered;
use super::rows::{Body, read_rows, schema};
use super::state::State;
use super::*;
use crate::config::QuantilesOptions;
use crate::config::StrategyName;
use crate::kernel::round::{Reply, Request};
use crate::kernel::{Backend, CpuBackend, Shard};
use crate::key::KeySpec;
use crate::planner::{QuantilesPlanner, SessionStateBuilderExt};
use crate::threads::Stop;
use crate::wire::Message;

/// A session that plans stages by a strategy, with these partitions as the column `x` of a table `t`.
fn session(partitions: &[ArrayRef], strategy: StrategyName) -> SessionContext {
    let options = QuantilesOptions {
        strategy,
        ..QuantilesOptions::default()
    };
    let config = SessionConfig::new()
        .with_target_partitions(partitions.len())
        .with_option_extension(options);
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_query_planner(Arc::new(QuantilesPlanner::staged()))
        .with_quantiles()
        .build();
    let ctx = SessionContext::new_with_state(state);
    let batch = |values: &ArrayRef| RecordBatch::try_from_iter([("x", Arc::clone(values))]).unwrap();
    let batches: Vec<_> = partitions.iter().map(|values| vec![batch(values)]).collect();
    let table = MemTable::try_new(batches[0][0].schema(), batches).unwrap();
    ctx.register_table("t", Arc::new(table)).unwrap();
    ctx
}

async fn planned(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

/// The nodes of one kind, in the order in which they run.
fn nodes<T: ExecutionPlan>(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let mut found = Vec::new();
    plan.apply(|node| {
        if node.is::<T>() {
            found.push(Arc::clone(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    found.reverse();
    found
}

/// The sum of a metric of some nodes.
fn metric(nodes: &[Arc<dyn ExecutionPlan>], name: &str) -> usize {
    let sums = nodes.iter().map(|node| {
        let metrics = node.metrics().unwrap();
        metrics.sum_by_name(name).map_or(0, |sum| sum.as_usize())
    });
    sums.sum()
}

/// A random number for each `i`, so that no value is like its neighbours.
fn mixed(i: u64) -> u64 {
    let i = (i ^ (i >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (i ^ (i >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A value of a distribution that is about log-normal: the exponential of a sum of uniform values.
fn skewed(i: u64) -> f64 {
    let parts = (0..4).map(|part| mixed(4 * i + part) as f64 / u64::MAX as f64);
    (3.0 * (parts.sum::<f64>() - 2.0)).exp()
}

fn dealt(n: u64, partitions: u64) -> Vec<ArrayRef> {
    let part = |part: u64| -> ArrayRef {
        let own = (part * n / partitions)..((part + 1) * n / partitions);
        Arc::new(Float64Array::from_iter_values(own.map(skewed)))
    };
    (0..partitions).map(part).collect()
}

fn bytes_of(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.write(&mut bytes);
    bytes
}

/// The replies of each partition of a round, and the request that they answer.
async fn replies(round: &Arc<dyn ExecutionPlan>, ctx: &SessionContext) -> (Vec<Reply>, Option<Arc<Request>>) {
    let (mut replies, mut asked) = (Vec::new(), None);
    for partition in 0..round.output_partitioning().partition_count() {
        let stream = round.execute(partition, ctx.task_ctx()).unwrap();
        let columns = &round.downcast_ref::<RoundExec>().unwrap().work().step.columns;
        let mut merged = Merged::new(columns);
        for batch in stream.try_collect::<Vec<_>>().await.unwrap() {
            merged.add(&batch).unwrap();
        }
        let state = merged.state().map(|bytes| State::from_bytes(bytes).unwrap());
        asked = state.and_then(|state| state.0[0].sent.as_ref().map(|sent| Arc::clone(&sent.request)));
        replies.push(merged.take(0).unwrap().1);
    }
    (replies, asked)
}

/// Shards with the same values as partitions.
fn shards(partitions: &[ArrayRef], spec: &KeySpec) -> Vec<Box<dyn Shard>> {
    let pool: Arc<dyn datafusion::execution::memory_pool::MemoryPool> =
        Arc::new(UnboundedMemoryPool::default());
    let backend = CpuBackend::new(pool.as_ref());
    let shards = partitions.iter().map(|values| {
        let reservation = MemoryConsumer::new("test").register(&pool);
        let mut shard = backend.open(spec, reservation).unwrap();
        shard.append(values, None).unwrap();
        shard
    });
    shards.collect()
}

#[tokio::test]
async fn replies_are_those_of_shards_to_the_byte() {
    let partitions = dealt(40_000, 8);
    for strategy in [
        StrategyName::GkSelect,
        StrategyName::DistributedBms,
        StrategyName::Dibms,
    ] {
        let ctx = session(&partitions, strategy);
        let plan = planned(&ctx, "SELECT exact_quantiles(x, [0.1, 0.5, 0.9]) FROM t").await;
        let rounds = nodes::<RoundExec>(&plan);
        let columns = Arc::clone(&rounds[0].downcast_ref::<RoundExec>().unwrap().work().step.columns);
        let mut shards = shards(&partitions, &columns.specs[0]);
        let mut compared = 0;
        for (read, round) in rounds.iter().enumerate() {
            let (replies, asked) = replies_or_done(round, &ctx).await;
            let request = match (read, asked) {
                (0, _) => Arc::new(columns.rounds.first_request(5000, columns.specs[0].width())),
                (_, Some(request)) => request,
                // All ranks are found.
                (_, None) => break,
            };
            let own = shards
                .iter_mut()
                .map(|shard| shard.answer(&request, &Stop::default()).unwrap());
            let own: Vec<_> = own.map(|reply| bytes_of(&reply)).collect();
            let sent: Vec<_> = replies.iter().map(bytes_of).collect();
            assert_eq!(sent, own, "{strategy}, read {read}: {}", request.name());
            compared += 1;
        }
        assert!(compared >= 2, "{strategy}: {compared} rounds");
    }
}

/// The replies as [`replies`] gives them; none for a round that has no request.
async fn replies_or_done(
    round: &Arc<dyn ExecutionPlan>,
    ctx: &SessionContext,
) -> (Vec<Reply>, Option<Arc<Request>>) {
    let own = round.downcast_ref::<RoundExec>().unwrap();
    if let Some(state) = own.children().get(1) {
        let rows = collect(Arc::clone(*state), ctx.task_ctx()).await.unwrap();
        let columns = &own.work().step.columns.specs;
        let Body::State(state) = read_rows(&rows[0], &schema(&[]), columns)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
        else {
            panic!("no state");
        };
        if State::from_bytes(state).unwrap().0[0].sent.is_none() {
            return (Vec::new(), None);
        }
    }
    replies(round, ctx).await
}

#[tokio::test]
async fn many_partitions_are_merged_up_a_tree() {
    // One partition is empty, one holds a value that all others have too.
    let value = |part: u64, row: u64| (mixed(part) as i64 >> 8) ^ (mixed(row) as i64 >> 40);
    let mut partitions: Vec<ArrayRef> = (0..300)
        .map(|part| Arc::new(Int64Array::from_iter_values((0..50).map(|row| value(part, row)))) as ArrayRef)
        .collect();
    partitions[7] = Arc::new(Int64Array::from_iter_values([]));
    partitions[8] = Arc::new(Int64Array::from_iter_values([5; 50]));
    let mut sorted: Vec<i64> = partitions
        .iter()
        .flat_map(|part| {
            part.as_primitive::<datafusion::arrow::datatypes::Int64Type>()
                .values()
                .to_vec()
        })
        .collect();
    sorted.sort_unstable();
    let n = sorted.len();
    for strategy in StrategyName::ALL {
        let ctx = session(&partitions, strategy);
        let plan = planned(
            &ctx,
            "SELECT exact_quantiles(x, [0, 0.25, 0.5, 1]), exact_quantiles(-x, 0) FROM t",
        )
        .await;
        let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        let list = found[0].column(0).as_list::<i32>().value(0);
        let list = list.as_primitive::<datafusion::arrow::datatypes::Int64Type>();
        let ranks = [1, n.div_ceil(4), n.div_ceil(2), n];
        assert_eq!(
            list.values().to_vec(),
            ranks.map(|rank| sorted[rank - 1]),
            "{strategy}"
        );
        let least = found[0]
            .column(1)
            .as_primitive::<datafusion::arrow::datatypes::Int64Type>();
        assert_eq!(least.value(0), -sorted[n - 1], "{strategy}");

        let (merges, refines) = (nodes::<MergeExec>(&plan), nodes::<RefineExec>(&plan));
        let reads = refines.len();
        assert_eq!(merges.len(), if reads == 2 { 1 } else { reads - 2 }, "{strategy}");
        for merge in &merges {
            // Each partition sends at least the state, or a reply.
            let rows = metric(std::slice::from_ref(merge), "input_rows");
            assert!(rows >= 300, "{strategy}: {rows} rows to merge");
        }
        // No task had the replies of all partitions, except where keys or samples are collected.
        let summed = refines
            .iter()
            .filter(|refine| refine.children()[0].children()[0].is::<MergeExec>());
        for refine in summed {
            let rows = metric(std::slice::from_ref(refine), "input_rows");
            // Three groups of two columns, the state, and the keys of few candidates.
            assert!(rows < 30, "{strategy}: {rows} rows");
        }
    }
}

/// Messages of 4 partitions, and of 16 partitions with four times as many values.
#[tokio::test]
async fn bytes_of_dibms_do_not_grow_with_the_table() {
    let many = (1..100).map(|q| format!("0.{q:02}")).collect::<Vec<_>>();
    for asked in [
        "0.5".to_string(),
        "0.99".to_string(),
        format!("[{}]", many.join(", ")),
    ] {
        let mut sent = Vec::new();
        for n in [2_500_000, 25_000_000] {
            let ctx = session(&dealt(n, 4), StrategyName::Dibms);
            let plan = planned(&ctx, &format!("SELECT exact_quantiles(x, {asked}) FROM t")).await;
            collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
            sent.push(metric(&nodes::<RoundExec>(&plan), "bytes_out"));
        }
        println!("{asked:.10}: {sent:?} bytes");
        assert!(
            sent[1] as f64 <= 1.125 * sent[0] as f64,
            "{asked:.10}: {sent:?} bytes"
        );
    }
}

/// A node with another input.
pub(super) fn reread(node: &Arc<dyn ExecutionPlan>, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let mode = datafusion::physical_plan::ChildrenPropertiesMode::Recompute;
    let options = datafusion::physical_plan::ReplaceChildrenOptions::new(mode);
    Arc::clone(node).replace_children(vec![input], options).unwrap()
}

/// Tasks between rounds reserve the memory that they hold: a pool that is too small is an error, and the memory is given back.
#[tokio::test]
async fn merged_replies_are_reserved() {
    let partitions = dealt(400_000, 300);
    let ctx = session(&partitions, StrategyName::GkSelect);
    let many: Vec<String> = (1..100).map(|q| format!("0.{q:02}")).collect();
    let plan = planned(
        &ctx,
        &format!("SELECT exact_quantiles(x, [{}]) FROM t", many.join(", ")),
    )
    .await;
    for node in nodes::<RefineExec>(&plan)
        .into_iter()
        .chain(nodes::<MergeExec>(&plan))
    {
        // An exchange runs once.
        let below = reset_plan_states(Arc::clone(node.children()[0])).unwrap();
        let mut rows = Vec::new();
        for partition in 0..below.output_partitioning().partition_count() {
            let stream = below.execute(partition, ctx.task_ctx()).unwrap();
            rows.extend(stream.try_collect::<Vec<_>>().await.unwrap());
        }
        let table = MemTable::try_new(below.schema(), vec![rows]).unwrap();
        let state = ctx.state();
        let scan = datafusion::catalog::TableProvider::scan(&table, &state, None, &[], None);
        let again = reread(&node, scan.await.unwrap());
        for (bytes, fits) in [(1 << 30, true), (1000, false)] {
            let pool = Arc::new(datafusion::execution::memory_pool::GreedyMemoryPool::new(bytes));
            let runtime = datafusion::execution::runtime_env::RuntimeEnvBuilder::new().with_memory_pool(pool);
            let runtime = runtime.build_arc().unwrap();
            let context = Arc::new(TaskContext::default().with_runtime(Arc::clone(&runtime)));
            let found = collect(Arc::clone(&again), context).await;
            assert_eq!(found.is_ok(), fits, "{}: {found:?}", node.name());
            if let Err(error) = found {
                assert!(error.to_string().contains("bytes wanted"), "{error}");
            }
            assert_eq!(runtime.memory_pool.reserved(), 0, "{}", node.name());
        }
    }
}

#[tokio::test]
async fn explain_says_what_auto_took_and_with_how_many_reads() {
    let partitions = dealt(1000, 4);
    for (strategy, shown) in [
        (StrategyName::Auto, "strategy=gk_select (auto), reads=2"),
        (StrategyName::GkSelect, "strategy=gk_select, reads=2"),
        (StrategyName::SampleSelect, "strategy=gk_select, reads=2"),
        (StrategyName::DistributedBms, "strategy=distributed_bms, reads=3"),
        (StrategyName::Dibms, "strategy=dibms, reads=5"),
    ] {
        let ctx = session(&partitions, strategy);
        let plan = planned(&ctx, "SELECT exact_quantiles(x, 0.5) FROM t").await;
        let text = datafusion::physical_plan::displayable(plan.as_ref())
            .indent(true)
            .to_string();
        assert!(text.contains(shown), "no {shown} in\n{text}");
        let reads = nodes::<RoundExec>(&plan).len();
        assert!(
            shown.ends_with(&format!("reads={reads}")),
            "{reads} reads of {shown}"
        );
    }
}

#[test]
fn no_task_merges_more_than_the_fan_in() {
    let levels = |partitions| merge_levels(partitions).collect::<Vec<_>>();
    assert!(levels(1).is_empty() && levels(256).is_empty());
    assert_eq!(levels(257), [3]);
    assert_eq!(levels(300), [3]);
    assert_eq!(levels(32_768), [256]);
    assert_eq!(levels(32_769), [257, 3]);
    assert_eq!(levels(1_000_000), [7813, 62]);
}

/// Rows that the first read misses, or sees twice, are an error even where it finds all answers.
#[tokio::test]
async fn a_second_read_is_compared_where_nothing_is_asked_any_more() {
    let five = |rows: usize| Arc::new(Int64Array::from_iter_values(vec![5; rows])) as ArrayRef;
    let scans = |partitions: &[ArrayRef]| {
        let batches = partitions.iter().map(|values| {
            let batch = RecordBatch::try_from_iter([("x", Arc::clone(values))]).unwrap();
            vec![batch]
        });
        let batches: Vec<_> = batches.collect();
        let schema = batches[0][0].schema();
        datafusion::datasource::memory::MemorySourceConfig::try_new_exec(&batches, schema, None).unwrap()
    };
    let ctx = session(&[five(10), five(20)], StrategyName::GkSelect);
    let sql = "SELECT exact_quantiles(x, 0.5) FROM t";
    for (first, fails) in [
        (vec![five(10), five(20)], false),
        (vec![five(0), five(0)], true),
        (vec![five(10), five(0)], true),
        (vec![five(20), five(20)], true),
    ] {
        let plan = planned(&ctx, sql).await;
        let changed = plan
            .transform_up(|node| {
                let is_first = node
                    .downcast_ref::<RoundExec>()
                    .is_some_and(|round| round.children().len() == 1);
                Ok(if is_first {
                    Transformed::yes(reread(&node, scans(&first)))
                } else {
                    Transformed::no(node)
                })
            })
            .unwrap();
        let found = collect(changed.data, ctx.task_ctx()).await;
        assert_eq!(found.is_err(), fails, "{found:?}");
        if let Err(error) = found {
            assert!(error.to_string().contains(READ_DIFFERENTLY), "{error}");
        }
    }
}

/// After a device failed, the CPU reads the same files again, even if other partitions read theirs meanwhile.
#[tokio::test]
async fn a_partition_of_files_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    for file in 0..3 {
        std::fs::write(folder.path().join(format!("{file}.csv")), format!("x\n{file}\n")).unwrap();
    }
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(3));
    let sql = format!(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{}/'",
        folder.path().display()
    );
    ctx.sql(&sql).await.unwrap().collect().await.unwrap();
    let plan = planned(&ctx, "SELECT x FROM t").await;
    assert_eq!(plan.output_partitioning().partition_count(), 3);
    let context = round::without_work_stealing(&ctx.task_ctx());
    let read = async |partition| {
        let stream = plan.execute(partition, Arc::clone(&context)).unwrap();
        let batches: Vec<_> = stream.try_collect().await.unwrap();
        datafusion::arrow::util::pretty::pretty_format_batches(&batches)
            .unwrap()
            .to_string()
    };
    let first = read(0).await;
    assert_eq!(first.lines().count(), 5, "one row: {first}");
    assert_ne!(read(1).await, first);
    assert_eq!(read(0).await, first);
}

/// A scan of a plan's rows, `copies` times.
async fn delivered(
    plan: &Arc<dyn ExecutionPlan>,
    copies: usize,
    ctx: &SessionContext,
) -> Arc<dyn ExecutionPlan> {
    let rows = collect(Arc::clone(plan), ctx.task_ctx()).await.unwrap();
    scanned(&vec![rows; copies], plan)
}

/// A scan of partitions that a plan gave.
fn scanned(partitions: &[Vec<RecordBatch>], plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let scan =
        datafusion::datasource::memory::MemorySourceConfig::try_new_exec(partitions, plan.schema(), None);
    gathered(scan.unwrap())
}

/// Aggregates beside staged quantiles also fail if one of their states comes twice.
#[tokio::test]
async fn aggregates_beside_stages_are_merged_once() {
    use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
    let ctx = session(&dealt(1000, 2), StrategyName::GkSelect);
    for (rest, expected) in [
        ("count(*), max(x)", None),
        ("count(*), min(x)", Some("1000")),
        ("array_agg(x)", None),
        ("count(DISTINCT x)", None),
    ] {
        let sql = format!("SELECT exact_quantiles(x, 0.5), {rest} FROM t");
        let plan = planned(&ctx, &sql).await;
        assert_eq!(nodes::<RefineExec>(&plan).len(), 2, "{sql}");
        let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        assert_eq!(found[0].num_columns(), 1 + rest.matches('(').count(), "{sql}");
        if let Some(count) = expected {
            let shown = datafusion::arrow::util::display::array_value_to_string(found[0].column(1), 0);
            assert_eq!(shown.unwrap(), count, "{sql}");
        }
        let last = nodes::<AggregateExec>(&plan).into_iter().rfind(|node| {
            let aggregate = node.downcast_ref::<AggregateExec>().unwrap();
            matches!(aggregate.mode(), AggregateMode::Final)
        });
        let last = last.unwrap_or_else(|| panic!("{sql}: no merged states"));
        for copies in [1, 2] {
            let states = reset_plan_states(Arc::clone(last.children()[0])).unwrap();
            let again = reread(&last, delivered(&states, copies, &ctx).await);
            let merged = collect(again, ctx.task_ctx()).await;
            match copies {
                1 => drop(merged.unwrap()),
                _ => {
                    let error = merged.unwrap_err().to_string();
                    assert!(error.contains("delivered twice"), "{sql}: {error}");
                }
            }
        }
    }
}

/// First rows, and the top k of few and many groups, fail if the rows of one partition come twice.
#[tokio::test]
async fn rows_of_a_partial_step_are_merged_once() {
    use crate::exec::{GroupedTopKExec, SortLimitExec};
    let ctx = session(&dealt(20_000, 2), StrategyName::GkSelect);
    let set = "SET datafusion.optimizer.enable_round_robin_repartition = false";
    ctx.sql(set).await.unwrap().collect().await.unwrap();
    let numbered = |groups: &str| {
        let number = format!("row_number() OVER (PARTITION BY {groups} ORDER BY x)");
        format!("SELECT x FROM (SELECT x, {number} AS r FROM t) WHERE r <= 2")
    };
    for (sql, expected) in [
        ("SELECT x FROM t ORDER BY x LIMIT 5".to_owned(), 5),
        ("SELECT x FROM t ORDER BY x DESC LIMIT 30000".to_owned(), 20_000),
        (numbered("x > 1"), 4),
        (numbered("CAST(x * 1e9 AS BIGINT)"), 20_000),
        (
            "SELECT DISTINCT ON (x > 1) x FROM t ORDER BY x > 1, x".to_owned(),
            2,
        ),
    ] {
        let plan = planned(&ctx, &sql).await;
        let steps = [nodes::<SortLimitExec>(&plan), nodes::<GroupedTopKExec>(&plan)].concat();
        let [partial, last] = steps.as_slice() else {
            panic!("{sql}: {} steps", steps.len())
        };
        let rows = |partition| {
            let stream = partial.execute(partition, ctx.task_ctx()).unwrap();
            stream.try_collect::<Vec<_>>()
        };
        let parts = [rows(0).await.unwrap(), rows(1).await.unwrap()];
        let columns = last.schema().fields().len();
        for (delivery, twice) in [(vec![0, 1], false), (vec![1, 0, 1], true), (vec![0, 0, 1], true)] {
            let parts: Vec<_> = delivery.iter().map(|part| parts[*part].clone()).collect();
            let again = reread(last, scanned(&parts, partial));
            match (collect(again, ctx.task_ctx()).await, twice) {
                (Ok(batches), false) => {
                    let found: usize = batches.iter().map(RecordBatch::num_rows).sum();
                    assert_eq!(found, expected, "{sql}");
                    assert!(
                        batches.iter().all(|batch| batch.num_columns() == columns),
                        "{sql}"
                    );
                }
                (Err(error), true) => {
                    let error = error.to_string();
                    assert!(error.contains("delivered twice"), "{sql}: {error}");
                }
                (found, _) => panic!("{sql}: {delivery:?} gives {found:?}"),
            }
        }
    }
}
