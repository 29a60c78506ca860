//! The log of a run on simulated shards: its messages, and the time of each shard's work.

use std::time::Duration;

use datafusion_quantiles::cells::{Brackets, Cells};
use datafusion_quantiles::kernel::round::{Reply, Request};
use datafusion_quantiles::kernel::round_messages::SentRequest;
use datafusion_quantiles::key::Key;
use datafusion_quantiles::wire::Message;

/// A message whose size is known in values, the unit of the papers. A value is a key, a count, an end of a bracket or a number of a cell
/// function.
pub(crate) trait Counted: Message {
    /// Number of values in the message. Scalars such as seeds and sizes are not counted.
    fn values(&self) -> u64;
}

impl Counted for SentRequest {
    fn values(&self) -> u64 {
        let ends = |brackets: &Brackets| {
            if brackets.is_all(self.width) {
                0
            } else {
                2 * brackets.as_slice().len() as u64
            }
        };
        match self.request.as_ref() {
            Request::Sample { within, .. } => ends(within),
            Request::Count { cells, within, keep } => definition(cells) + ends(within) + keep.len() as u64,
            Request::Sketch { .. } => 0,
            Request::Extract { brackets } => ends(brackets),
        }
    }
}

impl Counted for Reply {
    fn values(&self) -> u64 {
        Reply::values(self)
    }
}

impl<K: Key> Counted for Vec<K> {
    fn values(&self) -> u64 {
        self.len() as u64
    }
}

/// Number of values that define a cell function.
fn definition(cells: &Cells) -> u64 {
    match cells {
        // Offset and shift of an entry are one value.
        Cells::Table(table) => table.numbers() as u64,
        // Both pivots, the first cell and the number of cells: the slope follows from them.
        Cells::Linear(linear) => 4 * linear.pieces().len() as u64,
        Cells::Edges(edges) => edges.as_slice().len() as u64,
    }
}

/// A pattern of communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collective {
    /// The host's message to every shard, down a tree. It is no round, as no shard waits for all others (GK Select, section IV-1, step 3).
    Broadcast,
    /// A message of every shard, merged pair by pair up a tree: a round.
    Reduce,
    /// A message of every shard to the host: a round.
    Collect,
    /// A message of every shard to every other: a round.
    Exchange,
}

/// The messages of one collective. Messages of a shard to itself are not counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Name of its purpose.
    pub name: &'static str,
    /// The pattern of communication.
    pub collective: Collective,
    /// Number of messages of all shards together.
    pub messages: u64,
    /// Number of messages that wait for one another: the depth of the tree, or 1; 0 with one shard.
    pub hops: u32,
    /// Bytes of all messages.
    pub bytes: u64,
    /// Bytes on the critical path: for each level of a tree its largest message, for a collect all bytes that the host receives, for an
    /// exchange the most bytes that one shard sends or receives.
    pub critical_bytes: u64,
    /// Number of values (keys and counts) in all messages: the papers' unit.
    pub values: u64,
}

impl Transfer {
    /// Whether all shards wait for the collective: a superstep, or a stage boundary of Spark.
    pub fn is_round(&self) -> bool {
        self.collective != Collective::Broadcast
    }
}

/// Work of all shards between two collectives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Name of the work.
    pub name: &'static str,
    /// Whether shards work on their own keys. Else the host, or the nodes of a tree, work on messages.
    pub on_keys: bool,
    /// Time of the slowest shard.
    pub slowest: Duration,
    /// Time of all shards together.
    pub total: Duration,
}

/// The messages and the work of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageLog {
    /// Collectives, in order.
    pub transfers: Vec<Transfer>,
    /// Work, in order.
    pub work: Vec<Work>,
}

impl MessageLog {
    /// Names of the rounds: the collectives that all shards wait for.
    pub fn rounds(&self) -> Vec<&'static str> {
        let rounds = self.transfers.iter().filter(|transfer| transfer.is_round());
        rounds.map(|transfer| transfer.name).collect()
    }

    /// Number of messages that wait for one another.
    pub fn hops(&self) -> u64 {
        self.sum(|transfer| transfer.hops.into())
    }

    /// Number of messages of all shards together.
    pub fn messages(&self) -> u64 {
        self.sum(|transfer| transfer.messages)
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> u64 {
        self.sum(|transfer| transfer.bytes)
    }

    /// Bytes on the critical path.
    pub fn critical_bytes(&self) -> u64 {
        self.sum(|transfer| transfer.critical_bytes)
    }

    /// Number of values in all messages.
    pub fn values(&self) -> u64 {
        self.sum(|transfer| transfer.values)
    }

    /// Time of the work if every shard had a machine of its own: the sum of the slowest shards' times.
    pub fn slowest(&self) -> Duration {
        self.work.iter().map(|work| work.slowest).sum()
    }

    /// Seconds on the network: `barrier` seconds (the paper's L) for each round, and `gap` seconds (g) for each byte on the critical path
    /// (GK Select, Table V).
    pub fn network_seconds(&self, barrier: f64, gap: f64) -> f64 {
        barrier * self.rounds().len() as f64 + gap * self.critical_bytes() as f64
    }

    fn sum(&self, of: impl Fn(&Transfer) -> u64) -> u64 {
        self.transfers.iter().map(of).sum()
    }
}
