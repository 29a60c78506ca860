//! Quantiles with `GROUP BY` as stages: two reads, between which only counts and brackets travel.
//!
//! ```text
//! select    P   keys of the brackets, by class of group -> a row of answers for each group
//!   extract P   input again, and the state: the keys that lie in the brackets of their group
//!     input | brackets  1   counts of all partitions -> for each rank of each group the interval that holds it
//!               count   P   input: for each group counts of intervals
//! ```
//! Intervals are dyadic and adapted to each group ([`crate::kernel::cpu::groups::intervals`]); those of different partitions
//! nest, so that their counts add, and the interval of a rank is certain. Whatever the data, the second read brings all
//! keys in it, and the answer is the ordinary one. It costs a read more than the exchange of all keys and moves some
//! percent of them: 1000 groups of 30 000 values each about 5% for a median.
//!
//! **Many groups.** Where a partition finds more than [`MOST_GROUPS`], or has no memory to count them, or there are too
//! many ranks, it says so in place of counts, and the second read sends all keys: exact, no replanning, one read wasted.
//!
//! **Guards.** Groups are of 64 classes, by hash. Every read says how many rows and values it saw of each class, with an
//! order-free checksum of their keys; whoever selects the answers of a class compares the sums of both reads.

mod brackets;
mod count;
mod extract;
#[cfg(test)]
mod mutated;
mod rows;
mod select;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, new_empty_array};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{EmissionType, reset_plan_states};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, Partitioning, PlanProperties, ReplaceChildrenOptions,
};
use futures::TryStreamExt;
use tokio::sync::mpsc::Sender;

use self::brackets::Bracketing;
pub(crate) use self::brackets::MOST_RANKS;
use self::count::Counting;
use self::extract::{Extracting, GroupState};
use self::select::Selecting;
use super::super::by_key;
use super::super::grouped::{Grouping, Packing};
use super::{Fetched, KeyColumns, gathered, reached};
use crate::kernel::cpu::groups::runs::with_key;
use crate::kernel::cpu::groups::words::Word;
use crate::key::Width;
use crate::memory::FreePages;
use crate::threads::StopOnDrop;
use crate::threads::blocking;

/// Most groups with brackets: what 16 bits tell apart.
pub(crate) const MOST_GROUPS: usize = u16::MAX as usize;

/// More rows than a state has: a fetch keeps what is below in a stage of its own, which runs once.
const ALL_ROWS: usize = i32::MAX as usize;

/// What stages of groups compute.
#[derive(Debug)]
pub(crate) struct GroupedColumns {
    /// The group columns, which come first in the input; all nullable, so that all stages tell groups apart alike.
    fields: Vec<FieldRef>,
    packing: Option<Packing>,
    /// The key columns, which come next.
    columns: KeyColumns,
    /// Of rows between stages.
    rows: SchemaRef,
    /// Of the output.
    answers: SchemaRef,
    /// Whether the cost model took this, not the user.
    auto: bool,
}

impl GroupedColumns {
    /// For an input of these group columns first; a column of `answers` for each of them and for each call.
    ///
    /// # Errors
    /// An internal error if `answers` has other columns.
    pub(crate) fn try_new(
        groups: &[FieldRef],
        columns: KeyColumns,
        answers: SchemaRef,
        auto: bool,
    ) -> Result<Self> {
        if groups.is_empty() || answers.fields().len() != groups.len() + columns.calls.len() {
            return internal_err!(
                "{} columns of answers for {} group columns and {} calls",
                answers.fields().len(),
                groups.len(),
                columns.calls.len()
            );
        }
        let nullable = |field: &FieldRef| Arc::new(field.as_ref().clone().with_nullable(true));
        let fields: Vec<FieldRef> = groups.iter().map(nullable).collect();
        Ok(Self {
            packing: Packing::try_new(&fields),
            rows: rows::schema(&fields),
            fields,
            columns,
            answers,
            auto,
        })
    }

    /// Width of the words of groups.
    fn width(&self) -> Width {
        // What DataFusion numbers has words of 32 bits.
        let packing = self.packing.as_ref();
        packing.map_or(Width::W32, |packing| packing.width())
    }

    fn grouping<W: Word>(&self) -> Result<Grouping<W>> {
        let schema = datafusion::arrow::datatypes::Schema::new(self.fields.clone());
        Grouping::try_new(self.packing.as_ref(), Arc::new(schema))
    }

    /// The group columns of no group.
    fn no_groups(&self) -> Vec<ArrayRef> {
        let empty = |field: &FieldRef| new_empty_array(field.data_type());
        self.fields.iter().map(empty).collect()
    }

    /// The group columns and the key columns of the input.
    fn split<'a>(&self, batch: &'a RecordBatch) -> Result<(&'a [ArrayRef], &'a [ArrayRef])> {
        let groups = self.fields.len();
        match batch.num_columns() == groups + self.columns.len() {
            true => Ok(batch.columns().split_at(groups)),
            false => internal_err!("{} columns for {groups} of groups", batch.num_columns()),
        }
    }

    /// Ranks of a column, as many as its calls have quantiles.
    fn ranks(&self, column: usize) -> usize {
        let asks = self.columns.asks(column);
        asks.iter().map(|ask| ask.quantiles.len()).sum()
    }

    fn all_ranks(&self) -> usize {
        (0..self.columns.len()).map(|column| self.ranks(column)).sum()
    }
}

/// What a stage does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Count,
    Brackets,
    Extract,
    Select,
}

impl Step {
    #[cfg(feature = "ballista")]
    const ALL: [Step; 4] = [Step::Count, Step::Brackets, Step::Extract, Step::Select];

    fn name(self) -> &'static str {
        match self {
            Step::Count => "count",
            Step::Brackets => "brackets",
            Step::Extract => "extract",
            Step::Select => "select",
        }
    }
}

/// A stage of quantiles with `GROUP BY`: see [`crate::exec::staged`].
///
/// Metrics: `input_rows`, `rows_out`, `bytes_out` of bodies.
#[derive(Debug)]
pub struct GroupStageExec {
    step: Step,
    input: Arc<dyn ExecutionPlan>,
    /// Of the second read: the brackets of all groups.
    state: Option<Arc<dyn ExecutionPlan>>,
    plan: Arc<GroupedColumns>,
    fetched: Arc<Fetched<GroupState>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// The plan over `input`, which is executed twice.
///
/// # Errors
/// DataFusion's, for inputs that cannot be copied.
pub(crate) fn group_stages(
    input: &Arc<dyn ExecutionPlan>,
    plan: GroupedColumns,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = Arc::new(plan);
    let stage = |step, input, state| -> Arc<dyn ExecutionPlan> {
        Arc::new(GroupStageExec::new(step, input, state, Arc::clone(&plan)))
    };
    let counted = stage(Step::Count, Arc::clone(input), None);
    let state = stage(Step::Brackets, gathered(counted), None);
    let state: Arc<dyn ExecutionPlan> =
        Arc::new(CoalescePartitionsExec::new(state).with_fetch(Some(ALL_ROWS)));
    // What it keeps while it runs is its own.
    let again = reset_plan_states(Arc::clone(input))?;
    Ok(stage(
        Step::Select,
        stage(Step::Extract, again, Some(state)),
        None,
    ))
}

impl GroupStageExec {
    fn new(
        step: Step,
        input: Arc<dyn ExecutionPlan>,
        state: Option<Arc<dyn ExecutionPlan>>,
        plan: Arc<GroupedColumns>,
    ) -> Self {
        let schema = match step {
            Step::Select => &plan.answers,
            _ => &plan.rows,
        };
        let partitions = match step {
            Step::Brackets => 1,
            _ => input.output_partitioning().partition_count(),
        };
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(schema)),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Final,
            input.boundedness(),
        ));
        Self {
            step,
            input,
            state,
            plan,
            fetched: Arc::default(),
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn with_inputs(&self, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut children = children.into_iter();
        match (children.next(), children.next(), children.next()) {
            (Some(input), state, None) if state.is_some() == self.state.is_some() => Ok(Arc::new(Self::new(
                self.step,
                input,
                state,
                Arc::clone(&self.plan),
            ))),
            _ => internal_err!("GroupStageExec keeps its inputs"),
        }
    }

    #[cfg(feature = "ballista")]
    pub(super) fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        use super::wire::put_schema;
        out.push(self.step as u8);
        out.push(u8::from(self.plan.auto));
        put_schema(
            &datafusion::arrow::datatypes::Schema::new(self.plan.fields.clone()),
            out,
        )?;
        put_schema(&self.plan.answers, out)?;
        self.plan.columns.put(out)
    }

    #[cfg(feature = "ballista")]
    pub(super) fn read(
        input: &mut crate::wire::Reader<'_>,
        inputs: &[Arc<dyn ExecutionPlan>],
    ) -> Result<Self> {
        use super::wire::read_schema;
        let step = input.byte("step")?;
        let Some(step) = Step::ALL.get(usize::from(step)) else {
            return input.damaged(format!("step {step}"));
        };
        let auto = input.flag("choice of stages")?;
        let (groups, answers) = (read_schema(input)?, read_schema(input)?);
        let columns = KeyColumns::read(input)?;
        if groups.fields().is_empty() || answers.fields().len() != groups.fields().len() + columns.calls.len()
        {
            return input.damaged("columns of groups");
        }
        let plan = Arc::new(GroupedColumns::try_new(groups.fields(), columns, answers, auto)?);
        let child = |index: usize| Arc::clone(&inputs[index]);
        match (step, inputs.len()) {
            (Step::Extract, 2) => Ok(Self::new(*step, child(0), Some(child(1)), plan)),
            (Step::Count | Step::Brackets | Step::Select, 1) => Ok(Self::new(*step, child(0), None, plan)),
            (step, inputs) => input.damaged(format!("{} of groups with {inputs} inputs", step.name())),
        }
    }

    /// One partition of this stage.
    fn work(&self, partition: usize, context: &Arc<TaskContext>) -> Work {
        let counter = |name| MetricBuilder::new(&self.metrics).counter(name, partition);
        Work {
            plan: Arc::clone(&self.plan),
            memory: MemoryConsumer::new(format!("GroupStageExec: {}", self.step.name()))
                .register(context.memory_pool()),
            free: FreePages::of(context.memory_pool().as_ref()),
            rows: counter("input_rows"),
            rows_out: counter("rows_out"),
            bytes: counter("bytes_out"),
            batch_rows: context.session_config().batch_size(),
        }
    }
}

/// The state of the second read.
async fn fetched(
    plan: &GroupedColumns,
    state: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<GroupState> {
    let memory = MemoryConsumer::new("GroupStageExec: state").register(context.memory_pool());
    let batches: Vec<_> = state.execute(0, context)?.try_collect().await?;
    GroupState::try_new(plan, &batches, memory)
}

/// One partition of a stage.
struct Work {
    plan: Arc<GroupedColumns>,
    memory: MemoryReservation,
    free: Option<Arc<FreePages>>,
    rows: Count,
    rows_out: Count,
    bytes: Count,
    batch_rows: usize,
}

/// Where batches go.
type Out = Sender<Result<RecordBatch>>;

impl Work {
    /// Gives batches away; false: nobody wants them any more.
    async fn send(&self, batches: Vec<RecordBatch>, out: &Out) -> bool {
        for batch in batches {
            self.rows_out.add(batch.num_rows());
            if out.send(Ok(batch)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// The same of rows between stages.
    async fn send_rows(&self, (rows, groups): (rows::Rows, Vec<ArrayRef>), out: &Out) -> Result<bool> {
        self.bytes.add(rows.bytes());
        Ok(self.send(rows.finish(&self.plan.rows, &groups)?, out).await)
    }

    async fn count<W: Word>(self, mut input: SendableRecordBatchStream, out: Out) -> Result<()> {
        let stop = StopOnDrop::default();
        let mut counting = Counting::<W>::try_new(&self.plan, &self.memory, self.free.clone(), &stop.0)?;
        while let Some(batch) = input.try_next().await? {
            self.rows.add(batch.num_rows());
            counting.push(&batch)?;
            tokio::task::consume_budget().await;
        }
        reached!("groups_count");
        let counted = blocking(move || counting.finish()).await?;
        self.send_rows(counted, &out).await.map(drop)
    }

    async fn brackets<W: Word>(self, mut input: SendableRecordBatchStream, out: Out) -> Result<()> {
        let mut bracketing = Bracketing::<W>::try_new(&self.plan, &self.memory)?;
        while let Some(batch) = input.try_next().await? {
            self.rows.add(batch.num_rows());
            bracketing.push(&batch)?;
            tokio::task::consume_budget().await;
        }
        reached!("groups_brackets");
        let found = blocking(move || bracketing.finish()).await?;
        self.send_rows(found, &out).await.map(drop)
    }

    async fn extract<W: Word>(
        self,
        mut input: SendableRecordBatchStream,
        state: Arc<GroupState>,
        out: Out,
    ) -> Result<()> {
        let mut extracting = Extracting::<W>::try_new(&self.plan, &state, &self.memory)?;
        while let Some(batch) = input.try_next().await? {
            self.rows.add(batch.num_rows());
            if let Some(rows) = extracting.push(&batch)?
                && !self.send_rows(rows, &out).await?
            {
                return Ok(());
            }
            tokio::task::consume_budget().await;
        }
        reached!("groups_extract");
        let rest = blocking(move || extracting.finish()).await?;
        self.send_rows(rest, &out).await.map(drop)
    }

    async fn select<W: Word>(self, mut input: SendableRecordBatchStream, out: Out) -> Result<()> {
        let mut selecting = Selecting::<W>::try_new(&self.plan, &self.memory)?;
        while let Some(batch) = input.try_next().await? {
            self.rows.add(batch.num_rows());
            selecting.push(&batch)?;
            tokio::task::consume_budget().await;
        }
        reached!("groups_select");
        let Some(answers) = blocking(move || selecting.finish()).await? else {
            return Ok(());
        };
        let rows = answers.num_rows();
        let slices = (0..rows).step_by(self.batch_rows.max(1));
        let slices = slices.map(|from| answers.slice(from, self.batch_rows.min(rows - from)));
        self.send(slices.collect(), &out).await;
        Ok(())
    }
}

impl DisplayAs for GroupStageExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let names: Vec<&str> = self
            .plan
            .fields
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        write!(
            f,
            "GroupStageExec: {}, gby=[{}], columns={}, reads=2{}",
            self.step.name(),
            names.join(", "),
            self.plan.columns.len(),
            if self.plan.auto { " (auto)" } else { "" }
        )
    }
}

impl ExecutionPlan for GroupStageExec {
    fn name(&self) -> &str {
        "GroupStageExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(match self.step {
            Step::Count => vec![Distribution::UnspecifiedDistribution],
            Step::Brackets => vec![Distribution::SinglePartition],
            Step::Extract => vec![
                Distribution::UnspecifiedDistribution,
                Distribution::SinglePartition,
            ],
            Step::Select => vec![by_key(&self.input, vec![class()])],
        })
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        std::iter::once(&self.input).chain(&self.state).collect()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        match self.step {
            Step::Select => f(&class()),
            _ => Ok(TreeNodeRecursion::Continue),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if self.step == Step::Brackets && partition != 0 {
            return internal_err!("brackets of groups have one partition, asked for partition {partition}");
        }
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let work = self.work(partition, &context);
        let schema = Arc::clone(self.properties.eq_properties.schema());
        let mut builder = RecordBatchReceiverStreamBuilder::new(schema, 2);
        let (out, step, width) = (builder.tx(), self.step, self.plan.width());
        let (state, cell, plan) = (
            self.state.clone(),
            Arc::clone(&self.fetched),
            Arc::clone(&self.plan),
        );
        builder.spawn(async move {
            let state = match state {
                None => None,
                Some(state) => Some(cell.get(fetched(&plan, &state, context)).await?),
            };
            with_key!(width, W => match (step, state) {
                (Step::Count, _) => work.count::<W>(input, out).await,
                (Step::Brackets, _) => work.brackets::<W>(input, out).await,
                (Step::Select, _) => work.select::<W>(input, out).await,
                (Step::Extract, Some(state)) => work.extract::<W>(input, state, out).await,
                (Step::Extract, None) => Err(exec_datafusion_err!("a second read without a state")),
            })
        });
        Ok(builder.build())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The column that rows are exchanged by.
fn class() -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new("class", rows::CLASS))
}
