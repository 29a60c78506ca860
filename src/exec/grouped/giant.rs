//! Parts with a large share of the rows: their few groups are selected by counting, in parallel; those of byte strings
//! as [`heavy`](super::heavy) says.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::metrics::{Count, Time};

use super::heavy::Strings;
use super::many::{PartGroups, Parts, words_of};
use super::output::{self, Answers};
use super::select::Selection;
use super::worker::PartWorker;
use crate::exec::selection::SelectionContext;
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::cells::{BLOCK, Numbered};
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::words::{GroupTable, Word};
use crate::key::LaneKey;
use crate::key::Width;
use crate::memory::reserve;
use crate::threads::Stop;
use crate::threads::StopOnDrop;
use crate::threads::blocking;

/// What numbers the groups of a part, for reading from several threads.
pub(super) enum Numbers<W> {
    Words(GroupTable<W>),
    Null,
    /// For each scan: from its numbers.
    Interned(Vec<Vec<u32>>),
}

impl<W: Word> Numbers<W> {
    /// Appends the numbers of the groups that `words`, of this scan, mean.
    ///
    /// # Errors
    /// An internal error for a word that was not numbered.
    pub(super) fn append<T>(
        &self,
        scan: usize,
        words: &[W],
        ids: &mut Vec<T>,
        cast: impl Fn(u32) -> T,
    ) -> Result<()> {
        let expected = ids.len() + words.len();
        match self {
            Numbers::Null => ids.extend(words.iter().map(|_| cast(0))),
            // Every word was numbered before.
            Numbers::Words(table) => {
                ids.extend(words.iter().filter_map(|word| table.find(*word)).map(cast));
            }
            Numbers::Interned(numbers) => {
                let numbers = &numbers[scan];
                ids.extend(words.iter().map(|word| cast(numbers[word.to_bits() as usize])));
            }
        }
        match ids.len() == expected {
            true => Ok(()),
            false => internal_err!("{} words have no group", expected - ids.len()),
        }
    }
}

/// The values of one column in one run's share of a part.
struct RunPart<W> {
    parts: Arc<Parts<W>>,
    numbers: Arc<Numbers<W>>,
    part: usize,
    scan: usize,
    run: usize,
    column: usize,
}

impl<W: Word, K: LaneKey> Numbered<K> for RunPart<W> {
    fn len(&self) -> usize {
        let run = &self.parts.scans[self.scan].runs.list[self.run];
        let keys = run.columns[self.column].keys();
        keys.map_or(0, |keys| keys.part_len(self.part))
    }

    fn blocks(&self, stop: &Stop, mut each: impl FnMut(&[u16], &[K]) -> Result<()>) -> Result<()> {
        let runs = &self.parts.scans[self.scan].runs;
        let (run, file) = (&runs.list[self.run], runs.file.as_ref());
        let (mut words, mut keys, mut ids) = (Vec::<W>::new(), Vec::new(), Vec::new());
        let len = Numbered::<K>::len(self);
        for from in (0..len).step_by(BLOCK) {
            stop.check()?;
            let range = from..len.min(from + BLOCK);
            let own = run.columns[self.column].keys()?;
            own.read(self.part, range.clone(), file, &mut keys)?;
            words_of(run, self.column).read(self.part, range, file, &mut words)?;
            ids.clear();
            self.numbers.append(self.scan, &words, &mut ids, |id| id as u16)?;
            if ids.len() != keys.len() {
                return internal_err!("{} groups for {} keys", ids.len(), keys.len());
            }
            each(&ids, &keys)?;
        }
        Ok(())
    }

    fn key(&self, at: usize) -> Result<K> {
        let runs = &self.parts.scans[self.scan].runs;
        let mut key = Vec::with_capacity(1);
        let keys = runs.list[self.run].columns[self.column].keys()?;
        keys.read(self.part, at..at + 1, runs.file.as_ref(), &mut key)?;
        Ok(key[0])
    }
}

/// The answers of a giant part.
///
/// # Errors
/// `ResourcesExhausted` where even counters find no room; those of reading rows back.
pub(super) async fn batch<W: Word>(
    parts: &Arc<Parts<W>>,
    part: usize,
    solver: &SelectionContext,
) -> Result<Option<RecordBatch>> {
    let shared = Arc::clone(parts);
    let prepared = blocking(move || {
        let mut groups = numbered(&shared, part)?;
        let plain = if groups.len() > 0 {
            groups.plain(&shared, part)?
        } else {
            Vec::new()
        };
        Ok((groups, plain))
    });
    let (groups, plain): (PartGroups<W>, Vec<ArrayRef>) = prepared.await?;
    let count = groups.len();
    if count == 0 {
        return Ok(None);
    }
    if count > usize::from(u16::MAX) {
        drop((groups, plain));
        return by_a_worker(parts, part, count).await;
    }
    let (numbers, columns) = split(parts, part, groups)?;
    let numbers = Arc::new(numbers);
    let mut answers = Vec::new();
    let plan = &parts.plan;
    for (index, (column, plans)) in plan
        .aggregates
        .columns
        .iter()
        .zip(output::plans(plan))
        .enumerate()
    {
        if column.bytes.is_some() {
            let strings = Strings {
                parts: Arc::clone(parts),
                numbers: Arc::clone(&numbers),
                part,
                column: index,
                groups: count,
            };
            answers.push(Answers::Bytes(strings.answers(plans, solver).await?));
            continue;
        }
        let pieces = parts.scans.iter().enumerate().flat_map(|(scan, scanned)| {
            let piece = move |run| (scan, run);
            (0..scanned.runs.list.len()).map(piece)
        });
        let pieces = pieces.map(|(scan, run)| RunPart {
            parts: Arc::clone(parts),
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
            threads: solver.threads,
            memory: parts.memory().new_empty(),
            stop: StopOnDrop::default(),
        };
        let found = with_key!(column.spec.width(), K => selection.answers::<K>(plans).await?);
        answers.push(Answers::Keys(found));
    }
    output::batch(plan, columns, &answers, &plain).map(Some)
}

/// The answers of a part of many groups, brought together as those of an ordinary part.
async fn by_a_worker<W: Word>(
    parts: &Arc<Parts<W>>,
    part: usize,
    groups: usize,
) -> Result<Option<RecordBatch>> {
    let (memory, wanted) = (parts.memory().new_empty(), parts.worker_bytes_of(part));
    reserve(&memory, wanted).map_err(|error| {
        error.context(format!(
            "the memory limit is too small for a part of {groups} groups, of which {wanted} bytes were wanted"
        ))
    })?;
    let parts = Arc::clone(parts);
    blocking(move || {
        let mut worker = PartWorker::new(Arc::clone(&parts), Count::new(), Time::new());
        let batch = worker.part(&parts, part);
        drop(memory);
        batch
    })
    .await
}

/// The groups of a part, each with its number.
fn numbered<W: Word>(parts: &Parts<W>, part: usize) -> Result<PartGroups<W>> {
    may_fail!("group_giant");
    let mut groups = PartGroups::new(parts, part, GroupTable::new())?;
    let PartGroups::Words(table) = &mut groups else {
        return Ok(groups);
    };
    let mut words = Vec::new();
    for scan in &parts.scans {
        for run in &scan.runs.list {
            let len = run.words.part_len(part);
            for from in (0..len).step_by(BLOCK) {
                let range = from..len.min(from + BLOCK);
                run.words.read(part, range, scan.runs.file.as_ref(), &mut words)?;
                for word in &words {
                    table.id(*word);
                }
            }
        }
    }
    Ok(groups)
}

/// Numbers to share between threads, and the group columns.
fn split<W: Word>(
    parts: &Parts<W>,
    part: usize,
    mut groups: PartGroups<W>,
) -> Result<(Numbers<W>, Vec<ArrayRef>)> {
    let numbers = match &mut groups {
        PartGroups::Words(_) => None,
        PartGroups::Null { .. } => Some(Numbers::Null),
        PartGroups::Interned { .. } => {
            let scans = 0..parts.scans.len();
            let numbers = scans.map(|scan| parts.numbers_in(part, scan, &mut groups));
            Some(Numbers::Interned(numbers.collect()))
        }
    };
    let (columns, table) = groups.into_columns(&parts.plan)?;
    Ok((numbers.unwrap_or(Numbers::Words(table)), columns))
}
