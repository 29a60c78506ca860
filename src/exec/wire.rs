//! Encoding of operators as bytes, without their inputs: best rows, branches of unions, and boundaries.
//!
//! ```text
//! sort with limit:      SORT_LIMIT   | step | k | order
//! best rows of groups:  GROUPED_TOPK | step | k | numbering | groups | order | output | schema
//! order:                expression | descending | nulls first, of each
//! branch of a union:    BRANCH
//! boundary:             BOUNDARY | gathers | keys
//! pauses of a join:     GIVE_WAY
//! first side of a join: BUILD_SIDE   | whether it may be read twice
//! ```
//! The schema is that of the answer, without the column of row numbers that a partial step adds. Expressions are written by the codec
//! of the plan that the operator is part of.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;

use super::staged::wire::{put_schema, read_schema};
use super::{
    Answer, BoundaryExec, BoundaryWork, BranchExec, BuildSideExec, GiveWayExec, GroupedTopKExec, Mode,
    Numbering, OutputColumn, SortBy, SortLimitExec, TopKSpec,
};
use crate::key::SortColumn;
use crate::wire::{Reader, put};

/// First byte of each operator. No other node of a plan starts with one of these.
const SORT_LIMIT: u8 = 64;
const GROUPED_TOPK: u8 = 65;
const BRANCH: u8 = 66;
const BOUNDARY: u8 = 67;
const GIVE_WAY: u8 = 68;
const BUILD_SIDE: u8 = 69;

/// What a boundary requires of the partitions of its input.
const AS_THEY_COME: u8 = 0;
const ONE_PARTITION: u8 = 1;
const BY_KEY: u8 = 2;

/// Codec of physical expressions.
pub(crate) trait ExprCodec {
    /// The expression as bytes.
    ///
    /// # Errors
    /// For an expression that cannot be written.
    fn encode(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Vec<u8>>;

    /// The expression over `schema` that these bytes are.
    ///
    /// # Errors
    /// For bytes that are no expression over `schema`.
    fn decode(&self, bytes: &[u8], schema: &Schema) -> Result<Arc<dyn PhysicalExpr>>;
}

/// Appends an operator of this crate to `out` and returns true. For any other operator, appends nothing and returns false.
///
/// # Errors
/// Errors of expressions and types that cannot be written.
pub(crate) fn put_operator(
    plan: &dyn ExecutionPlan,
    out: &mut Vec<u8>,
    exprs: &dyn ExprCodec,
) -> Result<bool> {
    if plan.is::<BranchExec>() {
        out.push(BRANCH);
    } else if plan.is::<GiveWayExec>() {
        out.push(GIVE_WAY);
    } else if let Some(side) = plan.downcast_ref::<BuildSideExec>() {
        out.extend([BUILD_SIDE, u8::from(side.spills())]);
    } else if let Some(boundary) = plan.downcast_ref::<BoundaryExec>() {
        out.push(BOUNDARY);
        match boundary.required() {
            BoundaryWork::AsTheyCome => out.push(AS_THEY_COME),
            BoundaryWork::OnePartition => out.push(ONE_PARTITION),
            BoundaryWork::ByKey(keys) => {
                out.push(BY_KEY);
                put_list(keys, out, |key, out| put_expr(key, out, exprs))?;
            }
        }
    } else if let Some((by, k, mode)) = plan.downcast_ref::<SortLimitExec>().and_then(SortLimitExec::sent) {
        out.push(SORT_LIMIT);
        put_step(mode, k, out);
        put_list(by, out, |by, out| {
            put_expr(&by.expr, out, exprs)?;
            put_options(by.options, out);
            Ok(())
        })?;
    } else if let Some((spec, schema, mode)) = plan
        .downcast_ref::<GroupedTopKExec>()
        .and_then(GroupedTopKExec::sent)
        && let Answer::Rows { k, numbering, output } = &spec.answer
    {
        out.push(GROUPED_TOPK);
        put_step(mode, *k, out);
        out.push(u8::from(*numbering == Numbering::Rank));
        put_list(&spec.group, out, |group, out| put_expr(group, out, exprs))?;
        put_list(&spec.order, out, |by, out| {
            put_expr(&by.expr, out, exprs)?;
            put_options(by.column.options, out);
            Ok(())
        })?;
        put_list(output, out, |column, out| put_column(column, out, exprs))?;
        put_schema(schema, out)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn put_list<T>(
    list: &[T],
    out: &mut Vec<u8>,
    put_one: impl Fn(&T, &mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    put(out, list.len() as u64);
    list.iter().try_for_each(|one| put_one(one, out))
}

fn put_step(mode: Mode, k: usize, out: &mut Vec<u8>) {
    out.push(u8::from(mode == Mode::Final));
    put(out, k as u64);
}

fn put_expr(expr: &Arc<dyn PhysicalExpr>, out: &mut Vec<u8>, exprs: &dyn ExprCodec) -> Result<()> {
    let bytes = exprs.encode(expr)?;
    put(out, bytes.len() as u64);
    out.extend(bytes);
    Ok(())
}

fn put_options(options: SortOptions, out: &mut Vec<u8>) {
    out.extend([u8::from(options.descending), u8::from(options.nulls_first)]);
}

fn put_column(column: &OutputColumn, out: &mut Vec<u8>, exprs: &dyn ExprCodec) -> Result<()> {
    match column {
        OutputColumn::Row(expr) => {
            out.push(0);
            put_expr(expr, out, exprs)?;
        }
        OutputColumn::Group(index) => {
            out.push(1);
            put(out, *index as u64);
        }
        OutputColumn::Number => out.push(2),
    }
    Ok(())
}

/// Reads the next operator, over these inputs. `None` if the next node is none of these operators; then nothing is read.
///
/// # Errors
/// An execution error for damaged bytes, or for another number of inputs than the operator has.
pub(crate) fn read_operator(
    input: &mut Reader<'_>,
    inputs: &[Arc<dyn ExecutionPlan>],
    exprs: &dyn ExprCodec,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let kind = match input.peek() {
        Some(kind @ (SORT_LIMIT | GROUPED_TOPK | BRANCH | BOUNDARY | GIVE_WAY | BUILD_SIDE)) => kind,
        _ => return Ok(None),
    };
    input.byte("kind of node")?;
    Ok(Some(match (kind, inputs) {
        (GIVE_WAY, [child]) => Arc::new(GiveWayExec::try_new(Arc::clone(child))?),
        (BUILD_SIDE, [child]) => {
            let may_spill = input.flag("may_spill")?;
            Arc::new(BuildSideExec::try_new(Arc::clone(child), may_spill)?)
        }
        (BRANCH, [branch, slots]) => Arc::new(BranchExec::from_both(Arc::clone(branch), Arc::clone(slots))?),
        (SORT_LIMIT | GROUPED_TOPK | BOUNDARY, [child]) => {
            let reader = OperatorReader {
                schema: &child.schema(),
                exprs,
            };
            let child = Arc::clone(child);
            match kind {
                SORT_LIMIT => Arc::new(reader.sort_limit(input, child)?),
                GROUPED_TOPK => Arc::new(reader.grouped_topk(input, child)?),
                _ => {
                    let required = match input.byte("requirement")? {
                        AS_THEY_COME => BoundaryWork::AsTheyCome,
                        ONE_PARTITION => BoundaryWork::OnePartition,
                        BY_KEY => BoundaryWork::ByKey(reader.exprs(input, "keys")?),
                        other => return input.damaged(format!("requirement {other}")),
                    };
                    Arc::new(BoundaryExec::try_new(child, required)?)
                }
            }
        }
        _ => return input.damaged(format!("operator of {} inputs", inputs.len())),
    }))
}

/// Reads operators and expressions over an input of this schema.
struct OperatorReader<'a> {
    schema: &'a Schema,
    exprs: &'a dyn ExprCodec,
}

impl OperatorReader<'_> {
    fn sort_limit(&self, input: &mut Reader<'_>, child: Arc<dyn ExecutionPlan>) -> Result<SortLimitExec> {
        let (mode, k) = step(input)?;
        let Some(by) = LexOrdering::new(self.order(input)?) else {
            return input.damaged("rows in no order");
        };
        match SortLimitExec::step(child, by, k, mode)? {
            Some(top) => Ok(top),
            None => input.damaged("an order that 128 bits do not hold"),
        }
    }

    fn grouped_topk(&self, input: &mut Reader<'_>, child: Arc<dyn ExecutionPlan>) -> Result<GroupedTopKExec> {
        let (mode, k) = step(input)?;
        let numbering = if input.flag("numbering")? {
            Numbering::Rank
        } else {
            Numbering::RowNumber
        };
        let group = self.exprs(input, "groups")?;
        let order = self.order(input)?.into_iter().map(|by| self.sort_by(by));
        let order = order.collect::<Result<_>>()?;
        let output = input.list("output columns", |input| self.column(input, group.len()))?;
        let answer = Answer::Rows { k, numbering, output };
        let spec = TopKSpec { group, order, answer };
        GroupedTopKExec::step(child, spec, read_schema(input)?, mode)
    }

    fn expr(&self, input: &mut Reader<'_>) -> Result<Arc<dyn PhysicalExpr>> {
        let length = input.number("length of an expression")?;
        self.exprs.decode(input.take(length, "expression")?, self.schema)
    }

    fn exprs(&self, input: &mut Reader<'_>, what: &'static str) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
        input.list(what, |input| self.expr(input))
    }

    fn order(&self, input: &mut Reader<'_>) -> Result<Vec<PhysicalSortExpr>> {
        input.list("order", |input| {
            Ok(PhysicalSortExpr {
                expr: self.expr(input)?,
                options: SortOptions {
                    descending: input.flag("direction")?,
                    nulls_first: input.flag("place of NULLs")?,
                },
            })
        })
    }

    fn sort_by(&self, by: PhysicalSortExpr) -> Result<SortBy> {
        Ok(SortBy {
            column: SortColumn {
                data_type: by.expr.data_type(self.schema)?,
                nullable: by.expr.nullable(self.schema)?,
                options: by.options,
                total_order: true,
            },
            expr: by.expr,
        })
    }

    /// Reads an output column, of an operator with `groups` group expressions.
    fn column(&self, input: &mut Reader<'_>, groups: usize) -> Result<OutputColumn> {
        Ok(match input.byte("output column")? {
            0 => OutputColumn::Row(self.expr(input)?),
            1 => match input.number("group")? {
                index if index < groups => OutputColumn::Group(index),
                index => return input.damaged(format!("group {index} of {groups}")),
            },
            2 => OutputColumn::Number,
            column => return input.damaged(format!("output column {column}")),
        })
    }
}

/// Reads the step that an operator is, and the number of rows that it keeps.
fn step(input: &mut Reader<'_>) -> Result<(Mode, usize)> {
    let mode = match input.byte("step")? {
        0 => Mode::Partial,
        1 => Mode::Final,
        step => return input.damaged(format!("step {step}")),
    };
    match input.number("number of rows")? {
        0 => input.damaged("0 rows"),
        k => Ok((mode, k)),
    }
}
