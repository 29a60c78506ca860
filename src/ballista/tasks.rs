//! Tasks that an executor has fetched from the scheduler, and which the scheduler may cancel.
//!
//! Ballista's executor serves calls of the scheduler only where tasks are pushed to it, in a server of its own that takes every caller.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::serde::protobuf::executor_grpc_server::ExecutorGrpc;
use ballista_core::serde::protobuf::{
    CancelTasksParams, CancelTasksResult, LaunchMultiTaskParams, LaunchMultiTaskResult, LaunchTaskParams,
    LaunchTaskResult, RemoveJobDataParams, RemoveJobDataResult, RuntimeStatsReport, ShuffleWritePartition,
    StopExecutorParams, StopExecutorResult, TaskColumnStats, WindowStateReport,
};
use ballista_executor::execution_engine::{DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor};
use datafusion::common::{Result, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::prelude::SessionConfig;
use futures::channel::oneshot::{Receiver, Sender, channel};
use futures::future::{Either, select};
use tonic::{Request, Response, Status};

use super::pool::Pool;
use crate::threads::locked;

/// The id of a job, the number of a stage in it, and the number of a task in the stage.
type TaskKey = (String, usize, usize);

/// The running tasks, each with the sender that cancels it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks {
    running: Arc<Mutex<HashMap<TaskKey, Sender<()>>>>,
}

impl Tasks {
    /// Calls `act` with the running tasks.
    fn with<T>(&self, act: impl FnOnce(&mut HashMap<TaskKey, Sender<()>>) -> T) -> T {
        act(&mut locked(&self.running))
    }

    /// Adds a running task until the returned [`Running`] is dropped. The receiver resolves when the task is cancelled.
    fn begin(&self, key: &TaskKey) -> (Running, Receiver<()>) {
        let (cancel, cancelled) = channel();
        self.with(|running| running.insert(key.clone(), cancel));
        let (tasks, key) = (self.clone(), key.clone());
        (Running { tasks, key }, cancelled)
    }

    /// Cancels a task, if it runs.
    fn cancel(&self, key: &TaskKey) {
        if let Some(cancel) = self.with(|running| running.remove(key)) {
            // The task may have ended by now.
            let _ = cancel.send(());
        }
    }
}

/// Removes a task from the running ones when it is dropped.
struct Running {
    tasks: Tasks,
    key: TaskKey,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.with(|running| running.remove(&self.key));
    }
}

/// Ballista's execution engine, with tasks that can be cancelled.
pub(super) struct Engine {
    engine: DefaultExecutionEngine,
    tasks: Tasks,
}

impl Engine {
    /// An engine that keeps idle connections to other executors for this time; with zero it keeps none.
    pub(super) fn new(tasks: Tasks, patience: Duration) -> Self {
        let engine = if patience.is_zero() {
            DefaultExecutionEngine::new()
        } else {
            DefaultExecutionEngine::with_client_pool(Arc::new(Pool::new(patience)))
        };
        Self { engine, tasks }
    }
}

impl ExecutionEngine for Engine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        partitions: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        folder: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let key = (job_id.to_string(), stage_id, task_id);
        let stage = self
            .engine
            .create_query_stage_exec(job_id, stage_id, task_id, partitions, plan, folder, config)?;
        let tasks = self.tasks.clone();
        Ok(Arc::new(Task { stage, tasks, key }))
    }
}

/// A task that can be cancelled.
#[derive(Debug)]
struct Task {
    stage: Arc<dyn QueryStageExecutor>,
    tasks: Tasks,
    key: TaskKey,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.stage, f)
    }
}

#[async_trait]
impl QueryStageExecutor for Task {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        let (_running, cancelled) = self.tasks.begin(&self.key);
        match select(self.stage.execute_query_stage(task_id, context), cancelled).await {
            Either::Left((written, _)) => written,
            Either::Right(_) => exec_err!("the task was cancelled"),
        }
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        self.stage.collect_plan_metrics()
    }

    fn collect_runtime_stats_reports(&self) -> Vec<RuntimeStatsReport> {
        self.stage.collect_runtime_stats_reports()
    }

    fn collect_window_state_reports(&self) -> Result<Vec<WindowStateReport>> {
        self.stage.collect_window_state_reports()
    }

    fn collect_column_stats(&self) -> Vec<TaskColumnStats> {
        self.stage.collect_column_stats()
    }
}

/// The service of an executor that fetches its tasks: it takes the scheduler's calls that cancel tasks, and refuses all others.
pub(super) struct CancelCalls(pub(super) Tasks);

/// The answer to calls that an executor which fetches its tasks does not take.
fn pulled<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented(
        "this executor fetches its tasks (pull-staged)",
    ))
}

#[async_trait]
impl ExecutorGrpc for CancelCalls {
    async fn cancel_tasks(
        &self,
        request: Request<CancelTasksParams>,
    ) -> Result<Response<CancelTasksResult>, Status> {
        for task in request.into_inner().task_infos {
            self.0
                .cancel(&(task.job_id, task.stage_id as usize, task.task_id as usize));
        }
        Ok(Response::new(CancelTasksResult { cancelled: true }))
    }

    async fn launch_task(&self, _: Request<LaunchTaskParams>) -> Result<Response<LaunchTaskResult>, Status> {
        pulled()
    }

    async fn launch_multi_task(
        &self,
        _: Request<LaunchMultiTaskParams>,
    ) -> Result<Response<LaunchMultiTaskResult>, Status> {
        pulled()
    }

    async fn stop_executor(
        &self,
        _: Request<StopExecutorParams>,
    ) -> Result<Response<StopExecutorResult>, Status> {
        pulled()
    }

    async fn remove_job_data(
        &self,
        _: Request<RemoveJobDataParams>,
    ) -> Result<Response<RemoveJobDataResult>, Status> {
        pulled()
    }
}
