//! Answers of few groups: keys are counted by pair of group and cell, and those of the wanted cells are taken out.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::output::{self, Answers};
use super::plain::{AccumulatorMemory, PlainGroups};
use super::plan::GroupQuantiles;
use super::select::Selection;
use crate::exec::group_engine::{AnsweredGroups, FewGroups};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::numbered::Piece;
use crate::key::Width;
use crate::key::with_key;
use crate::threads::{Stop, ThreadPool};

/// Bytes that the counters of a few threads take.
pub(super) const COUNTING_BYTES: usize = 8 << 20;

/// The answers of all groups, from the scans of all partitions.
///
/// # Errors
/// `ResourcesExhausted`; an error if the query was cancelled.
pub(super) async fn answer<W: GroupKey>(
    few: FewGroups<GroupQuantiles, W>,
    work: &GroupQuantiles,
    memory: &MemoryReservation,
) -> Result<AnsweredGroups> {
    let FewGroups { mut ids, scans } = few;
    let (plan, groups) = (&work.plan, ids.len());
    let mut plain = PlainGroups::try_new(&plan.aggregates.plain)?;
    let reserved = AccumulatorMemory::new(memory.new_empty());
    let mut columns: Vec<(Vec<Piece>, Vec<MemoryReservation>)> = Vec::new();
    columns.resize_with(plan.aggregates.columns.len(), Default::default);
    let mut seen = 0;
    for (scan, map) in scans {
        let mut held = scan.held;
        let states = held.plain.states(&[])?;
        // Groups are numbered in the order of scans: each scan adds those that the scans before it do not have.
        seen = map.iter().fold(seen, |seen, id| seen.max(id + 1));
        plain.merge(states.all(), &map, seen)?;
        reserved.resize(plain.bytes())?;
        let map: Arc<[u16]> = map.iter().map(|id| *id as u16).collect();
        for (keys, (pieces, reservations)) in held.few.into_iter().zip(&mut columns) {
            let (chunks, reservation) = keys.into_parts();
            pieces.extend(chunks.into_iter().map(|chunk| Piece::new(chunk, &map)));
            reservations.push(reservation);
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
            pool: ThreadPool::new(work.solver.threads, Stop::default()),
            memory: memory.new_empty(),
        };
        let found = with_key!(column.spec.width(), K => selection.answers::<K>(plans).await?);
        answers.push(Answers::Keys(found));
    }
    let batch = match groups {
        0 => RecordBatch::new_empty(Arc::clone(&plan.schema)),
        _ => output::batch(plan, ids.values()?, &answers, &plain.evaluate()?)?,
    };
    Ok(AnsweredGroups { groups, batch })
}
