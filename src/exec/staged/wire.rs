//! Nodes of a staged plan as bytes, without their inputs.
//!
//! ```text
//! kind | types of the columns | calls | error fraction | schema of the answers, if it gives them
//! ```
//! All that a node does is in these bytes: machines that run it need no options of the session.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;

use super::{RefineExec, RoundExec, StagedCall, StagedColumns};
use crate::kernel::wire::{epsilon, put_epsilon};
use crate::key::KeySpec;
use crate::select::Ask;
use crate::select::gk_select::GkSelect;
use crate::wire::{Reader, put};

const FIRST_ROUND: u8 = 0;
const LATER_ROUND: u8 = 1;
const STATE: u8 = 2;
const ANSWERS: u8 = 3;

/// Appends a node of ours; false, and nothing, for another's.
///
/// # Errors
/// Arrow's, for types that it cannot write.
pub(crate) fn put_node(plan: &dyn ExecutionPlan, out: &mut Vec<u8>) -> Result<bool> {
    if let Some(round) = plan.downcast_ref::<RoundExec>() {
        out.push(match round.state {
            None => FIRST_ROUND,
            Some(_) => LATER_ROUND,
        });
        round.columns.put(out)?;
    } else if let Some(refine) = plan.downcast_ref::<RefineExec>() {
        out.push(match refine.answers {
            None => STATE,
            Some(_) => ANSWERS,
        });
        refine.columns.put(out)?;
        if let Some(schema) = &refine.answers {
            put_schema(schema, out)?;
        }
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// The node that comes next, over these inputs.
///
/// # Errors
/// An execution error for bytes that are no such node, or one of other inputs.
pub(crate) fn read_node(
    input: &mut Reader<'_>,
    inputs: &[Arc<dyn ExecutionPlan>],
) -> Result<Arc<dyn ExecutionPlan>> {
    let kind = input.byte("kind of node")?;
    let columns = Arc::new(StagedColumns::read(input)?);
    let child = |index: usize| Arc::clone(&inputs[index]);
    Ok(match (kind, inputs.len()) {
        (FIRST_ROUND, 1) => Arc::new(RoundExec::new(child(0), None, columns)),
        (LATER_ROUND, 2) => Arc::new(RoundExec::new(child(0), Some(child(1)), columns)),
        (STATE, 1) => Arc::new(RefineExec::to_state(child(0), columns)),
        (ANSWERS, 1) => {
            let schema = read_schema(input)?;
            let calls = columns.calls.len();
            match schema.fields().len() == calls {
                true => Arc::new(RefineExec::to_answers(child(0), columns, schema)),
                false => {
                    return input.damaged(format!("{} columns for {calls} calls", schema.fields().len()));
                }
            }
        }
        (kind, inputs) => return input.damaged(format!("a node of kind {kind} with {inputs} inputs")),
    })
}

impl StagedColumns {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        let field = |spec: &KeySpec| Field::new("", spec.data_type().clone(), true);
        let fields: Vec<_> = self.specs().map(field).collect();
        put_schema(&Schema::new(fields), out)?;
        put(out, self.calls.len() as u64);
        for call in &self.calls {
            put(out, call.column as u64);
            call.ask.put(call.is_list, out);
        }
        put_epsilon(out, self.strategy.epsilon());
        Ok(())
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let types = read_schema(input)?;
        let types = types
            .fields()
            .iter()
            .map(|field| field.data_type().clone())
            .collect();
        let calls = input.list("calls", |input| {
            let column = input.number("column")?;
            let (ask, is_list) = Ask::read(input)?;
            Ok(StagedCall { column, ask, is_list })
        })?;
        Self::try_new(types, calls, GkSelect::with(epsilon(input)?))
    }
}

/// In Arrow's own form, with its length before it.
fn put_schema(schema: &Schema, out: &mut Vec<u8>) -> Result<()> {
    let mut bytes = Vec::new();
    StreamWriter::try_new(&mut bytes, schema)?.finish()?;
    put(out, bytes.len() as u64);
    out.extend(bytes);
    Ok(())
}

fn read_schema(input: &mut Reader<'_>) -> Result<SchemaRef> {
    let length = input.number("length of a schema")?;
    let bytes = input.take(length, "schema")?;
    Ok(StreamReader::try_new(bytes, None)?.schema())
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType, TimeUnit};
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;
    use crate::exec::staged::stages;
    use crate::select::quantile::{Method, Quantile};

    fn plan() -> Arc<dyn ExecutionPlan> {
        let types = vec![
            DataType::Float64,
            DataType::Decimal128(38, 2),
            DataType::Timestamp(TimeUnit::Microsecond, Some("+01:00".into())),
        ];
        let call = |column: usize, method: Method, is_list: bool| StagedCall {
            column,
            ask: Ask {
                quantiles: vec![Quantile::try_from_f64(0.1).unwrap()],
                method,
                descending: column == 1,
            },
            is_list,
        };
        let calls = vec![
            call(2, Method::Disc, false),
            call(0, Method::Linear, true),
            call(1, Method::Midpoint, false),
            call(0, Method::PercentileCont, false),
        ];
        let fields = [2, 0, 1, 0].map(|column: usize| Field::new("a", types[column].clone(), true));
        let input: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        let strategy = StagedColumns::strategy_for(&calls, 1_000_000, 4).unwrap();
        let columns = StagedColumns::try_new(types, calls, strategy).unwrap();
        let schema = Arc::new(Schema::new(fields.to_vec()));
        stages(Arc::clone(&input), input, columns, schema)
    }

    /// Writes each node below, reads it back over the same inputs, and compares.
    fn check(plan: &Arc<dyn ExecutionPlan>) -> usize {
        let inputs: Vec<_> = plan.children().into_iter().map(Arc::clone).collect();
        let below: usize = inputs.iter().map(check).sum();
        let mut out = Vec::new();
        if !put_node(plan.as_ref(), &mut out).unwrap() {
            assert!(out.is_empty());
            return below;
        }
        let mut reader = Reader::new("node", &out);
        let found = read_node(&mut reader, &inputs).unwrap();
        reader.end().unwrap();
        let shown = |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
        assert_eq!(shown(&found), shown(plan));
        assert_eq!(found.schema(), plan.schema());
        let mut again = Vec::new();
        put_node(found.as_ref(), &mut again).unwrap();
        assert_eq!(again, out);
        for end in 0..out.len() {
            let mut reader = Reader::new("node", &out[..end]);
            assert!(
                read_node(&mut reader, &inputs).is_err(),
                "{end} of {} bytes",
                out.len()
            );
        }
        let mut reader = Reader::new("node", &out);
        assert!(read_node(&mut reader, &[]).is_err());
        below + 1
    }

    #[test]
    fn nodes_come_back_and_pieces_of_them_do_not() {
        // Two rounds, the second behind the first's state.
        assert_eq!(check(&plan()), 4);
    }

    #[test]
    fn other_nodes_are_left_to_others() {
        let other = EmptyExec::new(Arc::new(Schema::empty()));
        assert!(!put_node(&other, &mut Vec::new()).unwrap());
        let error = read_node(&mut Reader::new("node", &[9, 0]), &[]).unwrap_err();
        assert!(error.strip_backtrace().contains("Execution error"), "{error}");
    }
}
