//! Exact ranks of a column in every group of rows: by brackets where groups are large, else by a sort of all rows.

use datafusion::common::Result;

use super::group::Groups;
use super::group_brackets::BracketRead;
use super::report::Report;
use super::select::Selection;
use super::sort::{PickedKeys, Segments};

impl Groups<'_> {
    /// The groups of the rows of `among`, and the keys at the places that `places` gives for these groups, ascending. The key with rank
    /// r, from 0, in the group with index g has the place `starts[g] + r`. `ranks` gives the ranks, from 1 and ascending, that are wanted
    /// of a group of so many rows; it is asked for a group of average size. Waits for the device.
    ///
    /// # Errors
    /// As [`Self::present`]; also `ResourcesExhausted` if codes and keys need more than 128 bits together; errors of `places`.
    pub fn select(
        &self,
        among: &Selection<'_>,
        report: &mut Report,
        ranks: impl FnOnce(u64) -> Vec<u64>,
        places: impl FnOnce(&Segments) -> Result<Vec<u64>>,
    ) -> Result<(Segments, PickedKeys)> {
        let (least, shape) = self.key_shape(among, report)?;
        let (segments, mut keys) = match BracketRead::of_ranks(self, among, (least, shape), ranks) {
            Some(read) => match read.select(report, places)? {
                Ok(found) => found,
                Err(places) => self.sorted(among, (least, shape), report, |_| Ok(places))?,
            },
            None => self.sorted(among, (least, shape), report, places)?,
        };
        keys.least = least;
        Ok((segments, keys))
    }
}
