//! Exact quantiles of pinned columns without groups. For each column one sequence of kernels, on one device or on several, finds the
//! target ranks of all calls over it.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use super::calls::{FilteredColumn, OnDevice, PinnedCalls};
use super::table::PinnedTable;
use crate::config::StrategyName;
use crate::exec::aggregate::{Aggregates, ExecAggregate, Output};
use crate::exec::device_shards::{ALONE, Limits, Share, solve_on_devices};
use crate::exec::operator::comma_separated;
use crate::exec::run::{Solved, answer};
use crate::quantile::QuantileSpec;

/// Calls over pinned columns, one output column for each.
#[derive(Debug)]
pub(crate) struct PinnedQuantiles {
    aggregates: Aggregates,
    /// The pinned column for each column of `aggregates`.
    sources: Vec<FilteredColumn>,
    strategy: StrategyName,
}

/// The distinct columns of the calls, and the pinned column of each. `sources` has the pinned column of each call.
pub(super) fn sourced_columns(
    aggregates: Vec<ExecAggregate>,
    sources: Vec<FilteredColumn>,
) -> (Aggregates, Vec<FilteredColumn>) {
    let aggregates = Aggregates::new(aggregates);
    let mut of_columns = vec![None; aggregates.columns.len()];
    for ((column, _), source) in aggregates.calls.iter().zip(sources) {
        of_columns[*column] = Some(source);
    }
    (aggregates, of_columns.into_iter().flatten().collect())
}

impl PinnedQuantiles {
    /// Calls that are all quantiles, each over the pinned column of `sources` at the same index.
    pub(crate) fn new(
        aggregates: Vec<ExecAggregate>,
        sources: Vec<FilteredColumn>,
        strategy: StrategyName,
    ) -> Self {
        let (aggregates, sources) = sourced_columns(aggregates, sources);
        Self {
            aggregates,
            sources,
            strategy,
        }
    }

    fn solve(&self, column: usize, on: &mut OnDevice<'_>) -> Result<Solved> {
        let source = &self.sources[column];
        let shares = (0..on.table.shares().len()).map(|share| {
            let column = &on.table.shares()[share].columns[source.column];
            let mask = on.mask_of_share(share, source.filter.as_ref(), column)?;
            Ok(Share {
                column: Arc::clone(column),
                mask,
            })
        });
        let shares = shares.collect::<Result<Vec<_>>>()?;
        let quantile_specs = self.aggregates.calls_of(column);
        let quantile_specs: Vec<&QuantileSpec> = quantile_specs
            .map(|call| call.answer_spec().quantile_spec())
            .collect();
        let limits = Limits {
            device: on.limit,
            memory: &on.memory,
            timed: on.timed,
        };
        let spec = &self.aggregates.columns[column].spec;
        let solution = solve_on_devices(
            &shares,
            spec,
            self.strategy,
            &quantile_specs,
            limits,
            &mut on.report,
        )?;
        if solution.strategy != ALONE {
            on.rounds.push((solution.strategy, solution.rounds.len()));
        }
        Ok(Solved::Keys(solution))
    }
}

impl PinnedCalls for PinnedQuantiles {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let solutions = (0..self.sources.len()).map(|column| self.solve(column, on));
        let solutions = solutions.collect::<Result<Vec<_>>>()?;
        let columns = self.aggregates.outputs.iter().map(|output| match *output {
            Output::Call(index) => {
                let (column, call) = &self.aggregates.calls[index];
                answer(call, &solutions[*column])?.to_array()
            }
            Output::Plain(_) => internal_err!("a device computes quantiles only"),
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(vec![RecordBatch::try_new(schema.clone(), columns)?])
    }

    fn columns(&self) -> Vec<usize> {
        self.sources.iter().map(|source| source.column).collect()
    }

    fn shown(&self, _table: &PinnedTable) -> String {
        let calls = comma_separated(self.aggregates.calls.iter().map(|(_, call)| call));
        if self.strategy.is_sample_select() {
            format!("calls=[{calls}]")
        } else {
            format!("strategy={}, calls=[{calls}]", self.strategy)
        }
    }
}
