//! Where the rows of a table change their group: the launch of `gr_runs` of `kernels/group.cu`.
//!
//! A *run* is a range of neighbouring rows with equal values of the group columns; a group can have several runs. Each column remembers
//! the first rows of its runs, so that it is read for them once in its life.

use std::sync::Arc;

use datafusion::common::Result;

use super::group::{GroupArgument, GroupColumn, Groups, launch, program};
use super::launch::ColumnArgument;
use super::report::Report;

/// Least rows of a run on average. With shorter runs a column is as good as one without runs.
const SHORTEST: u64 = 256;

/// First rows of the runs of all group columns together, ascending, and the number of rows at the end. `None` if runs are shorter
/// than 256 rows on average. Reads each column once in its life.
pub(super) fn run_starts(groups: &Groups<'_>, report: &mut Report) -> Result<Option<Arc<Vec<u64>>>> {
    let mut starts: Option<Arc<Vec<u64>>> = None;
    for group in &groups.columns {
        let Some(own) = column_run_starts(group, groups.limit, report)? else {
            return Ok(None);
        };
        starts = Some(match starts {
            Some(starts) => Arc::new(merged(&starts, &own)),
            None => own,
        });
    }
    // Each column has long runs; those of all columns together can be short.
    Ok(starts.filter(|starts| starts.len() as u64 <= groups.rows / SHORTEST + 2))
}

/// First rows of the runs of one column, as of [`run_starts`], which the column remembers. Waits for the device.
fn column_run_starts(
    group: &GroupColumn<'_>,
    limit: Option<u64>,
    report: &mut Report,
) -> Result<Option<Arc<Vec<u64>>>> {
    let column = group.column;
    if let Some(starts) = column.run_starts().get() {
        return Ok(starts.clone());
    }
    let device = column.device();
    device.check()?;
    let room = column.rows() / SHORTEST;
    let (cursor, end) = (
        room as usize * size_of::<u64>(),
        (room as usize + 1) * size_of::<u64>(),
    );
    let mut heads = device.allocate(end, limit)?;
    heads.zero(cursor..end)?;
    let mut argument = GroupArgument::of(ColumnArgument::of(column, 0));
    argument.codes = heads.address();
    argument.cursor = heads.address() + cursor as u64;
    argument.room = room;
    let program = program(group.format, column.has_nulls());
    launch(device, &program, "gr_runs")?.run(device, &argument)?;
    report.kernels += 1;
    report.bytes_read += column.bytes() as u64;
    let count = heads.number(cursor)?;
    let starts = if count <= room {
        let heads = heads.to_numbers(0..count as usize * size_of::<u64>())?;
        report.bytes_from_device += (heads.len() * size_of::<u64>()) as u64;
        Some(Arc::new(merged(&heads, &[0, column.rows()])))
    } else {
        None
    };
    Ok(column.run_starts().get_or_init(|| starts).clone())
}

/// The rows of both lists, ascending and each once. The lists may be in any order.
fn merged(first: &[u64], second: &[u64]) -> Vec<u64> {
    let mut starts: Vec<u64> = first.iter().chain(second).copied().collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_several_columns_end_where_one_does() {
        assert_eq!(merged(&[0, 5, 9], &[0, 3, 5, 9]), [0, 3, 5, 9]);
        assert_eq!(merged(&[0, 9], &[0, 9]), [0, 9]);
    }
}
