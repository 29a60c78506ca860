//! Exact ranks of a column in every group of rows: by brackets where groups are large, else by a sort of all rows.

use datafusion::common::{Result, internal_err};

use super::bracket_plan::BracketPlan;
use super::group::{Share, sorted};
use super::group_brackets::BracketRead;
use super::group_ranks::{GroupRanks, RankTable};
use super::picked_keys::PickedKeys;
use super::report::Report;
use super::sort::Segments;

/// The groups of the rows of these shares, and the keys at the ranks of each group, [`GroupRanks::each`] for each group in the order of
/// groups. `wanted` is also asked for the ranks of a group of average size. The device of the first share reads all rows, and is waited for.
///
/// # Errors
/// As [`SpreadGroups::select`](super::group_spread::SpreadGroups::select).
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
