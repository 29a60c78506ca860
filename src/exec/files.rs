//! Scans of files in a plan.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;

pub(super) use crate::functions::CHANGED;

/// The scan of files that a node is; `None` for any other node.
pub(crate) fn file_scan(node: &dyn ExecutionPlan) -> Option<&FileScanConfig> {
    node.downcast_ref::<DataSourceExec>()?
        .data_source()
        .downcast_ref()
}

/// Bytes of the files, or parts of files, that a scan reads.
pub(crate) fn stored_bytes(scan: &FileScanConfig) -> u64 {
    let files = scan.file_groups.iter().flat_map(|group| group.iter());
    let bytes = files.map(|file| match &file.range {
        Some(range) => u64::try_from(range.end.saturating_sub(range.start)).unwrap_or(0),
        None => file.object_meta.size,
    });
    bytes.fold(0, u64::saturating_add)
}

/// The plan with each scan of files replaced by the plan that `replaced` returns for it. `None` leaves a scan as it is.
///
/// # Errors
/// The errors of `replaced`.
pub(crate) fn with_file_scans(
    plan: Arc<dyn ExecutionPlan>,
    replaced: impl Fn(&FileScanConfig) -> Result<Option<Arc<dyn ExecutionPlan>>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let rewritten = plan.transform_down(|node| {
        let scan = file_scan(node.as_ref()).map(&replaced).transpose()?.flatten();
        Ok(match scan {
            Some(scan) => Transformed::yes(scan),
            None => Transformed::no(node),
        })
    })?;
    Ok(rewritten.data)
}
