//! Selections of columns on a device, for the tests and the benchmarks.

use datafusion_quantiles::kernel::cuda::{
    DeviceColumn, GroupTop, GroupTopSelection, Report, RowMask, Selection, SpreadGroups, TopAnswer, TopMethod,
};
use datafusion_quantiles::key::KeySpec;

/// A selection in all rows, or in those of a mask, which comes with the number of its rows that have a value.
pub(crate) fn selection<'a>(column: &'a DeviceColumn, mask: Option<&'a (RowMask, u64)>) -> Selection<'a> {
    let spec = KeySpec::try_new(column.data_type()).unwrap();
    Selection {
        column,
        format: column.format(&spec),
        mask: mask.map(|(mask, kept)| (mask.bits(), *kept)),
        limit: None,
        timed: false,
    }
}

/// The best rows of groups by a method, and the names of the kernels that ran.
pub(crate) fn best(
    group: &DeviceColumn,
    key: &DeviceColumn,
    value: &DeviceColumn,
    k: u64,
    least: bool,
    method: TopMethod,
) -> (GroupTop, Report) {
    let mut report = Report::default();
    let groups = SpreadGroups::try_new(&[vec![group]], None, true, &mut report).unwrap();
    let keys = Selection {
        column: key,
        format: key.format(&KeySpec::try_new(key.data_type()).unwrap()),
        mask: None,
        limit: None,
        timed: true,
    };
    let selection = GroupTopSelection {
        groups: groups.of_share(0).unwrap(),
        keys,
        answer: TopAnswer::Values(value),
        others: &[],
        least,
        k,
        forced: Some(method),
    };
    let top = selection.rows(&mut report, |_, _| Ok(())).unwrap();
    let ran = |kernel: &str| {
        let mut names = report.kernel_times.iter().map(|(name, _)| *name);
        names.any(|name| name.starts_with(kernel))
    };
    let are_ranked = key.valid() > 0;
    match method {
        TopMethod::Sort => assert!(!ran("gt_select") && !ran("ws_")),
        TopMethod::Warps => assert_eq!(ran("gt_select") && !ran("ws_"), are_ranked),
        TopMethod::Floors | TopMethod::Runs | TopMethod::RunsByBlocks | TopMethod::RunsByWarps => {}
    }
    (top, report)
}
