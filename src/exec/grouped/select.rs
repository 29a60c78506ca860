//! Selection among all keys of few, numbered groups, in parallel.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::cells::{COUNTERS, Grid, LEAST_CELLS, TargetCells, shares};
use crate::kernel::cpu::groups::numbered::Numbered;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans, Segments};
use crate::key::KeySpec;
use crate::key::ShardKey;
use crate::memory::{reserve, take_over};
use crate::threads::{Stop, ThreadPool, blocking};

/// Up to this many rows, bringing the keys of each group together takes no longer than counting.
pub(super) const GATHERED_ROWS: usize = 1 << 17;

/// Fewer extracted keys than this are selected by one thread.
const SHARED_KEYS: usize = 1 << 15;

/// Selection over one key column of few groups.
pub(super) struct Selection<P> {
    /// Keys, each with the number of its group.
    pub(super) pieces: Arc<Vec<P>>,
    pub(super) groups: usize,
    pub(super) spec: KeySpec,
    /// Whether it selects among distinct keys. If so, all keys of a group are brought together.
    pub(super) distinct: bool,
    /// The threads that work on the pieces.
    pub(super) pool: ThreadPool,
    pub(super) memory: MemoryReservation,
}

impl<P: 'static> Selection<P> {
    /// The answers of all groups.
    ///
    /// # Errors
    /// `ResourcesExhausted`; an error if the query was cancelled.
    pub(super) async fn answers<K: ShardKey>(self, mut plans: Plans) -> Result<GroupAnswers>
    where
        P: Numbered<K>,
    {
        let rows: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        if rows <= GATHERED_ROWS || self.distinct {
            return self.gathered::<K>(rows, plans).await;
        }
        let grid = Arc::new(self.grid::<K>(rows)?);
        let counters = grid.counters();
        let counted = {
            let grid = Arc::clone(&grid);
            self.each::<K, _>(move |pieces, _, stop| {
                may_fail!("group_count");
                grid.count::<K>(pieces, stop)
            })
            .await?
        };
        let mut totals = vec![0_u64; counters];
        for counts in counted.into_iter().flatten() {
            for (total, count) in totals.iter_mut().zip(counts) {
                *total += u64::from(count);
            }
        }
        let wanted = Arc::new(TargetCells::new(&grid, &totals, &mut plans, &self.spec));
        let extracted = {
            let (grid, wanted) = (Arc::clone(&grid), Arc::clone(&wanted));
            self.each::<K, _>(move |pieces, memory, stop| {
                may_fail!("group_extract");
                grid.extract::<K>(pieces, &wanted, memory, stop)
            })
            .await?
        };
        // Each thread takes the keys of some pairs of group and cell, and brings those of each pair together.
        let keys: usize = extracted.iter().map(|(_, keys)| keys.len()).sum();
        let copies = keys * (size_of::<u32>() + 2 * size_of::<K>());
        reserve(&self.memory, copies + wanted.pairs() * 2 * size_of::<usize>())?;
        let threads = self.pool.threads();
        let shares = wanted.shares(if keys < SHARED_KEYS { 1 } else { threads });
        let found = {
            let wanted = Arc::clone(&wanted);
            self.pool
                .map(shares, move |pairs, _| wanted.select(pairs, &extracted))
        };
        wanted.answers(found.await?.into_iter().flatten(), &mut plans)
    }

    /// The grid with the most cells that there is memory for, up to a limit.
    fn grid<K: ShardKey>(&self, rows: usize) -> Result<Grid>
    where
        P: Numbered<K>,
    {
        let mut most = COUNTERS;
        loop {
            let sample = self.memory.new_empty();
            reserve(&sample, Grid::sample_bytes::<K>())?;
            let grid = Grid::sampled::<K>(&self.pieces, rows, self.groups, most)?;
            drop(sample);
            // Counters of each thread (4 bytes), and their totals and the numbers of wanted pairs (12 bytes).
            let reserved = reserve(&self.memory, grid.counters() * (4 * self.pool.threads() + 12));
            if reserved.is_ok() || most <= LEAST_CELLS * self.groups {
                return reserved.map(|()| grid);
            }
            most /= 4;
        }
    }

    /// The answers of few rows, or of distinct values: brings the keys of each group together, in one thread.
    async fn gathered<K: ShardKey>(self, rows: usize, mut plans: Plans) -> Result<GroupAnswers>
    where
        P: Numbered<K>,
    {
        reserve(&self.memory, rows * (size_of::<u32>() + 2 * size_of::<K>()))?;
        blocking(move || {
            may_fail!("group_gather");
            let (mut ids, mut keys) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
            for piece in self.pieces.iter() {
                piece.blocks(self.pool.stop(), |own, block| {
                    ids.extend(own.iter().map(|id| u32::from(*id)));
                    keys.extend_from_slice(block);
                    Ok(())
                })?;
            }
            let mut segments = Segments::default();
            segments.fill(self.groups, &[(&ids, &keys)]);
            segments.answers(&mut plans, self.distinct)
        })
        .await
    }

    /// Runs `work` over all pieces, divided between threads. Results come in the order of pieces.
    async fn each<K: ShardKey, T: Send + 'static>(
        &self,
        work: impl Fn(&[P], &MemoryReservation, &Stop) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Vec<T>>
    where
        P: Numbered<K>,
    {
        let (pieces, memory) = (Arc::clone(&self.pieces), self.memory.new_empty());
        let done = self
            .pool
            .map(shares(&self.pieces, self.pool.threads()), move |share, stop| {
                let memory = memory.new_empty();
                Ok((work(&pieces[share], &memory, stop)?, memory))
            });
        let done = done.await?.into_iter().map(|(done, memory)| {
            take_over(&self.memory, &memory);
            done
        });
        Ok(done.collect())
    }
}
