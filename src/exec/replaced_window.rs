//! What operators have in common that stand in the place of DataFusion's window operators.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::concat;
use datafusion::common::Result;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, Distribution, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};

use super::operator::comma_separated;

/// A window operator of DataFusion that another one replaces: it says how rows are to be distributed and sorted, and what comes out.
#[derive(Debug)]
pub(super) struct ReplacedWindow {
    window: Arc<dyn ExecutionPlan>,
    exprs: Vec<Arc<dyn WindowExpr>>,
}

impl ReplacedWindow {
    /// The operator `window`, whose calls are `exprs`.
    pub(super) fn new(window: Arc<dyn ExecutionPlan>, exprs: Vec<Arc<dyn WindowExpr>>) -> Self {
        Self { window, exprs }
    }

    /// Its calls.
    pub(super) fn exprs(&self) -> &[Arc<dyn WindowExpr>] {
        &self.exprs
    }

    /// Its properties over other inputs.
    ///
    /// # Errors
    /// DataFusion's, for inputs that it cannot run over.
    pub(super) fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let window = Arc::clone(&self.window).replace_children(inputs.to_vec(), options)?;
        Ok(Arc::clone(window.properties()))
    }

    /// Its calls with their frames, as `EXPLAIN` shows them.
    pub(super) fn details(&self) -> String {
        let windows = self.exprs.iter();
        let windows = windows.map(|expr| format!("{}: {}", expr.name(), expr.get_window_frame()));
        format!("wdw=[{}]", comma_separated(windows))
    }

    /// Its calls, as `EXPLAIN FORMAT TREE` shows them.
    pub(super) fn tree_details(&self) -> String {
        let names = self.exprs.iter().map(|expr| expr.name());
        format!("select_list={}", comma_separated(names))
    }

    /// All expressions over the input.
    pub(super) fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let all = self.exprs.iter().map(|expr| expr.all_expressions());
        let each = all.flat_map(|all| [all.args, all.partition_by_exprs, all.order_by_exprs]);
        each.flatten().collect()
    }

    /// Required distribution of the input's rows over its partitions.
    pub(super) fn distribution(&self) -> Vec<Distribution> {
        self.window.input_distribution_requirements().into_per_child()
    }

    /// Required order of the rows in each partition.
    pub(super) fn wanted_order(&self) -> Option<OrderingRequirements> {
        self.window.required_input_ordering().pop().flatten()
    }
}

/// The arrays, at least one, one after the other.
///
/// # Errors
/// Arrow's.
pub(super) fn joined(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    if let [one] = arrays {
        return Ok(Arc::clone(one));
    }
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    Ok(concat(&arrays)?)
}
