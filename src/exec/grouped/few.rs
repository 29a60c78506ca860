//! The end of a scan with few groups: (group, cell) pairs are counted, wanted cells taken out.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::GroupPlan;
use super::groups::Grouping;
use super::output::{self, Answers};
use super::plain::PlainGroups;
use super::scan::{FEW_GROUPS, GroupScan, Phase};
use super::select::{GATHERED, Selection};
use crate::kernel::cpu::groups::cells::Piece;
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::words::Word;
use crate::key::Width;
use crate::threads::StopOnDrop;

/// Bytes of the counters of a few threads.
const COUNTING_BYTES: usize = 8 << 20;

/// The groups of all scans, if they are few.
pub(super) struct FewGroups<W> {
    grouping: Grouping<W>,
    /// For each scan: from its numbers to those of all.
    maps: Vec<Arc<[u16]>>,
}

impl<W: Word> FewGroups<W> {
    /// `None` if any scan has partitioned its rows, or all together have too many groups.
    pub(super) fn of(scans: &mut [GroupScan<W>], plan: &GroupPlan) -> Result<Option<Self>> {
        if scans.iter().any(|scan| matches!(scan.phase, Phase::Many(_))) {
            return Ok(None);
        }
        let mut grouping = Grouping::try_new(plan.packing.as_ref(), plan.group_schema())?;
        let (mut maps, mut ids) = (Vec::with_capacity(scans.len()), Vec::new());
        for scan in scans {
            ids.clear();
            if scan.grouping.len() > 0 {
                grouping.number(&scan.grouping.values()?, &mut ids)?;
            }
            if grouping.len() > FEW_GROUPS {
                return Ok(None);
            }
            maps.push(ids.iter().map(|id| *id as u16).collect());
        }
        Ok(Some(Self { grouping, maps }))
    }

    /// Whether bringing the keys of some column together in one thread would take long: over distinct values there is
    /// no other way for few groups.
    ///
    /// The same where the pool has no room for counters and for what they lead to: partitions can go to disk.
    pub(super) fn are_better_partitioned(
        &self,
        scans: &[GroupScan<W>],
        plan: &GroupPlan,
        memory: &MemoryReservation,
    ) -> bool {
        let rows = |index: usize| {
            let rows = scans.iter().map(|scan| match &scan.phase {
                Phase::Few(few) => few[index].rows(),
                Phase::Many(_) => 0,
            });
            rows.sum::<usize>()
        };
        let most = (0..plan.aggregates.columns.len()).map(rows).max().unwrap_or(0);
        let mut columns = plan.aggregates.columns.iter().enumerate();
        let probe = memory.new_empty();
        probe.try_grow(COUNTING_BYTES.min(40 * most) + most).is_err()
            || columns.any(|(index, column)| column.distinct && rows(index) > GATHERED)
    }

    /// The answers of all groups.
    ///
    /// # Errors
    /// `ResourcesExhausted`, or when the work was cancelled.
    pub(super) async fn batch(
        mut self,
        scans: Vec<GroupScan<W>>,
        plan: &GroupPlan,
        threads: usize,
        memory: &MemoryReservation,
    ) -> Result<RecordBatch> {
        let groups = self.grouping.len();
        let mut plain = PlainGroups::try_new(&plan.aggregates.plain)?;
        let mut columns: Vec<(Vec<Piece>, Vec<MemoryReservation>)> = Vec::new();
        columns.resize_with(plan.aggregates.columns.len(), Default::default);
        let mut seen = 0;
        for (mut scan, map) in scans.into_iter().zip(&self.maps) {
            let ids: Vec<usize> = map.iter().map(|id| usize::from(*id)).collect();
            let states = scan.plain.states(&[])?;
            // Numbers are in the order of scans: each adds the groups that the ones before have not.
            seen = ids.iter().fold(seen, |seen, id| seen.max(id + 1));
            plain.merge(states.all(), &ids, seen)?;
            if let Phase::Few(few) = scan.phase {
                for (keys, (pieces, reservations)) in few.into_iter().zip(&mut columns) {
                    let (chunks, reservation) = keys.into_parts();
                    pieces.extend(chunks.into_iter().map(|chunk| Piece::new(chunk, map)));
                    reservations.push(reservation);
                }
            }
        }
        let mut answers = Vec::with_capacity(columns.len());
        let plans = output::plans(plan);
        for ((column, plans), (pieces, _reserved)) in plan.aggregates.columns.iter().zip(plans).zip(columns) {
            let selection = Selection {
                pieces: Arc::new(pieces),
                groups,
                spec: column.spec.clone(),
                distinct: column.distinct,
                threads,
                memory: memory.new_empty(),
                stop: StopOnDrop::default(),
            };
            let found = with_key!(column.spec.width(), K => selection.answers::<K>(plans).await?);
            answers.push(Answers::Keys(found));
        }
        let plain = if groups > 0 { plain.evaluate()? } else { Vec::new() };
        if groups == 0 {
            return Ok(RecordBatch::new_empty(plan.schema.clone()));
        }
        output::batch(plan, self.grouping.values()?, &answers, &plain)
    }
}
