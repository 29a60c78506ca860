//! Quantiles of large arrays, which are counted where they are and not copied: SampleSelect over values that are read again.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::resources::resources;
use super::values::Ordered;
use crate::cells::Cells;
use crate::kernel::cpu::scan_answer::{ScanAnswer, Seen, scan_answer};
use crate::kernel::round::{Reply, Request};
use crate::kernel::{Backend, Shard};
use crate::key::{KeySpec, KeyVec, Width};
use crate::memory::{Lease, MemoryBudget, RoundMemory};
use crate::quantile::QuantileSpec;
use crate::select::candidates::Candidates;
use crate::select::choose::{KEPT_SHARE, TABLE_EXTRA, table_cells};
use crate::select::requests::sample_of_all;
use crate::select::while_reading::{LEAST_ROWS, LEAST_SAMPLE, SAMPLE, WhileReading, runs};
use crate::select::{Shards, Solution, Strategy, Wanted, solve_by, wanted_ranks};
use crate::threads::{Stop, ThreadPool, completed, scoped_map};

/// Values for each wanted rank below which the candidates would be a large part of all.
const VALUES_FOR_A_RANK: u64 = 1 << 10;

/// Values that are read again for every round.
pub(super) struct Reading<'a> {
    values: &'a Ordered<'a>,
    spec: &'a KeySpec,
    threads: usize,
    strategy: WhileReading,
    /// An empty reservation in the pool of the reads.
    reservation: MemoryReservation,
    /// Memory of the reads.
    memory: Arc<RoundMemory>,
    /// What the first read saw; `None` before it.
    seen: Option<Seen>,
    /// The answer to the first request.
    first: Option<Reply>,
    /// The cells of the last count of all values.
    counted: Option<Cells>,
    /// The memory of the keys of the last reply.
    leases: Vec<Lease>,
}

impl<'a> Reading<'a> {
    /// The reads for these quantiles, on up to `threads` threads. `None` if the values are better copied: there are few of them, or few
    /// for each rank.
    ///
    /// # Errors
    /// Those of reading a sample.
    pub(super) fn plan(
        values: &'a Ordered<'a>,
        spec: &'a KeySpec,
        quantile_spec: &QuantileSpec,
        threads: usize,
    ) -> Result<Option<Self>> {
        let rows = values.rows();
        if rows < LEAST_ROWS {
            return Ok(None);
        }
        let (backend, memory, _) = resources();
        let mut shard = backend.open(spec, memory.new_empty())?;
        let mut sampled_rows = 0;
        for run in runs(rows, SAMPLE) {
            sampled_rows += run.end - run.start;
            values.each_of(run, |piece| shard.append(piece, None))?;
        }
        let sample = sorted_keys(shard.as_mut(), spec.width(), values.stop())?;
        let Some(sampled_rows) = NonZeroU64::new(sampled_rows) else {
            return Ok(None);
        };
        let n = (u128::from(rows) * sample.len() as u128 / u128::from(sampled_rows.get())) as u64;
        let ranks = wanted_ranks(&[quantile_spec], n);
        if sample.len() < LEAST_SAMPLE || n / VALUES_FOR_A_RANK < ranks.len() as u64 {
            return Ok(None);
        }
        let budget = MemoryBudget {
            cells: table_cells(n) + TABLE_EXTRA,
            sample: SAMPLE,
            keys: (n / KEPT_SHARE).max(1 << 17),
        };
        Ok(Some(Self {
            strategy: WhileReading::try_new(spec.width(), n, ranks, sample, budget)?,
            reservation: memory.new_empty(),
            memory: RoundMemory::new(memory),
            values,
            spec,
            threads,
            seen: None,
            first: None,
            counted: None,
            leases: Vec::new(),
        }))
    }

    /// Finds the order statistics.
    ///
    /// # Errors
    /// Those of reading; an execution error if the values change meanwhile.
    pub(super) fn solve(mut self, quantile_spec: &QuantileSpec) -> Result<Solution> {
        let strategy = self.strategy.clone();
        let (seen, mut replies) = self.read(strategy.request())?;
        let wanted = Wanted::of(&[quantile_spec], seen.values, false);
        let width = self.spec.width();
        if let Some(candidates) =
            Candidates::of(width, seen.values, &wanted, strategy.request(), &mut replies)?
        {
            let pool = ThreadPool::scoped(self.threads, Stop::default());
            return completed(candidates.solve(strategy.label(), &self.reservation, &self.memory, pool));
        }
        (self.seen, self.first) = (Some(seen), Some(merged(replies)?));
        completed(solve_by(&mut self, &strategy, wanted))
    }

    /// Reads all values for one request: what was seen, and the answer of each thread.
    fn read(&mut self, request: &Request) -> Result<(Seen, Vec<Reply>)> {
        self.leases.clear();
        let next = AtomicU64::new(0);
        let parts = (0..self.threads).collect();
        let answers = scoped_map(self.threads, parts, self.values.stop(), |_, _| {
            self.answer(request, &next)
        })?;
        let (mut seen, mut replies) = (Seen::default(), Vec::with_capacity(answers.len()));
        for answer in answers {
            seen.add(answer.seen());
            let (reply, lease) = answer.finish();
            self.leases.extend(lease);
            replies.push(reply);
        }
        Ok((seen, replies))
    }

    /// The answer of one thread, for the blocks that it takes.
    fn answer(&self, request: &Request, next: &AtomicU64) -> Result<Box<dyn ScanAnswer>> {
        let mut answer = scan_answer(self.spec, request, self.counted.as_ref(), &self.memory)?;
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= self.values.blocks() {
                return Ok(answer);
            }
            let rows = self.values.block(block);
            self.values.each_of(rows, |piece| answer.append(piece, None))?;
        }
    }
}

/// The merged answer of all threads.
fn merged(replies: Vec<Reply>) -> Result<Reply> {
    let reply = Reply::merged(replies)?;
    reply.ok_or_else(|| internal_datafusion_err!("values were read on no thread"))
}

/// All keys of a shard, ascending.
fn sorted_keys(shard: &mut dyn Shard, width: Width, stop: &Stop) -> Result<KeyVec> {
    let all = sample_of_all(shard.len(), shard.len(), width, false);
    match shard.answer(&all, stop)? {
        Reply::Sample { mut keys, .. } => {
            keys.sort();
            Ok(keys)
        }
        _ => internal_err!("a sample was not taken"),
    }
}

#[async_trait]
impl Shards for Reading<'_> {
    fn width(&self) -> Width {
        self.spec.width()
    }

    fn population(&self) -> u64 {
        self.seen.map_or(0, |seen| seen.values)
    }

    fn parallelism(&self) -> usize {
        self.threads
    }

    fn budget(&self) -> MemoryBudget {
        self.strategy.budget()
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        let reply = match self.first.take() {
            Some(reply) => reply,
            None => {
                let (seen, replies) = self.read(&request)?;
                if self.seen != Some(seen) {
                    return exec_err!("the values were changed while their quantiles were selected");
                }
                merged(replies)?
            }
        };
        if let Request::Count { cells, within, .. } = request.as_ref()
            && within.is_all(self.width())
        {
            self.counted = Some(cells.clone());
        }
        Ok(reply)
    }
}
