//! The second read of a partition: it sends the keys of each group that lie in its brackets, or all keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::concat;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::fingerprint::{ColumnFingerprint, READ_DIFFERENTLY};
use super::super::rows::{Body, Header, List, Rows, group_rows};
use super::super::stage::{Consume, StageOutput, reached};
use super::classes::{ClassFingerprints, class_of};
use super::columns::GroupedColumns;
use super::count::{count_nulls, non_null_values, of_rows};
use crate::exec::group_engine::GroupIds;
use crate::kernel::cpu::groups::collect::{Collect, GroupBrackets, collector};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::Width;
use crate::key::with_key;
use crate::memory::reserve;

/// Most keys of a column that are held before they are sent.
const SENT_KEYS: usize = 1 << 22;

/// The state after the first read: groups, their brackets, and the fingerprints of classes.
#[derive(Debug, Default)]
pub struct GroupState {
    /// Whether there are too many groups for brackets.
    many: bool,
    /// The fingerprint of the first read for each class.
    expected: ClassFingerprints,
    /// The group columns of all groups.
    values: Vec<ArrayRef>,
    /// Number of groups.
    groups: usize,
    /// The brackets of each key column.
    brackets: Vec<GroupBrackets>,
    /// The progress of each group's ranks, as bytes one after the other.
    progress: Vec<u8>,
    /// The end of each group's bytes in `progress`.
    ends: Vec<usize>,
    held: Option<MemoryReservation>,
}

impl GroupState {
    /// The state in rows of the stage between the reads.
    ///
    /// # Errors
    /// An execution error for damaged rows; `ResourcesExhausted` where there is no memory for brackets.
    pub(super) fn try_new(
        plan: &GroupedColumns,
        batches: &[RecordBatch],
        memory: MemoryReservation,
    ) -> Result<Self> {
        let mut state = Self {
            values: plan.no_groups(),
            expected: ClassFingerprints::of(plan.columns.len()),
            ..Self::default()
        };
        state
            .brackets
            .resize_with(plan.columns.len(), GroupBrackets::default);
        let mut pieces = vec![Vec::new(); state.values.len()];
        for batch in batches {
            let (expected, many) = (&mut state.expected, &mut state.many);
            let (groups, bodies) = group_rows(batch, &plan.rows, &plan.columns.specs, |class, header| {
                *many |= header.many;
                expected.classes.insert(class, header.expected);
                Ok(())
            })?;
            state.groups += bodies.len();
            for (_, body) in bodies {
                let Body::Progress(bytes, columns) = body else {
                    return internal_err!("a row without the ranks of a group");
                };
                state.progress.extend(bytes);
                state.ends.push(state.progress.len());
                for (own, progress) in state.brackets.iter_mut().zip(&columns) {
                    own.push(progress.active().iter().map(|active| active.bracket));
                }
            }
            pieces
                .iter_mut()
                .zip(groups)
                .for_each(|(own, more)| own.push(more));
        }
        if state.groups > 0 {
            let columns = pieces.iter().map(|pieces| {
                let pieces: Vec<_> = pieces.iter().map(|piece| piece.as_ref()).collect();
                concat(&pieces)
            });
            state.values = columns.collect::<std::result::Result<_, _>>()?;
        }
        let brackets: usize = state.brackets.iter().map(GroupBrackets::bytes).sum();
        let values: usize = state
            .values
            .iter()
            .map(|values| values.get_array_memory_size())
            .sum();
        reserve(
            &memory,
            brackets + values + state.progress.len() + 8 * state.ends.len(),
        )?;
        state.held = Some(memory);
        Ok(state)
    }

    /// The progress of a group's ranks, as bytes; empty for a group without brackets.
    fn progress(&self, group: usize) -> &[u8] {
        match self.ends.get(group) {
            Some(end) => {
                let start = group.checked_sub(1).map_or(0, |before| self.ends[before]);
                &self.progress[start..*end]
            }
            None => &[],
        }
    }
}

/// The groups of a partition while their keys are collected.
pub(super) struct Extracting<W> {
    plan: Arc<GroupedColumns>,
    state: Arc<GroupState>,
    grouping: GroupIds<W>,
    /// The collected keys of each key column.
    columns: Vec<Box<dyn Collect>>,
    /// Number of rows of each group without a value in the first key column.
    nulls: Vec<u64>,
    /// Fingerprints of groups that were sent and forgotten, by class.
    classes: ClassFingerprints,
    /// Memory for groups.
    memory: MemoryReservation,
    /// The group number of each row of a batch.
    ids: Vec<usize>,
}

impl<W: GroupKey> Extracting<W> {
    pub(super) fn try_new(
        plan: &Arc<GroupedColumns>,
        state: &Arc<GroupState>,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        let mut extracting = Self {
            plan: Arc::clone(plan),
            state: Arc::clone(state),
            grouping: plan.grouping()?,
            columns: Vec::new(),
            nulls: Vec::new(),
            classes: ClassFingerprints::of(plan.columns.len()),
            memory: memory.new_empty(),
            ids: Vec::new(),
        };
        extracting.restart()?;
        Ok(extracting)
    }

    /// Forgets all keys, and all groups except those of the state.
    fn restart(&mut self) -> Result<()> {
        self.grouping = self.plan.grouping()?;
        if self.state.groups > 0 {
            self.grouping.number(&self.state.values, &mut self.ids)?;
            if self.grouping.len() != self.state.groups {
                return exec_err!("{READ_DIFFERENTLY}: a group has two states");
            }
        }
        let columns = self.plan.columns.specs().enumerate().map(|(index, spec)| {
            let brackets = (!self.state.many).then(|| &self.state.brackets[index]);
            let memory = self.memory.new_empty();
            with_key!(spec.width(), K => collector::<K>(spec, brackets, memory))
        });
        self.columns = columns.collect();
        self.nulls = vec![0; self.state.groups];
        Ok(())
    }

    /// Reserves memory for a batch of this number of rows.
    fn make_room(&mut self, rows: usize) -> Result<()> {
        let each = size_of::<u64>() * (1 + 2 * self.columns.len());
        let groups = self.grouping.bytes() + (self.grouping.len() + rows) * each;
        self.memory.try_resize(groups)?;
        self.columns
            .iter_mut()
            .try_for_each(|column| column.make_room(rows))
    }

    /// Takes the collected keys: rows by group, and the group columns. Without brackets, the groups are then forgotten.
    fn take_rows(&mut self) -> Result<(Rows, Vec<ArrayRef>)> {
        let rows = self.rows_of_groups();
        let values = self.plan.values_of(&mut self.grouping)?;
        if self.state.many {
            self.add_read();
            self.restart()?;
        }
        Ok((rows, values))
    }

    /// Takes the collected keys as rows, one or more for each group that was seen.
    fn rows_of_groups(&mut self) -> Rows {
        let (mut rows, many, groups) = (Rows::default(), self.state.many, self.grouping.len());
        let slots = |index: usize| {
            if many {
                groups
            } else {
                self.state.brackets[index].len()
            }
        };
        let lists = self
            .columns
            .iter_mut()
            .enumerate()
            .map(|(index, column)| column.take(slots(index)));
        let mut lists: Vec<_> = lists.map(Vec::into_iter).collect();
        for (group, part) in self.grouping.group_partitions().into_iter().enumerate() {
            let own = lists.iter_mut().enumerate().map(|(column, lists)| {
                let brackets = if many {
                    1
                } else {
                    self.state.brackets[column].slots(group).len()
                };
                let own = lists.by_ref().take(brackets).enumerate();
                own.map(move |(number, keys)| List { column, number, keys })
                    .collect::<Vec<_>>()
            });
            let own: Vec<List> = own.flatten().collect();
            // Groups that were seen get a row even without a key in their brackets, or the answers would lack them.
            let values = self.columns[0].seen().get(group).map_or(0, |seen| seen.0);
            if values + self.nulls[group] > 0 {
                rows.keys(
                    Some(class_of(part)),
                    Some(group),
                    self.state.progress(group),
                    own.into_iter(),
                );
            }
        }
        rows
    }

    /// Adds all groups that were read to the fingerprints of their classes.
    fn add_read(&mut self) {
        let parts = self.grouping.group_partitions();
        self.classes.add_nulls(&parts, &self.nulls);
        for (index, column) in self.columns.iter().enumerate() {
            let read = column.seen().iter();
            let read = read.map(|&(n, check)| ColumnFingerprint { n, check });
            self.classes.add_groups(&parts, index, read);
        }
    }
}

impl<W: GroupKey> Consume for Extracting<W> {
    /// Takes the rows of a batch. Returns the rows collected before if there is no memory for both.
    fn push(&mut self, batch: &RecordBatch) -> Result<Option<StageOutput>> {
        let plan = Arc::clone(&self.plan);
        let (groups, values) = plan.split(batch)?;
        let mut sent = None;
        let is_full = self.columns.iter().any(|column| column.len() >= SENT_KEYS);
        if is_full || self.make_room(batch.num_rows()).is_err() {
            let (rows, values) = self.take_rows()?;
            sent = Some(rows.finish(&plan.rows, &values)?);
            self.make_room(batch.num_rows())?;
        }
        self.grouping.number(groups, &mut self.ids)?;
        if !self.state.many && self.grouping.len() > self.state.groups {
            return exec_err!("{READ_DIFFERENTLY}: a group was not there before");
        }
        self.nulls.resize(self.grouping.len(), 0);
        let columns = self.columns.iter_mut().zip(plan.columns.specs());
        for (index, ((column, spec), values)) in columns.zip(values).enumerate() {
            let (values, kept) = non_null_values(values)?;
            if index == 0 {
                count_nulls(&mut self.nulls, &self.ids, kept.as_ref());
            }
            let raw = spec.raw(values.as_ref())?;
            column.add(&of_rows(&self.ids, kept.as_ref()), &raw)?;
        }
        Ok(sent)
    }

    /// The keys that are still held, and the fingerprints of this partition's classes.
    fn finish(mut self) -> Result<StageOutput> {
        reached!("groups_extract");
        if !self.state.many {
            self.add_read();
        }
        let (mut rows, values) = self.take_rows()?;
        let classes = self
            .state
            .expected
            .classes
            .keys()
            .chain(self.classes.classes.keys());
        for class in classes.collect::<BTreeSet<_>>() {
            let header = Header {
                many: self.state.many,
                own: self.classes.read(*class),
                expected: self.state.expected.read(*class),
            };
            rows.header(*class, &header);
        }
        rows.finish(&self.plan.rows, &values)
    }
}
