//! The operator behind `ORDER BY ... LIMIT k`.
//!
//! ```text
//! partition 0 ─ rows that reach the floor ─ a few times k of them ─┐  k rows of each are merged
//!                   ^ shared: the best k-th key so far             ├────────────────────────────> k rows, in order
//! partition 1 ─ rows that reach the floor ─ a few times k of them ─┘
//!                   │
//!                   └ dynamic filter: scans below skip rows that cannot reach the floor
//! ```

mod floor;
#[cfg(feature = "parquet")]
mod late;
mod nearest;
mod plan;
mod run;
mod scan;
mod store;

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::projection::ProjectionMapping;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{
    Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};

#[cfg(feature = "parquet")]
pub use self::late::LateFetchExec;
pub(crate) use self::nearest::distance_call;
use self::plan::SortLimitPlan;
use super::Mode;
use super::numbered::{numbered, unnumbered, with_numbers};
use super::operator::{Execution, Operator, Work};

/// The first `k` rows in the order of expressions of fixed width, together at most 128 bits. The output is one partition, in order. Of
/// rows that tie with the last one, any may be in it.
///
/// On many machines it takes two steps: the first `k` rows of each partition are found, then brought together, and the first `k` of them
/// found. Between the steps each row has a number; a row that comes twice is an error.
///
/// Reads all input partitions once and in parallel. A row that does not come before the best `k`-th row of any partition so far is
/// dropped before anything of it is copied. Other rows wait in a buffer of a few times `k` rows, which is cut to `k` by selection. All
/// memory is reserved in the task's pool; if that is too small, the query ends with `ResourcesExhausted`.
///
/// Where the order begins with a [`VectorDistance`](crate::functions), the distance of a row is estimated first, and computed only if the
/// row may reach the floor.
///
/// Metrics: `input_rows`, `rejected_rows` (never held), `output_rows`, `scan_time` and `elapsed_compute` (processor time).
pub type SortLimitExec = Operator<SortLimitWork>;

/// Work of a [`SortLimitExec`]: what it computes, and which step of that it is.
#[derive(Debug)]
pub struct SortLimitWork {
    plan: Arc<SortLimitPlan>,
    mode: Mode,
    /// Dynamic filter through which scans below read the floor.
    filter: Option<Arc<DynamicFilterPhysicalExpr>>,
}

impl SortLimitExec {
    /// An operator for the first `k` rows of all partitions of `input`, in the order `by`. `filter` is kept up to date with the floor
    /// that rows must exceed; its children are the expressions of `by`, over the scan that it was made for. `None` if `k` is 0, or if
    /// the values that rows are ordered by do not fit in 128 bits.
    ///
    /// # Errors
    /// DataFusion's, if an expression is not valid over `input`.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        by: LexOrdering,
        k: usize,
        filter: Option<Arc<DynamicFilterPhysicalExpr>>,
    ) -> Result<Option<Self>> {
        let filter = filter.filter(|filter| filter.children().len() == by.len());
        Self::planned(input, by, k, Mode::Single, filter)
    }

    /// An operator that is one of the two steps on many machines. `None` as for [`Self::try_new`].
    ///
    /// # Errors
    /// DataFusion's, if an expression is not valid over `input`; an execution error if the input rows of a final step have no numbers.
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
        let Some(plan) = SortLimitPlan::try_new(by, k, schema)?.filter(|plan| plan.k > 0) else {
            return Ok(None);
        };
        let plan = Arc::new(plan);
        Self::over(SortLimitWork { plan, mode, filter }, vec![input]).map(Some)
    }

    /// The parts of the operator that are sent to another machine; `None` if it runs in one process.
    #[cfg(feature = "ballista")]
    pub(crate) fn sent(&self) -> Option<(&LexOrdering, usize, Mode)> {
        let SortLimitWork { plan, mode, .. } = self.work();
        (*mode != Mode::Single).then_some((&plan.by, plan.k, *mode))
    }
}

/// Equivalences between the columns of the answer, in an output with or without row numbers.
fn equivalences(
    input: &Arc<dyn ExecutionPlan>,
    plan: &SortLimitPlan,
    output: SchemaRef,
) -> Result<EquivalenceProperties> {
    let columns: Vec<usize> = (0..plan.schema.fields().len()).collect();
    let mapping = ProjectionMapping::from_indices(&columns, &input.schema())?;
    Ok(input.equivalence_properties().project(&mapping, output))
}

impl Work for SortLimitWork {
    fn name(&self) -> &'static str {
        "SortLimitExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        let (input, plan) = (&inputs[0], &self.plan);
        let mut equivalences = match self.mode {
            Mode::Single => input.equivalence_properties().clone(),
            Mode::Partial => equivalences(input, plan, numbered(&plan.schema))?,
            Mode::Final => equivalences(input, plan, Arc::clone(&plan.schema))?,
        };
        if self.mode == Mode::Single {
            equivalences.clear_per_partition_constants();
        }
        equivalences.reorder(plan.by.clone())?;
        Ok(Arc::new(PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(self.mode.partitions(input)),
            EmissionType::Final,
            input.boundedness(),
        )))
    }

    fn details(&self) -> String {
        format!("{}{}", self.mode, self.plan)
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.plan.by.iter().map(|by| Arc::clone(&by.expr)).collect()
    }

    fn dynamic_expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let filter = self.filter.iter();
        filter
            .map(|filter| Arc::clone(filter) as Arc<dyn PhysicalExpr>)
            .collect()
    }

    fn distribution(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![match self.mode {
            Mode::Single | Mode::Partial => Distribution::UnspecifiedDistribution,
            Mode::Final => Distribution::SinglePartition,
        }]
    }

    fn wants_partitions(&self) -> bool {
        self.mode == Mode::Single
    }

    fn fetch(&self) -> Option<usize> {
        Some(self.plan.k)
    }

    fn reset(self: &Arc<Self>) -> Arc<Self> {
        // The filter's bound holds for one execution only.
        Arc::new(Self {
            plan: Arc::clone(&self.plan),
            mode: self.mode,
            filter: None,
        })
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let (streams, memory) = (self.mode.streams(&on)?, on.memory());
        let (plan, filter) = (Arc::clone(&self.plan), self.filter.clone());
        let metrics = (on.metrics, on.partition);
        let rows = run::stream(plan, filter, streams, memory, metrics, &on.context);
        Ok(match self.mode {
            Mode::Partial => with_numbers(rows),
            Mode::Single | Mode::Final => rows,
        })
    }
}
