//! Exact quantiles of pinned columns: for each column one sequence of kernels, on one device or on several, which finds the ranks
//! of all calls over it.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use super::{OnDevice, PinnedSource, PinnedWork};
use crate::config::StrategyName;
use crate::exec::aggregate::{Aggregates, ExecAggregate, Output, QuantilesCall};
use crate::exec::device_rounds::{Limits, Share, is_devices_own, solve_on_devices};
use crate::exec::on_device::STRATEGY;
use crate::exec::quantiles::comma_separated;
use crate::exec::run::{Solved, answer};
use crate::kernel::cuda::RowMask;
use crate::pinned::PinnedTable;
use crate::quantile::Ask;
use crate::select::{Solution, wanted_ranks};

/// Calls over pinned columns, one output column for each.
#[derive(Debug)]
pub(crate) struct PinnedQuantiles {
    aggregates: Aggregates,
    /// Of each column of `aggregates`.
    sources: Vec<PinnedSource>,
    strategy: StrategyName,
}

/// The columns that calls share, and the place of the values of each; `sources` are those of the calls.
pub(super) fn sourced_columns(
    aggregates: Vec<ExecAggregate>,
    sources: Vec<PinnedSource>,
) -> (Aggregates, Vec<PinnedSource>) {
    let aggregates = Aggregates::new(aggregates);
    let mut of_columns = vec![None; aggregates.columns.len()];
    for ((column, _), source) in aggregates.calls.iter().zip(sources) {
        of_columns[*column] = Some(source);
    }
    (aggregates, of_columns.into_iter().flatten().collect())
}

impl PinnedQuantiles {
    pub(crate) fn new(calls: Vec<(QuantilesCall, PinnedSource)>, strategy: StrategyName) -> Self {
        let (calls, sources): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let calls = calls.into_iter().map(ExecAggregate::Quantiles).collect();
        let (aggregates, sources) = sourced_columns(calls, sources);
        Self {
            aggregates,
            sources,
            strategy,
        }
    }

    /// On the devices of a table that is spread, or in rounds.
    fn solve_on_devices(&self, column: usize, asks: &[&Ask], on: &mut OnDevice<'_>) -> Result<Solved> {
        let source = &self.sources[column];
        let shares = on.table.shares().map(|table| {
            let columns = table.columns.iter().map(|pinned| pinned.column.as_ref());
            let columns: Vec<_> = columns.collect();
            let mask = source
                .filter
                .as_ref()
                .map(|filter| RowMask::evaluate(filter, &columns, on.limit, &mut on.report).map(Arc::new));
            Ok(Share {
                column: Arc::clone(&table.columns[source.column].column),
                mask: mask.transpose()?,
            })
        });
        let shares = shares.collect::<Result<Vec<_>>>()?;
        let spec = &self.aggregates.columns[column].spec;
        let limits = Limits {
            device: on.limit,
            memory: &on.memory,
            timed: on.timed,
        };
        let solution = solve_on_devices(&shares, spec, self.strategy, asks, limits, &mut on.report)?;
        on.rounds.push((solution.strategy, solution.rounds.len()));
        Ok(Solved::Keys(solution))
    }

    fn solve(&self, column: usize, on: &mut OnDevice<'_>) -> Result<Solved> {
        let asks: Vec<&Ask> = self
            .aggregates
            .calls_of(column)
            .map(|call| call.selected().ask())
            .collect();
        if !is_devices_own(self.strategy) || on.table.is_spread() {
            return self.solve_on_devices(column, &asks, on);
        }
        let source = &self.sources[column];
        let values = on.column(source.column);
        let mask = on.kept(source.filter.as_ref(), values)?;
        let words = values.words(&self.aggregates.columns[column].spec);
        let selection = on.among(values, words, mask.as_ref());
        let n = selection.population();
        let ranks = wanted_ranks(&asks, n);
        let keys = selection.keys(&ranks, &mut on.report)?;
        Ok(Solved::Keys(Solution::found(n, STRATEGY, ranks, keys)))
    }
}

impl PinnedWork for PinnedQuantiles {
    fn name(&self) -> &'static str {
        "PinnedQuantilesExec"
    }

    fn batch(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<RecordBatch> {
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
        Ok(RecordBatch::try_new(schema.clone(), columns)?)
    }

    fn columns(&self) -> Vec<usize> {
        self.sources.iter().map(|source| source.column).collect()
    }

    fn shown(&self, _table: &PinnedTable) -> String {
        let calls = comma_separated(self.aggregates.calls.iter().map(|(_, call)| call));
        match is_devices_own(self.strategy) {
            true => format!("calls=[{calls}]"),
            false => format!("strategy={}, calls=[{calls}]", self.strategy),
        }
    }
}
