//! Physical plans with our nodes and functions, as bytes between scheduler and executors.
//!
//! Bytes of ours start with a tag that no protobuf message has; everything else is left to the codec inside.

use std::sync::Arc;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::common::{Result, exec_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF, WindowUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use crate::exec::staged::wire::{put_node, read_node};
use crate::functions::wire::{put_aggregate, put_window, read_aggregate, read_window};
use crate::wire::Reader;

/// The last byte is the version: machines that run different ones say so.
const TAG: &[u8] = b"\xffquantiles";
const VERSION: u8 = 2;

/// The codec of executors and schedulers: nodes and bound functions of this crate, around another codec.
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
    /// Around a codec that knows all other nodes, Ballista's among them.
    pub fn new(inner: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Self { inner }
    }
}

impl Default for QuantilesCodec {
    /// Around Ballista's.
    fn default() -> Self {
        Self::new(Arc::new(BallistaPhysicalExtensionCodec::default()))
    }
}

/// What stands behind the tag, if the bytes are ours.
fn ours<'a>(what: &'static str, bytes: &'a [u8]) -> Result<Option<Reader<'a>>> {
    let Some(rest) = bytes.strip_prefix(TAG) else {
        return Ok(None);
    };
    let mut reader = Reader::new(what, rest);
    match reader.byte("version")? {
        VERSION => Ok(Some(reader)),
        other => exec_err!(
            "a {what} of version {other} where this machine knows version {VERSION}: run the same version of \
             datafusion-quantiles on scheduler, executors and client"
        ),
    }
}

fn tagged(buf: &mut Vec<u8>) {
    buf.extend_from_slice(TAG);
    buf.push(VERSION);
}

/// `put` behind a tag, or nothing at all.
fn try_put(buf: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> Result<bool>) -> Result<bool> {
    let start = buf.len();
    tagged(buf);
    let is_ours = put(buf)?;
    if !is_ours {
        buf.truncate(start);
    }
    Ok(is_ours)
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
        let node = read_node(&mut reader, inputs)?;
        reader.end()?;
        Ok(node)
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        match try_put(buf, |buf| put_node(node.as_ref(), buf))? {
            true => Ok(()),
            false => self.inner.try_encode(node, buf, proto_converter),
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
        match try_put(buf, |buf| Ok(put_aggregate(node, buf)))? {
            true => Ok(()),
            false => self.inner.try_encode_udaf(node, buf),
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
        match try_put(buf, |buf| Ok(put_window(node, buf)))? {
            true => Ok(()),
            false => self.inner.try_encode_udwf(node, buf),
        }
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.inner.try_decode_udf(name, buf)
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udf(node, buf)
    }
}
