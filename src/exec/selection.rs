//! Order statistics of one column of an execution: memory for the rounds, then the rounds.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};

use super::aggregate::KeyColumn;
use super::round_memory::{Columns, Wanting, reserve_for_rounds};
use super::scan::Kept;
use crate::config::StrategyName;
use crate::kernel::CpuBackend;
use crate::kernel::byte_strings::ByteStrings;
use crate::key::{ByteSpec, Width};
use crate::memory::RoundMemory;
use crate::quantile::QuantileSpec;
use crate::select::byte_strings::{ByteStringSelection, ByteStringSolution};
use crate::select::choose::Plan;
use crate::select::distinct::solve_distinct;
use crate::select::splitters::nearest_splitters;
use crate::select::{LocalShards, Solution, solve};
use crate::threads::{Stop, ThreadPool};

/// What selections of one execution work with.
pub(super) struct SelectionContext {
    pub(super) strategy: StrategyName,
    /// Threads that work on one column at a time.
    pub(super) threads: usize,
    pub(super) memory: MemoryReservation,
    pub(super) pool: Arc<dyn MemoryPool>,
    pub(super) backend: CpuBackend,
    /// What the rounds work in.
    pub(super) round_memory: Arc<RoundMemory>,
}

impl SelectionContext {
    /// In the pool of `context`, on the account of the consumer of `memory`.
    pub(super) fn new(strategy: StrategyName, memory: MemoryReservation, context: &TaskContext) -> Self {
        let round_memory = RoundMemory::new(memory.new_empty());
        Self {
            strategy,
            threads: context.session_config().target_partitions(),
            pool: Arc::clone(context.memory_pool()),
            backend: CpuBackend::in_workspace(&context.runtime_env(), Arc::clone(&round_memory)),
            memory,
            round_memory,
        }
    }

    /// What `quantile_specs` want of one of some columns, which is of keys as `of` says. What was kept of the others comes back.
    ///
    /// # Errors
    /// `ResourcesExhausted` where there is not even the least memory, or the disk is full; those of the rounds.
    pub(super) async fn solve_keys(
        &self,
        columns: Columns,
        column: usize,
        of: &KeyColumn,
        quantile_specs: &[&QuantileSpec],
    ) -> Result<(Columns, Solution)> {
        let wanting = Wanting {
            n: columns[column].iter().map(Kept::len).sum(),
            width: of.spec.width(),
            distinct: of.distinct,
            each: 0,
            free: 0,
        };
        let (columns, plan, own) = self.take(columns, column, wanting).await?;
        let shards = own.into_iter().filter_map(|kept| match kept {
            Kept::Keys(shard) => Some(shard),
            _ => None,
        });
        // Dropping the shards, be it with this future, stops their kernels: a flag for each column.
        let mut shards = LocalShards::new(of.spec.width(), shards.collect(), plan.threads, Stop::default())
            .within(plan.budget, Arc::clone(&self.round_memory));
        let solution = match of.buckets {
            _ if of.distinct => {
                solve_distinct(
                    &mut shards,
                    &ThreadPool::new(plan.threads, Stop::default()),
                    quantile_specs,
                )
                .await?
            }
            Some(buckets) => nearest_splitters(&mut shards, buckets, quantile_specs).await?,
            None => solve(&mut shards, self.strategy, quantile_specs).await?,
        };
        Ok((columns, solution))
    }

    /// The same of a column of byte strings; with `distinct`, of its distinct values.
    ///
    /// # Errors
    /// As for [`Self::solve_keys`].
    pub(super) async fn solve_byte_strings(
        &self,
        mut columns: Columns,
        column: usize,
        distinct: bool,
        quantile_specs: &[&QuantileSpec],
    ) -> Result<(Columns, ByteStringSolution)> {
        if distinct {
            let (others, plan, spec, values) = self.take_byte_strings(columns, column).await?;
            let distinct = self.selection(&plan).distinct(values).await?;
            let kept = |values| Kept::Bytes(spec.clone(), Box::new(values));
            columns = others;
            columns[column] = distinct.into_iter().map(kept).collect();
        }
        let (columns, plan, _, values) = self.take_byte_strings(columns, column).await?;
        let solution = self.selection(&plan).solve(values, quantile_specs).await?;
        // Others want memory now.
        self.round_memory.set_aside(0)?;
        Ok((columns, solution))
    }

    async fn take_byte_strings(
        &self,
        columns: Columns,
        column: usize,
    ) -> Result<(Columns, Plan, ByteSpec, ByteStrings)> {
        let reading = columns[column].iter().map(Kept::reading_bytes);
        let wanting = Wanting {
            n: columns[column].iter().map(Kept::len).sum(),
            width: Width::W128,
            distinct: false,
            each: reading.max().unwrap_or(0) + ByteStringSelection::THREAD_BYTES,
            free: ByteStringSelection::SHARD_BYTES,
        };
        let (columns, plan, own) = self.take(columns, column, wanting).await?;
        let (mut spec, mut values) = (None, Vec::new());
        for kept in own {
            if let Kept::Bytes(of, own) = kept {
                spec = Some(of);
                values.push(*own);
            }
        }
        let spec = spec.ok_or_else(|| internal_datafusion_err!("no values were kept"))?;
        Ok((columns, plan, spec, ByteStrings::merged(values)))
    }

    /// Makes room for rounds over a column, and takes out what was kept of it.
    async fn take(
        &self,
        columns: Columns,
        column: usize,
        wanting: Wanting,
    ) -> Result<(Columns, Plan, Vec<Kept>)> {
        let pool = self.pool.as_ref();
        let (mut columns, plan) =
            reserve_for_rounds(columns, wanting, self.threads, pool, &self.round_memory).await?;
        let own = std::mem::take(&mut columns[column]);
        Ok((columns, plan, own))
    }

    fn selection(&self, plan: &Plan) -> ByteStringSelection {
        ByteStringSelection {
            backend: Arc::new(self.backend.clone()),
            strategy: self.strategy,
            pool: ThreadPool::new(plan.threads, Stop::default()),
            memory: self.memory.new_empty(),
            round_memory: Arc::clone(&self.round_memory),
            budget: plan.budget,
            disk: self.backend.disk(),
        }
    }
}
