//! The groups of a table whose rows lie on several devices.
//!
//! Each device takes some of the codes of groups, and reads the rows of all shares, those of the others over the bus between devices. So each
//! group is selected by one device, as if all of its rows lay there. Cost: the read of all rows by every device, and the sort of its part.

use std::ops::RangeInclusive;

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, exec_err, internal_err, resources_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::group::{Groups, Share, ordered};
use super::group_ranks::GroupRanks;
use super::group_select::select;
use super::picked_keys::PickedKeys;
use super::report::Report;
use super::select::Selection;
use super::sort::Segments;
use crate::failpoint::may_fail;
use crate::threads::{Stop, scoped_map};

/// The groups of the rows of a table that lies on one device, or in shares on several.
#[derive(Debug)]
pub struct SpreadGroups<'a>(Vec<Groups<'a>>);

impl<'a> SpreadGroups<'a> {
    /// Groups by the columns of each share of a table. Fails if this crate would hold more than `limit` bytes of the memory of one device.
    /// Reads each column once in its life.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the codes of groups need more than 64 bits; an execution error if a device fails, or cannot read the memory of
    /// another; an internal error for no columns, or columns of several tables.
    pub fn try_new(
        shares: &[Vec<&'a DeviceColumn>],
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Self> {
        may_fail!("cuda_group");
        let Some(groups) = Groups::of_shares(shares, limit, timed, report)? else {
            return resources_err!(
                "the values of {} group columns span more than 64 bits on the device",
                shares.first().map_or(0, Vec::len)
            );
        };
        let groups = Self(groups);
        match groups.strangers() {
            None => Ok(groups),
            Some([one, other]) => exec_err!("{one} cannot read the memory of {other}"),
        }
    }

    /// Groups as of [`Self::try_new`]; `None` if the codes of groups need more than 64 bits, or if a device cannot read the memory of
    /// another, as [`Self::select`] and [`Self::present`] need it.
    ///
    /// # Errors
    /// The other errors of [`Self::try_new`].
    pub(crate) fn fitting(
        shares: &[Vec<&'a DeviceColumn>],
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Option<Self>> {
        let groups = Groups::of_shares(shares, limit, timed, report)?.map(Self);
        Ok(groups.filter(|groups| groups.strangers().is_none()))
    }

    /// A device and another one whose memory it cannot read.
    fn strangers(&self) -> Option<[&Device; 2]> {
        let devices = || self.0.iter().map(|groups| groups.device.as_ref());
        devices().find_map(|one| {
            let other = devices().find(|other| !one.reads(other))?;
            Some([one, other])
        })
    }

    /// The groups of the rows of one share. A group has the same code in all shares.
    ///
    /// # Errors
    /// An internal error if there is no such share.
    pub fn of_share(&self, share: usize) -> Result<&Groups<'a>> {
        match self.0.get(share) {
            Some(groups) => Ok(groups),
            None => internal_err!("share {share} of {}", self.0.len()),
        }
    }

    /// The values of the group columns for groups with these codes, one array for each column.
    ///
    /// # Errors
    /// Internal errors only.
    pub fn values(&self, codes: &[u64]) -> Result<Vec<ArrayRef>> {
        match self.0.first() {
            Some(groups) => groups.values(codes),
            None => internal_err!("groups of no shares"),
        }
    }

    /// Whether the code of a group and a key of the column fit in a record of 128 bits, as [`Self::select`] needs it. Reads the column
    /// once in its life.
    ///
    /// # Errors
    /// An execution error if a device fails; `ResourcesExhausted` if it has no memory to find the range of the keys.
    pub(crate) fn fits(&self, among: &[Selection<'_>], report: &mut Report) -> Result<bool> {
        let Some(groups) = self.0.first() else {
            return internal_err!("groups of no shares");
        };
        let among: Vec<_> = among.iter().collect();
        let (_, shape) = groups.key_shape(&among, report)?;
        Ok(shape.bytes().is_some())
    }

    /// The groups of the rows of `among`, which has the rows of each share, and the keys at the ranks of each group, [`GroupRanks::each`] for
    /// each group in the order of groups. `wanted` is also asked for the ranks of a group of average size. Waits for the devices.
    ///
    /// # Errors
    /// As [`Self::present`]; also `ResourcesExhausted` if codes and keys need more than 128 bits together; errors of `wanted`.
    pub fn select(
        &self,
        among: &[Selection<'_>],
        report: &mut Report,
        wanted: &dyn GroupRanks,
    ) -> Result<(Segments, PickedKeys)> {
        let (segments, keys) = self.on_each(report, |groups, report| {
            let shares: Vec<Share<'_>> = groups.iter().zip(among).collect();
            select(&shares, report, wanted)
        })?;
        let population = among.iter().map(Selection::population).sum::<u64>();
        match segments.records {
            found if found == population => Ok((segments, keys)),
            found => internal_err!("{population} values were announced to the device, it found {found}"),
        }
    }

    /// The groups of the rows in the bitmaps `masks`, one for each share, or of all rows, and the number of rows of each. Waits for the
    /// devices.
    ///
    /// # Errors
    /// `ResourcesExhausted` if a device's memory, or the limit on it, is too small; an execution error if a device fails.
    pub fn present(&self, masks: &[Option<&DeviceBuffer>], report: &mut Report) -> Result<Segments> {
        let (segments, _) = self.on_each(report, |groups, report| {
            let rows = groups.iter().zip(masks);
            let rows: Vec<_> = rows
                .map(|(groups, mask)| (groups, groups.rows_without_keys(*mask)))
                .collect();
            ordered(&rows, report, |_| Ok(None))
        })?;
        Ok(segments)
    }

    /// Has each device `find` the groups whose codes it takes, of the rows of all shares. The devices work at the same time.
    fn on_each(
        &self,
        report: &mut Report,
        find: impl Fn(&[Groups<'_>], &mut Report) -> Result<(Segments, PickedKeys)> + Sync,
    ) -> Result<(Segments, PickedKeys)> {
        if let [_] = self.0.as_slice() {
            return find(&self.0, report);
        }
        let parts: Vec<_> = (0..self.0.len()).collect();
        let found = scoped_map(parts.len(), parts, &Stop::default(), |part, _| {
            let mut own = Report::default();
            let found = match self.of_part(part) {
                Some(groups) => find(&groups, &mut own)?,
                None => Default::default(),
            };
            Ok((found, own))
        })?;
        let (found, reports): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        report.add_together(reports);
        let none = (Segments::default(), PickedKeys::default());
        Ok(found.into_iter().fold(none, |(all, keys), (more, more_keys)| {
            (all.and(more), keys.and(more_keys))
        }))
    }

    /// The groups of each share whose codes the device of one share takes. `None`: there are none.
    fn of_part(&self, part: usize) -> Option<Vec<Groups<'a>>> {
        let (device, numbers) = (self.0[part].device, self.0[part].numbers);
        let kept = codes_of(part, self.0.len(), numbers)?;
        let groups = self.0.iter().map(|groups| Groups {
            device,
            kept: Some(kept.clone()),
            ..groups.clone()
        });
        Some(groups.collect())
    }
}

/// The codes, of `numbers` of them, that device `part` of `parts` takes.
fn codes_of(part: usize, parts: usize, numbers: u128) -> Option<RangeInclusive<u64>> {
    let end = |part: usize| numbers * part as u128 / parts as u128;
    let (first, last) = (end(part), end(part + 1).checked_sub(1)?);
    (first <= last).then_some(first as u64..=last as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_taken_by_one_device() {
        for numbers in [1, 2, 3, 1000, (1 << 32) + 1, 1 << 64] {
            for parts in [1, 2, 3, 8] {
                let ranges: Vec<_> = (0..parts)
                    .filter_map(|part| codes_of(part, parts, numbers))
                    .collect();
                assert_eq!(*ranges[0].start(), 0);
                assert_eq!(u128::from(*ranges[ranges.len() - 1].end()), numbers - 1);
                assert!(
                    ranges
                        .windows(2)
                        .all(|pair| pair[0].end() + 1 == *pair[1].start())
                );
            }
        }
    }
}
