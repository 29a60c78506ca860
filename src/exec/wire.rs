//! Operators of best rows, and of branches and boundaries, as bytes, without their inputs.
//!
//! ```text
//! first rows:      TOP  | step | k | order
//! rows of groups:  TOPK | step | k | numbering | groups | order | output | schema
//! order:           expression | descending | nulls first, of each
//! branch:          BRANCH
//! boundary:        BOUNDARY | keys
//! ```
//! The schema is that of the answer: a partial step gives a column of numbers besides. Expressions are written by the codec of whatever plan this is part of.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;

use super::staged::wire::{put_schema, read_schema};
use super::{
    Answer, BoundaryExec, BranchExec, GroupedTopKExec, Mode, Numbering, OutputColumn, SortBy, TopKByExec,
    TopKSpec,
};
use crate::key::SortColumn;
use crate::wire::{Reader, put};

/// First bytes, of which other nodes have none.
const TOP: u8 = 64;
const TOPK: u8 = 65;
const BRANCH: u8 = 66;
const BOUNDARY: u8 = 67;

/// How expressions are written and read.
pub(crate) trait ExprCodec {
    /// # Errors
    /// For an expression that cannot be written.
    fn encode(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Vec<u8>>;

    /// # Errors
    /// For bytes that are no expression over `schema`.
    fn decode(&self, bytes: &[u8], schema: &Schema) -> Result<Arc<dyn PhysicalExpr>>;
}

/// Appends an operator of ours; false, and nothing, for another's.
///
/// # Errors
/// Those of expressions and types that cannot be written.
pub(crate) fn put_operator(
    plan: &dyn ExecutionPlan,
    out: &mut Vec<u8>,
    exprs: &dyn ExprCodec,
) -> Result<bool> {
    if let Some(top) = plan.downcast_ref::<TopKByExec>()
        && let Some((by, k, mode)) = top.sent()
    {
        out.push(TOP);
        put_mode(mode, out);
        put(out, k as u64);
        put(out, by.len() as u64);
        for by in by {
            put_expr(&by.expr, out, exprs)?;
            put_options(by.options, out);
        }
        return Ok(true);
    }
    if plan.is::<BranchExec>() {
        out.push(BRANCH);
        return Ok(true);
    }
    if let Some(boundary) = plan.downcast_ref::<BoundaryExec>() {
        out.push(BOUNDARY);
        put(out, boundary.keys().len() as u64);
        for key in boundary.keys() {
            put_expr(key, out, exprs)?;
        }
        return Ok(true);
    }
    let Some((spec, schema, mode)) = plan
        .downcast_ref::<GroupedTopKExec>()
        .and_then(GroupedTopKExec::sent)
    else {
        return Ok(false);
    };
    let Answer::Rows { k, numbering, output } = &spec.answer else {
        return Ok(false);
    };
    out.push(TOPK);
    put_mode(mode, out);
    put(out, *k as u64);
    out.push(u8::from(*numbering == Numbering::Rank));
    put(out, spec.group.len() as u64);
    for group in &spec.group {
        put_expr(group, out, exprs)?;
    }
    put(out, spec.order.len() as u64);
    for by in &spec.order {
        put_expr(&by.expr, out, exprs)?;
        put_options(by.column.options, out);
    }
    put(out, output.len() as u64);
    for column in output {
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
    }
    put_schema(schema, out)?;
    Ok(true)
}

/// The operator that comes next, over these inputs; `None` if it is no such operator, and then nothing is read.
///
/// # Errors
/// An execution error for bytes that are no such operator, or one of other inputs.
pub(crate) fn read_operator(
    input: &mut Reader<'_>,
    inputs: &[Arc<dyn ExecutionPlan>],
    exprs: &dyn ExprCodec,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if !matches!(input.peek(), Some(TOP | TOPK | BRANCH | BOUNDARY)) {
        return Ok(None);
    }
    let kind = input.byte("kind of node")?;
    if kind == BRANCH {
        return match inputs {
            [branch, slots] => {
                let branch = BranchExec::from_both(Arc::clone(branch), Arc::clone(slots))?;
                Ok(Some(Arc::new(branch)))
            }
            _ => input.damaged(format!("branch of {} inputs", inputs.len())),
        };
    }
    let [child] = inputs else {
        return input.damaged(format!("operator of {} inputs", inputs.len()));
    };
    let schema = child.schema();
    if kind == BOUNDARY {
        let keys = input.list("keys", |input| read_expr(input, &schema, exprs))?;
        return Ok(Some(Arc::new(BoundaryExec::try_new(Arc::clone(child), keys)?)));
    }
    let mode = match input.byte("step")? {
        0 => Mode::Partial,
        1 => Mode::Final,
        step => return input.damaged(format!("step {step}")),
    };
    let k: usize = input.number("number of rows")?;
    if k == 0 {
        return input.damaged("0 rows");
    }
    let expr = |input: &mut Reader<'_>| read_expr(input, &schema, exprs);
    let order = |input: &mut Reader<'_>| {
        input.list("order", |input| {
            Ok(PhysicalSortExpr {
                expr: expr(input)?,
                options: SortOptions {
                    descending: input.flag("direction")?,
                    nulls_first: input.flag("place of NULLs")?,
                },
            })
        })
    };
    if kind == TOP {
        let Some(by) = LexOrdering::new(order(input)?) else {
            return input.damaged("rows in no order");
        };
        return match TopKByExec::step(Arc::clone(child), by, k, mode)? {
            Some(top) => Ok(Some(Arc::new(top))),
            None => input.damaged("an order that 128 bits do not hold"),
        };
    }
    let numbering = match input.flag("numbering")? {
        false => Numbering::RowNumber,
        true => Numbering::Rank,
    };
    let group = input.list("groups", expr)?;
    let by = |by: PhysicalSortExpr| {
        Ok(SortBy {
            column: SortColumn {
                data_type: by.expr.data_type(&schema)?,
                nullable: by.expr.nullable(&schema)?,
                options: by.options,
                total_order: true,
            },
            expr: by.expr,
        })
    };
    let order = order(input)?.into_iter().map(by).collect::<Result<_>>()?;
    let output = input.list("output columns", |input| {
        Ok(match input.byte("output column")? {
            0 => OutputColumn::Row(expr(input)?),
            1 => match input.number("group")? {
                index if index < group.len() => OutputColumn::Group(index),
                index => return input.damaged(format!("group {index} of {}", group.len())),
            },
            2 => OutputColumn::Number,
            column => return input.damaged(format!("output column {column}")),
        })
    })?;
    let answer = Answer::Rows { k, numbering, output };
    let spec = TopKSpec { group, order, answer };
    let schema = read_schema(input)?;
    Ok(Some(Arc::new(GroupedTopKExec::step(
        Arc::clone(child),
        spec,
        schema,
        mode,
    )?)))
}

fn put_mode(mode: Mode, out: &mut Vec<u8>) {
    out.push(u8::from(mode == Mode::Final));
}

fn put_expr(expr: &Arc<dyn PhysicalExpr>, out: &mut Vec<u8>, exprs: &dyn ExprCodec) -> Result<()> {
    let bytes = exprs.encode(expr)?;
    put(out, bytes.len() as u64);
    out.extend(bytes);
    Ok(())
}

fn read_expr(
    input: &mut Reader<'_>,
    schema: &Schema,
    exprs: &dyn ExprCodec,
) -> Result<Arc<dyn PhysicalExpr>> {
    let length = input.number("length of an expression")?;
    exprs.decode(input.take(length, "expression")?, schema)
}

fn put_options(options: SortOptions, out: &mut Vec<u8>) {
    out.extend([u8::from(options.descending), u8::from(options.nulls_first)]);
}
