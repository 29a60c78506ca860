//! The logical node of quantiles in stages, and, with groups, the choice between stages and one read.
//!
//! ```text
//! SELECT g, median(x) .. GROUP BY g        StagedQuantiles                 planned: the aggregation, or stages over its input
//!                                  ->        Aggregate: g, median(x)    ->   GroupStageExec: select ..
//! ```
//! With groups, stages read the input a second time, while the aggregation exchanges all keys. Only the planned input
//! tells which costs less, so the choice is made when the node is planned.

use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_expr::expressions::case;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use super::node::{Node, NodeKind};
use crate::config::StrategyName;
use crate::exec::comma_separated;
use crate::exec::staged::{
    GroupWorkload, GroupedColumns, KeyColumns, StagedCall, StagedColumns, Workload, group_stages, rounds,
    stages,
};

/// The node of quantiles over columns of one input, in stages that read it several times. Without groups the input has a column for each
/// argument. With groups the input is the ordinary aggregation, and the stages run over the input of that.
pub(super) type StagedNode = Node<StagedKind>;

/// The calls of a [`StagedNode`], and their groups.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StagedKind {
    /// Number of group columns.
    groups: usize,
    /// Each call as it is written, and as stages answer it. Stages know columns by number, so the calls are no expressions of the node.
    calls: Vec<(Expr, StagedCall)>,
    strategy: StrategyName,
}

impl NodeKind for StagedKind {
    fn name(&self) -> &'static str {
        "StagedQuantiles"
    }

    fn details(&self) -> String {
        let calls = comma_separated(self.calls.iter().map(|(call, _)| call));
        format!("groups={}, aggr=[[{calls}]]", self.groups)
    }
}

impl StagedNode {
    /// The node as a plan. `input` has a column for each argument where `groups` is 0; otherwise it is the ordinary aggregation.
    pub(super) fn plan(
        input: LogicalPlan,
        groups: usize,
        calls: Vec<(Expr, StagedCall)>,
        strategy: StrategyName,
        schema: DFSchemaRef,
    ) -> LogicalPlan {
        let kind = StagedKind {
            groups,
            calls,
            strategy,
        };
        Self::new(kind, vec![input], schema).into_plan()
    }

    /// The stages over the planned input, which may still be cut into up to `partitions` partitions. Where the
    /// planned aggregation is expected to cost less, that.
    ///
    /// # Errors
    /// Internal errors, and those of reading statistics. Wrong calls were refused before.
    pub(super) fn exec(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partitions: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let calls: Vec<StagedCall> = self.kind.calls.iter().map(|(_, call)| call.clone()).collect();
        let ranks = calls.iter().map(|call| call.quantile_spec.quantiles.len()).sum();
        if self.kind.groups > 0 {
            let columns = self.columns_of(input)?;
            let staged = columns.map(|columns| self.group_stages(&columns, calls, ranks));
            return Ok(staged.transpose()?.flatten().unwrap_or_else(|| Arc::clone(input)));
        }
        let fields = input.schema();
        let types = fields.fields().iter().map(|field| field.data_type().clone());
        let rounds = rounds(self.kind.strategy, &Workload::of(input.as_ref(), ranks)?)?;
        let columns = StagedColumns::try_new(types.collect(), calls, rounds)?;
        let schema = Arc::clone(self.schema().inner());
        stages(input, columns, schema, partitions)
    }

    /// The group columns and the arguments of a planned aggregation, as a projection of its input; `None` if the
    /// aggregation is not planned as DataFusion plans it, in two steps.
    fn columns_of(&self, ordinary: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let aggregation = ordinary.downcast_ref::<AggregateExec>();
        let partial = aggregation.and_then(|last| last.input().downcast_ref::<AggregateExec>());
        let Some(partial) = partial.filter(|partial| *partial.mode() == AggregateMode::Partial) else {
            return Ok(None);
        };
        let groups = partial.group_expr().expr().iter().zip(0..);
        let mut columns: Vec<ProjectionExpr> = groups
            .map(|((group, _), index)| ProjectionExpr::new(Arc::clone(group), format!("g{index}")))
            .collect();
        let calls = self.kind.calls.iter().zip(partial.aggr_expr());
        for (((expr, staged), call), filter) in calls.zip(partial.filter_expr()) {
            if self.kind.groups + staged.column < columns.len() {
                continue;
            }
            let Some(values) = call.expressions().into_iter().next() else {
                return internal_err!("{expr} has no argument");
            };
            let values = match filter {
                None => values,
                Some(filter) => case(None, vec![(Arc::clone(filter), values)], None)?,
            };
            columns.push(ProjectionExpr::new(values, format!("q{}", staged.column)));
        }
        let columns = ProjectionExec::try_new(columns, Arc::clone(partial.input()))?;
        Ok(Some(Arc::new(columns)))
    }

    /// The stages over these columns, if `gk_select` was asked for, or if they are expected to cost less than the aggregation.
    fn group_stages(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        calls: Vec<StagedCall>,
        ranks: usize,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let auto = self.kind.strategy != StrategyName::GkSelect;
        if auto && !GroupWorkload::of(input.as_ref(), self.kind.groups, ranks)?.is_better_read_twice() {
            return Ok(None);
        }
        let fields = input.schema();
        let (groups, values) = fields.fields().split_at(self.kind.groups);
        let types = values.iter().map(|field| field.data_type().clone()).collect();
        let columns = KeyColumns::try_new(types, calls)?;
        let answers = Arc::clone(self.schema().inner());
        group_stages(input, GroupedColumns::try_new(groups, columns, answers, auto)?).map(Some)
    }
}
