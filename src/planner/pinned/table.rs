//! The pinned table that a query reads: finds the column that an expression is, and the filters between the table and the query.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan};

use super::predicate::predicate;
use crate::config::{DeviceChoice, QuantilesOptions};
use crate::exec::{PinnedCalls, PinnedQuery, PinnedTable, PinnedTables};
use crate::kernel::cuda::{DeviceColumn, Devices, Predicate};

/// The pinned table that a query reads, with the filters between the two.
pub(super) struct PinnedInput {
    pub(super) table: Arc<PinnedTable>,
    /// Each filter as it is written, and as a predicate for the device.
    filters: Vec<(String, Predicate)>,
    pub(super) options: QuantilesOptions,
}

impl PinnedInput {
    /// The pinned table that `input` reads, with nothing in between but filters that the device can compute. `None` if there is no such
    /// table, if the options ask for another device, or if the table lies on several devices.
    ///
    /// # Errors
    /// Errors of the catalog.
    pub(super) async fn below(input: &LogicalPlan, session: &dyn Session) -> Result<Option<Self>> {
        let pinned = Self::on_devices(input, session).await?;
        Ok(pinned.filter(|pinned| !pinned.table.is_spread()))
    }

    /// As [`Self::below`], also for a table that lies on several devices.
    ///
    /// # Errors
    /// Errors of the catalog.
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
            // The number is that of the session, if the session has devices of its own.
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

    /// Index of the pinned column that the expression `expr` over `input` is, if its values can be ranked: vectors cannot.
    pub(super) fn column(&self, expr: &Expr, input: &LogicalPlan) -> Option<usize> {
        let can_rank = |column: &usize| DeviceColumn::supports(self.table.column(*column).data_type());
        self.any_column(expr, input).filter(can_rank)
    }

    /// As [`Self::column`], if a device can order rows by it: NULLs have no place in its order.
    pub(super) fn order_column(&self, expr: &Expr, input: &LogicalPlan) -> Option<usize> {
        let column = self.column(expr, input)?;
        (!self.table.has_nulls(column)).then_some(column)
    }

    /// Index of the pinned column, of numbers or of vectors, that the expression `expr` over `input` is.
    pub(super) fn any_column(&self, expr: &Expr, input: &LogicalPlan) -> Option<usize> {
        match unaliased(expr) {
            Expr::Column(column) => pinned_index(input, column, &self.table),
            _ => None,
        }
    }

    /// Index of the pinned column that `expr` is, if its keys tell values apart as `GROUP BY` does. Floating point does not: there zeros of
    /// either sign are one group, and NaNs with different bits are not.
    fn group_column(&self, expr: &Expr, input: &LogicalPlan) -> Option<usize> {
        let column = self.column(expr, input)?;
        let data_type = self.table.column(column).data_type();
        (!data_type.is_floating()).then_some(column)
    }

    /// The columns that rows are grouped by, and the condition for a row to make a group. `None` if a device cannot compute these.
    pub(super) fn grouped(
        &self,
        groups: &[Expr],
        input: &LogicalPlan,
    ) -> Option<(Vec<usize>, Option<Predicate>)> {
        let groups = groups.iter().map(|expr| self.group_column(expr, input));
        let groups = groups.collect::<Option<Vec<_>>>()?;
        Some((groups, self.filter(None, input).map(conjunction)?))
    }

    /// All filters of the query, and the filter `own` over `input`. `None` if a device cannot compute it.
    pub(super) fn filter(&self, own: Option<&Expr>, input: &LogicalPlan) -> Option<Vec<Predicate>> {
        let mut all: Vec<_> = self.filters.iter().map(|(_, filter)| filter.clone()).collect();
        if let Some(own) = own {
            all.push(decided(own, input, &self.table)?.1);
        }
        Some(all)
    }

    /// The query of `calls` to the table, with an answer of these names and types. `timed`: whether to measure the time of each kernel.
    pub(super) fn query(
        self,
        calls: impl PinnedCalls + 'static,
        schema: SchemaRef,
        timed: bool,
    ) -> PinnedQuery {
        let shown: Vec<_> = self.filters.iter().map(|(shown, _)| shown.as_str()).collect();
        PinnedQuery {
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

/// The predicate that all of the predicates are true. `None` if there are none.
pub(super) fn conjunction(mut all: Vec<Predicate>) -> Option<Predicate> {
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(Predicate::And(all)),
    }
}

/// The scan below `plan`, if there are only filters and projections in between.
pub(super) fn scan_below(plan: &LogicalPlan) -> Option<&TableScan> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => scan_below(&alias.input),
        LogicalPlan::Projection(projection) => scan_below(&projection.input),
        LogicalPlan::Filter(filter) => scan_below(&filter.input),
        LogicalPlan::TableScan(scan) if scan.fetch.is_none() => Some(scan),
        _ => None,
    }
}

/// The filters above the scan and in it, as they are written and for the device. `None` if a device cannot compute them.
fn filters_of(plan: &LogicalPlan, table: &PinnedTable) -> Option<Vec<(String, Predicate)>> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => filters_of(&alias.input, table),
        LogicalPlan::Projection(projection) => filters_of(&projection.input, table),
        LogicalPlan::Filter(filter) => {
            let mut filters = filters_of(&filter.input, table)?;
            let own = decided(&filter.predicate, &filter.input, table)?;
            // If a table may return rows that the filter drops, the filter stands twice: in the scan and above.
            if !filters.iter().any(|(_, other)| *other == own.1) {
                filters.push(own);
            }
            Some(filters)
        }
        // Filters in the scan may be of columns that the scan does not return.
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

/// A filter over `input`, as it is written and for the device. `None` if a device cannot compute it. An optimizer may have moved a common
/// part of several filters to a projection below; columns of projections are replaced by the expressions that they are.
fn decided(filter: &Expr, input: &LogicalPlan, table: &PinnedTable) -> Option<(String, Predicate)> {
    let filter = over_table(filter.clone(), input)?;
    let index_of = |column: &Column| table.index_of(&column.name);
    Some((filter.to_string(), predicate(&filter, table, &index_of)?))
}

/// The expression over `plan` as one over the columns of the scan below. `None` if there is more than projections and filters in between.
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

/// The expression over the columns of the scan below that a column of `plan` is.
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

/// Index of the pinned column that `column` of `plan` is.
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
