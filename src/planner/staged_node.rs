//! The logical node of stages, and the choice between stages and one read of groups.
//!
//! ```text
//! SELECT g, median(x) .. GROUP BY g        StagedQuantiles                 planned: the aggregation, or stages over its input
//!                                  ->        Aggregate: g, median(x)    ->   GroupStageExec: select ..
//! ```
//! What a second read costs more than the exchange of all keys is known of the planned input only, so the choice is made there.

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

/// Calls of exact quantiles over columns of one input, in stages that read it several times. Without groups the input is a column for
/// each argument; with groups it is the ordinary aggregation, over whose input stages compute them.
pub(super) type StagedNode = Node<StagedKind>;

/// What a [`StagedNode`] computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StagedKind {
    /// Number of group columns.
    groups: usize,
    /// The calls as they are written, and over columns by number, which is why they are no expressions of the node.
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
    /// The calls over `input`: without groups one of a column for each argument, else the ordinary aggregation.
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

    /// The stages over the planned input, which may still be cut into more partitions, up to `partitions`; or the planned
    /// aggregation where that is expected to cost less.
    ///
    /// # Errors
    /// Internal errors, and those of statistics: what can be wrong was found before.
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

    /// The group columns and the arguments of a planned aggregation, over its input; `None` where it is planned in another way than
    /// DataFusion's.
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

    /// The stages over these columns, if they are wanted, or expected to cost less than the aggregation.
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
