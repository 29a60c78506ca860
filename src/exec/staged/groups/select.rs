//! The last step: it selects the answers of some classes of groups, from the keys of all partitions.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::super::fingerprint::{READ_DIFFERENTLY, compare};
use super::super::rows::{Body, Header, List, group_rows, read_progress};
use super::super::stage::{Consume, StageOutput, reached};
use super::columns::GroupedColumns;
use crate::exec::group_engine::GroupIds;
use crate::kernel::cpu::groups::collect::{Collect, collector};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans};
use crate::key::Width;
use crate::key::with_key;
use crate::memory::reserve;
use crate::select::progress::Progress;

/// A group that answers are selected for.
#[derive(Default)]
struct SelectedGroup {
    /// The progress of its ranks as bytes; empty where all keys are sent.
    progress: Vec<u8>,
    /// The numbers of its brackets among those of all groups, for each key column.
    slots: Vec<Range<u32>>,
}

/// The groups of some classes, while their keys arrive.
pub(super) struct Selecting<W> {
    plan: Arc<GroupedColumns>,
    grouping: GroupIds<W>,
    groups: Vec<Option<SelectedGroup>>,
    columns: Vec<Box<dyn Collect>>,
    /// Number of brackets so far, for each key column.
    slots: Vec<usize>,
    /// The report of all partitions about each class.
    headers: BTreeMap<u32, Header>,
    /// The classes of the groups, as bits.
    classes: u64,
    /// Whether all keys are sent, without brackets.
    many: bool,
    /// Most rows of a batch of answers.
    batch_rows: usize,
    memory: MemoryReservation,
    /// The group number of each row of a batch.
    ids: Vec<usize>,
}

impl<W: GroupKey> Selecting<W> {
    pub(super) fn try_new(
        plan: &Arc<GroupedColumns>,
        memory: &MemoryReservation,
        batch_rows: usize,
    ) -> Result<Self> {
        let columns = plan.columns.specs().map(|spec| {
            let memory = memory.new_empty();
            with_key!(spec.width(), K => collector::<K>(spec, None, memory))
        });
        Ok(Self {
            grouping: plan.grouping()?,
            groups: Vec::new(),
            columns: columns.collect(),
            slots: vec![0; plan.columns.len()],
            plan: Arc::clone(plan),
            headers: BTreeMap::new(),
            classes: 0,
            many: false,
            batch_rows,
            memory: memory.new_empty(),
            ids: Vec::new(),
        })
    }

    /// Adds the report of a partition about a class.
    fn add_header(&mut self, class: u32, header: Header) -> Result<()> {
        match self.headers.entry(class) {
            Entry::Vacant(none) => {
                none.insert(header);
                Ok(())
            }
            Entry::Occupied(mut known)
                if known.get().expected == header.expected && known.get().many == header.many =>
            {
                known.get_mut().own.add(&header.own);
                Ok(())
            }
            Entry::Occupied(_) => {
                exec_err!("{READ_DIFFERENTLY}: two different states of the same groups reached a stage")
            }
        }
    }

    /// Checks that both reads of every class agree, and that a header came for the class of every group.
    fn check(&self) -> Result<()> {
        for header in self.headers.values() {
            compare(&header.expected, &header.own)?;
        }
        for class in (0..64).filter(|class| self.classes >> class & 1 == 1) {
            // The flag of a class without a header is `None`, which differs too.
            if self.headers.get(&class).map(|header| header.many) != Some(self.many) {
                return exec_err!("{READ_DIFFERENTLY}: keys of groups came without what was read of them");
            }
        }
        Ok(())
    }

    /// Adds lists of keys of a group.
    fn add(&mut self, group: usize, progress: &[u8], lists: Vec<List>) -> Result<()> {
        let known = match &mut self.groups[group] {
            Some(known) if known.progress == progress => known,
            Some(_) => return exec_err!("{READ_DIFFERENTLY}: a group has two states"),
            none => {
                let mut slots = Vec::new();
                if !progress.is_empty() {
                    for (next, own) in self
                        .slots
                        .iter_mut()
                        .zip(read_progress(progress, &self.plan.columns.specs)?)
                    {
                        let first = *next as u32;
                        *next += own.active().len();
                        slots.push(first..*next as u32);
                    }
                }
                reserve(
                    &self.memory,
                    size_of::<SelectedGroup>() + progress.len() + 16 * slots.len(),
                )?;
                self.many |= progress.is_empty();
                none.insert(SelectedGroup {
                    progress: progress.to_vec(),
                    slots,
                })
            }
        };
        for list in lists {
            let slot = match known.slots.get(list.column) {
                Some(own) if list.number < own.len() => own.start + list.number as u32,
                Some(own) => return exec_err!("keys of bracket {} of {}", list.number, own.len()),
                None => group as u32,
            };
            self.columns[list.column].add_keys(slot, list.keys)?;
        }
        Ok(())
    }

    /// The answers: one row for each group; `None` without groups.
    fn answers(&mut self) -> Result<Option<RecordBatch>> {
        if self.groups.is_empty() {
            return Ok(None);
        }
        let mut plans: Vec<Plans> = (0..self.plan.columns.len())
            .map(|column| {
                let specs = self.plan.columns.quantile_specs(column);
                Plans::new(specs.into_iter().cloned().collect())
            })
            .collect();
        let answers = if self.many {
            let groups = self.groups.len();
            let columns = self.columns.iter_mut().zip(&mut plans);
            let answers = columns.map(|(column, plans)| column.answers(groups, plans));
            answers.collect::<Result<Vec<_>>>()?
        } else {
            self.bracketed(&mut plans)?
        };
        let groups = self.grouping.values()?;
        self.plan.answered(groups, &answers).map(Some)
    }

    /// The answers of groups with brackets.
    fn bracketed(&mut self, plans: &mut [Plans]) -> Result<Vec<GroupAnswers>> {
        let columns = self.columns.iter_mut().zip(&self.slots);
        let mut lists: Vec<_> = columns
            .map(|(column, slots)| column.take(*slots).into_iter())
            .collect();
        let mut answers: Vec<_> = plans
            .iter()
            .map(|plans| GroupAnswers::with_capacity(plans.quantile_specs(), 0))
            .collect();
        // Slots are in the order of the groups' numbers.
        for known in &self.groups {
            let known = known
                .as_ref()
                .ok_or_else(|| internal_datafusion_err!("a group without a state"))?;
            let progress = read_progress(&known.progress, &self.plan.columns.specs)?;
            for (index, mut progress) in progress.into_iter().enumerate() {
                let kept: Vec<_> = lists[index].by_ref().take(progress.active().len()).collect();
                if !kept.is_empty() {
                    progress.extracted(kept)?;
                }
                add_answers(&mut answers[index], &mut plans[index], &progress)?;
            }
        }
        Ok(answers)
    }
}

impl<W: GroupKey> Consume for Selecting<W> {
    fn push(&mut self, batch: &RecordBatch) -> Result<Option<StageOutput>> {
        let plan = Arc::clone(&self.plan);
        let (groups, bodies) = group_rows(batch, &plan.rows, &plan.columns.specs, |class, header| {
            self.add_header(class, header)
        })?;
        if bodies.is_empty() {
            return Ok(None);
        }
        let before = self.grouping.bytes();
        self.grouping.number(&groups, &mut self.ids)?;
        reserve(&self.memory, self.grouping.bytes().saturating_sub(before))?;
        self.groups.resize_with(self.grouping.len(), || None);
        for (at, (class, body)) in bodies.into_iter().enumerate() {
            let Body::Keys(progress, lists) = body else {
                return internal_err!("a row without keys of a group");
            };
            self.classes |= 1 << (class % 64);
            self.add(self.ids[at], progress, lists)?;
        }
        Ok(None)
    }

    fn finish(mut self) -> Result<StageOutput> {
        reached!("groups_select");
        self.check()?;
        let Some(answers) = self.answers()? else {
            return Ok(StageOutput::default());
        };
        let rows = answers.num_rows();
        let slices = (0..rows).step_by(self.batch_rows.max(1));
        let slices = slices.map(|from| answers.slice(from, self.batch_rows.min(rows - from)));
        Ok(StageOutput {
            batches: slices.collect(),
            bytes: 0,
        })
    }
}

/// Adds the answers of one group in one key column.
fn add_answers(answers: &mut GroupAnswers, plans: &mut Plans, progress: &Progress) -> Result<()> {
    match progress.population() {
        0 => {
            answers.add_empty();
            Ok(())
        }
        n => answers.add(n, plans.of(n), &|rank| progress.key_at(rank)),
    }
}

impl GroupedColumns {
    /// The rows of all groups, from their answers in each key column.
    fn answered(&self, groups: Vec<ArrayRef>, answers: &[GroupAnswers]) -> Result<RecordBatch> {
        let mut next = vec![0; answers.len()];
        let mut columns = groups;
        for (call, selected) in self.columns.calls.iter().zip(&self.columns.selected) {
            let own = &answers[call.column];
            // The answers of a column are in the order of its calls.
            let found = &own.found[next[call.column]];
            next[call.column] += 1;
            let values = call.quantile_spec.values(selected.spec(), found)?;
            columns.push(selected.group_rows(values, &own.lengths)?);
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.answers), columns)?)
    }
}
