//! The operator behind `ORDER BY ... LIMIT k`.
//!
//! ```text
//! partition 0 ─ rows that reach the floor ─ a few times k of them ─┐  k rows of each, merged
//!                   ^ shared: the best k-th key so far             ├─────────────────────────> k rows, in order
//! partition 1 ─ rows that reach the floor ─ a few times k of them ─┘
//!                   │
//!                   └ dynamic filter: scans below skip what cannot reach it
//! ```

mod floor;
#[cfg(feature = "parquet")]
mod late;
mod plan;
#[cfg(feature = "parquet")]
mod rows;
mod run;
mod scan;
mod store;

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::projection::ProjectionMapping;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};

#[cfg(feature = "parquet")]
pub use self::late::LateFetchExec;
use self::plan::TopPlan;
use super::Mode;
use super::numbered::{numbered, unnumbered, with_numbers};

/// The first `k` rows in the order of expressions of fixed width, 128 bits together at most. One partition, in order;
/// which of the rows that tie with the last is open.
///
/// On many machines it takes two steps: the first rows of each partition, and of those, brought together, the first. Between the
/// steps each row has a number, and one that comes twice is an error.
///
/// Reads all input partitions once and in parallel. A row is dropped before anything of it is copied if it does not come
/// before the best `k`-th row that any partition knows of; what is left waits in a buffer of a few times `k` rows, which is
/// cut by selection. All is reserved in the task's pool; where that is too small, the query ends with
/// `ResourcesExhausted`.
///
/// Metrics: `input_rows`, `rejected_rows` (never held), `output_rows`, `scan_time` and `elapsed_compute` (processor time).
#[derive(Debug, Clone)]
pub struct TopKByExec {
    input: Arc<dyn ExecutionPlan>,
    plan: Arc<TopPlan>,
    mode: Mode,
    /// What the scans below are told of the bound.
    filter: Option<Arc<DynamicFilterPhysicalExpr>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl TopKByExec {
    /// The first `k` rows of all partitions of `input` in the order `by`; `filter` is kept up to date with the bound that
    /// rows must exceed: its children are the expressions of `by`, over whatever scan it was made for. `None` if `k` is 0 or 128 bits do not hold what rows are ordered by.
    ///
    /// # Errors
    /// DataFusion's, if an expression is not one over `input`.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        by: LexOrdering,
        k: usize,
        filter: Option<Arc<DynamicFilterPhysicalExpr>>,
    ) -> Result<Option<Self>> {
        let filter = filter.filter(|filter| filter.children().len() == by.len());
        Self::planned(input, by, k, Mode::Single, filter)
    }

    /// One of the two steps on many machines. `None` as for [`Self::try_new`].
    ///
    /// # Errors
    /// DataFusion's, if an expression is not one over `input`; an execution error if rows of a final step have no numbers.
    pub(crate) fn step(
        input: Arc<dyn ExecutionPlan>,
        by: LexOrdering,
        k: usize,
        mode: Mode,
    ) -> Result<Option<Self>> {
        Self::planned(input, by, k, mode, None)
    }

    fn planned(
        input: Arc<dyn ExecutionPlan>,
        by: LexOrdering,
        k: usize,
        mode: Mode,
        filter: Option<Arc<DynamicFilterPhysicalExpr>>,
    ) -> Result<Option<Self>> {
        let schema = match mode {
            Mode::Single | Mode::Partial => input.schema(),
            Mode::Final => unnumbered(&input.schema())?,
        };
        let plan = TopPlan::try_new(by, k, schema)?.filter(|plan| plan.k > 0);
        plan.map(|plan| Self::over(input, Arc::new(plan), mode, filter))
            .transpose()
    }

    /// What another machine must know of it; `None`: it does not travel.
    #[cfg(feature = "ballista")]
    pub(crate) fn sent(&self) -> Option<(&LexOrdering, usize, Mode)> {
        (self.mode != Mode::Single).then_some((&self.plan.by, self.plan.k, self.mode))
    }

    fn over(
        input: Arc<dyn ExecutionPlan>,
        plan: Arc<TopPlan>,
        mode: Mode,
        filter: Option<Arc<DynamicFilterPhysicalExpr>>,
    ) -> Result<Self> {
        let mut equivalences = match mode {
            Mode::Single => input.equivalence_properties().clone(),
            Mode::Partial => equivalences(&input, &plan, numbered(&plan.schema))?,
            Mode::Final => equivalences(&input, &plan, Arc::clone(&plan.schema))?,
        };
        if mode == Mode::Single {
            equivalences.clear_per_partition_constants();
        }
        equivalences.reorder(plan.by.clone())?;
        let properties = Arc::new(PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(mode.partitions(input.output_partitioning().partition_count())),
            EmissionType::Final,
            input.boundedness(),
        ));
        Ok(Self {
            input,
            plan,
            mode,
            filter,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    fn with_input(&self, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => {
                let plan = Arc::clone(&self.plan);
                Ok(Arc::new(Self::over(input, plan, self.mode, self.filter.clone())?))
            }
            _ => internal_err!("TopKByExec has one input"),
        }
    }
}

/// What is known of the columns of the answer, in an output with or without numbers.
fn equivalences(
    input: &Arc<dyn ExecutionPlan>,
    plan: &TopPlan,
    output: SchemaRef,
) -> Result<EquivalenceProperties> {
    let columns: Vec<usize> = (0..plan.schema.fields().len()).collect();
    let mapping = ProjectionMapping::from_indices(&columns, &input.schema())?;
    Ok(input.equivalence_properties().project(&mapping, output))
}

impl DisplayAs for TopKByExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => writeln!(f, "{}{}", self.mode, self.plan),
            _ => write!(f, "TopKByExec: {}{}", self.mode, self.plan),
        }
    }
}

impl ExecutionPlan for TopKByExec {
    fn name(&self) -> &str {
        "TopKByExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![match self.mode {
            Mode::Single | Mode::Partial => Distribution::UnspecifiedDistribution,
            Mode::Final => Distribution::SinglePartition,
        }])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![self.mode == Mode::Single]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_input(children)
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        // What the filter has learnt holds for one execution.
        let (input, plan) = (Arc::clone(&self.input), Arc::clone(&self.plan));
        Ok(Arc::new(Self::over(input, plan, self.mode, None)?))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let filter = self.dynamic_expressions_produced();
        for expr in self.plan.by.iter().map(|by| &by.expr).chain(&filter) {
            if f(expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let filter = self.filter.iter();
        filter
            .map(|filter| Arc::clone(filter) as Arc<dyn PhysicalExpr>)
            .collect()
    }

    fn fetch(&self) -> Option<usize> {
        Some(self.plan.k)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let streams = self.mode.streams(&self.input, partition, self.name(), &context)?;
        let memory = MemoryConsumer::new(self.name()).register(context.memory_pool());
        let (plan, filter) = (Arc::clone(&self.plan), self.filter.clone());
        let metrics = (&self.metrics, partition);
        let rows = run::stream(plan, filter, streams, memory, metrics, &context);
        Ok(match self.mode {
            Mode::Partial => with_numbers(rows),
            Mode::Single | Mode::Final => rows,
        })
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
