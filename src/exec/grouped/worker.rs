//! A worker: one thread that answers hash partitions of usual size.

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::output::{self, Answers};
use super::partition::{PartitionGroups, Partitions, byte_strings};
use crate::exec::group_engine::AnsweredGroups;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans, Segments};
use crate::kernel::cpu::groups::strings::ByteSegments;
use crate::key::{Key, Width};

/// Answers hash partitions, one after the other, and uses its memory again for the next one.
pub(super) struct PartitionWorker<W> {
    groups: PartitionGroups<W>,
    plans: Vec<Plans>,
    group_keys: Vec<W>,
    /// Number of each row's group in a hash partition, run after run.
    ids: Vec<u32>,
    /// Number of the group of each value of one column, where not every row has a value.
    own_ids: Vec<u32>,
    scratch: (Scratch<u32>, Scratch<u64>, Scratch<u128>),
    strings: ByteSegments,
    /// Reservations for the answers of each column of byte strings.
    memory: Vec<MemoryReservation>,
}

/// Buffers for the keys of a hash partition.
#[derive(Default)]
struct Scratch<K> {
    keys: Vec<K>,
    segments: Segments<K>,
}

impl<W: GroupKey> PartitionWorker<W> {
    pub(super) fn try_new(partitions: &Partitions<W>) -> Result<Self> {
        let plan = &partitions.shared.work.plan;
        let plans = output::plans(plan);
        Ok(Self {
            groups: PartitionGroups::try_new(plan)?,
            memory: plans.iter().map(|_| partitions.memory.new_empty()).collect(),
            plans,
            group_keys: Vec::new(),
            ids: Vec::new(),
            own_ids: Vec::new(),
            scratch: Default::default(),
            strings: ByteSegments::default(),
        })
    }

    /// The answers of a hash partition; `None` if it has no groups.
    ///
    /// # Errors
    /// Errors of reading rows back, and of DataFusion's aggregates.
    pub(super) fn answer(
        &mut self,
        partitions: &Partitions<W>,
        part: usize,
    ) -> Result<Option<AnsweredGroups>> {
        self.groups.begin(partitions, part)?;
        self.ids.clear();
        for (index, rows) in partitions.scans.iter().map(|scan| &scan.rows).enumerate() {
            for run in &rows.runs {
                self.group_keys.clear();
                run.group_keys
                    .append_partition(part, rows.file.as_ref(), &mut self.group_keys)?;
                self.groups
                    .append_ids(partitions, part, index, &self.group_keys, &mut self.ids)?;
            }
        }
        let groups = self.groups.len();
        if groups == 0 {
            return Ok(None);
        }
        let plan = &partitions.shared.work.plan;
        let plain = self.groups.plain(partitions, part)?;
        let columns = 0..plan.aggregates.columns.len();
        let answers = columns.map(|column| self.column(partitions, part, column));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        let batch = output::batch(plan, self.groups.columns()?, &answers, &plain)?;
        Ok(Some(AnsweredGroups { groups, batch }))
    }

    /// The answers of the calls over one key column.
    fn column(&mut self, partitions: &Partitions<W>, part: usize, index: usize) -> Result<Answers> {
        let mut runs = partitions.runs();
        // If every row has a value, the group numbers of rows are those of values.
        let ids = if runs.all(|run| run.columns[index].own.is_none()) {
            &self.ids
        } else {
            self.own_ids.clear();
            let mut from = 0;
            for (scan, all) in partitions.scans.iter().map(|scan| &scan.rows).enumerate() {
                for run in &all.runs {
                    let rows = run.partition_range(part).len();
                    if let Some(own) = &run.columns[index].own {
                        self.group_keys.clear();
                        own.append_partition(part, all.file.as_ref(), &mut self.group_keys)?;
                        let (group_keys, own_ids) = (&self.group_keys, &mut self.own_ids);
                        self.groups
                            .append_ids(partitions, part, scan, group_keys, own_ids)?;
                    } else {
                        self.own_ids.extend_from_slice(&self.ids[from..from + rows]);
                    }
                    from += rows;
                }
            }
            &self.own_ids
        };
        let plans = &mut self.plans[index];
        let count = self.groups.len();
        let column = &partitions.shared.work.plan.aggregates.columns[index];
        if let Some(spec) = &column.bytes {
            let strings = &mut self.strings;
            append_strings(partitions, part, index, strings)?;
            let memory = &self.memory[index];
            let found = strings.answers(count, ids, spec, plans, column.distinct, memory)?;
            return Ok(Answers::Bytes(found));
        }
        let found = match column.spec.width() {
            Width::W32 => self.scratch.0.answers(partitions, part, index, ids, count, plans),
            Width::W64 => self.scratch.1.answers(partitions, part, index, ids, count, plans),
            Width::W128 => self.scratch.2.answers(partitions, part, index, ids, count, plans),
        };
        found.map(Answers::Keys)
    }
}

/// Replaces the values in `strings` by all byte strings of a column in a hash partition.
fn append_strings<W: GroupKey>(
    partitions: &Partitions<W>,
    part: usize,
    index: usize,
    strings: &mut ByteSegments,
) -> Result<()> {
    let (values, bytes) = byte_strings(partitions, part, index);
    strings.begin(values, bytes);
    for rows in partitions.scans.iter().map(|scan| &scan.rows) {
        for run in &rows.runs {
            let own = run.columns[index].byte_strings()?;
            let file = rows.file.as_ref();
            own.append_partition(part, file, &mut strings.lengths, &mut strings.bytes)?;
        }
    }
    Ok(())
}

impl<K: Key> Scratch<K> {
    /// The answers of the calls over a column of keys: brings the keys of each group together, and selects.
    fn answers<W: GroupKey>(
        &mut self,
        partitions: &Partitions<W>,
        part: usize,
        index: usize,
        ids: &[u32],
        count: usize,
        plans: &mut Plans,
    ) -> Result<GroupAnswers> {
        self.keys.clear();
        for rows in partitions.scans.iter().map(|scan| &scan.rows) {
            for run in &rows.runs {
                let keys = run.columns[index].keys()?;
                keys.append_partition(part, rows.file.as_ref(), &mut self.keys)?;
            }
        }
        self.segments.fill(count, &[(ids, &self.keys)]);
        let distinct = partitions.shared.work.plan.aggregates.columns[index].distinct;
        self.segments.answers(plans, distinct)
    }
}
