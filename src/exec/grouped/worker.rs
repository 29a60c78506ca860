//! One thread's work on ordinary parts.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::{Count, Time};

use super::many::{PartGroups, Parts};
use super::output::{self, Answers};
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans, Segments};
use crate::kernel::cpu::groups::strings::ByteSegments;
use crate::kernel::cpu::groups::words::{GroupTable, Word};
use crate::key::{Key, Width};

/// Works parts off, until none is left. Its memory is used again from part to part.
pub(super) struct PartWorker<W> {
    parts: Arc<Parts<W>>,
    plans: Vec<Plans>,
    table: Option<GroupTable<W>>,
    words: Vec<W>,
    /// Numbers of the groups of a part's rows, run after run; and of one column's values.
    ids: Vec<u32>,
    own_ids: Vec<u32>,
    scratch: (Scratch<u32>, Scratch<u64>, Scratch<u128>),
    strings: ByteSegments,
    /// For the answers of each column of byte strings.
    memory: Vec<MemoryReservation>,
    groups_out: Count,
    time: Time,
}

#[derive(Default)]
struct Scratch<K> {
    keys: Vec<K>,
    segments: Segments<K>,
}

impl<W: Word> PartWorker<W> {
    pub(super) fn new(parts: Arc<Parts<W>>, groups_out: Count, time: Time) -> Self {
        let plans = output::plans(&parts.plan);
        Self {
            memory: plans.iter().map(|_| parts.memory().new_empty()).collect(),
            plans,
            parts,
            table: None,
            words: Vec::new(),
            ids: Vec::new(),
            own_ids: Vec::new(),
            scratch: Default::default(),
            strings: ByteSegments::default(),
            groups_out,
            time,
        }
    }

    /// The answers of the next part that has groups; `None` when no part is left.
    ///
    /// # Errors
    /// Those of reading rows back, and of DataFusion's aggregates.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        let time = self.time.clone();
        let _timer = time.timer();
        let parts = Arc::clone(&self.parts);
        while let Some(part) = parts.next() {
            if let Some(batch) = self.part(&parts, part)? {
                self.groups_out.add(batch.num_rows());
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// The answers of a part; `None` if it has no groups.
    ///
    /// # Errors
    /// As for [`Self::next`].
    pub(super) fn part(&mut self, parts: &Parts<W>, part: usize) -> Result<Option<RecordBatch>> {
        may_fail!("group_part");
        let table = self.table.take().unwrap_or_else(GroupTable::new);
        let mut groups = PartGroups::new(parts, part, table)?;
        self.ids.clear();
        for (index, scan) in parts.scans.iter().enumerate() {
            for run in &scan.runs.list {
                self.words.clear();
                run.words
                    .append_part(part, scan.runs.file.as_ref(), &mut self.words)?;
                groups.append_ids(parts, part, index, &self.words, &mut self.ids);
            }
        }
        if groups.len() == 0 {
            return Ok(None);
        }
        let plain = groups.plain(parts, part)?;
        let columns = 0..parts.plan.aggregates.columns.len();
        let answers = columns.map(|column| self.column(parts, part, column, &mut groups));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        let (columns, table) = groups.into_columns(&parts.plan)?;
        self.table = Some(table);
        output::batch(&parts.plan, columns, &answers, &plain).map(Some)
    }

    fn column(
        &mut self,
        parts: &Parts<W>,
        part: usize,
        index: usize,
        groups: &mut PartGroups<W>,
    ) -> Result<Answers> {
        let mut runs = parts.scans.iter().flat_map(|scan| &scan.runs.list);
        // Where every row has a value, the numbers of rows are those of values.
        let ids = match runs.all(|run| run.columns[index].own.is_none()) {
            true => &self.ids,
            false => {
                self.own_ids.clear();
                let mut from = 0;
                for (scan_index, scan) in parts.scans.iter().enumerate() {
                    for run in &scan.runs.list {
                        let rows = run.part_range(part).len();
                        if let Some(own) = &run.columns[index].own {
                            self.words.clear();
                            own.append_part(part, scan.runs.file.as_ref(), &mut self.words)?;
                            groups.append_ids(parts, part, scan_index, &self.words, &mut self.own_ids);
                        } else {
                            self.own_ids.extend_from_slice(&self.ids[from..from + rows]);
                        }
                        from += rows;
                    }
                }
                &self.own_ids
            }
        };
        let plans = &mut self.plans[index];
        let count = groups.len();
        let column = &parts.plan.aggregates.columns[index];
        if let Some(spec) = &column.bytes {
            let strings = &mut self.strings;
            append_strings(parts, part, index, strings)?;
            let memory = &self.memory[index];
            let found = strings.answers(count, ids, spec, plans, column.distinct, memory)?;
            return Ok(Answers::Bytes(found));
        }
        let found = match column.spec.width() {
            Width::W32 => self.scratch.0.answers(parts, part, index, ids, count, plans),
            Width::W64 => self.scratch.1.answers(parts, part, index, ids, count, plans),
            Width::W128 => self.scratch.2.answers(parts, part, index, ids, count, plans),
        };
        found.map(Answers::Keys)
    }
}

/// All byte strings of a column in a part, in place of what was there.
fn append_strings<W: Word>(
    parts: &Parts<W>,
    part: usize,
    index: usize,
    strings: &mut ByteSegments,
) -> Result<()> {
    let (values, bytes) = parts.byte_strings(part, index);
    strings.begin(values, bytes);
    for scan in &parts.scans {
        for run in &scan.runs.list {
            let own = run.columns[index].byte_strings()?;
            let file = scan.runs.file.as_ref();
            own.append_part(part, file, &mut strings.lengths, &mut strings.bytes)?;
        }
    }
    Ok(())
}

impl<K: Key> Scratch<K> {
    /// Brings the keys of a part together by group, and selects.
    fn answers<W: Word>(
        &mut self,
        parts: &Parts<W>,
        part: usize,
        index: usize,
        ids: &[u32],
        count: usize,
        plans: &mut Plans,
    ) -> Result<GroupAnswers> {
        self.keys.clear();
        for scan in &parts.scans {
            for run in &scan.runs.list {
                let keys = run.columns[index].keys()?;
                keys.append_part(part, scan.runs.file.as_ref(), &mut self.keys)?;
            }
        }
        self.segments.fill(count, &[(ids, &self.keys)]);
        let distinct = parts.plan.aggregates.columns[index].distinct;
        self.segments.answers(plans, distinct)
    }
}
