//! The operator's work, and one execution of it.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExpr;

use crate::config::StrategyName;
use crate::exec::aggregate::Aggregates;
use crate::exec::group_engine::GroupColumns;
use crate::exec::selection::SelectionContext;
use crate::key::KeySpec;

/// Work of a [`GroupedQuantilesExec`](super::GroupedQuantilesExec): group columns, quantiles and plain aggregates.
#[derive(Debug)]
pub struct GroupedQuantilesWork {
    pub(super) group: Vec<Arc<dyn PhysicalExpr>>,
    pub(super) groups: GroupColumns,
    pub(super) aggregates: Aggregates,
    pub(super) schema: SchemaRef,
}

impl GroupedQuantilesWork {
    /// Whether quantiles of any call are over a type without keys.
    pub(super) fn has_byte_strings(&self) -> bool {
        self.aggregates
            .columns
            .iter()
            .any(|column| column.bytes.is_some())
    }
}

/// One execution of a [`GroupedQuantilesWork`], as a work of the engine for groups.
pub(super) struct GroupQuantiles {
    pub(super) plan: Arc<GroupedQuantilesWork>,
    /// How the values of each key column become keys.
    pub(super) specs: Vec<KeySpec>,
    /// Settings and resources of selections by rounds, such as threads and memory.
    pub(super) solver: Arc<SelectionContext>,
}

impl GroupQuantiles {
    /// An execution of `plan` in the memory pool of `context`, on the account of the consumer of `memory`.
    pub(super) fn new(
        plan: Arc<GroupedQuantilesWork>,
        memory: &MemoryReservation,
        context: &TaskContext,
    ) -> Self {
        let columns = plan.aggregates.columns.iter();
        Self {
            specs: columns.map(|column| column.spec.clone()).collect(),
            solver: Arc::new(SelectionContext::new(
                StrategyName::Auto,
                memory.new_empty(),
                context,
            )),
            plan,
        }
    }
}
