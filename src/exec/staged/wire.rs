//! Nodes of a staged plan as bytes, without their inputs.
//!
//! ```text
//! kind | read | types of the columns | calls | rounds | schema of the answers, or number of groups
//! 4 | stage | auto | group columns | schema of the answers | types of the columns | calls
//! ```
//! These bytes say all that a node does, so that machines need no options of the session to run it.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::protobuf;
use prost::Message;

use super::columns::{KeyColumns, StagedCall, StagedColumns};
use super::groups::{GroupStage, GroupStep, GroupedColumns};
use super::merge::Merge;
use super::refine::Refine;
use super::round::Round;
use super::rounds::{Rounds, UnrolledStrategy};
use super::stage::{StageExec, StageStep, stage};
use crate::kernel::round_messages::{epsilon, put_epsilon};
use crate::key::KeySpec;
use crate::quantile::QuantileSpec;
use crate::select::gk_select::GkSelect;
use crate::wire::{Reader, foreign, put};

const ROUND: u8 = 0;
const STATE: u8 = 1;
const ANSWERS: u8 = 2;
const MERGE: u8 = 3;
const GROUPS: u8 = 4;

const GK_SELECT: u8 = 0;
const DISTRIBUTED_BMS: u8 = 1;
const DIBMS: u8 = 2;

/// The step of a plan's uppermost operator, if it is a stage of this kind.
fn step_of<S: StageStep>(plan: &dyn ExecutionPlan) -> Option<&S> {
    plan.downcast_ref::<StageExec<S>>().map(|exec| &exec.work().step)
}

/// Appends a node if it is a stage. False, and nothing appended, for any other node.
///
/// # Errors
/// Arrow's, for types that it cannot write.
pub(crate) fn put_node(plan: &dyn ExecutionPlan, out: &mut Vec<u8>) -> Result<bool> {
    if let Some(Round { columns, read }) = step_of(plan) {
        columns.put(ROUND, *read, out)?;
    } else if let Some(refine) = step_of::<Refine>(plan) {
        match &refine.answers {
            None => refine.columns.put(STATE, refine.read, out)?,
            Some(schema) => {
                refine.columns.put(ANSWERS, refine.read, out)?;
                put_schema(schema, out)?;
            }
        }
    } else if let Some(merge) = step_of::<Merge>(plan) {
        merge.columns.put(MERGE, merge.read, out)?;
        put(out, u64::from(merge.groups));
    } else if let Some(groups) = step_of::<GroupStep>(plan) {
        out.extend([GROUPS, groups.stage as u8]);
        groups.columns.put(out)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// The next node in the bytes, over these inputs.
///
/// # Errors
/// An execution error for bytes that are no such node, or one of other inputs.
pub(crate) fn read_node(
    input: &mut Reader<'_>,
    inputs: &[Arc<dyn ExecutionPlan>],
) -> Result<Arc<dyn ExecutionPlan>> {
    let kind = input.byte("kind of node")?;
    if kind == GROUPS {
        return read_groups(input, inputs);
    }
    let read: usize = input.number("number of a read")?;
    let columns = Arc::new(StagedColumns::read(input)?);
    if read >= columns.rounds.reads() {
        return input.damaged(format!("read {read} of {}", columns.rounds.reads()));
    }
    let is_last = read + 1 == columns.rounds.reads();
    let child = |index: usize| Arc::clone(&inputs[index]);
    let refined = |columns, answers| {
        let refine = Refine {
            columns,
            read,
            answers,
        };
        stage(refine, child(0), None)
    };
    match (kind, inputs.len()) {
        (ROUND, 1) if read == 0 => stage(Round { columns, read }, child(0), None),
        (ROUND, 2) if read > 0 => stage(Round { columns, read }, child(0), Some(child(1))),
        (MERGE, 1) if columns.rounds.is_summed(read) => match input.number("number of groups")? {
            0 => input.damaged("no groups to merge"),
            groups => stage(Merge::try_new(columns, read, groups)?, child(0), None),
        },
        (STATE, 1) if !is_last => refined(columns, None),
        (ANSWERS, 1) if is_last => {
            let schema = read_schema(input)?;
            let calls = columns.calls.len();
            if schema.fields().len() == calls {
                refined(columns, Some(schema))
            } else {
                input.damaged(format!("{} columns for {calls} calls", schema.fields().len()))
            }
        }
        (kind, inputs) => input.damaged(format!(
            "a node of kind {kind} with {inputs} inputs after read {read}"
        )),
    }
}

/// The next node, which is a stage of groups.
fn read_groups(input: &mut Reader<'_>, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
    let number = input.byte("stage of groups")?;
    let Some(kind) = GroupStage::ALL.get(usize::from(number)).copied() else {
        return input.damaged(format!("stage {number} of groups"));
    };
    let columns = Arc::new(GroupedColumns::read(input)?);
    let (first, state) = match (kind, inputs) {
        (GroupStage::Extract, [first, state]) => (first, Some(Arc::clone(state))),
        (GroupStage::Count | GroupStage::Brackets | GroupStage::Select, [first]) => (first, None),
        (kind, inputs) => {
            return input.damaged(format!("{} of groups with {} inputs", kind.name(), inputs.len()));
        }
    };
    let step = GroupStep { stage: kind, columns };
    stage(step, Arc::clone(first), state)
}

impl GroupedColumns {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        out.push(u8::from(self.auto));
        put_schema(&Schema::new(self.fields.clone()), out)?;
        put_schema(&self.answers, out)?;
        self.columns.put(out)
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let auto = input.flag("choice of stages")?;
        let (groups, answers) = (read_schema(input)?, read_schema(input)?);
        let columns = KeyColumns::read(input)?;
        let all = groups.fields().len() + columns.calls.len();
        if groups.fields().is_empty() || answers.fields().len() != all {
            input.damaged("columns of groups")
        } else {
            Self::try_new(groups.fields(), columns, answers, auto)
        }
    }
}

impl Rounds {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.auto));
        match &self.strategy {
            UnrolledStrategy::GkSelect(strategy) => {
                out.push(GK_SELECT);
                put_epsilon(out, strategy.epsilon());
            }
            UnrolledStrategy::DistributedBms { partitions } => {
                out.push(DISTRIBUTED_BMS);
                put(out, *partitions);
            }
            UnrolledStrategy::Dibms { partitions, counts } => {
                out.push(DIBMS);
                put(out, *partitions);
                out.push(*counts);
            }
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let auto = input.flag("choice of a strategy")?;
        let strategy = match input.byte("strategy")? {
            GK_SELECT => UnrolledStrategy::GkSelect(GkSelect::with(epsilon(input)?)),
            DISTRIBUTED_BMS => UnrolledStrategy::DistributedBms {
                partitions: input.number("partitions")?,
            },
            DIBMS => UnrolledStrategy::Dibms {
                partitions: input.number("partitions")?,
                counts: match input.byte("number of counts")? {
                    0 => return input.damaged("dibms without a count"),
                    counts => counts,
                },
            },
            kind => return input.damaged(format!("strategy {kind}")),
        };
        Ok(Self { strategy, auto })
    }
}

impl StagedColumns {
    fn put(&self, kind: u8, read: usize, out: &mut Vec<u8>) -> Result<()> {
        out.push(kind);
        put(out, read as u64);
        self.columns.put(out)?;
        self.rounds.put(out);
        Ok(())
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let columns = KeyColumns::read(input)?;
        let rounds = Rounds::read(input)?;
        Ok(Self { columns, rounds })
    }
}

impl KeyColumns {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        let field = |spec: &KeySpec| Field::new("", spec.data_type().clone(), true);
        let fields: Vec<_> = self.specs().map(field).collect();
        put_schema(&Schema::new(fields), out)?;
        put(out, self.calls.len() as u64);
        for call in &self.calls {
            put(out, call.column as u64);
            call.quantile_spec.put(call.is_list, out);
            out.push(u8::from(call.bounds));
        }
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
            let (quantile_spec, is_list) = QuantileSpec::read(input)?;
            Ok(StagedCall {
                column,
                quantile_spec,
                is_list,
                bounds: input.flag("bounds")?,
            })
        })?;
        Self::try_new(types, calls)
    }
}

/// Appends a schema as DataFusion writes it in plans, behind its length. (The format of Arrow's files is not used here: its reader
/// allocates as many bytes as the file says, however few there are.)
pub(crate) fn put_schema(schema: &Schema, out: &mut Vec<u8>) -> Result<()> {
    let schema = protobuf::Schema::try_from(schema)
        .map_err(|error| exec_datafusion_err!("a schema that plans cannot have: {error}"))?;
    put(out, schema.encoded_len() as u64);
    out.extend(schema.encode_to_vec());
    Ok(())
}

/// The schema that comes next in the bytes.
///
/// # Errors
/// An execution error for bytes that are no schema.
pub(crate) fn read_schema(input: &mut Reader<'_>) -> Result<SchemaRef> {
    let length = input.number("length of a schema")?;
    let bytes = input.take(length, "schema")?;
    foreign("schema", || {
        let schema = protobuf::Schema::decode(bytes)
            .map_err(|error| exec_datafusion_err!("a damaged schema: {error}"))?;
        let schema = Schema::try_from(&schema);
        schema
            .map(Arc::new)
            .map_err(|error| exec_datafusion_err!("a damaged schema: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType, TimeUnit};
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;
    use crate::config::StrategyName;
    use crate::exec::staged::{Workload, group_stages, rounds, stages};
    use crate::quantile::{Method, Quantile};

    fn call(column: usize, method: Method, is_list: bool) -> StagedCall {
        StagedCall {
            column,
            quantile_spec: QuantileSpec {
                quantiles: vec![Quantile::try_from_f64(0.1).unwrap()],
                method,
                descending: column == 1,
            },
            is_list,
            bounds: column == 2,
        }
    }

    /// A plan of stages over an input with this number of partitions, and the number of reads of the input.
    fn plan(strategy: StrategyName, partitions: usize) -> (Arc<dyn ExecutionPlan>, usize) {
        let types = vec![
            DataType::Float64,
            DataType::Decimal128(38, 2),
            DataType::Timestamp(TimeUnit::Microsecond, Some("+01:00".into())),
        ];
        let calls = vec![
            call(2, Method::Disc, false),
            call(0, Method::Linear, true),
            call(1, Method::Midpoint, false),
            call(0, Method::PercentileCont, false),
        ];
        let fields = [2, 0, 1, 0].map(|column: usize| Field::new("a", types[column].clone(), true));
        let empty = EmptyExec::new(Arc::new(Schema::empty()));
        let input: Arc<dyn ExecutionPlan> = Arc::new(empty.with_partitions(partitions));
        let rounds = rounds(strategy, &Workload::of(input.as_ref(), 4).unwrap()).unwrap();
        let reads = rounds.reads();
        let columns = StagedColumns::try_new(types, calls, rounds).unwrap();
        let schema = Arc::new(Schema::new(fields.to_vec()));
        (stages(&input, columns, schema, partitions).unwrap(), reads)
    }

    /// Writes each node of a plan, reads it back over the same inputs, and compares. Returns the number of nodes.
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
        for strategy in StrategyName::ALL {
            let (few, reads) = plan(strategy, 4);
            assert_eq!(check(&few), 2 * reads, "{strategy}");
            // A sketch, or each count, is merged in two further stages.
            let (many, reads) = plan(strategy, 40_000);
            let summed = if reads == 2 { 1 } else { reads - 2 };
            assert_eq!(check(&many), 2 * reads + 2 * summed, "{strategy}");
        }
    }

    #[test]
    fn stages_of_groups_come_back_and_pieces_of_them_do_not() {
        let types = vec![DataType::Float64, DataType::Int16];
        let calls = vec![call(1, Method::Disc, true), call(0, Method::Median, false)];
        let field = |name: &str, data_type: DataType| Arc::new(Field::new(name, data_type, true));
        let groups = [field("g0", DataType::Utf8), field("g1", DataType::Date32)];
        let answers = ["s", "d", "a", "b"].map(|name| field(name, DataType::Utf8));
        let empty = EmptyExec::new(Arc::new(Schema::empty()));
        let input: Arc<dyn ExecutionPlan> = Arc::new(empty.with_partitions(3));
        for auto in [false, true] {
            let columns = KeyColumns::try_new(types.clone(), calls.clone()).unwrap();
            let answers = Arc::new(Schema::new(answers.to_vec()));
            let plan = GroupedColumns::try_new(&groups, columns, answers, auto).unwrap();
            assert_eq!(check(&group_stages(&input, plan).unwrap()), 4);
        }
    }

    #[test]
    fn other_nodes_are_left_to_others() {
        let other = EmptyExec::new(Arc::new(Schema::empty()));
        assert!(!put_node(&other, &mut Vec::new()).unwrap());
        assert!(read_node(&mut Reader::new("node", &[GROUPS, 7]), &[]).is_err());
        let error = read_node(&mut Reader::new("node", &[9, 0, 0]), &[]).unwrap_err();
        assert!(error.strip_backtrace().contains("Execution error"), "{error}");
    }
}
