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
    rows: NumberedRows<W>,
    plans: Vec<Plans>,
    /// Number of the group of each value of one column, where not every row has a value.
    own_ids: Vec<u32>,
    scratch: (Scratch<u32>, Scratch<u64>, Scratch<u128>),
    strings: ByteSegments,
    /// Reservations for the answers of each column of byte strings.
    memory: Vec<MemoryReservation>,
}

/// The groups of a hash partition, and which rows are theirs.
struct NumberedRows<W> {
    groups: PartitionGroups<W>,
    group_keys: Vec<W>,
    /// Number of each row's group, run after run.
    ids: Vec<u32>,
}

impl<W: GroupKey> NumberedRows<W> {
    /// Numbers the groups of all rows in a hash partition. Replaces `keys` by the keys of the first column, which are read from disk together
    /// with the group keys.
    fn read<K: Key>(
        &mut self,
        partitions: &Partitions<W>,
        part: usize,
        mut keys: Option<&mut Vec<K>>,
    ) -> Result<()> {
        self.ids.clear();
        if let Some(keys) = &mut keys {
            keys.clear();
        }
        for (scan, rows) in partitions.scans.iter().map(|scan| &scan.rows).enumerate() {
            let file = rows.file.as_ref();
            for run in &rows.runs {
                self.group_keys.clear();
                match &mut keys {
                    Some(keys) if run.columns[0].own.is_none() => {
                        run.append_rows(part, file, &mut self.group_keys, keys)?;
                    }
                    keys => {
                        run.group_keys
                            .append_partition(part, file, &mut self.group_keys)?;
                        if let Some(keys) = keys {
                            run.columns[0].keys()?.append_partition(part, file, keys)?;
                        }
                    }
                }
                self.groups
                    .append_ids(partitions, part, scan, &self.group_keys, &mut self.ids)?;
            }
        }
        Ok(())
    }
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
            rows: NumberedRows {
                groups: PartitionGroups::try_new(plan)?,
                group_keys: Vec::new(),
                ids: Vec::new(),
            },
            memory: plans.iter().map(|_| partitions.memory.new_empty()).collect(),
            plans,
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
        self.rows.groups.begin(partitions, part)?;
        let first = partitions.shared.work.plan.aggregates.columns.first();
        let first = first.filter(|column| column.bytes.is_none());
        let (rows, scratch) = (&mut self.rows, &mut self.scratch);
        match first.map(|column| column.spec.width()) {
            None => rows.read::<u32>(partitions, part, None)?,
            Some(Width::W32) => rows.read(partitions, part, Some(&mut scratch.0.keys))?,
            Some(Width::W64) => rows.read(partitions, part, Some(&mut scratch.1.keys))?,
            Some(Width::W128) => rows.read(partitions, part, Some(&mut scratch.2.keys))?,
        }
        let groups = self.rows.groups.len();
        if groups == 0 {
            return Ok(None);
        }
        let plan = &partitions.shared.work.plan;
        let plain = self.rows.groups.plain(partitions, part)?;
        let columns = 0..plan.aggregates.columns.len();
        let answers = columns.map(|column| self.column(partitions, part, column));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        let batch = output::batch(plan, self.rows.groups.columns()?, &answers, &plain)?;
        Ok(Some(AnsweredGroups { groups, batch }))
    }

    /// The answers of the calls over one key column.
    fn column(&mut self, partitions: &Partitions<W>, part: usize, index: usize) -> Result<Answers> {
        let mut runs = partitions.runs();
        // If every row has a value, the group numbers of rows are those of values.
        let ids = if runs.all(|run| run.columns[index].own.is_none()) {
            &self.rows.ids
        } else {
            self.own_ids.clear();
            let mut from = 0;
            for (scan, all) in partitions.scans.iter().map(|scan| &scan.rows).enumerate() {
                for run in &all.runs {
                    let rows = run.partition_range(part).len();
                    if let Some(own) = &run.columns[index].own {
                        let NumberedRows {
                            groups, group_keys, ..
                        } = &mut self.rows;
                        group_keys.clear();
                        own.append_partition(part, all.file.as_ref(), group_keys)?;
                        groups.append_ids(partitions, part, scan, group_keys, &mut self.own_ids)?;
                    } else {
                        self.own_ids.extend_from_slice(&self.rows.ids[from..from + rows]);
                    }
                    from += rows;
                }
            }
            &self.own_ids
        };
        let plans = &mut self.plans[index];
        let count = self.rows.groups.len();
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
    /// The answers of the calls over a column of keys: brings the keys of each group together, and selects. The keys of column 0 are here:
    /// [`NumberedRows::read`] has read them.
    fn answers<W: GroupKey>(
        &mut self,
        partitions: &Partitions<W>,
        part: usize,
        index: usize,
        ids: &[u32],
        count: usize,
        plans: &mut Plans,
    ) -> Result<GroupAnswers> {
        if index > 0 {
            self.keys.clear();
            for rows in partitions.scans.iter().map(|scan| &scan.rows) {
                for run in &rows.runs {
                    let keys = run.columns[index].keys()?;
                    keys.append_partition(part, rows.file.as_ref(), &mut self.keys)?;
                }
            }
        }
        self.segments.fill(count, &[(ids, &self.keys)]);
        let distinct = partitions.shared.work.plan.aggregates.columns[index].distinct;
        self.segments.answers(plans, distinct)
    }
}
