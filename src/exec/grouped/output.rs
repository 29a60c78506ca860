//! Answers of groups, put together as a batch.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_err};

use super::plan::GroupedQuantilesWork;
use crate::exec::aggregate::{Aggregates, Output};
use crate::failpoint::may_fail;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans};
use crate::kernel::cpu::groups::strings::ByteAnswers;
use crate::quantile::AnswerSpec;

/// The answers of the calls over one column.
#[derive(Debug)]
pub(in crate::exec) enum Answers {
    /// Answers as keys.
    Keys(GroupAnswers),
    /// Answers as arrays, one for each call, of the groups that have values; and the number of values in each group.
    #[cfg(feature = "cuda")]
    Values(Vec<ArrayRef>, Vec<u64>),
    /// Answers as byte strings.
    Bytes(ByteAnswers),
}

/// The target ranks of each key column's calls.
pub(super) fn plans(plan: &GroupedQuantilesWork) -> Vec<Plans> {
    let columns = 0..plan.aggregates.columns.len();
    let quantile_specs = |column| {
        let calls = plan.aggregates.calls_of(column);
        calls
            .map(|call| call.answer_spec().quantile_spec().clone())
            .collect()
    };
    columns.map(|column| Plans::new(quantile_specs(column))).collect()
}

/// One row for each group: the group columns, then the answers in the order of the output.
///
/// # Errors
/// Errors of interpolation and of making arrays.
pub(super) fn batch(
    plan: &GroupedQuantilesWork,
    groups: Vec<ArrayRef>,
    answers: &[Answers],
    plain: &[ArrayRef],
) -> Result<RecordBatch> {
    answered_groups(&plan.aggregates, &plan.schema, groups, answers, plain)
}

/// One row for each group, under the names and types of `schema`: the group columns `groups`, then the answers of `aggregates`.
/// `answers` has those of each key column, `plain` those of each plain aggregate.
///
/// # Errors
/// Errors of interpolation and of making arrays; an internal error if answers are of another kind of column.
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
        // The calls of a column come in the order in which `plans` listed them.
        let index = next[*column];
        next[*column] += 1;
        calls.push(match (call.answer_spec(), &answers[*column]) {
            (AnswerSpec::Keys(selected), Answers::Keys(answers)) => {
                let values = selected
                    .quantile_spec()
                    .values(selected.spec(), &answers.found[index])?;
                selected.group_rows(values, &answers.lengths)?
            }
            #[cfg(feature = "cuda")]
            (AnswerSpec::Keys(selected), Answers::Values(values, lengths)) => {
                selected.group_rows(Arc::clone(&values[index]), lengths)?
            }
            (AnswerSpec::Bytes(selected), Answers::Bytes(answers)) => {
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
