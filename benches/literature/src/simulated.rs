//! Shards that play machines: every message is written to bytes and read again, and a log keeps what was sent.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;

use super::cluster::{Cluster, Gather};
use super::message_log::MessageLog;
use datafusion_quantiles::kernel::Shard;
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::round_messages::Order;
use datafusion_quantiles::key::Width;
use datafusion_quantiles::select::Shards;
use datafusion_quantiles::threads::Stop;

/// One shard a shard. The first shard is the host, as in DIBMS (section II): what it sends to itself is not counted.
pub struct SimulatedShards {
    width: Width,
    shards: Vec<Box<dyn Shard>>,
    cluster: Cluster,
}

impl SimulatedShards {
    /// Each shard is a machine, the first one coordinates; `threads` play them.
    ///
    /// # Errors
    /// If there are no shards or no threads.
    pub fn try_new(width: Width, shards: Vec<Box<dyn Shard>>, threads: usize) -> Result<Self> {
        Ok(Self {
            width,
            cluster: Cluster::try_new(shards.len(), threads)?,
            shards,
        })
    }

    /// What was sent so far.
    pub fn log(&self) -> &MessageLog {
        self.cluster.log()
    }
}

#[async_trait]
impl Shards for SimulatedShards {
    fn width(&self) -> Width {
        self.width
    }

    fn population(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    fn parallelism(&self) -> usize {
        self.shards.len()
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        let (name, width, stop) = (request.name(), self.width, Stop::default());
        let orders = self.cluster.broadcast(name, &Order { width, request })?;
        let work = self.shards.iter_mut().zip(orders);
        let replies = self.cluster.local(name, work, |_, (shard, order)| {
            shard.answer(&order.request, &stop)
        })?;
        // What stays of one size when it is merged goes up a tree; keys would travel once for each of its levels.
        let gather = match replies.iter().all(is_summed) {
            true => Gather::Tree,
            false => Gather::Flat,
        };
        self.cluster.gather(name, gather, replies, |_, mut own, other| {
            own.merge(other)?;
            Ok(own)
        })
    }
}

/// Whether a merged answer is about as long as each of the two.
fn is_summed(reply: &Reply) -> bool {
    match reply {
        Reply::Counts { kept, .. } => kept.is_empty(),
        Reply::Sketch(_) => true,
        Reply::Sample { .. } | Reply::Extracted(_) => false,
    }
}
