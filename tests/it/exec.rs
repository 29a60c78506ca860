//! The operator under stress: errors, cancellation, memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::*;
use futures::StreamExt;

use quantiles_testing::*;

/// A partition that yields batches of 1000 rows and counts them: without end, or until an error.
#[derive(Debug)]
struct Source {
    schema: SchemaRef,
    fails_after: Option<u64>,
    batches: Arc<AtomicU64>,
    /// Shared by every stream that is alive.
    alive: Arc<()>,
}

impl PartitionStream for Source {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (schema, alive) = (Arc::clone(&self.schema), Arc::clone(&self.alive));
        let (batches, fails_after) = (Arc::clone(&self.batches), self.fails_after);
        let stream = futures::stream::unfold((0, alive), move |(i, alive)| {
            let (schema, batches) = (Arc::clone(&schema), Arc::clone(&batches));
            async move {
                tokio::task::yield_now().await;
                if fails_after == Some(i) {
                    return Some((
                        Err(exec_datafusion_err!("row group {i} is broken")),
                        (i + 1, alive),
                    ));
                }
                batches.fetch_add(1, Ordering::Relaxed);
                let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
                let batch = RecordBatch::try_new(schema, vec![values]).map_err(DataFusionError::from);
                Some((batch, (i + 1, alive)))
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream))
    }
}

/// Registers `endless` with three partitions, of which the second may fail.
fn endless(ctx: &SessionContext, fails_after: Option<u64>) -> (Arc<AtomicU64>, Arc<()>) {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
    let (batches, alive) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
    let partitions = (0..3).map(|partition| {
        Arc::new(Source {
            schema: Arc::clone(&schema),
            fails_after: fails_after.filter(|_| partition == 1),
            batches: Arc::clone(&batches),
            alive: Arc::clone(&alive),
        }) as Arc<dyn PartitionStream>
    });
    let table = StreamingTable::try_new(Arc::clone(&schema), partitions.collect()).unwrap();
    ctx.register_table("endless", Arc::new(table)).unwrap();
    (batches, alive)
}

/// Waits until only the sources themselves hold `alive`.
async fn streams_end(alive: &Arc<()>) {
    let start = Instant::now();
    // One here, one in each of the three sources.
    while Arc::strong_count(alive) > 4 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "streams are still alive"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_in_one_partition_ends_the_others() {
    let ctx = session(3);
    let (_, alive) = endless(&ctx, Some(50));
    let result = query(&ctx, "SELECT exact_quantiles(x, 0.5), count(*) FROM endless").await;
    let message = result.unwrap_err().strip_backtrace();
    assert_eq!(message, "Execution error: row group 50 is broken");
    streams_end(&alive).await;
    all_is_given_back(&ctx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_stream_ends_the_scan() {
    let ctx = session(3);
    let (batches, alive) = endless(&ctx, None);
    let df = ctx
        .sql("SELECT exact_quantiles(x, 0.5) FROM endless")
        .await
        .unwrap();
    let mut stream = df.execute_stream().await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), stream.next()).await;
    assert!(waited.is_err(), "an endless input has no answer");
    assert!(batches.load(Ordering::Relaxed) > 0 && Arc::strong_count(&alive) > 4);
    drop(stream);
    streams_end(&alive).await;
    let read = batches.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(batches.load(Ordering::Relaxed), read);
    all_is_given_back(&ctx).await;
}

fn random(n: usize) -> RecordBatch {
    let values = pseudo_random(n, 3).map(|r| Some(r as f64));
    let values: Float64Array = values.collect();
    batch(vec![("x", Arc::new(values) as ArrayRef)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_stream_ends_the_selection() {
    let ctx = session(2);
    register(&ctx, "t", &random(3_000_000), 2, 8192);
    let list: Vec<String> = (0..=1000).map(|q| (f64::from(q) / 1000.0).to_string()).collect();
    let sql = format!("SELECT exact_quantiles(x, [{}]) FROM t", list.join(", "));
    for millis in [1, 5, 20, 50] {
        // Kernels that still ran would hold their shards, and those their reservations.
        drop_ends_the_work(&ctx, &sql, millis).await;
    }
}

/// A session with so much memory.
fn limited(bytes: usize) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_limit(bytes, 1.0)
        .build_arc()
        .unwrap();
    let ctx = SessionContext::new_with_config_rt(SessionConfig::new().with_target_partitions(2), runtime);
    datafusion_quantiles::register_all(&ctx).unwrap();
    ctx
}

#[tokio::test]
async fn with_memory_enough_it_answers_and_gives_all_back() -> Result<()> {
    let ctx = limited(100_000_000);
    let rows_of_x = random(500_000);
    register(&ctx, "t", &rows_of_x, 2, 8192);
    let values: Vec<f64> = rows_of_x
        .column(0)
        .as_any()
        .downcast_ref::<Float64Array>()
        .unwrap()
        .values()
        .to_vec();
    let expected = by_sort(&values, 500).unwrap();
    let sql = format!("SELECT exact_quantiles(x, 0.5) = {expected:?} FROM t");
    assert_eq!(row(&ctx, &sql).await, "true");
    assert_eq!(ctx.runtime_env().memory_pool.reserved(), 0);
    Ok(())
}

#[tokio::test]
async fn a_plan_can_be_executed_again() {
    let ctx = session(2);
    register(&ctx, "t", &random(5000), 2, 512);
    let sql = "SELECT exact_quantiles(x, 0.5), count(*) FROM t";
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let once = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx())
        .await
        .unwrap();
    let again = datafusion::physical_plan::execution_plan::reset_plan_states(plan).unwrap();
    let twice = datafusion::physical_plan::collect(again, ctx.task_ctx())
        .await
        .unwrap();
    assert_eq!(once, twice);
}
