//! Answers of groups as a batch.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use super::GroupPlan;
use crate::exec::aggregate::{Aggregates, Output};
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans};
use crate::kernel::cpu::groups::strings::ByteAnswers;
use crate::quantile::Selected;

/// The answers of the calls over one column.
#[derive(Debug)]
pub(in crate::exec) enum Answers {
    Keys(GroupAnswers),
    /// Those of the groups that have values, for each call, and the values of each group.
    #[cfg(feature = "cuda")]
    Values(Vec<ArrayRef>, Vec<u64>),
    Bytes(ByteAnswers),
}

/// The ranks that each key column's calls want.
pub(super) fn plans(plan: &GroupPlan) -> Vec<Plans> {
    let columns = 0..plan.aggregates.columns.len();
    let quantile_specs = |column| {
        let calls = plan.aggregates.calls_of(column);
        calls
            .map(|call| call.selected().quantile_spec().clone())
            .collect()
    };
    columns.map(|column| Plans::new(quantile_specs(column))).collect()
}

/// One row for each group: its values, then the answers in the order of the output.
pub(super) fn batch(
    plan: &GroupPlan,
    groups: Vec<ArrayRef>,
    answers: &[Answers],
    plain: &[ArrayRef],
) -> Result<RecordBatch> {
    answered_groups(&plan.aggregates, &plan.schema, groups, answers, plain)
}

/// The same of aggregates, under the names and types of `schema`.
pub(in crate::exec) fn answered_groups(
    aggregates: &Aggregates,
    schema: &SchemaRef,
    groups: Vec<ArrayRef>,
    answers: &[Answers],
    plain: &[ArrayRef],
) -> Result<RecordBatch> {
    may_fail!("group_answer");
    let mut next = vec![0; aggregates.columns.len()];
    let mut calls = Vec::with_capacity(aggregates.calls.len());
    for (column, call) in &aggregates.calls {
        // Calls of a column stand in the order in which its plans saw them.
        let index = next[*column];
        next[*column] += 1;
        calls.push(match (call.selected(), &answers[*column]) {
            (Selected::Keys(selected), Answers::Keys(answers)) => {
                let values = selected
                    .quantile_spec()
                    .values(selected.spec(), &answers.found[index])?;
                selected.group_rows(values, &answers.lengths)?
            }
            #[cfg(feature = "cuda")]
            (Selected::Keys(selected), Answers::Values(values, lengths)) => {
                selected.group_rows(Arc::clone(&values[index]), lengths)?
            }
            (Selected::Bytes(selected), Answers::Bytes(answers)) => {
                selected.group_rows(answers.calls[index].clone(), &answers.lengths)?
            }
            _ => return internal_err!("{call} was answered by another column"),
        });
    }
    let outputs = aggregates.outputs.iter().map(|output| match *output {
        Output::Call(index) => calls[index].clone(),
        Output::Plain(index) => plain[index].clone(),
    });
    let columns = groups.into_iter().chain(outputs).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}
