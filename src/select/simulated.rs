//! Shards that only count: each lane plays a machine, and a ledger keeps what would have crossed the network.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::{Result, exec_datafusion_err};

use super::Shards;
use crate::kernel::round::{Reply, Request};
use crate::kernel::{Lane, Stop};
use crate::key::Width;

/// What was sent, in values (keys, counts, bucket ends), to and from all shards but the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Names of the rounds, in order.
    pub rounds: Vec<&'static str>,
    /// Values in requests.
    pub requested: u64,
    /// Values in replies.
    pub replied: u64,
}

impl Ledger {
    /// Values in all messages.
    pub fn values(&self) -> u64 {
        self.requested + self.replied
    }
}

/// One lane a shard, answered one after the other. The first shard is the host, as in DIBMS (section II): what it
/// sends to itself is not counted.
pub struct SimulatedShards {
    width: Width,
    lanes: Vec<Box<dyn Lane>>,
    ledger: Ledger,
}

impl SimulatedShards {
    /// Each lane is a machine; the first one coordinates.
    pub fn new(width: Width, lanes: Vec<Box<dyn Lane>>) -> Self {
        Self {
            width,
            lanes,
            ledger: Ledger::default(),
        }
    }

    /// What was sent so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
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
        self.lanes.len().max(1)
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        self.ledger.rounds.push(request.name());
        let (mut merged, stop): (Option<Reply>, _) = (None, Stop::default());
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let reply = lane.answer(&request, &stop)?;
            if number > 0 {
                self.ledger.requested += request.values(self.width);
                self.ledger.replied += reply.values();
            }
            match &mut merged {
                Some(merged) => merged.merge(reply)?,
                None => merged = Some(reply),
            }
        }
        merged.ok_or_else(|| exec_datafusion_err!("a round was asked of no shard"))
    }
}
