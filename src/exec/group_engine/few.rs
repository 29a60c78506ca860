//! The end of scans with few groups: one numbering for all.

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::{FEW_GROUPS, GroupIds, GroupScan, GroupedWork};
use crate::kernel::cpu::groups::group_key::GroupKey;

/// The groups of all scans, if they are few.
pub(in crate::exec) struct FewGroups<T: GroupedWork, W: GroupKey> {
    pub(in crate::exec) ids: GroupIds<W>,
    /// The scans, each with the map from its numbers to those of all.
    pub(in crate::exec) scans: Vec<(GroupScan<T, W>, Vec<usize>)>,
}

impl<T: GroupedWork, W: GroupKey> FewGroups<T, W> {
    /// All scans, if none of them has partitioned its rows, and all together have few groups that are not better partitioned;
    /// else they come back.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn of(
        mut scans: Vec<GroupScan<T, W>>,
        work: &T,
        memory: &MemoryReservation,
    ) -> Result<std::result::Result<Self, Vec<GroupScan<T, W>>>> {
        if scans.iter().any(|scan| !scan.is_few) {
            return Ok(Err(scans));
        }
        let mut ids: GroupIds<W> = work.groups().ids()?;
        let mut maps = Vec::with_capacity(scans.len());
        for scan in &mut scans {
            let mut map = Vec::new();
            if scan.ids.len() > 0 {
                ids.number(&scan.ids.values()?, &mut map)?;
            }
            if ids.len() > FEW_GROUPS {
                return Ok(Err(scans));
            }
            maps.push(map);
        }
        if work.partitions_few(&scans, memory) {
            return Ok(Err(scans));
        }
        let scans = scans.into_iter().zip(maps).collect();
        Ok(Ok(Self { ids, scans }))
    }
}
