//! The codec of physical plans with nodes and functions of this crate, between scheduler and executors.
//!
//! Bytes of this crate start with a tag that no protobuf message starts with. All other bytes go to the inner codec.

use std::sync::Arc;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF, WindowUDF};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalExprNode;
use prost::Message;

use crate::exec::staged::wire::{put_node, read_node};
use crate::exec::wire::{ExprCodec, put_operator, read_operator};
use crate::functions::wire::{put_aggregate, put_window, read_aggregate, read_window};
use crate::wire::{Reader, VERSION, foreign};

/// The tag of this crate's bytes. The version follows it, so that machines with different versions report it.
const TAG: &[u8] = b"\xffquantiles";

/// The codec of executors and schedulers: it writes nodes and bound functions of this crate, and leaves all else to another codec.
///
/// ```
/// # use datafusion_quantiles::ballista::QuantilesCodec;
/// let codec = QuantilesCodec::default(); // around Ballista's own
/// ```
#[derive(Debug)]
pub struct QuantilesCodec {
    inner: Arc<dyn PhysicalExtensionCodec>,
}

impl QuantilesCodec {
    /// A codec around one that knows all other nodes, Ballista's among them.
    pub fn new(inner: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Self { inner }
    }
}

impl Default for QuantilesCodec {
    /// A codec around Ballista's.
    fn default() -> Self {
        Self::new(Arc::new(BallistaPhysicalExtensionCodec::default()))
    }
}

/// A reader of the bytes behind the tag and the version; `None` for bytes of another codec.
///
/// # Errors
/// An execution error for another version.
fn ours<'a>(what: &'static str, bytes: &'a [u8]) -> Result<Option<Reader<'a>>> {
    let Some(rest) = bytes.strip_prefix(TAG) else {
        return Ok(None);
    };
    let mut reader = Reader::new(what, rest);
    reader.version()?;
    Ok(Some(reader))
}

/// Appends the tag, the version and what `put` appends; nothing if `put` returns false.
fn try_put(buf: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> Result<bool>) -> Result<bool> {
    let start = buf.len();
    buf.extend_from_slice(TAG);
    buf.push(VERSION);
    let is_ours = put(buf)?;
    if !is_ours {
        buf.truncate(start);
    }
    Ok(is_ours)
}

/// The codec of expressions in nodes of this crate: they are written as in the plan around them.
struct Exprs<'a> {
    codec: &'a QuantilesCodec,
    proto_converter: &'a dyn PhysicalProtoConverterExtension,
    /// The context that functions are looked up in; `None` while a plan is written.
    context: Option<&'a TaskContext>,
}

impl ExprCodec for Exprs<'_> {
    fn encode(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Vec<u8>> {
        let node = self.proto_converter.physical_expr_to_proto(expr, self.codec)?;
        Ok(node.encode_to_vec())
    }

    fn decode(&self, bytes: &[u8], schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
        let node = PhysicalExprNode::decode(bytes)
            .map_err(|error| exec_datafusion_err!("a damaged expression: {error}"))?;
        let Some(context) = self.context else {
            return internal_err!("an expression is read without its task");
        };
        let context = PhysicalPlanDecodeContext::new(context, self.codec);
        foreign("expression", || {
            self.proto_converter
                .proto_to_physical_expr(&node, schema, &context)
        })
    }
}

impl PhysicalExtensionCodec for QuantilesCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        ctx: &TaskContext,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(mut reader) = ours("node", buf)? else {
            return self.inner.try_decode(buf, inputs, ctx, proto_converter);
        };
        let exprs = Exprs {
            codec: self,
            proto_converter,
            context: Some(ctx),
        };
        let node = match read_operator(&mut reader, inputs, &exprs)? {
            Some(node) => node,
            None => read_node(&mut reader, inputs)?,
        };
        reader.end()?;
        Ok(node)
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let exprs = Exprs {
            codec: self,
            proto_converter,
            context: None,
        };
        let put = |buf: &mut Vec<u8>| {
            let node = node.as_ref();
            Ok(put_node(node, buf)? || put_operator(node, buf, &exprs)?)
        };
        if try_put(buf, put)? {
            Ok(())
        } else {
            self.inner.try_encode(node, buf, proto_converter)
        }
    }

    fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
        let Some(mut reader) = ours("function", buf)? else {
            return self.inner.try_decode_udaf(name, buf);
        };
        let function = read_aggregate(&mut reader)?;
        reader.end()?;
        Ok(Arc::new(function))
    }

    fn try_encode_udaf(&self, node: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
        if try_put(buf, |buf| Ok(put_aggregate(node, buf)))? {
            Ok(())
        } else {
            self.inner.try_encode_udaf(node, buf)
        }
    }

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        let Some(mut reader) = ours("window function", buf)? else {
            return self.inner.try_decode_udwf(name, buf);
        };
        let function = read_window(&mut reader)?;
        reader.end()?;
        Ok(Arc::new(function))
    }

    fn try_encode_udwf(&self, node: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        if try_put(buf, |buf| Ok(put_window(node, buf)))? {
            Ok(())
        } else {
            self.inner.try_encode_udwf(node, buf)
        }
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.inner.try_decode_udf(name, buf)
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udf(node, buf)
    }
}

#[cfg(test)]
mod mutated;

#[cfg(test)]
mod tests {
    use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{SessionConfig, SessionContext};
    use datafusion_proto::physical_plan::DefaultPhysicalProtoConverter;

    use super::*;
    use crate::exec::{BoundaryExec, BoundaryWork, BranchExec, BuildSideExec, GiveWayExec};
    use crate::planner::{QuantilesPlanner, SessionStateBuilderExt};

    pub(super) async fn planned(sql: &str) -> (Arc<dyn ExecutionPlan>, Arc<TaskContext>) {
        let config = SessionConfig::new()
            .with_target_partitions(3)
            .with_round_robin_repartition(false);
        let state = datafusion::execution::session_state::SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(QuantilesPlanner::staged()))
            .with_quantiles()
            .build();
        let ctx = SessionContext::new_with_state(state);
        let table = "CREATE TABLE t (id BIGINT, city VARCHAR, at TIMESTAMP, fare DOUBLE, n INT)";
        ctx.sql(table).await.unwrap().collect().await.unwrap();
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        (plan, ctx.task_ctx())
    }

    /// Top-k operators come back with all their expressions. Truncated bytes and wrong inputs are errors.
    #[tokio::test]
    async fn operators_of_best_rows_come_back() {
        let codec = QuantilesCodec::default();
        let converter = DefaultPhysicalProtoConverter {};
        for (sql, count) in [
            ("SELECT * FROM t ORDER BY fare DESC, -n NULLS FIRST LIMIT 100", 2),
            ("SELECT id, fare FROM t ORDER BY n, at DESC OFFSET 7 LIMIT 3", 2),
            (
                "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY city, n ORDER BY fare DESC, city) AS r FROM t) WHERE r <= 5",
                2,
            ),
            (
                "SELECT id, r FROM (SELECT *, rank() OVER (PARTITION BY n % 10 ORDER BY at, n) AS r FROM t) WHERE r < 3",
                2,
            ),
            (
                "SELECT DISTINCT ON (city) city, id, fare FROM t ORDER BY city, at DESC",
                2,
            ),
        ] {
            let (plan, context) = planned(sql).await;
            let mut found = 0;
            plan.apply(|node| {
                let mut bytes = Vec::new();
                let is_ours = codec.try_encode(Arc::clone(node), &mut bytes, &converter).is_ok();
                if !is_ours || !bytes.starts_with(TAG) {
                    return Ok(TreeNodeRecursion::Continue);
                }
                found += 1;
                let inputs: Vec<_> = node.children().into_iter().map(Arc::clone).collect();
                let read = |bytes: &[u8], inputs: &[Arc<dyn ExecutionPlan>]| {
                    codec.try_decode(bytes, inputs, &context, &converter)
                };
                let back = read(&bytes, &inputs)?;
                let shown = |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).one_line().to_string();
                assert_eq!(shown(&back), shown(node));
                assert_eq!(back.schema(), node.schema());
                assert_eq!(
                    back.properties().partitioning.partition_count(),
                    node.properties().partitioning.partition_count()
                );
                let mut again = Vec::new();
                codec.try_encode(back, &mut again, &converter)?;
                assert_eq!(again, bytes);
                for end in TAG.len()..bytes.len() {
                    assert!(
                        read(&bytes[..end], &inputs).is_err(),
                        "{end} of {} bytes",
                        bytes.len()
                    );
                }
                assert!(read(&bytes, &[]).is_err());
                assert!(read(&bytes, &[Arc::clone(&inputs[0]), Arc::clone(&inputs[0])]).is_err());
                Ok(TreeNodeRecursion::Continue)
            })
            .unwrap();
            let plan = displayable(plan.as_ref()).indent(true).to_string();
            assert_eq!(found, count, "{sql}\n{plan}");
        }
    }

    /// Operators that move no data come back with their inputs, partitions and keys. Truncated bytes and wrong inputs are errors.
    #[tokio::test]
    async fn branches_and_boundaries_come_back() {
        let (codec, converter) = (QuantilesCodec::default(), DefaultPhysicalProtoConverter {});
        let (input, context) = planned("SELECT * FROM t").await;
        let key: Arc<dyn PhysicalExpr> = Arc::new(Column::new("city", 1));
        let branch: Arc<dyn ExecutionPlan> = Arc::new(BranchExec::try_new(Arc::clone(&input)).unwrap());
        let boundary = |required| Arc::new(BoundaryExec::try_new(Arc::clone(&input), required).unwrap()) as _;
        for node in [
            branch,
            boundary(BoundaryWork::ByKey(vec![key])),
            boundary(BoundaryWork::AsTheyCome),
            boundary(BoundaryWork::OnePartition),
            Arc::new(GiveWayExec::try_new(Arc::clone(&input)).unwrap()),
            Arc::new(BuildSideExec::try_new(Arc::clone(&input), true).unwrap()),
            Arc::new(BuildSideExec::try_new(Arc::clone(&input), false).unwrap()),
        ] {
            let mut bytes = Vec::new();
            codec
                .try_encode(Arc::clone(&node), &mut bytes, &converter)
                .unwrap();
            let mut inputs: Vec<_> = node.children().into_iter().map(Arc::clone).collect();
            let read = |bytes: &[u8], inputs: &[Arc<dyn ExecutionPlan>]| {
                codec.try_decode(bytes, inputs, &context, &converter)
            };
            let back = read(&bytes, &inputs).unwrap();
            let shown = |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
            assert_eq!(shown(&back), shown(&node));
            assert_eq!(
                format!("{:?}", back.properties().partitioning),
                format!("{:?}", node.properties().partitioning)
            );
            for end in TAG.len()..bytes.len() {
                assert!(read(&bytes[..end], &inputs).is_err(), "{end} of {node:?}");
            }
            inputs.push(Arc::clone(&input));
            assert!(read(&bytes, &inputs).is_err());
        }
    }
}
