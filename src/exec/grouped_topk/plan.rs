//! What the operator computes: the groups, the order of rows, and the form of the answer.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, UInt64Array, new_empty_array};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;

use super::super::expressions::{mask, values};
use super::super::group_engine::GroupColumns;
use super::super::operator::comma_separated;
use crate::functions::topk::{Call, lists};
use crate::kernel::cpu::top::{GroupLimit, Ties};
use crate::key::{OrderBy, RowOrder, SortColumn, SortKeys, kept};

/// One expression that rows are ordered by.
#[derive(Debug, Clone)]
pub(crate) struct SortBy {
    pub(crate) expr: Arc<dyn PhysicalExpr>,
    pub(crate) column: SortColumn,
}

/// How the rows of a group are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Numbering {
    /// Consecutive numbers from 1, as `ROW_NUMBER()`.
    RowNumber,
    /// The number of rows that come strictly before, plus 1, so that rows that tie have the same number, as `RANK()`.
    Rank,
}

impl fmt::Display for Numbering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Numbering::RowNumber => "row_number()",
            Numbering::Rank => "rank()",
        })
    }
}

/// Source of an output column.
#[derive(Debug, Clone)]
pub(crate) enum OutputColumn {
    /// The group expression of this index.
    Group(usize),
    /// An expression over the row.
    Row(Arc<dyn PhysicalExpr>),
    /// The row's number in its group.
    Number,
}

/// Form of the answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// One row for each group: the group, and a list of the values of its best rows. Rows without a key, or that do not pass the filter,
    /// do not count.
    Lists {
        call: Call,
        value: Arc<dyn PhysicalExpr>,
        filter: Option<Arc<dyn PhysicalExpr>>,
    },
    /// The best rows of each group.
    Rows {
        k: usize,
        numbering: Numbering,
        output: Vec<OutputColumn>,
    },
}

/// Specification of the best rows of groups.
#[derive(Debug, Clone)]
pub(crate) struct TopKSpec {
    pub(crate) group: Vec<Arc<dyn PhysicalExpr>>,
    pub(crate) order: Vec<SortBy>,
    pub(crate) answer: Answer,
}

impl TopKSpec {
    /// Every expression over the input.
    pub(crate) fn expressions(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        let mut all: Vec<_> = self.group.iter().collect();
        all.extend(self.order.iter().map(|by| &by.expr));
        match &self.answer {
            Answer::Lists { value, filter, .. } => all.extend([value].into_iter().chain(filter)),
            Answer::Rows { output, .. } => all.extend(output.iter().filter_map(|column| match column {
                OutputColumn::Row(expr) => Some(expr),
                OutputColumn::Group(_) | OutputColumn::Number => None,
            })),
        }
        all
    }

    /// The specification with another expression in the place of each.
    ///
    /// # Errors
    /// Those of `replace`.
    pub(crate) fn with_expressions(
        &self,
        replace: impl Fn(&Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>>,
    ) -> Result<Self> {
        let mut replaced = self.clone();
        let group = replaced.group.iter_mut();
        let mut all: Vec<_> = group
            .chain(replaced.order.iter_mut().map(|by| &mut by.expr))
            .collect();
        match &mut replaced.answer {
            Answer::Lists { value, filter, .. } => all.extend([value].into_iter().chain(filter)),
            Answer::Rows { output, .. } => all.extend(output.iter_mut().filter_map(|column| match column {
                OutputColumn::Row(expr) => Some(expr),
                OutputColumn::Group(_) | OutputColumn::Number => None,
            })),
        }
        for expr in all {
            *expr = replace(expr)?;
        }
        Ok(replaced)
    }
}

/// A [`TopKSpec`] over an input of a known schema.
#[derive(Debug)]
pub(super) struct TopKPlan {
    spec: TopKSpec,
    pub(super) groups: GroupColumns,
    pub(super) keys: SortKeys,
    /// Expressions whose values are kept with each row: group columns where they are not packed, then columns of the answer, then what
    /// rows are ordered by where keys do not tell all rows apart.
    carried: Vec<Arc<dyn PhysicalExpr>>,
    pub(super) carried_types: Vec<DataType>,
    pub(super) schema: SchemaRef,
}

/// A batch whose expressions have been evaluated.
pub(super) struct EvaluatedRows {
    /// Group columns of all rows.
    pub(super) groups: Vec<ArrayRef>,
    /// Which rows count; `None`: all.
    pub(super) kept: Option<BooleanArray>,
    /// Key columns of the rows that count.
    pub(super) order: Vec<ArrayRef>,
    /// Carried columns of the rows that count, without group columns.
    pub(super) carried: Vec<ArrayRef>,
}

impl TopKPlan {
    pub(super) fn try_new(spec: TopKSpec, input: &SchemaRef, schema: SchemaRef) -> Result<Self> {
        let columns = match &spec.answer {
            Answer::Lists { .. } => spec.group.len() + 1,
            Answer::Rows { output, .. } => output.len(),
        };
        if spec.group.is_empty() || spec.order.is_empty() || schema.fields().len() != columns {
            return internal_err!(
                "{columns} columns of the best rows for {} names",
                schema.fields().len()
            );
        }
        let field = |expr: &Arc<dyn PhysicalExpr>| expr.return_field(input);
        let fields = spec.group.iter().map(field).collect::<Result<Vec<_>>>()?;
        let groups = GroupColumns::new(fields);
        let by: Vec<SortColumn> = spec.order.iter().map(|by| by.column.clone()).collect();
        let keys = SortKeys::try_new(&by)?;
        let mut carried = if groups.is_packed() {
            Vec::new()
        } else {
            spec.group.clone()
        };
        match &spec.answer {
            Answer::Lists { value, .. } => carried.push(Arc::clone(value)),
            Answer::Rows { output, .. } => carried.extend(output.iter().filter_map(|column| match column {
                OutputColumn::Row(expr) => Some(Arc::clone(expr)),
                OutputColumn::Group(_) | OutputColumn::Number => None,
            })),
        }
        if !keys.is_exact() {
            carried.extend(spec.order.iter().map(|by| Arc::clone(&by.expr)));
        }
        let types = carried.iter().map(|expr| expr.data_type(input));
        Ok(Self {
            carried_types: types.collect::<Result<_>>()?,
            spec,
            groups,
            keys,
            carried,
            schema,
        })
    }

    /// The groups, the order of rows and the form of the answer.
    pub(super) fn spec(&self) -> &TopKSpec {
        &self.spec
    }

    /// The group expressions.
    pub(super) fn group(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.spec.group
    }

    /// Whether the answer is rows of the input, with all of their columns and no others.
    pub(super) fn passes_rows(&self, input: &SchemaRef) -> bool {
        let is_column = |(index, column): (usize, &OutputColumn)| match column {
            OutputColumn::Row(expr) => expr
                .downcast_ref::<Column>()
                .is_some_and(|column| column.index() == index),
            OutputColumn::Group(_) | OutputColumn::Number => false,
        };
        self.schema == *input
            && self
                .rows()
                .is_some_and(|(_, output)| output.iter().enumerate().all(is_column))
    }

    /// Number of carried columns that only tell groups apart.
    pub(super) fn carried_groups(&self) -> usize {
        if self.groups.is_packed() {
            0
        } else {
            self.spec.group.len()
        }
    }

    /// Whether a group has an answer even if none of its rows counts.
    pub(super) fn answers_every_group(&self) -> bool {
        matches!(self.spec.answer, Answer::Lists { .. })
    }

    /// Which rows are kept of each group.
    pub(super) fn wanted(&self) -> Result<GroupLimit> {
        let first = self.carried.len()
            - if self.keys.is_exact() {
                0
            } else {
                self.spec.order.len()
            };
        let by_key = |(index, by): (usize, &SortBy)| {
            OrderBy::rows(first + index, by.column.data_type.clone(), by.column.options)
        };
        let mut order: Vec<_> = if self.keys.is_exact() {
            Vec::new()
        } else {
            self.spec.order.iter().enumerate().map(by_key).collect()
        };
        let (k, ties) = match &self.spec.answer {
            Answer::Lists { call, .. } => {
                let value = self.carried_groups();
                order.push(OrderBy::values(value, self.carried_types[value].clone()));
                (call.rows(), Ties::By(RowOrder::try_new(order)?))
            }
            Answer::Rows { k, numbering, .. } => {
                let ties = match (numbering, order.is_empty()) {
                    (Numbering::RowNumber, true) => Ties::Any,
                    (Numbering::RowNumber, false) => Ties::By(RowOrder::try_new(order)?),
                    (Numbering::Rank, true) => Ties::All,
                    (Numbering::Rank, false) => {
                        return internal_err!("RANK over keys that do not tell rows apart");
                    }
                };
                (*k, ties)
            }
        };
        Ok(GroupLimit {
            k,
            ties,
            distinct: false,
        })
    }

    /// Evaluates the expressions over a batch.
    ///
    /// # Errors
    /// Errors of expressions.
    pub(super) fn evaluate(&self, batch: &RecordBatch) -> Result<EvaluatedRows> {
        let evaluated = |exprs: &[Arc<dyn PhysicalExpr>], batch: &RecordBatch| {
            exprs
                .iter()
                .map(|expr| values(expr, batch))
                .collect::<Result<Vec<_>>>()
        };
        let groups = evaluated(&self.spec.group, batch)?;
        let by: Vec<_> = self.spec.order.iter().map(|by| Arc::clone(&by.expr)).collect();
        let rest = &self.carried[self.carried_groups()..];
        let Answer::Lists { filter, call, .. } = &self.spec.answer else {
            return Ok(EvaluatedRows {
                groups,
                kept: None,
                order: evaluated(&by, batch)?,
                carried: evaluated(rest, batch)?,
            });
        };
        // An expression must not see rows that the filter drops: `1 / x` with FILTER (WHERE x <> 0).
        let passed = filter.as_ref().map(|filter| mask(filter, batch)).transpose()?;
        let filtered = passed
            .as_ref()
            .map(|passed| filter_record_batch(batch, passed))
            .transpose()?;
        let batch = filtered.as_ref().unwrap_or(batch);
        let (mut order, mut carried) = (evaluated(&by, batch)?, evaluated(rest, batch)?);
        let mut counts = kept(order[0].as_ref(), None)?;
        if call.skips_null_values() {
            counts = kept(carried[0].as_ref(), counts.as_ref())?.or(counts);
        }
        if let Some(counts) = &counts {
            for column in order.iter_mut().chain(&mut carried) {
                *column = datafusion::arrow::compute::filter(column, counts)?;
            }
        }
        Ok(EvaluatedRows {
            groups,
            kept: within(passed, counts),
            order,
            carried,
        })
    }

    /// The carried columns without rows.
    pub(super) fn no_rows(&self) -> Vec<ArrayRef> {
        self.carried_types.iter().map(new_empty_array).collect()
    }

    /// An output batch of lists, from the group columns, the carried columns of all best rows, and the number of rows of each group.
    ///
    /// # Errors
    /// Arrow's, where arrays become too large.
    pub(super) fn lists(
        &self,
        groups: Vec<ArrayRef>,
        rows: &[ArrayRef],
        lengths: &[usize],
    ) -> Result<RecordBatch> {
        let Answer::Lists { call, .. } = &self.spec.answer else {
            return internal_err!("rows are not lists");
        };
        let values = &rows[self.carried_groups()];
        let answers = match call.k {
            Some(_) => lists(values, lengths)?,
            None => crate::functions::topk::firsts(values, lengths)?,
        };
        let columns = groups.into_iter().chain([answers]).collect();
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }

    /// The numbering and the output columns, if the answer is rows.
    pub(super) fn rows(&self) -> Option<(Numbering, &[OutputColumn])> {
        match &self.spec.answer {
            Answer::Lists { .. } => None,
            Answer::Rows {
                numbering, output, ..
            } => Some((*numbering, output)),
        }
    }

    /// An output batch of rows, from the group columns (one value for each row), the carried columns and the numbers of rows.
    ///
    /// # Errors
    /// Internal errors only.
    pub(super) fn row_batch(
        &self,
        groups: &[ArrayRef],
        rows: &[ArrayRef],
        numbers: Vec<u64>,
    ) -> Result<RecordBatch> {
        let Some((_, output)) = self.rows() else {
            return internal_err!("lists are not rows");
        };
        let numbers: ArrayRef = Arc::new(UInt64Array::from(numbers));
        let mut next = rows[self.carried_groups()..].iter();
        let column = |column: &OutputColumn| match column {
            OutputColumn::Group(index) => groups.get(*index).cloned(),
            OutputColumn::Number => Some(Arc::clone(&numbers)),
            OutputColumn::Row(_) => next.next().cloned(),
        };
        let columns: Option<Vec<ArrayRef>> = output.iter().map(column).collect();
        match columns {
            Some(columns) => Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?),
            None => internal_err!(
                "{} columns carried for {} of the output",
                rows.len(),
                output.len()
            ),
        }
    }

    /// Every expression over the input.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        let by = self.spec.order.iter().map(|by| &by.expr);
        let filter = match &self.spec.answer {
            Answer::Lists { filter, .. } => filter.as_ref(),
            Answer::Rows { .. } => None,
        };
        self.spec
            .group
            .iter()
            .chain(by)
            .chain(&self.carried)
            .chain(filter)
    }
}

/// The rows that pass both masks. The second mask has one value for each row that passes the first.
fn within(passed: Option<BooleanArray>, counts: Option<BooleanArray>) -> Option<BooleanArray> {
    let Some(passed) = passed else { return counts };
    let Some(counts) = counts else { return Some(passed) };
    let mut counts = counts.values().iter();
    let both = passed
        .iter()
        .map(|passed| passed == Some(true) && counts.next() == Some(true));
    Some(BooleanArray::from(both.collect::<Vec<_>>()))
}

/// An expression that rows are ordered by, in SQL: `expr DESC NULLS LAST`.
pub(in crate::exec) fn in_words(expr: &Arc<dyn PhysicalExpr>, column: &SortColumn) -> String {
    let direction = if column.options.descending { " DESC" } else { "" };
    let nulls = match (column.nullable, column.options.nulls_first) {
        (false, _) => "",
        (true, true) => " NULLS FIRST",
        (true, false) => " NULLS LAST",
    };
    format!("{expr}{direction}{nulls}")
}

impl fmt::Display for TopKPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.spec.order.iter().map(|by| in_words(&by.expr, &by.column));
        let (groups, by) = (comma_separated(self.spec.group.iter()), comma_separated(by));
        match &self.spec.answer {
            Answer::Lists { call, value, filter } => {
                write!(
                    f,
                    "{}({value}), k={}, gby=[{groups}], by=[{by}]",
                    call.sql_name,
                    call.rows()
                )?;
                match filter {
                    Some(filter) => write!(f, ", filter=[{filter}]"),
                    None => Ok(()),
                }
            }
            Answer::Rows { k, numbering, .. } => {
                write!(f, "{numbering} <= {k}, gby=[{groups}], by=[{by}]")
            }
        }
    }
}
