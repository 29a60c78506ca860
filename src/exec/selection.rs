//! Selection over one column: sets memory aside for the rounds, then runs them.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};

use super::aggregate::KeyColumn;
use super::collected::CollectedColumn;
use super::round_memory::{ColumnNeed, Columns, reserve_for_rounds};
use crate::config::StrategyName;
use crate::kernel::CpuBackend;
use crate::kernel::byte_strings::ByteStrings;
use crate::key::{ByteSpec, KeyBits, KeySpec, Width};
use crate::memory::RoundMemory;
use crate::quantile::QuantileSpec;
use crate::quantile::fences::{FencePair, quartile_ranks};
use crate::select::below::count_below;
use crate::select::byte_strings::{ByteStringSelection, ByteStringSolution};
use crate::select::choose::Plan;
use crate::select::distinct::solve_distinct;
use crate::select::splitters::nearest_splitters;
use crate::select::{LocalShards, Shards, Solution, Wanted, solve_wanted};
use crate::threads::{Stop, ThreadPool};

/// The keys below which values are counted for fences; none where there are no fences.
///
/// # Errors
/// An internal error if quartiles were not selected.
pub(super) fn cuts_of_fences(spec: &KeySpec, solution: &Solution) -> Result<Vec<KeyBits>> {
    if solution.n == 0 {
        return Ok(Vec::new());
    }
    let [first, third] = quartile_ranks(solution.n)?;
    FencePair::cuts_of_keys(spec, [solution.key_at(first)?, solution.key_at(third)?])
}

/// The settings and resources that all selections of one execution share.
pub(super) struct SelectionContext {
    pub(super) strategy: StrategyName,
    /// Threads that work together on one column at a time.
    pub(super) threads: usize,
    /// Memory is reserved for the consumer of this reservation.
    pub(super) memory: MemoryReservation,
    pub(super) pool: Arc<dyn MemoryPool>,
    pub(super) backend: CpuBackend,
    /// Memory that the rounds work in.
    pub(super) round_memory: Arc<RoundMemory>,
}

impl SelectionContext {
    /// A context in the memory pool of `context`. Memory is reserved for the consumer of `memory`.
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

    /// A column before its first value, all of whose values are kept.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is not even memory to begin.
    pub(super) fn open(&self, column: &KeyColumn) -> Result<CollectedColumn> {
        CollectedColumn::open(column, &self.backend, self.memory.new_empty())
    }

    /// Finds the order statistics that `quantile_specs` want of the column at index `column`, whose keys `of` describes. Returns the
    /// other columns too.
    ///
    /// # Errors
    /// `ResourcesExhausted` if not even the least memory is there, or the disk is full; the errors of the rounds.
    pub(super) async fn solve_keys(
        &self,
        columns: Columns,
        column: usize,
        of: &KeyColumn,
        quantile_specs: &[&QuantileSpec],
    ) -> Result<(Columns, Solution)> {
        let need = ColumnNeed {
            values: columns[column].iter().map(CollectedColumn::len).sum(),
            width: of.spec.width(),
            distinct: of.distinct,
            bytes_per_thread: 0,
            free_bytes_per_thread: 0,
        };
        let (columns, plan, own) = self.take(columns, column, need).await?;
        let shards = own.into_iter().map(|collected| match collected {
            CollectedColumn::Keys(shard) => Ok(shard),
            _ => internal_err!("values of {of} were not collected as keys"),
        });
        let shards = shards.collect::<Result<_>>()?;
        // Dropping the shards, for example with this future, stops the work on them: each column has a stop flag of its own.
        let mut shards = LocalShards::new(of.spec.width(), shards, plan.threads, Stop::default())
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
            None => {
                let wanted = Wanted::of(quantile_specs, shards.population(), of.counts);
                let mut solution = solve_wanted(&mut shards, self.strategy, wanted).await?;
                if of.fences {
                    let cuts = cuts_of_fences(&of.spec, &solution)?;
                    count_below(&mut shards, &mut solution, &cuts).await?;
                }
                solution
            }
        };
        Ok((columns, solution))
    }

    /// Finds the order statistics that `quantile_specs` want of the column of byte strings at index `column`; with `distinct`, those of
    /// its distinct values. Returns the other columns too.
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
            let collected = |values| CollectedColumn::Bytes(spec.clone(), Box::new(values));
            columns = others;
            columns[column] = distinct.into_iter().map(collected).collect();
        }
        let (columns, plan, _, values) = self.take_byte_strings(columns, column).await?;
        let solution = self.selection(&plan).solve(values, quantile_specs).await?;
        // Gives the memory back: other columns want it now.
        self.round_memory.set_aside(0)?;
        Ok((columns, solution))
    }

    /// Sets memory aside for rounds over a column of byte strings, and takes its values out of `columns`.
    async fn take_byte_strings(
        &self,
        columns: Columns,
        column: usize,
    ) -> Result<(Columns, Plan, ByteSpec, ByteStrings)> {
        let reading = columns[column].iter().map(CollectedColumn::reading_bytes);
        let need = ColumnNeed {
            values: columns[column].iter().map(CollectedColumn::len).sum(),
            width: Width::W128,
            distinct: false,
            bytes_per_thread: reading.max().unwrap_or(0) + ByteStringSelection::THREAD_BYTES,
            // Of a shard of keys, or of a list of distinct values.
            free_bytes_per_thread: ByteStringSelection::SHARD_BYTES.max(ByteStrings::BEGINNING_BYTES),
        };
        let (columns, plan, own) = self.take(columns, column, need).await?;
        let (mut spec, mut values) = (None, Vec::new());
        for collected in own {
            let CollectedColumn::Bytes(of, own) = collected else {
                return internal_err!("values were not collected as byte strings");
            };
            spec = Some(of);
            values.push(*own);
        }
        let spec = spec.ok_or_else(|| internal_datafusion_err!("no values were kept"))?;
        Ok((columns, plan, spec, ByteStrings::merged(values)))
    }

    /// Sets memory aside for rounds over a column, and takes its values out of `columns`.
    async fn take(
        &self,
        columns: Columns,
        column: usize,
        need: ColumnNeed,
    ) -> Result<(Columns, Plan, Vec<CollectedColumn>)> {
        let pool = self.pool.as_ref();
        let (mut columns, plan) =
            reserve_for_rounds(columns, need, self.threads, pool, &self.round_memory).await?;
        let own = std::mem::take(&mut columns[column]);
        Ok((columns, plan, own))
    }

    /// A selection among byte strings with the threads and the memory budget of `plan`.
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
