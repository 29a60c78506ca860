//! The end of a scan with many groups: rows lie in parts, and each part has groups of its own.
//!
//! Workers take ordinary parts off, one at a time ([`super::worker`]). A part with a large share of the rows, be it
//! because one group has them, is not for one thread: its groups, few as they are, are selected by counting, as all
//! groups are where they are few ([`super::giant`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::{Array, ArrayRef, UInt64Array};
use datafusion::arrow::compute::take;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::aggregates::group_values::GroupValues;

use super::GroupPlan;
use super::groups::group_values;
use super::plain::{Held, PartOrder, PlainGroups, PlainStates};
use super::scan::{GroupScan, Phase, Runs, Shared};
use super::select::GATHERED;
use crate::kernel::cpu::groups::runs::{Parted, Run};
use crate::kernel::cpu::groups::strings::ByteSegments;
use crate::kernel::cpu::groups::words::{GroupTable, NULL_PART, PARTS, Word};
use crate::memory::reserve;

/// Bytes of the counters of a giant part, and of the keys that they lead to.
const GIANT_BYTES: usize = 4 << 20;

/// A part that needs no more is never a giant for want of memory.
const LEAST_BYTES: usize = 64 << 10;

/// What one scan left behind.
pub(super) struct Scanned<W> {
    pub(super) runs: Runs,
    states: Option<PlainStates>,
    /// Words of the groups that `states` are of.
    words: Vec<W>,
    /// Where groups have numbers in each scan.
    numbered: Option<Numbered>,
}

/// The groups of a scan that has numbered them.
struct Numbered {
    values: Vec<ArrayRef>,
    order: PartOrder,
    /// Where each number stands in the order.
    places: Vec<u32>,
}

/// All rows, in parts.
pub(super) struct Parts<W> {
    pub(super) plan: Arc<GroupPlan>,
    pub(super) scans: Vec<Scanned<W>>,
    /// Rows of each part.
    sizes: Vec<usize>,
    /// Bytes that a worker needs for each part.
    needs: Vec<usize>,
    /// Parts with more rows, or that need more bytes, are giants.
    most: usize,
    most_bytes: usize,
    next: AtomicUsize,
    memory: MemoryReservation,
}

impl<W: Word> Parts<W> {
    /// Of scans that have partitioned their rows. Reserves what workers need; how many they may be.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is not enough for one worker.
    pub(super) fn try_new(
        shared: &Shared,
        scans: Vec<GroupScan<W>>,
        memory: MemoryReservation,
        threads: usize,
    ) -> Result<(Self, usize)> {
        let scans = scans.into_iter().map(|scan| scanned(scan, &memory));
        let mut parts = Self {
            scans: scans.collect::<Result<_>>()?,
            plan: Arc::clone(&shared.plan),
            sizes: Vec::new(),
            needs: Vec::new(),
            most: usize::MAX,
            most_bytes: usize::MAX,
            next: AtomicUsize::new(0),
            memory,
        };
        let rows = |part| parts.runs().map(|(_, run)| run.part_range(part).len()).sum();
        parts.sizes = (0..PARTS).map(rows).collect();
        parts.needs = (0..PARTS).map(|part| parts.need(part)).collect();
        let share = parts.sizes.iter().sum::<usize>() / (4 * threads.max(1));
        if parts.may_have_giants() {
            // A part of usual size is none, however many threads there are.
            let usual = 4 * parts.sizes.iter().sum::<usize>() / PARTS;
            parts.most = share.max(usual).max(GATHERED);
        }
        let workers = parts.reserve_workers(threads.max(1), shared)?;
        Ok((parts, workers))
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = (&Scanned<W>, &Run)> {
        let scans = self.scans.iter();
        scans.flat_map(|scan| scan.runs.list.iter().map(move |run| (scan, run)))
    }

    /// Whether a part can be taken on other than by a worker: distinct keys of few groups are brought together all the
    /// same.
    fn may_have_giants(&self) -> bool {
        let mut columns = self.plan.aggregates.columns.iter();
        self.plan.has_byte_strings() || !columns.any(|column| column.distinct)
    }

    fn is_giant(&self, part: usize) -> bool {
        self.sizes[part] > self.most || self.needs[part] > self.most_bytes
    }

    /// Bytes that a worker needs for the largest part that is no giant.
    fn worker_bytes(&self) -> usize {
        let ordinary = (0..PARTS).filter(|part| !self.is_giant(*part));
        ordinary.map(|part| self.needs[part]).max().unwrap_or(0)
    }

    /// Bytes that a worker would need for a part.
    pub(super) fn worker_bytes_of(&self, part: usize) -> usize {
        self.needs[part]
    }

    fn need(&self, part: usize) -> usize {
        let rows = self.sizes[part];
        let columns = self.plan.aggregates.columns.iter().enumerate();
        let widest = columns.map(|(index, column)| match column.bytes {
            None => rows * 2 * column.spec.width().bytes(),
            Some(_) => {
                let (values, bytes) = self.byte_strings(part, index);
                bytes + values * ByteSegments::VALUE_BYTES
            }
        });
        // What rows carry is read run by run.
        let carried = self.runs().map(|(_, run)| run.part_carried_bytes(part)).max();
        // Words and ids, ids for plain aggregates, keys twice, and for each group, one a row at most, some places.
        rows * (size_of::<W>() + 4 + 8 + 4 * size_of::<usize>())
            + widest.max().unwrap_or(0)
            + carried.unwrap_or(0)
    }

    /// Byte strings of a column in a part, and their bytes.
    pub(super) fn byte_strings(&self, part: usize, column: usize) -> (usize, usize) {
        let columns = self.runs().map(|(_, run)| &run.columns[column]);
        let strings = columns.filter_map(|column| column.byte_strings().ok());
        strings.fold((0, 0), |(values, bytes), strings| {
            (values + strings.part_len(part), bytes + strings.part_bytes(part))
        })
    }

    /// For as many workers as there is memory for, if need be on disk's account. Where there is none even for one,
    /// large parts become giants.
    fn reserve_workers(&mut self, threads: usize, shared: &Shared) -> Result<usize> {
        let mut spilled = false;
        loop {
            let each = self.worker_bytes();
            let giants = if self.giants().is_empty() { 0 } else { GIANT_BYTES };
            for workers in (1..=threads).rev() {
                if self.memory.try_grow(workers * each + giants).is_ok() {
                    // Those for giants are theirs to reserve again.
                    self.memory.shrink(giants);
                    return Ok(workers);
                }
                if !spilled && shared.spiller.is_enabled() {
                    break;
                }
            }
            if !spilled && shared.spiller.is_enabled() {
                for scan in &mut self.scans {
                    scan.runs.spill::<W>(shared)?;
                }
                spilled = true;
                continue;
            }
            // So much is needed for giants, too.
            if each <= LEAST_BYTES || !self.may_have_giants() {
                reserve(&self.memory, each)?;
                return Ok(1);
            }
            self.most_bytes = each / 2;
        }
    }

    /// The next part for a worker.
    pub(super) fn next(&self) -> Option<usize> {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= PARTS {
                return None;
            }
            if !self.is_giant(part) {
                return Some(part);
            }
        }
    }

    /// Parts that are not for one worker.
    pub(super) fn giants(&self) -> Vec<usize> {
        (0..PARTS).filter(|part| self.is_giant(*part)).collect()
    }

    pub(super) fn memory(&self) -> &MemoryReservation {
        &self.memory
    }

    /// For each group that a scan has numbered, its number in a part; 0 for those that are not in it.
    pub(super) fn numbers_in(&self, part: usize, scan: usize, groups: &mut PartGroups<W>) -> Vec<u32> {
        let Some(numbered) = &self.scans[scan].numbered else {
            return Vec::new();
        };
        let mut numbers = vec![0; numbered.places.len()];
        let members = numbered.order.part(part);
        let words: Vec<W> = members.iter().map(|id| W::from_bits((*id).into())).collect();
        let mut ids = Vec::with_capacity(members.len());
        groups.append_ids(self, part, scan, &words, &mut ids);
        for (member, id) in members.iter().zip(ids) {
            numbers[*member as usize] = id;
        }
        numbers
    }
}

fn scanned<W: Word>(scan: GroupScan<W>, memory: &MemoryReservation) -> Result<Scanned<W>> {
    let GroupScan {
        mut grouping,
        mut plain,
        mut states,
        state_words,
        phase,
        memory: own,
        ..
    } = scan;
    // What it was for is reserved below.
    own.free();
    let mut numbered = None;
    if grouping.numbers_every_row() {
        let parts = grouping.group_parts();
        let order = PartOrder::new(&parts);
        let mut places = vec![0; order.order.len()];
        for (place, id) in order.order.iter().enumerate() {
            places[*id as usize] = place as u32;
        }
        states = Some(plain.states(&parts)?);
        let values = grouping.values()?;
        let bytes = values.iter().map(|values| values.get_array_memory_size());
        reserve(memory, bytes.sum::<usize>() + 8 * places.len())?;
        numbered = Some(Numbered {
            values,
            order,
            places,
        });
    }
    if let Some(states) = &states {
        reserve(memory, states.bytes())?;
    }
    let Phase::Many(many) = phase else {
        return internal_err!("rows are not partitioned");
    };
    Ok(Scanned {
        runs: many.runs,
        states,
        words: state_words,
        numbered,
    })
}

/// The groups of one part.
pub(super) enum PartGroups<W> {
    /// Told apart by their words.
    Words(GroupTable<W>),
    /// One group, that has no word, or none.
    Null { any: bool },
    /// Told apart by DataFusion.
    Interned {
        values: Box<dyn GroupValues>,
        /// For each scan: the number in this part of each of its groups there.
        ids: Vec<Vec<usize>>,
    },
}

impl<W: Word> PartGroups<W> {
    /// The groups of a part. Those with words are not known before [`Self::append_ids`] has seen all of them; `table`
    /// is memory to use.
    pub(super) fn new(parts: &Parts<W>, part: usize, mut table: GroupTable<W>) -> Result<Self> {
        if parts.plan.packing.is_some() {
            table.clear();
            return Ok(match part == usize::from(NULL_PART) {
                true => PartGroups::Null {
                    any: parts.sizes[part] > 0,
                },
                false => PartGroups::Words(table),
            });
        }
        let mut values = group_values(parts.plan.group_schema())?;
        let mut ids = Vec::with_capacity(parts.scans.len());
        for scan in &parts.scans {
            let mut own = Vec::new();
            if let Some(numbered) = &scan.numbered
                && !numbered.order.part(part).is_empty()
            {
                values.intern(&numbered.order.take_part(part, &numbered.values)?, &mut own)?;
            }
            ids.push(own);
        }
        Ok(PartGroups::Interned { values, ids })
    }

    /// Number of groups.
    pub(super) fn len(&self) -> usize {
        match self {
            PartGroups::Words(table) => table.len(),
            PartGroups::Null { any } => usize::from(*any),
            PartGroups::Interned { values, .. } => values.len(),
        }
    }

    /// Appends the numbers of the groups of a part that `words`, of this scan, mean; new words get the next numbers.
    pub(super) fn append_ids(
        &mut self,
        parts: &Parts<W>,
        part: usize,
        scan: usize,
        words: &[W],
        ids: &mut Vec<u32>,
    ) {
        match self {
            PartGroups::Null { .. } => ids.resize(ids.len() + words.len(), 0),
            PartGroups::Words(table) => ids.extend(words.iter().map(|word| table.id(*word))),
            PartGroups::Interned { ids: own, .. } => {
                let own = &own[scan];
                ids.extend(words.iter().map(|word| interned(parts, part, scan, own, *word)));
            }
        }
    }

    /// The group columns; the table's memory.
    pub(super) fn into_columns(self, plan: &GroupPlan) -> Result<(Vec<ArrayRef>, GroupTable<W>)> {
        Ok(match self {
            PartGroups::Words(table) => (plan.packing()?.columns(table.words(), None)?, table),
            PartGroups::Null { .. } => {
                let null = plan.packing()?.columns(&[W::default()], Some(0))?;
                (null, GroupTable::new())
            }
            PartGroups::Interned { mut values, .. } => (values.emit(EmitTo::All)?, GroupTable::new()),
        })
    }

    /// The plain aggregates of a part, all of whose groups are numbered.
    pub(super) fn plain(&mut self, parts: &Parts<W>, part: usize) -> Result<Vec<ArrayRef>> {
        let aggregates = &parts.plan.aggregates.plain;
        if aggregates.is_empty() {
            return Ok(Vec::new());
        }
        let mut plain = PlainGroups::try_new(aggregates)?;
        let held = Held::new(parts.memory.new_empty());
        let mut order = FirstSeen::new(self.len());
        let (mut words, mut ids) = (Vec::new(), Vec::new());
        for (index, scan) in parts.scans.iter().enumerate() {
            if let Some(states) = &scan.states {
                let members = states.order.part(part);
                if !members.is_empty() {
                    let (ids, seen) = order.renumber(self.state_ids(scan, index, members));
                    plain.merge(&states.part(part)?, ids, seen)?;
                    held.resize(plain.bytes())?;
                }
            }
            for run in &scan.runs.list {
                let range = run.part_range(part);
                if run.carried.is_empty() || range.is_empty() {
                    continue;
                }
                words.clear();
                ids.clear();
                run.words.append_part(part, scan.runs.file.as_ref(), &mut words)?;
                self.append_ids(parts, part, index, &words, &mut ids);
                let inputs = run.part_carried(part, scan.runs.file.as_ref())?;
                let (ids, seen) = order.renumber(ids.iter().map(|id| *id as usize));
                plain.update_inputs(aggregates, &inputs, ids, seen)?;
                held.resize(plain.bytes())?;
            }
        }
        order.restore(plain.evaluate()?)
    }

    /// The numbers of the groups that a scan's states are of. Each of them has stood among the words.
    fn state_ids(&mut self, scan: &Scanned<W>, index: usize, members: &[u32]) -> Vec<usize> {
        match self {
            PartGroups::Interned { ids, .. } => ids[index].clone(),
            PartGroups::Null { .. } => vec![0; members.len()],
            PartGroups::Words(table) => {
                let ids = members
                    .iter()
                    .map(|id| table.id(scan.words[*id as usize]) as usize);
                ids.collect()
            }
        }
    }
}

/// Numbers in the order of first appearance: accumulators take it that each batch has rows of all groups that are new.
struct FirstSeen {
    /// From a group's number to the new one.
    new: Vec<Option<usize>>,
    seen: usize,
    renumbered: Vec<usize>,
}

impl FirstSeen {
    fn new(groups: usize) -> Self {
        Self {
            new: vec![None; groups],
            seen: 0,
            renumbered: Vec::new(),
        }
    }

    /// The new numbers, and the number of groups seen so far.
    fn renumber(&mut self, ids: impl IntoIterator<Item = usize>) -> (&[usize], usize) {
        self.renumbered.clear();
        for id in ids {
            let new = *self.new[id].get_or_insert_with(|| {
                self.seen += 1;
                self.seen - 1
            });
            self.renumbered.push(new);
        }
        (&self.renumbered, self.seen)
    }

    /// Columns by new number, in the order of the numbers that groups had.
    fn restore(&self, columns: Vec<ArrayRef>) -> Result<Vec<ArrayRef>> {
        let rows: UInt64Array = self.new.iter().map(|new| new.map(|new| new as u64)).collect();
        if rows.null_count() > 0 {
            return internal_err!("a group without rows");
        }
        let taken = columns.iter().map(|column| take(column.as_ref(), &rows, None));
        Ok(taken.collect::<std::result::Result<_, _>>()?)
    }
}

/// The number in a part of the group that has the number `word` in a scan.
#[inline(always)]
fn interned<W: Word>(parts: &Parts<W>, part: usize, scan: usize, own: &[usize], word: W) -> u32 {
    match &parts.scans[scan].numbered {
        Some(numbered) => {
            let place = numbered.places[word.to_bits() as usize] as usize;
            own[place - numbered.order.start(part)] as u32
        }
        None => 0,
    }
}

/// The words that tell the groups of a column's values apart: its own, or those of all rows.
pub(super) fn words_of(run: &Run, column: usize) -> &Parted {
    run.columns[column].own.as_ref().unwrap_or(&run.words)
}
