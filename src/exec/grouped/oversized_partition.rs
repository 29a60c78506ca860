//! Answers of hash partitions with a large part of all rows. Keys are selected by counting, on all threads; byte strings as
//! [`oversized_group`](super::oversized_group) says.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::metrics::Count;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::output::{self, Answers};
use super::oversized_group::PartitionStrings;
use super::partition::{FrozenGroups, PartitionGroups, Partitions, group_keys_of};
use super::select::Selection;
use super::worker::PartitionWorker;
use crate::exec::group_engine::AnsweredGroups;
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::group_key::{GroupKey, NULL_PARTITION};
use crate::kernel::cpu::groups::numbered::{BLOCK, Numbered};
use crate::key::ShardKey;
use crate::key::Width;
use crate::key::with_key;
use crate::threads::{Stop, ThreadPool, blocking};

/// The answers of oversized hash partitions, a batch for each, one after the other.
pub(super) fn batches<W: GroupKey>(
    partitions: &Arc<Partitions<W>>,
    groups: &Count,
) -> BoxStream<'static, Result<RecordBatch>> {
    let spilled = ["spill_count", "spilled_bytes"].map(|name| partitions.shared.metrics.count(name));
    let list = futures::stream::iter(partitions.oversized());
    let (partitions, groups) = (Arc::clone(partitions), groups.clone());
    let answer = move |part| {
        let (partitions, groups, spilled) = (Arc::clone(&partitions), groups.clone(), spilled.clone());
        async move {
            let answered = answer(&partitions, part).await?;
            groups.add(answered.as_ref().map_or(0, |answered| answered.groups));
            let (files, bytes) = partitions.shared.work.solver.backend.spilled();
            for (count, total) in spilled.iter().zip([files, bytes]) {
                count.add(total as usize - count.value());
            }
            Ok(answered.map(|answered| answered.batch))
        }
    };
    list.then(answer)
        .try_filter_map(|batch| futures::future::ready(Ok(batch)))
        .boxed()
}

/// The keys of one column in one run, as far as they are in one hash partition.
struct RunPartition<W: GroupKey> {
    partitions: Arc<Partitions<W>>,
    numbers: Arc<FrozenGroups<W>>,
    part: usize,
    scan: usize,
    run: usize,
    column: usize,
}

impl<W: GroupKey, K: ShardKey> Numbered<K> for RunPartition<W> {
    fn len(&self) -> usize {
        let run = &self.partitions.scans[self.scan].rows.runs[self.run];
        let keys = run.columns[self.column].keys();
        keys.map_or(0, |keys| keys.partition_len(self.part))
    }

    fn blocks(&self, stop: &Stop, mut each: impl FnMut(&[u16], &[K]) -> Result<()>) -> Result<()> {
        let rows = &self.partitions.scans[self.scan].rows;
        let (run, file) = (&rows.runs[self.run], rows.file.as_ref());
        let (mut group_keys, mut keys, mut ids) = (Vec::<W>::new(), Vec::new(), Vec::new());
        let len = Numbered::<K>::len(self);
        for from in (0..len).step_by(BLOCK) {
            stop.check()?;
            let range = from..len.min(from + BLOCK);
            let own = run.columns[self.column].keys()?;
            own.read(self.part, range.clone(), file, &mut keys)?;
            group_keys_of(run, self.column).read(self.part, range, file, &mut group_keys)?;
            ids.clear();
            self.numbers.append(
                &self.partitions,
                self.part,
                self.scan,
                &group_keys,
                &mut ids,
                |id| id as u16,
            )?;
            if ids.len() != keys.len() {
                return internal_err!("{} groups for {} keys", ids.len(), keys.len());
            }
            each(&ids, &keys)?;
        }
        Ok(())
    }

    fn key(&self, at: usize) -> Result<K> {
        let rows = &self.partitions.scans[self.scan].rows;
        let mut key = Vec::with_capacity(1);
        let keys = rows.runs[self.run].columns[self.column].keys()?;
        keys.read(self.part, at..at + 1, rows.file.as_ref(), &mut key)?;
        Ok(key[0])
    }
}

/// The answers of an oversized hash partition; `None` if it has no groups.
///
/// # Errors
/// `ResourcesExhausted` if there is not even memory for counters; errors of reading rows back.
async fn answer<W: GroupKey>(partitions: &Arc<Partitions<W>>, part: usize) -> Result<Option<AnsweredGroups>> {
    let shared = Arc::clone(partitions);
    let prepared = blocking(move || {
        let mut groups = numbered(&shared, part)?;
        let plain = match groups.len() {
            0 => Vec::new(),
            _ => groups.plain(&shared, part)?,
        };
        Ok((groups, plain))
    });
    let (groups, plain): (PartitionGroups<W>, Vec<ArrayRef>) = prepared.await?;
    let count = groups.len();
    if count == 0 {
        return Ok(None);
    }
    if count > usize::from(u16::MAX) {
        drop((groups, plain));
        return by_a_worker(partitions, part, count).await;
    }
    let (columns, numbers) = groups.freeze()?;
    let numbers = Arc::new(numbers);
    let mut answers = Vec::new();
    let (plan, solver) = (&partitions.shared.work.plan, &partitions.shared.work.solver);
    for (index, (column, plans)) in plan
        .aggregates
        .columns
        .iter()
        .zip(output::plans(plan))
        .enumerate()
    {
        if column.bytes.is_some() {
            let strings = PartitionStrings {
                partitions: Arc::clone(partitions),
                numbers: Arc::clone(&numbers),
                part,
                column: index,
                groups: count,
            };
            answers.push(Answers::Bytes(strings.answers(plans, solver).await?));
            continue;
        }
        let runs = partitions.run_indices().into_iter();
        let pieces = runs.map(|(scan, run)| RunPartition {
            partitions: Arc::clone(partitions),
            numbers: Arc::clone(&numbers),
            part,
            scan,
            run,
            column: index,
        });
        let selection = Selection {
            pieces: Arc::new(pieces.collect::<Vec<_>>()),
            groups: count,
            spec: column.spec.clone(),
            distinct: column.distinct,
            pool: ThreadPool::new(solver.threads, Stop::default()),
            memory: partitions.memory.new_empty(),
        };
        let found = with_key!(column.spec.width(), K => selection.answers::<K>(plans).await?);
        answers.push(Answers::Keys(found));
    }
    let batch = output::batch(plan, columns, &answers, &plain)?;
    Ok(Some(AnsweredGroups { groups: count, batch }))
}

/// The answers of a hash partition with too many groups to count by group, found by a worker as those of an ordinary one.
async fn by_a_worker<W: GroupKey>(
    partitions: &Arc<Partitions<W>>,
    part: usize,
    groups: usize,
) -> Result<Option<AnsweredGroups>> {
    let (memory, wanted) = (partitions.memory.new_empty(), partitions.needs[part]);
    partitions.shared.reserve(&memory, wanted).map_err(|error| {
        error.context(format!(
            "the memory limit is too small for a hash partition of {groups} groups, of which {wanted} bytes were wanted"
        ))
    })?;
    let partitions = Arc::clone(partitions);
    blocking(move || {
        let answered = PartitionWorker::try_new(&partitions)?.answer(&partitions, part);
        drop(memory);
        answered
    })
    .await
}

/// The groups of a hash partition, all numbered.
fn numbered<W: GroupKey>(partitions: &Partitions<W>, part: usize) -> Result<PartitionGroups<W>> {
    may_fail!("group_giant");
    let mut groups = PartitionGroups::try_new(&partitions.shared.work.plan)?;
    groups.begin(partitions, part)?;
    if !groups.is_packed() {
        return Ok(groups);
    }
    // The group without a key, which is NULL, is alone in its hash partition: one row is enough to number it.
    let is_single = part == usize::from(NULL_PARTITION);
    let (mut group_keys, mut ids) = (Vec::new(), Vec::new());
    for (index, rows) in partitions.scans.iter().map(|scan| &scan.rows).enumerate() {
        for run in &rows.runs {
            let len = if is_single {
                run.group_keys.partition_len(part).min(1)
            } else {
                run.group_keys.partition_len(part)
            };
            for from in (0..len).step_by(BLOCK) {
                let range = from..len.min(from + BLOCK);
                run.group_keys
                    .read(part, range, rows.file.as_ref(), &mut group_keys)?;
                ids.clear();
                groups.append_ids(partitions, part, index, &group_keys, &mut ids)?;
            }
        }
    }
    Ok(groups)
}
