//! The operator behind the nearest rows of many query vectors: a cross join that leaves out pairs which cannot be among the best of their
//! query.
//!
//! ```text
//! GroupedTopKExec: k=10, by=[distance]                          the exact k best of each query, as of any cross join
//!   NearestJoinExec: k=10, by=[vector_array_distance(v, q)]     few pairs of each query, the k best among them, and their distances
//!     queries ── collected, as tiles of a matrix product
//!     table ──── streamed; a task whose partition has ended helps the others
//! ```
//! A pair that is left out has at least k better pairs of the same query, whatever the rounding of the product: see
//! [`kernel::cpu::distance`](crate::kernel::cpu). So the operator above gives the answer that it gives of all pairs.

#[cfg(feature = "cuda")]
mod device;
mod marks;
mod queries;
mod run;
mod shared;
mod spec;
mod table;

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{
    Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};

use self::shared::Shared;
use self::spec::details;
pub(crate) use self::spec::{EqualPairs, NearestJoinSpec, PairColumn};
use self::table::SharedTable;
use super::operator::{Execution, Operator, Work};

/// The pairs of a query (a row of the first input) and a row of a table (the second input) that may be among the `k` best of their query by
/// a distance of two vectors.
///
/// The output has as many partitions as the table, and each row of the table is joined in one of them: its own, or that of a task that had
/// nothing else to do. Which pairs there are besides the best ones depends on the order in which partitions are read. Queries are held in memory that is reserved in the task's
/// pool, as are their best scores and a batch of the table.
///
/// Where the table is pinned (`device=cuda:0, fallback=cpu` in `EXPLAIN`), the device finds the pairs and their distances, and the second input is read
/// only if it leaves them to the CPU: because it fails and `quantiles.device` is `auto`, because a vector that counts, or a query, is NULL, has a
/// component that is no finite number, is shorter than 1e-10 or longer than 1e15 (for the cosine, also zero), or because too many pairs are alike. Once
/// pairs are passed on, an error of the device is that of the query.
///
/// Metrics: `output_rows`, `elapsed_compute`, `pairs` (all of the cross join, by batches that have been read), `whole_batches` (those
/// whose vectors no estimate can judge, and of which all pairs are given); of a device those of [`PinnedExec`](super::PinnedExec),
/// `find_time`, `fetch_time` (of the table's columns) and `left_to_cpu`.
pub type NearestJoinExec = Operator<NearestJoinWork>;

/// Work of a [`NearestJoinExec`].
#[derive(Debug)]
pub struct NearestJoinWork {
    spec: Arc<NearestJoinSpec>,
    details: String,
    schema: SchemaRef,
    shared: Arc<Shared>,
    table: SharedTable,
}

impl NearestJoinExec {
    /// An operator over queries and a table. The output has the names and types of `schema`.
    ///
    /// # Errors
    /// None but internal ones.
    pub(crate) fn try_new(
        queries: Arc<dyn ExecutionPlan>,
        table: Arc<dyn ExecutionPlan>,
        spec: NearestJoinSpec,
        schema: SchemaRef,
    ) -> Result<Self> {
        let work = NearestJoinWork {
            details: details(&spec, &queries.schema(), &table.schema()),
            spec: Arc::new(spec),
            schema,
            shared: Arc::default(),
            table: SharedTable::default(),
        };
        Self::over(work, vec![queries, table])
    }
}

impl Work for NearestJoinWork {
    fn name(&self) -> &'static str {
        "NearestJoinExec"
    }

    fn properties(&self, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<PlanProperties>> {
        Ok(Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&self.schema)),
            Partitioning::UnknownPartitioning(inputs[1].output_partitioning().partition_count()),
            EmissionType::Incremental,
            inputs[1].boundedness(),
        )))
    }

    fn details(&self) -> String {
        self.details.clone()
    }

    fn distribution(&self, _inputs: &[Arc<dyn ExecutionPlan>]) -> Vec<Distribution> {
        vec![
            Distribution::SinglePartition,
            Distribution::UnspecifiedDistribution,
        ]
    }

    fn renewed(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            spec: Arc::clone(&self.spec),
            details: self.details.clone(),
            schema: Arc::clone(&self.schema),
            shared: Arc::default(),
            table: SharedTable::default(),
        })
    }

    fn execute(self: &Arc<Self>, on: Execution<'_>) -> Result<SendableRecordBatchStream> {
        let table = self.table.rows(on.partition, &on.inputs[1], &on.context);
        run::stream(&self.spec, &self.shared, table, on)
    }
}
