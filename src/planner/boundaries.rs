//! Makes plans safe for Ballista 55, where it would run them wrongly or without end.
//!
//! ```text
//! union     Ballista cuts the plan of a stage to the partitions of each task. A branch that is gathered (an aggregate, a sort,
//!           a join) always keeps one partition, so every task runs it and its rows come several times. A branch that reads no table
//!           becomes another operator, whose task is reported wrongly: its rows are lost, or the statement never ends.
//! window    With adaptive planning an exchange without rows becomes an empty relation. A window above it demands an exchange by its
//!           keys again, without end.
//! order     Rows come out of an exchange in no order. Merge joins, windows and merges of sorted partitions rely on an order that files,
//!           or the rows of a window, had before the exchange. A join that the adaptive planner has not chosen yet claims an order that
//!           the chosen join does not keep: a sort above it would be dropped.
//! join      Each task runs a nested loop join over its own partitions of the second input. Rows of the first input without a match
//!           there are not known to be without one in other tasks, so LEFT, FULL, EXISTS and NOT EXISTS give rows several times. With
//!           adaptive planning its inputs may also change places after the number of its partitions was used, and rows are lost.
//! constant  That a column is the same in all rows is no longer known after an exchange: a window by such a column is an error there.
//! FILTER    FILTER of a window function, and IGNORE NULLS, do not reach executors. Such calls are refused.
//! ```
//! The static planner puts gathered branches into stages of their own (datafusion-ballista issue 2184).

use std::sync::Arc;

use ballista_core::config::BallistaConfig;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, not_impl_err};
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::FileScanConfigBuilder;
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::expr::{NullTreatment, WindowFunction};
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFunctionDefinition};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use crate::exec::{BoundaryExec, BoundaryWork, BranchExec, BuildSideExec, with_file_scans};

/// The plan with boundaries where Ballista needs them. Without Ballista's options the plan is for another engine and stays as it is.
///
/// # Errors
/// DataFusion's, where a node does not take its new inputs.
pub(super) fn with_boundaries(
    plan: Arc<dyn ExecutionPlan>,
    options: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(ballista) = options.extensions.get::<BallistaConfig>() else {
        return Ok(plan);
    };
    let adaptive = ballista.adaptive_query_planner_enabled();
    let plan = if adaptive && options.optimizer.join_reordering {
        plan.transform_up(smaller_first)?.data
    } else {
        plan
    };
    let safe = without_file_orders(plan)?.transform_up(|plan| {
        if plan.is::<UnionExec>() {
            return safe_union(plan, adaptive);
        }
        if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
            return join_in_one_task(join, &plan);
        }
        match adaptive {
            true if plan.name() == "DynamicJoinSelectionExec" => Ok(Transformed::yes(unordered(plan)?)),
            true => safe_window(plan),
            false => sorted_after_exchange(plan),
        }
    })?;
    Ok(safe.data)
}

/// A union whose branches can be divided among tasks.
fn safe_union(union: Arc<dyn ExecutionPlan>, adaptive: bool) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let needs_branch = |branch: &Arc<dyn ExecutionPlan>| {
        if adaptive {
            Ok(!is_divisible(branch))
        } else {
            branch.exists(|node| Ok(reads_no_table(node)))
        }
    };
    let mut branches = Vec::with_capacity(union.children().len());
    for branch in union.children() {
        branches.push(if needs_branch(branch)? {
            gathered_branch(Arc::clone(branch))?
        } else {
            Arc::clone(branch)
        });
    }
    let union = replace_children_if_necessary(union, branches)?;
    // Without this boundary, sorts would be pushed below the union and gather its branches again.
    Ok(Transformed::yes(if adaptive { unordered(union)? } else { union }))
}

/// A nested loop join that one task runs, if its answer depends on the matches of all. [`BuildSideExec`] keeps the inputs where they are.
fn join_in_one_task(
    join: &NestedLoopJoinExec,
    plan: &Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let right = join.right().downcast_ref::<BoundaryExec>();
    let is_one = right.is_some_and(|right| matches!(right.required(), BoundaryWork::OnePartition));
    if is_one || !BuildSideExec::decides_at_end(*join.join_type()) {
        return Ok(Transformed::no(Arc::clone(plan)));
    }
    let second = BoundaryExec::try_new(gathered(Arc::clone(join.right())), BoundaryWork::OnePartition)?;
    let inputs = vec![Arc::clone(join.left()), Arc::new(second)];
    Ok(Transformed::yes(replace_children_if_necessary(
        Arc::clone(plan),
        inputs,
    )?))
}

/// A nested loop join that holds the smaller of its inputs, where both sizes are known.
fn smaller_first(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() else {
        return Ok(Transformed::no(plan));
    };
    let rows = |input: &Arc<dyn ExecutionPlan>| -> Result<Option<usize>> {
        let statistics = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new())?;
        Ok(statistics.num_rows.get_value().copied())
    };
    match (rows(join.left())?, rows(join.right())?) {
        (Some(first), Some(second)) if first > second && join.join_type().supports_swap() => {
            Ok(Transformed::yes(join.swap_inputs()?))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// Whether a task can read some partitions of a branch alone, down to its files.
fn is_divisible(branch: &Arc<dyn ExecutionPlan>) -> bool {
    if branch.is::<DataSourceExec>() || branch.is::<BranchExec>() {
        return true;
    }
    let passes = branch.is::<ProjectionExec>()
        || branch.is::<FilterExec>()
        || branch.is::<UnionExec>()
        || branch.is::<BoundaryExec>();
    passes && branch.children().into_iter().all(is_divisible)
}

/// Whether an operator makes rows without reading a table.
fn reads_no_table(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.is::<PlaceholderRowExec>() || node.is::<EmptyExec>()
}

/// A branch of one partition, which one task reads whole.
fn gathered_branch(branch: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(Arc::new(BranchExec::try_new(gathered(branch))?))
}

/// The rows of a plan in one partition.
fn gathered(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match plan.output_partitioning().partition_count() {
        1 => plan,
        _ => Arc::new(CoalescePartitionsExec::new(plan)),
    }
}

/// A window with a boundary below it, so that its input is not exchanged again where it has no rows.
fn safe_window(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let keys = match plan.downcast_ref::<WindowAggExec>() {
        Some(window) => Some(window.partition_keys()),
        None => plan
            .downcast_ref::<BoundedWindowAggExec>()
            .map(BoundedWindowAggExec::partition_keys),
    };
    let input = plan.children().first().map(|input| Arc::clone(input));
    let (Some(keys), Some(input)) = (keys.filter(|keys| !keys.is_empty()), input) else {
        return Ok(Transformed::no(plan));
    };
    let input = Arc::new(BoundaryExec::try_new(input, BoundaryWork::ByKey(keys))?);
    let window = replace_children_if_necessary(plan, vec![input])?;
    // An exchange above the window loses the order of its rows.
    Ok(Transformed::yes(unordered(window)?))
}

/// The plan under a boundary that hides the order of its rows.
fn unordered(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(Arc::new(BoundaryExec::try_new(plan, BoundaryWork::AsTheyCome)?))
}

/// An exchange that no longer preserves the order of its input, with a sort above it that restores the order.
fn sorted_after_exchange(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let exchange = plan.downcast_ref::<RepartitionExec>();
    let (Some(exchange), Some(order)) = (exchange, plan.output_ordering()) else {
        return Ok(Transformed::no(plan));
    };
    let exchanged = RepartitionExec::try_new(Arc::clone(exchange.input()), exchange.partitioning().clone())?;
    let sorted = SortExec::new(order.clone(), Arc::new(exchanged)).with_preserve_partitioning(true);
    Ok(Transformed::yes(Arc::new(sorted)))
}

/// Refuses calls of window functions that would lose a clause on the way to executors.
///
/// # Errors
/// A "not implemented" error that names the call, and what to write instead.
pub(super) fn check_windows(plan: &LogicalPlan, options: &ConfigOptions) -> Result<()> {
    if options.extensions.get::<BallistaConfig>().is_none() {
        return Ok(());
    }
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Window(window) = node {
            for expr in &window.window_expr {
                expr.apply(|expr| match expr {
                    Expr::WindowFunction(call) => check_window(call).map(|()| TreeNodeRecursion::Continue),
                    _ => Ok(TreeNodeRecursion::Continue),
                })?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Checks one call: see [`check_windows`].
fn check_window(call: &WindowFunction) -> Result<()> {
    let name = call.fun.name();
    if call.params.filter.is_some() {
        return not_impl_err!(
            "FILTER of {name} with OVER, which Ballista 55 does not send to executors: filter the argument, as in \
             {name}(CASE WHEN .. THEN .. END) OVER (..)"
        );
    }
    let ignores = call.params.null_treatment == Some(NullTreatment::IgnoreNulls);
    match (&call.fun, ignores) {
        (WindowFunctionDefinition::WindowUDF(_), true) => not_impl_err!(
            "IGNORE NULLS of {name} with OVER, which Ballista 55 does not send to executors: leave the NULLs out by WHERE"
        ),
        _ => Ok(()),
    }
}

/// Takes the order of files out of scans, and puts boundaries above unions and below windows, so that no plan relies
/// after an exchange on what was known before it. It runs before all other rules of a session.
#[derive(Debug, Default)]
pub(crate) struct BoundariesRule;

impl PhysicalOptimizerRule for BoundariesRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let bounded = without_file_orders(plan)?.transform_up(|plan| {
            if plan.is::<UnionExec>() {
                return Ok(Transformed::yes(unordered(plan)?));
            }
            if !plan.is::<WindowAggExec>() && !plan.is::<BoundedWindowAggExec>() {
                return Ok(Transformed::no(plan));
            }
            let inputs = plan.children().into_iter();
            let inputs = inputs
                .map(|input| unordered(Arc::clone(input)))
                .collect::<Result<_>>()?;
            Ok(Transformed::yes(replace_children_if_necessary(plan, inputs)?))
        })?;
        Ok(bounded.data)
    }

    fn name(&self) -> &str {
        "boundaries"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan with scans that claim no order of their files.
fn without_file_orders(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    with_file_scans(plan, |scan| {
        if scan.output_ordering.is_empty() {
            return Ok(None);
        }
        let builder = FileScanConfigBuilder::from(scan.clone()).with_output_ordering(Vec::new());
        let scan: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(builder.build());
        Ok(Some(scan))
    })
}
