//! A pinned table below a query: which of its columns an expression is, and which filters lie between, as a device decides them.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan};

use super::predicate::predicate;
use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::{PinnedCalls, PinnedQuestion, PinnedTable, PinnedTables};
use crate::kernel::cuda::{Devices, Predicate};

/// A pinned table below a query, and the filters between them.
pub(super) struct Resident {
    pub(super) table: Arc<PinnedTable>,
    /// As they are written, and for the device.
    filters: Vec<(String, Predicate)>,
    pub(super) options: QuantilesOptions,
}

impl Resident {
    /// The pinned table whose rows `input` gives, but for filters that the device can decide; `None`: there is none, or its
    /// device was not asked for, or it lies on several devices.
    ///
    /// # Errors
    /// Those of the catalog.
    pub(super) async fn below(input: &LogicalPlan, session: &dyn Session) -> Result<Option<Self>> {
        let resident = Self::on_devices(input, session).await?;
        Ok(resident.filter(|resident| !resident.table.is_spread()))
    }

    /// The same, on as many devices as it may be.
    ///
    /// # Errors
    /// Those of the catalog.
    pub(super) async fn on_devices(input: &LogicalPlan, session: &dyn Session) -> Result<Option<Self>> {
        let options = QuantilesOptions::of(session.config_options());
        if options.device == DeviceChoice::Cpu {
            return Ok(None);
        }
        let tables = PinnedTables::of(session).filter(|tables| !tables.is_empty());
        let (Some(tables), Some(scan)) = (tables, scan_below(input)) else {
            return Ok(None);
        };
        let Some(table) = tables.read_by(scan, session).await? else {
            return Ok(None);
        };
        if let DeviceChoice::Cuda(Some(ordinal)) = options.device {
            // By the session's own numbers, where it has devices of its own.
            let asked = Devices::of(options.device, session.config());
            if table.is_spread() || !asked.has(&table.first().device, ordinal) {
                return Ok(None);
            }
        }
        let filters = filters_of(input, &table);
        Ok(filters.map(|filters| Self {
            table,
            filters,
            options,
        }))
    }

    /// Index of the pinned column that `expr` over `input` is.
    pub(super) fn column(&self, expr: &Expr, input: &LogicalPlan) -> Option<usize> {
        match unaliased(expr) {
            Expr::Column(column) => pinned_index(input, column, &self.table),
            _ => None,
        }
    }

    /// The same of a column whose keys tell its values apart as `GROUP BY` does: zeros of either sign are one group, and NaNs
    /// are not.
    fn group_column(&self, expr: &Expr, input: &LogicalPlan) -> Option<usize> {
        let column = self.column(expr, input)?;
        let data_type = self.table.column(column).data_type();
        (!data_type.is_floating()).then_some(column)
    }

    /// The columns that rows are grouped by, and which rows make groups; `None`: the device cannot decide that.
    pub(super) fn grouped(
        &self,
        groups: &[Expr],
        input: &LogicalPlan,
    ) -> Option<(Vec<usize>, Option<Predicate>)> {
        let groups = groups.iter().map(|expr| self.group_column(expr, input));
        let groups = groups.collect::<Option<Vec<_>>>()?;
        Some((groups, self.filter(None, input).map(conjunction)?))
    }

    /// What is asked of rows: all filters, and `own` over `input`; `None`: the device cannot decide that.
    pub(super) fn filter(&self, own: Option<&Expr>, input: &LogicalPlan) -> Option<Vec<Predicate>> {
        let mut all: Vec<_> = self.filters.iter().map(|(_, filter)| filter.clone()).collect();
        if let Some(own) = own {
            all.push(decided(own, input, &self.table)?.1);
        }
        Some(all)
    }

    /// `calls` as a question to the table, whose answer has these names and types. `timed`: whether the time of each kernel is
    /// wanted.
    pub(super) fn question(
        self,
        calls: impl PinnedCalls + 'static,
        schema: SchemaRef,
        timed: bool,
    ) -> PinnedQuestion {
        let shown: Vec<_> = self.filters.iter().map(|(shown, _)| shown.as_str()).collect();
        PinnedQuestion {
            calls: Box::new(calls),
            shown_filter: (!shown.is_empty()).then(|| shown.join(" AND ")),
            limit: self.options.cuda_memory_limit,
            timed,
            ordering: None,
            schema,
            table: self.table,
        }
    }
}

/// All of the predicates; `None`: there are none.
pub(super) fn conjunction(mut all: Vec<Predicate>) -> Option<Predicate> {
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(Predicate::And(all)),
    }
}

/// The scan below, if of its rows no more is made than filters leave.
fn scan_below(plan: &LogicalPlan) -> Option<&TableScan> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => scan_below(&alias.input),
        LogicalPlan::Projection(projection) => scan_below(&projection.input),
        LogicalPlan::Filter(filter) => scan_below(&filter.input),
        LogicalPlan::TableScan(scan) if scan.fetch.is_none() => Some(scan),
        _ => None,
    }
}

/// The filters above the scan and in it, as they are written and for the device; `None`: the device cannot decide them.
fn filters_of(plan: &LogicalPlan, table: &PinnedTable) -> Option<Vec<(String, Predicate)>> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => filters_of(&alias.input, table),
        LogicalPlan::Projection(projection) => filters_of(&projection.input, table),
        LogicalPlan::Filter(filter) => {
            let mut filters = filters_of(&filter.input, table)?;
            let own = decided(&filter.predicate, &filter.input, table)?;
            // A table that may leave rows in that a filter drops has the filter twice: in the scan and above.
            if !filters.iter().any(|(_, other)| *other == own.1) {
                filters.push(own);
            }
            Some(filters)
        }
        // These may be of columns that the scan does not give out.
        LogicalPlan::TableScan(scan) => {
            let own = scan.filters.iter().map(|filter| {
                let index_of = |column: &Column| table.index_of(&column.name);
                Some((filter.to_string(), predicate(filter, table, &index_of)?))
            });
            own.collect()
        }
        _ => None,
    }
}

/// A filter over `input`, as it is written and for the device; `None`: the device cannot decide it. What several filters share is
/// computed in a projection below by now: what that column is made of is asked instead.
fn decided(filter: &Expr, input: &LogicalPlan, table: &PinnedTable) -> Option<(String, Predicate)> {
    let filter = over_table(filter.clone(), input)?;
    let index_of = |column: &Column| table.index_of(&column.name);
    Some((filter.to_string(), predicate(&filter, table, &index_of)?))
}

/// An expression over `plan` as one over the columns of the scan below; `None`: there is more than projections and filters
/// between them.
pub(super) fn over_table(expr: Expr, plan: &LogicalPlan) -> Option<Expr> {
    let mut is_known = true;
    let replaced = expr.transform_down(|part| {
        let Expr::Column(column) = &part else {
            return Ok(Transformed::no(part));
        };
        Ok(match origin(plan, column) {
            Some(origin) => Transformed::new(origin, true, TreeNodeRecursion::Jump),
            None => {
                is_known = false;
                Transformed::new(part, false, TreeNodeRecursion::Stop)
            }
        })
    });
    replaced.ok().filter(|_| is_known).map(|replaced| replaced.data)
}

/// What a column of `plan` is made of, over the columns of the scan below.
fn origin(plan: &LogicalPlan, column: &Column) -> Option<Expr> {
    let index = plan.schema().maybe_index_of_column(column)?;
    match plan {
        LogicalPlan::SubqueryAlias(alias) => {
            let inner = alias.input.schema().columns().into_iter().nth(index)?;
            origin(&alias.input, &inner)
        }
        LogicalPlan::Projection(projection) => {
            let inner = unaliased(projection.expr.get(index)?);
            over_table(inner.clone(), &projection.input)
        }
        LogicalPlan::Filter(filter) => origin(&filter.input, column),
        LogicalPlan::TableScan(_) => plan.schema().columns().into_iter().nth(index).map(Expr::Column),
        _ => None,
    }
}

/// Index of the pinned column that comes through `plan` as `column`.
fn pinned_index(plan: &LogicalPlan, column: &Column, table: &PinnedTable) -> Option<usize> {
    match origin(plan, column)? {
        Expr::Column(column) => table.index_of(&column.name),
        _ => None,
    }
}

pub(super) fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}
