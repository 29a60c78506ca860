//! Order statistics of a column of values without keys: memory for the rounds, then the rounds.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};

use super::room::{Columns, Wanting, make_room};
use super::scan::Kept;
use crate::config::StrategyName;
use crate::kernel::CpuBackend;
use crate::kernel::values::Values;
use crate::key::{ByteSpec, Width};
use crate::memory::Workspace;
use crate::quantile::Ask;
use crate::select::by_value::{ValueSelection, ValueSolution};
use crate::select::choose::Plan;
use crate::threads::Stop;
use crate::threads::ThreadPool;

/// What selections of one execution work with.
pub(super) struct ValueSolver {
    pub(super) strategy: StrategyName,
    /// Threads that work on one column at a time.
    pub(super) threads: usize,
    pub(super) memory: MemoryReservation,
    pub(super) pool: Arc<dyn MemoryPool>,
    pub(super) backend: CpuBackend,
    /// What the rounds work in.
    pub(super) workspace: Arc<Workspace>,
}

impl ValueSolver {
    /// In the pool of `context`, on the account of the consumer of `memory`.
    pub(super) fn new(strategy: StrategyName, memory: MemoryReservation, context: &TaskContext) -> Self {
        let workspace = Workspace::new(memory.new_empty());
        Self {
            strategy,
            threads: context.session_config().target_partitions(),
            pool: Arc::clone(context.memory_pool()),
            backend: CpuBackend::in_workspace(&context.runtime_env(), Arc::clone(&workspace)),
            memory,
            workspace,
        }
    }

    /// What `asks` want of one of some columns; with `distinct`, of its distinct values. What was kept of the others comes
    /// back.
    ///
    /// # Errors
    /// `ResourcesExhausted` where there is not even the least memory, or the disk is full; those of the rounds.
    pub(super) async fn solve(
        &self,
        mut columns: Columns,
        column: usize,
        distinct: bool,
        asks: &[&Ask],
    ) -> Result<(Columns, ValueSolution)> {
        if distinct {
            let (others, plan, spec, values) = self.take(columns, column).await?;
            let distinct = self.selection(&plan).distinct(Values::merged(values)).await?;
            let kept = |values| Kept::Bytes(spec.clone(), Box::new(values));
            columns = others;
            columns[column] = distinct.into_iter().map(kept).collect();
        }
        let (columns, plan, _, values) = self.take(columns, column).await?;
        let solution = self.selection(&plan).solve(Values::merged(values), asks).await?;
        // Others want memory now.
        self.workspace.set_aside(0)?;
        Ok((columns, solution))
    }

    /// Makes room for rounds over a column, and takes its values out.
    async fn take(&self, columns: Columns, column: usize) -> Result<(Columns, Plan, ByteSpec, Vec<Values>)> {
        let reading = columns[column].iter().map(Kept::reading_bytes);
        let wanting = Wanting {
            n: columns[column].iter().map(Kept::len).sum(),
            width: Width::W128,
            distinct: false,
            each: reading.max().unwrap_or(0) + ValueSelection::THREAD_BYTES,
            free: ValueSelection::LANE_BYTES,
        };
        let pool = self.pool.as_ref();
        let (mut columns, plan) = make_room(columns, wanting, self.threads, pool, &self.workspace).await?;
        let (mut spec, mut values) = (None, Vec::new());
        for kept in std::mem::take(&mut columns[column]) {
            if let Kept::Bytes(of, own) = kept {
                spec = Some(of);
                values.push(*own);
            }
        }
        let spec = spec.ok_or_else(|| internal_datafusion_err!("no values were kept"))?;
        Ok((columns, plan, spec, values))
    }

    fn selection(&self, plan: &Plan) -> ValueSelection {
        ValueSelection {
            backend: Arc::new(self.backend.clone()),
            strategy: self.strategy,
            pool: ThreadPool::new(plan.threads, Stop::default()),
            memory: self.memory.new_empty(),
            workspace: Arc::clone(&self.workspace),
            room: plan.room,
            disk: self.backend.disk(),
        }
    }
}
