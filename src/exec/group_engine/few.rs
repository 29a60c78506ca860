//! Scans that have ended with few groups, and one numbering of groups for all of them.

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::{FEW_GROUPS, GroupIds, GroupScan, GroupedWork};
use crate::kernel::cpu::groups::group_key::GroupKey;

/// The scans of all partitions, whose groups are few, and their groups.
pub(in crate::exec) struct FewGroups<T: GroupedWork, W: GroupKey> {
    /// Numbers of all groups.
    pub(in crate::exec) ids: GroupIds<W>,
    /// The scans, each with a map from its own group numbers to those in `ids`.
    pub(in crate::exec) scans: Vec<(GroupScan<T, W>, Vec<usize>)>,
}

impl<T: GroupedWork, W: GroupKey> FewGroups<T, W> {
    /// Numbers the groups of all scans together. Returns the scans as they are, as `Err`, if one of them has partitioned its rows, if
    /// groups are too many, or if the work prefers to partition them.
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
        for scan in &mut scans {
            scan.rows.end(&scan.shared)?;
        }
        let scans = scans.into_iter().zip(maps).collect();
        Ok(Ok(Self { ids, scans }))
    }
}
