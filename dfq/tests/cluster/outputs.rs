//! What stages write on a cluster is, to the byte, what the same plan gives in one process, whose replies unit tests compare
//! with those of simulated shards.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::UInt32Type;
use datafusion::arrow::ipc::reader::{FileReader, StreamReader};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::SessionContext;
use datafusion_quantiles::ballista::{scheduler_session, session_config};
use futures::TryStreamExt;

use crate::support::machines::{Process, free_port, query, register, session, write_parquet};
use crate::support::tables::rows;

/// A row between stages without groups: the class of groups, which is not set, and bytes.
type Row = (Option<u32>, Option<Vec<u8>>);

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let (class, body) = (
        batch.column(0).as_primitive::<UInt32Type>(),
        batch.column(1).as_binary::<i32>(),
    );
    let row = |row: usize| {
        (
            class.is_valid(row).then(|| class.value(row)),
            body.is_valid(row).then(|| body.value(row).to_vec()),
        )
    };
    (0..batch.num_rows()).map(row).collect()
}

/// Whether these are rows between stages, not answers.
fn is_between(batch: &RecordBatch) -> bool {
    batch.num_columns() == 2 && batch.schema().field(1).name() == "body"
}

/// The rows that stages left in the folders of executors.
fn written(folder: &Path, found: &mut Vec<Row>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            written(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "arrow") {
            let open = || std::fs::File::open(&path).unwrap();
            let batches: Vec<RecordBatch> = match FileReader::try_new(open(), None) {
                Ok(reader) => reader.map(Result::unwrap).collect(),
                Err(_) => StreamReader::try_new(open(), None)
                    .unwrap()
                    .map(Result::unwrap)
                    .collect(),
            };
            batches
                .iter()
                .filter(|batch| is_between(batch))
                .for_each(|batch| found.extend(rows_of(batch)));
        }
    }
}

/// The rows that the same stages give here.
async fn given(plan: &Arc<dyn ExecutionPlan>, ctx: &SessionContext) -> Vec<Row> {
    let mut stages = Vec::new();
    plan.apply(|node| {
        if ["RoundExec", "RefineExec"].contains(&node.name()) {
            stages.push(Arc::clone(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    let mut found = Vec::new();
    for stage in stages {
        // A scan that has run gives nothing again.
        let stage = reset_plan_states(stage).unwrap();
        for partition in 0..stage.output_partitioning().partition_count() {
            let stream = stage.execute(partition, ctx.task_ctx()).unwrap();
            let batches: Vec<_> = stream.try_collect().await.unwrap();
            batches
                .iter()
                .filter(|batch| is_between(batch))
                .for_each(|batch| found.extend(rows_of(batch)));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_write_what_they_give_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let table = write_parquet(folder.path(), "t", &rows(40_000, 12), 8);
    let sql = "SELECT exact_quantiles(x, [0.1, 0.5]), exact_quantiles(f, 0.9) FROM t";
    for strategy in ["gk_select", "distributed_bms", "dibms"] {
        let (work, port) = (tempfile::tempdir().unwrap(), free_port().to_string());
        let path = work.path().to_str().unwrap();
        let cluster = Process::start(
            &["cluster", "--attached", "--port", &port, "--work-dir", path],
            &[],
        );
        cluster.wait_for("is ready");
        let set = format!("SET quantiles.strategy = '{strategy}'");
        // Adaptive planning keeps the files of a query that has ended.
        let remote = session(&format!("df://127.0.0.1:{port}"), 8, true).await;
        let state = scheduler_session(session_config().with_target_partitions(8)).unwrap();
        let local = SessionContext::new_with_state(state);
        for ctx in [&remote, &local] {
            register(ctx, "t", &table).await;
            query(ctx, &set).await.unwrap();
            // Each partition reads files of its own, whichever is the first.
            query(
                ctx,
                "SET datafusion.execution.enable_file_stream_work_stealing = false",
            )
            .await
            .unwrap();
        }
        query(&remote, sql).await.unwrap();
        let mut on_cluster = Vec::new();
        written(work.path(), &mut on_cluster);
        let plan = local
            .sql(sql)
            .await
            .unwrap()
            .create_physical_plan()
            .await
            .unwrap();
        let mut here = given(&plan, &local).await;
        on_cluster.sort();
        here.sort();
        assert!(on_cluster.len() > 8 * 2, "{strategy}: {} rows", on_cluster.len());
        assert_eq!(on_cluster.len(), here.len(), "{strategy}");
        assert!(on_cluster == here, "{strategy}: stages differ");
    }
}
