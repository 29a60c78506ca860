//! Shards that play machines: every message is written to bytes and read again, and a ledger keeps what was sent.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;

use super::Shards;
use super::cluster::{Cluster, Gather};
use super::ledger::Ledger;
use crate::kernel::round::{Reply, Request};
use crate::kernel::wire::Order;
use crate::kernel::{Lane, Stop};
use crate::key::Width;

/// One lane a shard. The first shard is the host, as in DIBMS (section II): what it sends to itself is not counted.
pub struct SimulatedShards {
    width: Width,
    lanes: Vec<Box<dyn Lane>>,
    cluster: Cluster,
    /// The shards' messages of the last round.
    #[cfg(test)]
    pub(crate) replies: Vec<Vec<u8>>,
}

impl SimulatedShards {
    /// Each lane is a machine, the first one coordinates; `threads` play them.
    ///
    /// # Errors
    /// If there are no lanes or no threads.
    pub fn try_new(width: Width, lanes: Vec<Box<dyn Lane>>, threads: usize) -> Result<Self> {
        Ok(Self {
            width,
            cluster: Cluster::try_new(lanes.len(), threads)?,
            lanes,
            #[cfg(test)]
            replies: Vec::new(),
        })
    }

    /// What was sent so far.
    pub fn ledger(&self) -> &Ledger {
        self.cluster.ledger()
    }
}

#[async_trait]
impl Shards for SimulatedShards {
    fn width(&self) -> Width {
        self.width
    }

    fn population(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.len()).sum()
    }

    fn parallelism(&self) -> usize {
        self.lanes.len()
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        let (name, width, stop) = (request.name(), self.width, Stop::default());
        let orders = self.cluster.broadcast(name, &Order { width, request })?;
        let work = self.lanes.iter_mut().zip(orders);
        let replies = self
            .cluster
            .local(name, work, |_, (lane, order)| lane.answer(&order.request, &stop))?;
        #[cfg(test)]
        {
            let written = |reply: &Reply| {
                let mut bytes = Vec::new();
                crate::wire::Message::write(reply, &mut bytes);
                bytes
            };
            self.replies = replies.iter().map(written).collect();
        }
        // What stays of one size when it is merged goes up a tree; keys would travel once for each of its levels.
        let gather = match replies.iter().all(Reply::is_summed) {
            true => Gather::Tree,
            false => Gather::Flat,
        };
        self.cluster.gather(name, gather, replies, |_, mut own, other| {
            own.merge(other)?;
            Ok(own)
        })
    }
}
