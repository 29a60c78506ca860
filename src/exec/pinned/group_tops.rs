//! The best rows of groups of a table that lies on one device, or in shares on several: each device finds those of its share, and the host
//! the best of these.

use std::borrow::Cow;
use std::ops::Range;

use datafusion::common::{Result, internal_err};

use super::groups::own_groups;
use crate::kernel::cuda::GroupTop;

/// The best rows of each share of a table, by groups that have the same codes in all shares.
pub(super) struct GroupTops(Vec<GroupTop>);

/// Places of rows: the share, and the index among the best rows of the share.
pub(super) type SharePlaces = Vec<(usize, usize)>;

impl GroupTops {
    /// The best rows of these shares.
    pub(super) fn new(shares: Vec<GroupTop>) -> Self {
        Self(shares)
    }

    /// The best rows of each share.
    pub(super) fn shares(&self) -> &[GroupTop] {
        &self.0
    }

    /// Codes of the groups that have rows, ascending.
    pub(super) fn codes(&self) -> Cow<'_, [u64]> {
        match self.0.as_slice() {
            [only] => Cow::Borrowed(&only.codes),
            shares => {
                let mut codes: Vec<_> = shares.iter().flat_map(|top| top.codes.iter().copied()).collect();
                codes.sort_unstable();
                codes.dedup();
                Cow::Owned(codes)
            }
        }
    }

    /// The best `k` rows of each of the groups `codes`, which are ascending, and their number for each of these groups. Of rows that tie,
    /// those of the first share come first.
    ///
    /// # Errors
    /// An internal error for a group of a share between the first and the last of `codes` that is not among them.
    pub(super) fn places(&self, codes: &[u64], k: usize) -> Result<(SharePlaces, Vec<usize>)> {
        let mut own: Vec<_> = self.0.iter().map(|top| own_groups(codes, &top.codes)).collect();
        let (mut places, mut lengths) = (Vec::new(), Vec::with_capacity(codes.len()));
        // The rows of a group that have no place yet, of each share that has some, the best first.
        let mut left: Vec<(usize, Range<usize>)> = Vec::with_capacity(self.0.len());
        for code in codes {
            left.clear();
            for (share, (groups, top)) in own.iter_mut().zip(&self.0).enumerate() {
                if groups.start < groups.end && top.codes[groups.start] == *code {
                    left.push((share, top.offsets[groups.start]..top.offsets[groups.start + 1]));
                    groups.start += 1;
                }
            }
            let before = places.len();
            while places.len() - before < k {
                left.retain(|(_, rows)| rows.start < rows.end);
                let best = left.iter_mut();
                let best = best.min_by_key(|(share, rows)| self.0[*share].order(rows.start));
                let Some((share, rows)) = best else { break };
                places.push((*share, rows.start));
                rows.start += 1;
            }
            lengths.push(places.len() - before);
        }
        match own
            .iter()
            .zip(&self.0)
            .find(|(groups, _)| groups.start < groups.end)
        {
            None => Ok((places, lengths)),
            Some((groups, top)) => internal_err!("group {} has rows, and is none", top.codes[groups.start]),
        }
    }
}
