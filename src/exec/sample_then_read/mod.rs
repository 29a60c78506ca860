//! The operator behind ungrouped calls that a sample and one read of all rows answer.
//!
//! ```text
//! sample ─> what to keep ─┬─ partition 0: count, keep few rows ─┬─> what the counts prove ─┬─ the answer
//!                         └─ partition 1: count, keep few rows ─┘                          │
//!                 ^                                                                        │
//!                 └──────────── what to keep, where something is not proved yet ───────────┘
//! ```
//! A question says what is counted and what follows from the counts ([`ByReads`](by_reads::ByReads)); the operator reads.

mod bins;
mod by_reads;
mod deviation;
mod frequent;
mod mean;
mod weighted;

pub(crate) use self::bins::MOST_COUNTED_BINS;

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput, Time};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties, execute_stream};
use futures::{StreamExt, TryStreamExt};

use self::bins::BinsOfOneWidth;
use self::by_reads::{ByReads, ReadPart};
use self::deviation::MedianDeviation;
use self::frequent::{CountLimits, MostFrequent};
use self::mean::MeanWithoutEnds;
use self::weighted::Weighted;
use super::aggregate::Abbreviated;
use super::give_way::give_way;
use super::operator::{Execution, Operator, Work, at_the_end};
use super::reread::RereadableInput;
use crate::config::QuantilesOptions;
use crate::functions::shape::ShapeQuestion;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::{KeySpec, Width, with_key};
use crate::memory::limit;
use crate::quantile::{AnswerSpec, QuantileSpec, TypedAnswerSpec};
use crate::select::while_reading::{SAMPLE, runs};
use crate::threads::partitions_in_order;

/// The share of a memory limit, as a divisor, that rows may take which reads of all questions keep. Twice that is taken while a list of them grows.
const KEPT_SHARE: usize = 4;

/// The share of all rows, as a divisor, that a read keeps at most where there is no memory limit.
const ROWS_SHARE: u64 = 8;

/// Rows that a read may always keep, if there is memory for them.
const LEAST_KEPT: u64 = 1 << 17;

/// The share of all rows, as a divisor, that is sampled, and most rows of a sample.
const SAMPLED: (u64, u64) = (64, 4 * SAMPLE);

/// The share of a memory limit, as a divisor, that bounds of the number of rows of values may take, and their most bytes.
const BOUNDS_SHARE: usize = 8;
const MOST_BOUNDS: usize = 1 << 28;

/// A question of a [`SampleThenReadExec`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RowsQuestion {
    /// Quantiles of the first column, whose rows have the weights of the second one.
    Weighted {
        quantile_spec: QuantileSpec,
        /// Whether the answer is a list.
        is_list: bool,
    },
    /// A function of the order or the frequencies of the values in the only column.
    Shape(ShapeQuestion),
}

impl RowsQuestion {
    /// How the answer follows from the quantiles of weighted values of this type.
    fn weighted(x: &DataType, quantile_spec: &QuantileSpec, is_list: bool) -> Result<TypedAnswerSpec> {
        match AnswerSpec::try_new(x, quantile_spec.clone(), is_list, false)? {
            AnswerSpec::Keys(column) => Ok(column),
            AnswerSpec::Bytes(_) => internal_err!("values of type {x} have no keys"),
        }
    }
}

impl Display for RowsQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowsQuestion::Weighted { quantile_spec, .. } => {
                let (quantiles, method) = (Abbreviated(&quantile_spec.quantiles), quantile_spec.method);
                write!(f, "weighted_quantiles={quantiles}, method={method}")?;
                f.write_str(if quantile_spec.descending { " desc" } else { "" })
            }
            RowsQuestion::Shape(question) => question.fmt(f),
        }
    }
}

/// Answers a question about the rows of an input that can be read again. The output is one row.
///
/// It reads a sample first, and then all rows, once if the sample did not mislead: of each read it holds few rows, and reserves memory for
/// them. Where something is not proved yet, or there was no room for what it wanted to hold, it reads all rows again. Where many values occur
/// about as often as the most frequent ones, and memory has no limit, its second input answers, an aggregation that holds the values.
///
/// Metrics: `input_rows` and `input_reads` (without the sample), `rows_held` (the most that a read held), `sample_time` (elapsed).
pub type SampleThenReadExec = Operator<SampleThenReadWork>;

/// Work of a [`SampleThenReadExec`]: the question, and the column of its answer.
#[derive(Debug)]
pub struct SampleThenReadWork {
    question: RowsQuestion,
    /// Number of questions that are answered at a time.
    all: usize,
    schema: SchemaRef,
}

impl SampleThenReadExec {
    /// An operator over inputs of which the first one has the columns of the question: values that have keys, and weights. A second one is
    /// another plan of the answer, for [most frequent](ShapeQuestion::Frequent) values. `schema` has the column of the answer, and `all` operators of a
    /// statement share the memory, this one among them.
    ///
    /// # Errors
    /// A planning error for a method that values of this type cannot have.
    pub(crate) fn try_new(
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        question: RowsQuestion,
        all: usize,
        schema: SchemaRef,
    ) -> Result<Self> {
        if let RowsQuestion::Weighted {
            quantile_spec,
            is_list,
        } = &question
        {
            RowsQuestion::weighted(inputs[0].schema().field(0).data_type(), quantile_spec, *is_list)?;
        }
        let work = SampleThenReadWork {
            question,
            all: all.max(1),
            schema,
        };
        Self::over(work, inputs)
    }
}

impl Work for SampleThenReadWork {
    fn name(&self) -> &'static str {
        "SampleThenReadExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(at_the_end(Arc::clone(&self.schema), 1, &inputs[0]))
    }

    fn details(&self) -> String {
        self.question.to_string()
    }

    fn wants_partitions(&self) -> bool {
        true
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let allowed = QuantilesOptions::of(on.context.session_config().options()).read_again;
        let (rows, context) = (&on.inputs[0], on.reading_context());
        // The planner has seen that the rows are the same in every execution. Where they cannot be sampled, reads divide all values.
        let input = RereadableInput::of(rows, &context, allowed)
            .unwrap_or_else(|| RereadableInput::assumed(rows, &context, 0));
        let (baseline, work) = (BaselineMetrics::new(on.metrics, on.partition), Arc::clone(self));
        let reading = Reading {
            x: on.inputs[0].schema().field(0).data_type().clone(),
            input,
            partitions: on.inputs[0].output_partitioning().partition_count(),
            other: on.inputs.get(1).cloned(),
            context: Arc::clone(&on.context),
            limit: limit(on.context.memory_pool().as_ref()).unwrap_or(usize::MAX),
            all: self.all,
            memory: on.memory(),
            input_rows: on.counter("input_rows"),
            input_reads: on.counter("input_reads"),
            rows_held: on.counter("rows_held"),
            sample_time: on.time("sample_time"),
            compute: baseline.elapsed_compute().clone(),
        };
        let answer = async move {
            let result = work.schema.field(0).data_type();
            let answer = reading.answer_to(&work.question, result).await?;
            Ok(RecordBatch::try_new(Arc::clone(&work.schema), vec![answer])?).record_output(&baseline)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::once(answer),
        )))
    }
}

/// One execution.
struct Reading {
    /// The type of the values.
    x: DataType,
    input: RereadableInput,
    /// Number of partitions of a read.
    partitions: usize,
    /// The plan that answers questions which are left to it.
    other: Option<Arc<dyn ExecutionPlan>>,
    context: Arc<TaskContext>,
    /// Bytes of the memory pool.
    limit: usize,
    /// Number of questions that are answered at a time.
    all: usize,
    memory: MemoryReservation,
    input_rows: Count,
    input_reads: Count,
    rows_held: Count,
    sample_time: Time,
    compute: Time,
}

impl Reading {
    /// The answer to a question, of the type `result`.
    async fn answer_to(&self, question: &RowsQuestion, result: &DataType) -> Result<ArrayRef> {
        let rows = self.input.rows();
        match question {
            RowsQuestion::Weighted {
                quantile_spec,
                is_list,
            } => {
                let column = RowsQuestion::weighted(&self.x, quantile_spec, *is_list)?;
                with_key!(column.spec().width(), K => {
                    let most = self.most_kept(size_of::<(K, u64)>());
                    let (sample, _reserved) = self.sample_around_ranks::<K>(most).await?;
                    let question = Weighted::<K>::try_new(column, &sample, rows, most)?;
                    drop(sample);
                    self.answered(question).await
                })
            }
            RowsQuestion::Shape(question) => {
                let spec = KeySpec::try_new(&self.x)?;
                with_key!(spec.width(), K => self.shape::<K>(question, spec, result).await)
            }
        }
    }

    /// The answer to a question about the values of a column, whose keys are `K`.
    async fn shape<K: GroupKey>(
        &self,
        question: &ShapeQuestion,
        spec: KeySpec,
        result: &DataType,
    ) -> Result<ArrayRef> {
        let rows = self.input.rows();
        match question {
            ShapeQuestion::Frequent(frequency) => {
                let most = self.most_kept(size_of::<K>());
                let (sample, _reserved) = self.sample(most, size_of::<K>()).await?;
                let limits = self.count_limits(most);
                let question = MostFrequent::<K>::try_new(*frequency, spec, &sample, rows, limits)?;
                drop(sample);
                self.answered(question).await
            }
            ShapeQuestion::Mean { share, is_winsorized } => {
                let most = self.most_kept(size_of::<(K, u64)>());
                let (sample, _reserved) = self.sample_around_ranks::<K>(most).await?;
                let (specs, ends) = ([spec, KeySpec::try_new(result)?], (*share, *is_winsorized));
                let question = MeanWithoutEnds::<K>::try_new(specs, ends, &sample, rows, most)?;
                drop(sample);
                self.answered(question).await
            }
            ShapeQuestion::Deviation => {
                let most = self.most_kept(size_of::<(K, u64)>());
                let (sample, _reserved) = self.sample_around_ranks::<K>(most).await?;
                let specs = [spec, KeySpec::try_new(result)?];
                let question = MedianDeviation::<K>::try_new(specs, &sample, rows, most)?;
                drop(sample);
                self.answered(question).await
            }
            ShapeQuestion::EquiWidth(bins) => {
                let x: Arc<dyn PhysicalExpr> = Arc::new(Column::new("x", 0));
                let ends = self.input.told_ends(&x, &spec).await?;
                let question = BinsOfOneWidth::<K>::try_new(spec, *bins, ends)?;
                self.answered(question).await
            }
        }
    }

    /// Most rows of so many bytes that a read may keep.
    fn most_kept(&self, bytes: usize) -> u64 {
        let room = self.limit / KEPT_SHARE / self.all / bytes;
        (self.input.rows() / ROWS_SHARE).max(LEAST_KEPT).min(room as u64)
    }

    /// What the counts of values may take where `most_kept` rows may be kept.
    fn count_limits(&self, most_kept: u64) -> CountLimits {
        let room = (self.limit < usize::MAX).then_some(self.limit / 2);
        let bounds = (self.limit / BOUNDS_SHARE).min(MOST_BOUNDS);
        let fit = self.memory.new_empty().try_grow(bounds).is_ok();
        let each = bounds / self.partitions.max(1);
        CountLimits {
            room,
            most_kept,
            most_bits: if fit { each.checked_ilog2().unwrap_or(0) } else { 0 },
        }
    }

    /// The answer to a question, after as many reads as it needs.
    async fn answered<Q: ByReads>(&self, mut question: Q) -> Result<ArrayRef> {
        loop {
            if let Some(other) = self.other.as_ref().filter(|_| question.is_left()) {
                return first_column(execute_stream(Arc::clone(other), Arc::clone(&self.context))?).await;
            }
            let streams = self.input.read()?;
            let partitions = streams.len();
            let scans = streams.into_iter().map(|stream| {
                let scan = Scan {
                    part: question.part(partitions, self.memory.new_empty())?,
                    rows: self.input_rows.clone(),
                    compute: self.compute.clone(),
                };
                Ok(scan.read(stream))
            });
            let scans = scans.collect::<Result<_>>()?;
            let parts = partitions_in_order(scans).await?;
            self.input_reads.add(1);
            let held = parts.iter().map(ReadPart::held).sum::<usize>();
            self.rows_held.add(held.saturating_sub(self.rows_held.value()));
            let _timer = self.compute.timer();
            if question.narrow(parts)? {
                return question.answer();
            }
        }
    }

    /// A sample for brackets around ranks; no rows where a read may keep all rows, which are `most` at most.
    async fn sample_around_ranks<K>(&self, most: u64) -> Result<(Vec<RecordBatch>, MemoryReservation)> {
        let size = if self.input.rows() > most { most } else { 0 };
        self.sample(size, size_of::<(K, u64)>()).await
    }

    /// Some of the rows, at most `most` of so many bytes, of all parts of the input, and the memory for them. No rows if there is none.
    async fn sample(&self, most: u64, bytes: usize) -> Result<(Vec<RecordBatch>, MemoryReservation)> {
        let (start, rows) = (Instant::now(), self.input.rows());
        let (share, largest) = SAMPLED;
        let size = (rows / share)
            .clamp(SAMPLE, largest)
            .min(rows.div_ceil(4))
            .min(most);
        let reserved = self.memory.new_empty();
        // As columns, and as a list.
        if size == 0 || reserved.try_grow(2 * size as usize * bytes).is_err() {
            return Ok((Vec::new(), reserved));
        }
        let streams = self.input.read_rows(&runs(rows, size))?.into_iter();
        let reads = streams.map(|stream| stream.try_collect::<Vec<_>>());
        let sample = partitions_in_order(reads.collect()).await?.concat();
        self.sample_time.add_elapsed(start);
        Ok((sample, reserved))
    }
}

/// The first column of the only row of a stream.
async fn first_column(rows: SendableRecordBatchStream) -> Result<ArrayRef> {
    let batches: Vec<RecordBatch> = rows.try_collect().await?;
    match batches.iter().find(|batch| batch.num_rows() > 0) {
        Some(batch) => Ok(Arc::clone(batch.column(0))),
        None => internal_err!("an aggregation without a row"),
    }
}

/// A read of one partition.
struct Scan<P> {
    part: P,
    rows: Count,
    compute: Time,
}

impl<P: ReadPart> Scan<P> {
    async fn read(mut self, mut stream: SendableRecordBatchStream) -> Result<P> {
        let mut since = Instant::now();
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            self.rows.add(batch.num_rows());
            let timer = self.compute.timer();
            self.part.push(&batch)?;
            timer.done();
            give_way(&mut since).await;
        }
        Ok(self.part)
    }
}
