//! Plans every logical node of this crate as its operator.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

use super::QuantilesNode;
use super::first_rows::FirstRowsNode;
use super::grouped_topk::{TopKNode, topk_exec};
use super::physical::quantiles_exec;
use super::sample_then_read::SampleThenReadNode;
use super::staged_node::StagedNode;
#[cfg(feature = "cuda")]
use crate::exec::PinnedScanExec;

/// Plans the logical nodes of this crate. A query planner that is built from several extension planners can include it.
#[derive(Debug, Default)]
pub struct QuantilesExtensionPlanner;

#[async_trait]
impl ExtensionPlanner for QuantilesExtensionPlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        #[cfg(feature = "cuda")]
        if let Some(node) = node.as_any().downcast_ref::<super::pinned::PinnedNode>() {
            return node.exec(session).map(Some);
        }
        if let Some(node) = node.as_any().downcast_ref::<SampleThenReadNode>() {
            return node.exec(physical_inputs.to_vec()).map(Some);
        }
        let [input] = physical_inputs else {
            return Ok(None);
        };
        #[cfg(feature = "cuda")]
        if let Some(node) = node.as_any().downcast_ref::<super::pinned::PinnedScanNode>() {
            let scan = PinnedScanExec::try_new(node.kind.0.clone(), Arc::clone(input))?;
            return Ok(Some(Arc::new(scan)));
        }
        if let Some(staged) = node.as_any().downcast_ref::<StagedNode>() {
            let partitions = session.config_options().execution.target_partitions;
            return staged.exec(input, partitions).map(Some);
        }
        if let Some(node) = node.as_any().downcast_ref::<FirstRowsNode>() {
            return node.exec(Arc::clone(input), session, planning).map(Some);
        }
        if let Some(node) = node.as_any().downcast_ref::<TopKNode>() {
            let exec = topk_exec(planner, node, Arc::clone(input), session, planning).await?;
            return Ok(Some(exec));
        }
        let Some(node) = node.as_any().downcast_ref::<QuantilesNode>() else {
            return Ok(None);
        };
        quantiles_exec(node, Arc::clone(input), session, planning).map(Some)
    }
}
