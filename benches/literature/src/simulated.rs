//! Shards as simulated machines: every message is written to bytes and read again, and a log counts them.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;

use super::cluster::{Cluster, Gather};
use super::message_log::MessageLog;
use datafusion_quantiles::kernel::Shard;
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::round_messages::SentRequest;
use datafusion_quantiles::key::Width;
use datafusion_quantiles::select::Shards;
use datafusion_quantiles::threads::Stop;

/// Shards, each a simulated machine. The first one is the host, as in DIBMS (section II). Its messages to itself are not counted.
pub struct SimulatedShards {
    width: Width,
    shards: Vec<Box<dyn Shard>>,
    cluster: Cluster,
}

impl SimulatedShards {
    /// Simulated machines, one for each shard, run by this number of threads. The first one coordinates.
    ///
    /// # Errors
    /// An execution error if there are no shards or no threads.
    pub fn try_new(width: Width, shards: Vec<Box<dyn Shard>>, threads: usize) -> Result<Self> {
        Ok(Self {
            width,
            cluster: Cluster::try_new(shards.len(), threads)?,
            shards,
        })
    }

    /// The messages and the work so far.
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
        let sent = self.cluster.broadcast(name, &SentRequest { width, request })?;
        let work = self.shards.iter_mut().zip(sent);
        let replies = self
            .cluster
            .local(name, work, |_, (shard, sent)| shard.answer(&sent.request, &stop))?;
        // Replies that do not grow when merged go up a tree. Keys do not: they would be sent once for each of its levels.
        let gather = if replies.iter().all(is_summed) {
            Gather::Tree
        } else {
            Gather::Flat
        };
        self.cluster.gather(name, gather, replies, |_, mut own, other| {
            own.merge(other)?;
            Ok(own)
        })
    }
}

/// Whether two replies of this kind merge to one that is about as long as each of them.
fn is_summed(reply: &Reply) -> bool {
    match reply {
        Reply::Counts { kept, .. } => kept.is_empty(),
        Reply::Sketch(_) => true,
        Reply::Sample { .. } | Reply::Extracted(_) => false,
    }
}
