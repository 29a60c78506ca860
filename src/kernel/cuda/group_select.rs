//! Exact ranks of a column in every group of rows: by brackets where groups are large, else by a sort of all rows.

use datafusion::common::Result;

use super::bracket_plan::BracketPlan;
use super::group::Groups;
use super::group_brackets::BracketRead;
use super::group_ranks::{GroupRanks, RankTable};
use super::report::Report;
use super::select::Selection;
use super::sort::{PickedKeys, Segments};

impl Groups<'_> {
    /// The groups of the rows of `among`, and the keys at the ranks of each group, [`GroupRanks::each`] for each group in the order of
    /// groups. `wanted` is also asked for the ranks of a group of average size. Waits for the device.
    ///
    /// # Errors
    /// As [`Self::present`]; also `ResourcesExhausted` if codes and keys need more than 128 bits together; errors of `wanted`.
    pub fn select(
        &self,
        among: &Selection<'_>,
        report: &mut Report,
        wanted: &dyn GroupRanks,
    ) -> Result<(Segments, PickedKeys)> {
        let (least, shape) = self.key_shape(among, report)?;
        let plan = |n| BracketPlan::of_ranks(&wanted.of(n), n);
        let (segments, mut keys) = match BracketRead::try_new(self, among, (least, shape), plan) {
            Some(read) => match read.select(report, wanted)? {
                Ok(found) => found,
                Err(table) => self.sorted(among, (least, shape), report, |_| Ok(table))?,
            },
            None => self.sorted(among, (least, shape), report, |segments| {
                RankTable::try_new(segments, wanted)
            })?,
        };
        keys.least = least;
        Ok((segments, keys))
    }
}
