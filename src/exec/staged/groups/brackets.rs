//! The step between the two reads: it turns the counts of all partitions into brackets around the ranks of every group.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::fingerprint::InputFingerprint;
use super::super::rows::{Body, Header, Rows, group_rows};
use super::super::stage::{Consume, StageOutput, reached};
use super::classes::ClassFingerprints;
use super::columns::{GroupedColumns, MOST_GROUPS, MOST_RANKS};
use crate::cells::{Cells, Edges};
use crate::exec::group_engine::GroupIds;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::Width;
use crate::select::progress::Progress;
use crate::select::{countable, wanted_ranks};
use crate::sketch::dyadic::{Interval, merged};

/// The groups of all partitions, while their counts arrive.
pub(super) struct Bracketing<W> {
    plan: Arc<GroupedColumns>,
    grouping: GroupIds<W>,
    /// The counted intervals of each group, for each key column.
    intervals: Vec<Vec<Vec<Interval>>>,
    /// Bytes of the intervals.
    bytes: usize,
    /// Whether there are too many groups for brackets.
    many: bool,
    classes: ClassFingerprints,
    memory: MemoryReservation,
    /// The group number of each row of a batch.
    ids: Vec<usize>,
}

impl<W: GroupKey> Bracketing<W> {
    pub(super) fn try_new(plan: &Arc<GroupedColumns>, memory: &MemoryReservation) -> Result<Self> {
        Ok(Self {
            grouping: plan.grouping()?,
            plan: Arc::clone(plan),
            intervals: Vec::new(),
            bytes: 0,
            many: false,
            classes: ClassFingerprints::of(plan.columns.len()),
            memory: memory.new_empty(),
            ids: Vec::new(),
        })
    }
}

impl<W: GroupKey> Consume for Bracketing<W> {
    fn push(&mut self, batch: &RecordBatch) -> Result<Option<StageOutput>> {
        let plan = Arc::clone(&self.plan);
        let (classes, many) = (&mut self.classes, &mut self.many);
        let (groups, bodies) =
            group_rows(batch, &plan.rows, &plan.columns.specs, |class, header: Header| {
                *many |= header.many;
                classes.class(class).add(&header.own);
                Ok(())
            })?;
        if !self.many && !bodies.is_empty() {
            self.grouping.number(&groups, &mut self.ids)?;
            self.intervals.resize_with(self.grouping.len(), Vec::new);
            for (id, (_, body)) in self.ids.iter().zip(bodies) {
                let Body::Intervals(columns) = body else {
                    return internal_err!("a row without counts of a group");
                };
                let own = &mut self.intervals[*id];
                own.resize_with(columns.len(), Vec::new);
                for (own, more) in own.iter_mut().zip(columns) {
                    let all = merged(own, &more);
                    self.bytes += all.len().saturating_sub(own.len()) * size_of::<Interval>();
                    *own = all;
                }
            }
            let ranks = self.grouping.len().saturating_mul(plan.all_ranks().max(1));
            let held = self.bytes + self.grouping.bytes() + 64 * plan.columns.len() * self.grouping.len();
            // Twice, as the rows to send take about as much again.
            self.many = self.grouping.len() > MOST_GROUPS
                || ranks > MOST_RANKS
                || self.memory.try_resize(2 * held).is_err();
        }
        if self.many {
            self.intervals = Vec::new();
            self.grouping = plan.grouping()?;
            self.memory.free();
        }
        Ok(None)
    }

    /// The brackets of every group, and the fingerprints that the second read must have.
    fn finish(mut self) -> Result<StageOutput> {
        reached!("groups_brackets");
        let mut rows = Rows::default();
        for (class, expected) in self.classes.classes {
            let (many, own) = (self.many, InputFingerprint::default());
            rows.header(class, &Header { many, own, expected });
        }
        let quantile_specs: Vec<_> = (0..self.plan.columns.len())
            .map(|column| self.plan.columns.quantile_specs(column))
            .collect();
        for (group, columns) in self.intervals.iter().enumerate() {
            let own = columns.iter().zip(self.plan.columns.specs()).zip(&quantile_specs);
            let progress = own.map(|((intervals, spec), quantile_specs)| {
                let n = intervals
                    .iter()
                    .fold(0_u64, |sum, interval| sum.saturating_add(interval.count));
                countable(n)?;
                bracketed(intervals, spec.width(), n, wanted_ranks(quantile_specs, n))
            });
            let progress: Vec<Progress> = progress.collect::<Result<_>>()?;
            rows.progress(0, group, progress.iter());
        }
        rows.finish(&self.plan.rows, &self.plan.values_of(&mut self.grouping)?)
    }
}

/// The progress of a group's ranks after its keys were counted in these intervals.
fn bracketed(intervals: &[Interval], width: Width, n: u64, ranks: Vec<u64>) -> Result<Progress> {
    let mut progress = Progress::try_new(width, n, ranks)?;
    if progress.is_done() {
        return Ok(progress);
    }
    let (mut edges, mut counts) = (Vec::new(), Vec::new());
    let mut next = 0;
    for interval in intervals {
        if interval.first > next {
            edges.push(interval.first);
            counts.push(0);
        }
        counts.push(interval.count);
        next = interval.last().wrapping_add(1);
        if interval.last() < width.max_key() {
            edges.push(next);
        }
    }
    if next != 0 && next <= width.max_key() {
        counts.push(0);
    }
    progress.narrow(&Cells::Edges(Edges::try_new(edges)?), &counts, &[], Vec::new())?;
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::dyadic::Joined;

    /// The bracket of every rank holds its key, and the counts below and inside are right.
    #[test]
    fn brackets_hold_their_ranks() {
        for (name, mut keys) in [
            (
                "random",
                (0..500_u32)
                    .map(|i| i.wrapping_mul(2_654_435_761))
                    .collect::<Vec<_>>(),
            ),
            ("few", (0..500).map(|i| i % 7).collect()),
            (
                "ends",
                (0..500).map(|i| if i % 3 == 0 { 0 } else { u32::MAX }).collect(),
            ),
            ("one", vec![9]),
        ] {
            keys.sort_unstable();
            for most in [1, 10, 1000] {
                let mut joined = Joined::new(most);
                joined.divide(0, 32, &keys);
                let mut intervals = joined.finish();
                intervals.retain(|interval| interval.count > 0);
                let n = keys.len() as u64;
                for rank in 1..=n {
                    let progress = bracketed(&intervals, Width::W32, n, vec![rank]).unwrap();
                    let key = u128::from(keys[rank as usize - 1]);
                    let Some(active) = progress.active().first() else {
                        assert_eq!(progress.key_at(rank).unwrap(), key, "{name}");
                        continue;
                    };
                    assert!(active.bracket.contains(key), "{name}, rank {rank}: {active:?}");
                    let below = keys.iter().filter(|key| u128::from(**key) < active.bracket.first);
                    let inside = keys
                        .iter()
                        .filter(|key| active.bracket.contains(u128::from(**key)));
                    assert_eq!(
                        (active.below, active.inside),
                        (below.count() as u64, inside.count() as u64)
                    );
                }
            }
        }
        assert!(bracketed(&[], Width::W64, 0, Vec::new()).unwrap().is_done());
    }
}
