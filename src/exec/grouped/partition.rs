//! Numbers for the groups of one hash partition.

use datafusion::arrow::array::{Array, ArrayRef, UInt64Array};
use datafusion::arrow::compute::take;
use datafusion::common::{Result, internal_err};

use super::plain::{AccumulatorMemory, PlainGroups};
use super::plan::{GroupQuantiles, GroupedQuantilesWork};
use super::scan::QuantilesScanned;
use crate::exec::group_engine::{FrozenIds, GroupIds, HashPartitions};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::partitioned::Partitioned;
use crate::kernel::cpu::groups::runs::Run;
use crate::kernel::cpu::groups::strings::ByteSegments;

/// All rows of an execution, in hash partitions.
pub(super) type Partitions<W> = HashPartitions<GroupQuantiles, W>;

/// Bytes that a worker needs for each hash partition (estimates).
pub(super) fn worker_bytes<W: GroupKey>(partitions: &Partitions<W>) -> Vec<usize> {
    // The inputs of plain aggregates are read run by run.
    let mut carried = vec![0; partitions.sizes.len()];
    for run in partitions.runs() {
        run.raise_to_carried_bytes(&mut carried);
    }
    let carried = carried.into_iter().enumerate();
    let bytes = carried.map(|(part, carried)| carried + key_bytes(partitions, part));
    bytes.collect()
}

/// Bytes that a worker needs for the group keys and values of a hash partition (an estimate).
fn key_bytes<W: GroupKey>(partitions: &Partitions<W>, part: usize) -> usize {
    let rows = partitions.sizes[part];
    let columns = partitions.shared.work.plan.aggregates.columns.iter().enumerate();
    let widest = columns.map(|(index, column)| match column.bytes {
        None => rows * 2 * column.spec.width().bytes(),
        Some(_) => {
            let (values, bytes) = byte_strings(partitions, part, index);
            bytes + values * ByteSegments::VALUE_BYTES
        }
    });
    // Group keys and group numbers, numbers for plain aggregates, keys twice, and a few indices for each group, of which there is at most
    // one a row.
    rows * (size_of::<W>() + 4 + 8 + 4 * size_of::<usize>()) + widest.max().unwrap_or(0)
}

/// Number of a column's byte strings in a hash partition, and their bytes.
pub(super) fn byte_strings<W: GroupKey>(
    partitions: &Partitions<W>,
    part: usize,
    column: usize,
) -> (usize, usize) {
    let columns = partitions.runs().map(|run| &run.columns[column]);
    let strings = columns.filter_map(|column| column.byte_strings().ok());
    strings.fold((0, 0), |(values, bytes), strings| {
        (
            values + strings.partition_len(part),
            bytes + strings.partition_bytes(part),
        )
    })
}

/// The groups of one hash partition.
pub(super) struct PartitionGroups<W> {
    ids: GroupIds<W>,
    /// For each scan that has numbered its groups: the number here of each of its groups in the hash partition. Empty where group keys
    /// are packed.
    from_scans: Vec<Vec<u32>>,
}

impl<W: GroupKey> PartitionGroups<W> {
    pub(super) fn try_new(plan: &GroupedQuantilesWork) -> Result<Self> {
        Ok(Self {
            ids: plan.groups.partition_ids()?,
            from_scans: Vec::new(),
        })
    }

    /// Forgets all groups and begins with those of a hash partition. Groups with packed keys are not numbered before
    /// [`Self::append_ids`] has seen them.
    pub(super) fn begin(&mut self, partitions: &Partitions<W>, part: usize) -> Result<()> {
        self.ids.clear()?;
        self.from_scans.clear();
        if self.ids.is_packed() {
            return Ok(());
        }
        for scan in &partitions.scans {
            let mut own = Vec::new();
            if let Some(groups) = &scan.held.groups
                && let Some(values) = groups.values_in(part)?
            {
                self.ids.number_in(part, &[], &values, &mut own)?;
            }
            self.from_scans.push(own);
        }
        Ok(())
    }

    /// Number of groups numbered so far.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn is_packed(&self) -> bool {
        self.ids.is_packed()
    }

    /// Appends to `ids` the number of each row's group, from the group keys of rows of one scan in a hash partition. New groups
    /// get the next numbers.
    pub(super) fn append_ids(
        &mut self,
        partitions: &Partitions<W>,
        part: usize,
        scan: usize,
        group_keys: &[W],
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let Some(own) = self.from_scans.get(scan) else {
            return self.ids.number_in(part, group_keys, &[], ids);
        };
        ids.extend(
            group_keys
                .iter()
                .map(|group_key| interned(partitions, part, scan, own, *group_key)),
        );
        Ok(())
    }

    /// The group columns, one value for each group.
    pub(super) fn columns(&mut self) -> Result<Vec<ArrayRef>> {
        self.ids.values()
    }

    /// The group columns, and the numbers of groups to share between threads.
    pub(super) fn freeze(self) -> Result<(Vec<ArrayRef>, FrozenGroups<W>)> {
        let (columns, ids) = self.ids.freeze()?;
        let from_scans = self.from_scans;
        Ok((columns, FrozenGroups { ids, from_scans }))
    }

    /// The answers of plain aggregates in a hash partition, all of whose groups are numbered.
    pub(super) fn plain(&mut self, partitions: &Partitions<W>, part: usize) -> Result<Vec<ArrayRef>> {
        let aggregates = &partitions.shared.work.plan.aggregates.plain;
        if aggregates.is_empty() {
            return Ok(Vec::new());
        }
        let mut plain = PlainGroups::try_new(aggregates)?;
        let reserved = AccumulatorMemory::new(partitions.memory.new_empty());
        let mut order = FirstSeen::new(self.len());
        let (mut group_keys, mut ids) = (Vec::new(), Vec::new());
        for (index, scan) in partitions.scans.iter().enumerate() {
            if let Some(states) = &scan.held.states {
                let members = states.order.part(part);
                if !members.is_empty() {
                    let (ids, seen) = order.renumber(self.state_ids(&scan.held, index, part, members)?);
                    plain.merge(&states.part(part)?, ids, seen)?;
                    reserved.resize(plain.bytes())?;
                }
            }
            for run in &scan.rows.runs {
                let range = run.partition_range(part);
                if run.carried.is_empty() || range.is_empty() {
                    continue;
                }
                group_keys.clear();
                ids.clear();
                run.group_keys
                    .append_partition(part, scan.rows.file.as_ref(), &mut group_keys)?;
                self.append_ids(partitions, part, index, &group_keys, &mut ids)?;
                let inputs = run.partition_carried(part, scan.rows.file.as_ref())?;
                let (ids, seen) = order.renumber(ids.iter().map(|id| *id as usize));
                plain.update(aggregates, &inputs, ids, seen)?;
                reserved.resize(plain.bytes())?;
            }
        }
        order.restore(plain.evaluate()?)
    }

    /// The numbers of the groups in a hash partition that a scan has states of. Each of these groups has rows, so it is numbered.
    fn state_ids(
        &mut self,
        scan: &QuantilesScanned<W>,
        index: usize,
        part: usize,
        members: &[u32],
    ) -> Result<Vec<usize>> {
        if let Some(own) = self.from_scans.get(index) {
            return Ok(own.iter().map(|id| *id as usize).collect());
        }
        let group_keys: Vec<W> = members.iter().map(|id| scan.group_keys[*id as usize]).collect();
        let mut ids = Vec::with_capacity(group_keys.len());
        self.ids.number_in(part, &group_keys, &[], &mut ids)?;
        Ok(ids.into_iter().map(|id| id as usize).collect())
    }
}

/// Numbers of the groups of a hash partition, none of which are new any more: several threads may read them.
pub(super) struct FrozenGroups<W> {
    ids: FrozenIds<W>,
    /// As [`PartitionGroups::from_scans`].
    from_scans: Vec<Vec<u32>>,
}

impl<W: GroupKey> FrozenGroups<W> {
    /// Appends to `ids` the number of each row's group, from the group keys of rows of one scan.
    ///
    /// # Errors
    /// An internal error for a group that was not numbered.
    pub(super) fn append<T>(
        &self,
        partitions: &Partitions<W>,
        part: usize,
        scan: usize,
        group_keys: &[W],
        ids: &mut Vec<T>,
        cast: impl Fn(u32) -> T,
    ) -> Result<()> {
        let expected = ids.len() + group_keys.len();
        match self.from_scans.get(scan) {
            Some(own) => {
                let numbers = group_keys
                    .iter()
                    .map(|group_key| interned(partitions, part, scan, own, *group_key));
                ids.extend(numbers.map(cast));
            }
            None => ids.extend(
                group_keys
                    .iter()
                    .filter_map(|group_key| self.ids.find(*group_key))
                    .map(cast),
            ),
        }
        if ids.len() == expected {
            Ok(())
        } else {
            internal_err!("{} group keys have no group", expected - ids.len())
        }
    }
}

/// New numbers for groups, in the order of their first rows: accumulators assume that each batch has rows of all groups that are new.
struct FirstSeen {
    /// New number of each group, by its old number.
    new: Vec<Option<usize>>,
    /// Number of groups seen so far.
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

    /// The new numbers of these groups, and the number of groups seen so far.
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

    /// Columns that are in the order of new numbers, put in the order of the old ones.
    fn restore(&self, columns: Vec<ArrayRef>) -> Result<Vec<ArrayRef>> {
        let rows: UInt64Array = self.new.iter().map(|new| new.map(|new| new as u64)).collect();
        if rows.null_count() > 0 {
            return internal_err!("a group without rows");
        }
        let taken = columns.iter().map(|column| take(column.as_ref(), &rows, None));
        Ok(taken.collect::<std::result::Result<_, _>>()?)
    }
}

/// The number in a hash partition of a group that has the number `group_key` in a scan. `own` has the number in the hash partition of each
/// of the scan's groups there.
#[inline(always)]
fn interned<W: GroupKey>(
    partitions: &Partitions<W>,
    part: usize,
    scan: usize,
    own: &[u32],
    group_key: W,
) -> u32 {
    match &partitions.scans[scan].held.groups {
        Some(groups) => own[groups.index_in(part, group_key.to_bits() as usize)],
        None => 0,
    }
}

/// The group keys of a column's values: the column's own if some rows have no value, else those of all rows.
pub(super) fn group_keys_of(run: &Run, column: usize) -> &Partitioned {
    run.columns[column].own.as_ref().unwrap_or(&run.group_keys)
}
