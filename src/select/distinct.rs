//! Order statistics of the distinct values.
//!
//! ```text
//! sample       a a . b . . . a . c . .             cells, or an edge on either side of each key if there are few
//! count       [a] 7 [  ] 41 [  ] 0 [  ] 38 ..      cells of one key, or of one value, are done
//! extract      a    b b' b''       c c' ..         sorted without duplicates, as many cells as there is memory for
//! ```
//! How many values differ is known only when all of them were seen. So these rounds, unlike others, collect every value that no
//! count tells apart. If not all fit in memory at once, those around a target rank are collected a second time. Cells that would not
//! fit are cut evenly until they do, or until they hold one key. The cost is a sort of the collected keys, in pieces, on all threads.
//! Many copies of few values cost nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{Result, internal_datafusion_err, internal_err, resources_err};

use super::choose::{GATHER, MOST_READS};
use super::requests;
use super::sampled::cells_of_few;
use super::{RoundTrace, Shards, Solution, wanted_ranks};
use crate::cells::{Bracket, Brackets, CellTable, Cells, Linear};
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, KeyVec};
use crate::quantile::QuantileSpec;
use crate::threads::ThreadPool;

/// Keys in the sample.
const SAMPLE: u64 = 1 << 13;
/// Different keys in the sample up to which each of them gets a cell of its own.
const FEW: usize = 1 << 10;
/// Values in a cell, about: as many as a thread sorts in its cache.
const CELL: u64 = 1 << 13;
/// Most cells of the first count. Each gets a list of keys in every shard.
const MOST_CELLS: u64 = 1 << 12;
/// Cells that a cell is cut into if it does not fit in memory.
const CUT: u32 = 256;

/// A range of neighbouring keys, at least one of which occurs.
struct Piece {
    bracket: Bracket,
    /// Number of values, with all copies.
    inside: u64,
    /// Number of different values, once they are counted.
    distinct: Option<u64>,
    /// The different keys, ascending, while there is memory for them.
    keys: Option<KeyVec>,
}

impl Piece {
    fn new(bracket: Bracket, inside: u64) -> Self {
        let is_one = inside == 1 || bracket.first == bracket.last;
        Self {
            bracket,
            inside,
            distinct: is_one.then_some(1),
            keys: None,
        }
    }

    /// The key at an index among the different keys, from 0; `None` while the keys are not in memory.
    fn key(&self, index: u64) -> Option<KeyBits> {
        match &self.keys {
            Some(keys) => Some(keys.get(index as usize)),
            None => (self.bracket.first == self.bracket.last).then_some(self.bracket.first),
        }
    }
}

/// Finds the order statistics that the quantile specifications need among the distinct values. [`Solution::n`] is the number of
/// distinct values.
///
/// # Errors
/// Those of the shards.
pub(crate) async fn solve_distinct(
    shards: &mut dyn Shards,
    pool: &ThreadPool,
    quantile_specs: &[&QuantileSpec],
) -> Result<Solution> {
    let mut search = Search {
        limit: shards.budget().keys.max(1),
        shards,
        pool,
        rounds: Vec::new(),
        open: 0,
    };
    let mut pieces = search.pieces().await?;
    let n = pieces.iter().filter_map(|piece| piece.distinct).sum();
    let ranks = wanted_ranks(quantile_specs, n);
    let keys = search.select(&mut pieces, &ranks).await?;
    Ok(Solution {
        n,
        strategy: "distinct",
        rounds: search.rounds,
        ranks,
        keys,
        rank_bounds: None,
        below: BTreeMap::new(),
    })
}

/// A selection among distinct values while it runs.
struct Search<'a> {
    shards: &'a mut dyn Shards,
    pool: &'a ThreadPool,
    rounds: Vec<RoundTrace>,
    /// Keys that can be collected at once.
    limit: u64,
    /// Values of pieces whose different keys are not counted yet: the candidates of the trace.
    open: u64,
}

impl Search<'_> {
    /// Sends a request to all shards, and notes the round for the trace.
    async fn round(&mut self, request: Request) -> Result<Reply> {
        let (start, name) = (Instant::now(), request.name());
        let reply = self.shards.round(Arc::new(request)).await?;
        self.rounds.push(RoundTrace {
            request: name,
            candidates: self.open,
            elapsed: start.elapsed(),
            values: reply.values(),
        });
        Ok(reply)
    }

    /// All values in pieces, with the number of different values in each.
    async fn pieces(&mut self) -> Result<Vec<Piece>> {
        let mut todo = self.first_pieces().await?;
        todo.reverse();
        let mut done: Vec<Piece> = Vec::with_capacity(todo.len());
        while let Some(piece) = todo.pop() {
            if piece.distinct.is_some() {
                done.push(piece);
            } else if piece.inside > self.limit {
                todo.extend(self.cut(&piece).await?.into_iter().rev());
            } else {
                let batch = self.batch(piece, &mut todo);
                match self.count(batch).await? {
                    Ok(mut counted) => {
                        let is_last = todo.iter().all(|piece| piece.distinct.is_some());
                        if !is_last {
                            counted.iter_mut().for_each(|piece| piece.keys = None);
                        }
                        done.extend(counted);
                    }
                    Err(batch) => {
                        self.collect_less()?;
                        todo.extend(batch.into_iter().rev());
                    }
                }
            }
        }
        Ok(done)
    }

    /// Halves the number of keys that are collected at once, after a shard had no memory for as many as the budget says.
    ///
    /// # Errors
    /// `ResourcesExhausted` if that would take too many reads.
    fn collect_less(&mut self) -> Result<()> {
        self.limit /= 2;
        if self.limit < self.open / (8 * MOST_READS) {
            return resources_err!(
                "no memory to collect {} values of {} at once",
                2 * self.limit,
                self.open
            );
        }
        self.limit = self.limit.max(1);
        Ok(())
    }

    /// The piece `first`, with as many of its neighbours as can be collected with it.
    fn batch(&self, first: Piece, todo: &mut Vec<Piece>) -> Vec<Piece> {
        let mut total = first.inside;
        let mut batch = vec![first];
        while let Some(next) =
            todo.pop_if(|next| next.distinct.is_some() || total + next.inside <= self.limit)
        {
            if next.distinct.is_none() {
                total += next.inside;
            }
            batch.push(next);
        }
        batch
    }

    /// Counts the different values of each piece. Without memory for that, the pieces come back as they were, as the inner error.
    async fn count(&mut self, mut batch: Vec<Piece>) -> Result<std::result::Result<Vec<Piece>, Vec<Piece>>> {
        let unknown = |piece: &&mut Piece| piece.distinct.is_none();
        let brackets = batch
            .iter_mut()
            .filter(unknown)
            .map(|piece| piece.bracket)
            .collect();
        let Some(lists) = self.collect(brackets).await? else {
            return Ok(Err(batch));
        };
        for (piece, keys) in batch.iter_mut().filter(unknown).zip(lists) {
            self.open = self.open.saturating_sub(piece.inside);
            piece.distinct = Some(keys.len() as u64);
            piece.keys = Some(keys);
        }
        Ok(Ok(batch))
    }

    /// The different keys inside each bracket, ascending; `None` without memory for them.
    async fn collect(&mut self, brackets: Vec<Bracket>) -> Result<Option<Vec<KeyVec>>> {
        let expected = brackets.len();
        let brackets = Brackets::try_new(brackets)?;
        let Reply::Extracted(lists) = self.round(Request::Extract { brackets }).await? else {
            return internal_err!("keys were asked for");
        };
        if lists.len() != expected {
            return Ok(None);
        }
        let distinct = |mut keys: KeyVec, _: &_| {
            keys.sort_distinct();
            Ok(keys)
        };
        self.pool.map(lists, distinct).await.map(Some)
    }

    /// The pieces that a sample suggests; one piece if there are few values.
    async fn first_pieces(&mut self) -> Result<Vec<Piece>> {
        let (n, width) = (self.shards.population(), self.shards.width());
        self.open = n;
        let all = Brackets::all(width);
        if n <= GATHER.min(self.limit) {
            let pieces = all.as_slice().iter().filter(|_| n > 0);
            return Ok(pieces.map(|all| Piece::new(*all, n)).collect());
        }
        let size = SAMPLE.min(n).min(self.shards.budget().sample);
        let sample = requests::sample_of_all(size, n, width, false);
        let Reply::Sample { mut keys, .. } = self.round(sample).await? else {
            return internal_err!("a sample was asked for");
        };
        keys.sort();
        let cells = (n / CELL)
            .clamp(64, MOST_CELLS)
            .min(self.shards.budget().cells as u64);
        let cells = match cells_of_few(&keys, FEW, width)? {
            Some(few) => few,
            None => Cells::Table(CellTable::from_sample(&keys, cells as usize)?),
        };
        self.counted(cells, all).await
    }

    /// A piece cut into smaller ones, for each of which there may be memory.
    async fn cut(&mut self, piece: &Piece) -> Result<Vec<Piece>> {
        let width = self.shards.width();
        let cells = Linear::try_new(&[(piece.bracket, CUT)], width)?;
        let within = Brackets::try_new(vec![piece.bracket])?;
        self.counted(Cells::Linear(cells), within).await
    }

    /// A piece for each cell that is not empty.
    async fn counted(&mut self, cells: Cells, within: Brackets) -> Result<Vec<Piece>> {
        let request = requests::count(cells.clone(), within);
        let Reply::Counts { counts, .. } = self.round(request).await? else {
            return internal_err!("counts were asked for");
        };
        let width = self.shards.width();
        let occupied = counts.into_iter().zip(0..).filter(|(count, _)| *count > 0);
        let pieces = occupied.map(|(count, cell)| {
            let range = cells.range(cell, width);
            let range = range
                .ok_or_else(|| internal_datafusion_err!("{count} keys in cell {cell}, which has none"))?;
            Ok(Piece::new(range, count))
        });
        pieces.collect()
    }

    /// The keys of ranks (from 1, ascending) among the different values.
    async fn select(&mut self, pieces: &mut [Piece], ranks: &[u64]) -> Result<Vec<KeyBits>> {
        let mut keys = Vec::with_capacity(ranks.len());
        let (mut at, mut below) = (0, 0);
        for rank in ranks {
            let piece = loop {
                let Some(piece) = pieces.get_mut(at) else {
                    return internal_err!("rank {rank} of {below} different values");
                };
                let distinct = piece.distinct.unwrap_or_default();
                if *rank <= below + distinct {
                    break piece;
                }
                // All ranks of this piece are answered.
                piece.keys = None;
                (at, below) = (at + 1, below + distinct);
            };
            let index = rank - below - 1;
            if piece.key(index).is_none() {
                let Some(lists) = self.collect(vec![piece.bracket]).await? else {
                    return resources_err!(
                        "no memory for {} values that were collected before",
                        piece.inside
                    );
                };
                piece.keys = lists.into_iter().next();
            }
            let key = piece.key(index);
            keys.push(key.ok_or_else(|| internal_datafusion_err!("rank {rank} has no key"))?);
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
    use futures::FutureExt;

    use super::*;
    use crate::kernel::{Backend, CpuBackend};
    use crate::key::{KeySpec, Width};
    use crate::memory::MemoryBudget;
    use crate::quantile::{Method, Quantile};
    use crate::select::LocalShards;
    use crate::threads::Stop;

    /// Shards that say that they have memory for fewer keys than they have, and that once refuse an extraction which fits.
    struct Limited {
        shards: LocalShards,
        budget: u64,
        refused: bool,
    }

    #[async_trait]
    impl Shards for Limited {
        fn width(&self) -> Width {
            self.shards.width()
        }

        fn population(&self) -> u64 {
            self.shards.population()
        }

        fn parallelism(&self) -> usize {
            self.shards.parallelism()
        }

        fn budget(&self) -> MemoryBudget {
            MemoryBudget {
                keys: self.budget,
                ..MemoryBudget::UNLIMITED
            }
        }

        async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
            let collects = matches!(*request, Request::Extract { .. });
            let reply = self.shards.round(request).await?;
            if let Reply::Extracted(lists) = &reply {
                let total: usize = lists.iter().map(KeyVec::len).sum();
                assert!(
                    total as u64 <= self.budget,
                    "{total} keys in a budget of {}",
                    self.budget
                );
            }
            if collects && !std::mem::replace(&mut self.refused, true) {
                return Ok(Reply::Extracted(Vec::new()));
            }
            Ok(reply)
        }
    }

    fn check(values: Vec<i64>, budget: u64) {
        let mut expected = values.clone();
        expected.sort_unstable();
        expected.dedup();
        let spec = KeySpec::try_new(&datafusion::arrow::datatypes::DataType::Int64).unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let shards = values.chunks(values.len().div_ceil(3).max(1)).map(|part| {
            let part: ArrayRef = Arc::new(Int64Array::from(part.to_vec()));
            let memory = MemoryConsumer::new("shard").register(&pool);
            let mut shard = CpuBackend::default().open(&spec, memory).unwrap();
            shard.append(&part, None).unwrap();
            shard
        });
        let mut shards = Limited {
            shards: LocalShards::blocking(Width::W64, shards.collect(), 2, Stop::default()),
            budget,
            refused: false,
        };
        let quantile_spec = QuantileSpec {
            quantiles: (0..=100)
                .map(|p| Quantile::try_from_f64(f64::from(p) / 100.0).unwrap())
                .collect(),
            method: Method::Disc,
            descending: false,
        };
        let (pool, quantile_specs) = (ThreadPool::scoped(2, Stop::default()), [&quantile_spec]);
        let solved = solve_distinct(&mut shards, &pool, &quantile_specs);
        let solution = solved.now_or_never().unwrap().unwrap();
        assert_eq!(solution.n, expected.len() as u64, "budget {budget}");
        for rank in quantile_spec.ranks(solution.n) {
            let found = spec.integer(solution.key_at(rank).unwrap());
            assert_eq!(
                found,
                expected[rank as usize - 1].into(),
                "rank {rank}, budget {budget}"
            );
        }
    }

    #[test]
    fn any_room_gives_the_same_answer() {
        let random = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
        let inputs: Vec<Vec<i64>> = vec![
            (0..50_000).map(random).collect(),
            (0..50_000).map(|i| random(i) % 900).collect(),
            (0..50_000).map(|i| random(i) % 20_000).collect(),
            // Clusters that no sample tells apart, beside a value far away.
            (0..50_000)
                .map(|i| {
                    if i == 7 {
                        i64::MAX
                    } else {
                        (i as i64 % 2000) * (i as i64 % 2)
                    }
                })
                .collect(),
            vec![5; 40_000],
            vec![i64::MIN, i64::MAX, 0],
            (0..20_000).collect(),
        ];
        for values in inputs {
            for budget in [u64::MAX, 30_000, 3000, 100] {
                check(values.clone(), budget);
            }
        }
        check((0..300).map(random).collect(), 1);
    }
}
