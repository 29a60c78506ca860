//! Exact ranks of a column in every group of rows: by brackets where groups are large, else by a sort of all rows.

use datafusion::common::{Result, internal_err};

use super::bracket_plan::BracketPlan;
use super::group::{Groups, Share, sorted};
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
        let (segments, keys) = select(&[(self, among)], report, wanted)?;
        check_rows(&segments, among.population())?;
        Ok((segments, keys))
    }
}

/// As [`Groups::select`], of the rows of several shares. The device of the first share reads them all.
pub(super) fn select(
    shares: &[Share<'_>],
    report: &mut Report,
    wanted: &dyn GroupRanks,
) -> Result<(Segments, PickedKeys)> {
    let Some((groups, _)) = shares.first() else {
        return internal_err!("groups of no rows");
    };
    let among: Vec<_> = shares.iter().map(|(_, among)| *among).collect();
    let (least, shape) = groups.key_shape(&among, report)?;
    let plan = |n| BracketPlan::of_ranks(&wanted.of(n), n);
    let (segments, mut keys) = match BracketRead::try_new(shares, (least, shape), plan) {
        Some(read) => match read.select(report, wanted)? {
            Ok(found) => found,
            Err(table) => sorted(shares, (least, shape), report, |_| Ok(table))?,
        },
        None => sorted(shares, (least, shape), report, |segments| {
            RankTable::try_new(segments, wanted)
        })?,
    };
    keys.least = least;
    Ok((segments, keys))
}

/// Checks that groups have all rows that count.
pub(super) fn check_rows(segments: &Segments, population: u64) -> Result<()> {
    match segments.records {
        found if found == population => Ok(()),
        found => internal_err!("{population} values were announced to the device, it found {found}"),
    }
}
