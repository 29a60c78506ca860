//! A cluster in one process: shards work one after the other or on a few threads, their messages are written to bytes and read again,
//! and a log counts them.
//!
//! Trees are binomial: in the level of stride `s` shard `i + s` sends to shard `i`, a multiple of `2s` (a broadcast
//! runs the other way), so `P` shards take `ceil(log2 P)` levels.
//!
//! ```text
//! 0 <- 1   2 <- 3   4 <- 5   6        stride 1
//! 0 <------2        4 <------6        stride 2
//! 0 <---------------4                 stride 4
//! ```

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err, exec_err};

use super::message_log::{Collective, MessageLog, Transfer, Work};
use crate::message_log::Counted;
use datafusion_quantiles::wire::Reader;

/// The way of messages to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gather {
    /// Up a tree, whose nodes merge them.
    Tree,
    /// Directly; the host merges them.
    Flat,
}

/// Shards, numbered from 0. Shard 0 is the host. Messages of a shard to itself are not counted.
#[derive(Debug)]
pub(crate) struct Cluster {
    shards: usize,
    threads: usize,
    log: MessageLog,
}

impl Cluster {
    /// A cluster of this number of shards, run by this number of threads.
    ///
    /// # Errors
    /// An execution error if there are no shards or no threads.
    pub(crate) fn try_new(shards: usize, threads: usize) -> Result<Self> {
        if shards == 0 || threads == 0 {
            return exec_err!("a cluster of {shards} shards on {threads} threads");
        }
        Ok(Self {
            shards,
            threads,
            log: MessageLog::default(),
        })
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    pub(crate) fn log(&self) -> &MessageLog {
        &self.log
    }

    pub(crate) fn into_log(self) -> MessageLog {
        self.log
    }

    /// The results of every shard's work on its own state, in the order of the shards.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn local<S: Send, T: Send>(
        &mut self,
        name: &'static str,
        states: impl IntoIterator<Item = S, IntoIter: Send>,
        work: impl Fn(usize, S) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        self.work(name, true, states, work)
    }

    /// The results of work on each state, in their order; the log gets the time. `on_keys`: shards work on their own keys.
    fn work<S: Send, T: Send>(
        &mut self,
        name: &'static str,
        on_keys: bool,
        states: impl IntoIterator<Item = S, IntoIter: Send>,
        work: impl Fn(usize, S) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let done = spread(self.threads, states.into_iter(), work)?;
        self.log.work.push(Work {
            name,
            on_keys,
            slowest: done.iter().map(|done| done.1).max().unwrap_or_default(),
            total: done.iter().map(|done| done.1).sum(),
        });
        Ok(done.into_iter().map(|done| done.0).collect())
    }

    /// The host's message, as every shard receives it.
    ///
    /// # Errors
    /// An error if the message cannot be read from its bytes.
    pub(crate) fn broadcast<M: Counted>(&mut self, name: &'static str, message: &M) -> Result<Vec<M>> {
        let mut bytes = vec![];
        message.write(&mut bytes);
        let (others, hops) = (self.shards as u64 - 1, self.levels());
        self.log.transfers.push(Transfer {
            name,
            collective: Collective::Broadcast,
            messages: others,
            hops,
            bytes: others * bytes.len() as u64,
            critical_bytes: u64::from(hops) * bytes.len() as u64,
            values: others * message.values(),
        });
        (0..self.shards).map(|_| Reader::message(&bytes)).collect()
    }

    /// The shards' messages, merged into one at the host. `merge` gets the number of the merge, then the message of the lower shard, then
    /// that of the higher one.
    ///
    /// # Errors
    /// An error if a message cannot be read from its bytes.
    pub(crate) fn gather<M: Counted + Send>(
        &mut self,
        name: &'static str,
        gather: Gather,
        messages: Vec<M>,
        merge: impl Fn(u64, M, M) -> Result<M> + Sync,
    ) -> Result<M> {
        let mut messages = match gather {
            Gather::Tree => return self.reduce(name, messages, merge),
            Gather::Flat => self.collect(name, messages)?.into_iter(),
        };
        let first = messages
            .next()
            .ok_or_else(|| exec_datafusion_err!("a gather of no messages"))?;
        let mut fold = |merged, (message, number)| merge(number, merged, message);
        self.host(name, || messages.zip(0..).try_fold(first, &mut fold))
    }

    /// The shards' messages, as the host receives them.
    ///
    /// # Errors
    /// An error if a message cannot be read from its bytes.
    pub(crate) fn collect<M: Counted>(&mut self, name: &'static str, messages: Vec<M>) -> Result<Vec<M>> {
        let mut transfer = transfer(name, Collective::Collect, u32::from(self.shards > 1));
        let mut messages = messages.into_iter();
        let mut received: Vec<M> = messages.next().into_iter().collect();
        for message in messages {
            received.push(send(message, &mut transfer)?.0);
        }
        transfer.critical_bytes = transfer.bytes;
        self.log.transfers.push(transfer);
        Ok(received)
    }

    /// The shards' messages, merged pair by pair up a tree.
    fn reduce<M: Counted + Send>(
        &mut self,
        name: &'static str,
        mut messages: Vec<M>,
        merge: impl Fn(u64, M, M) -> Result<M> + Sync,
    ) -> Result<M> {
        let mut transfer = transfer(name, Collective::Reduce, self.levels());
        let mut merges = 0;
        while messages.len() > 1 {
            let (mut pairs, mut longest) = (vec![], 0);
            let mut level = messages.into_iter();
            while let Some(lower) = level.next() {
                let upper = level.next().map(|upper| send(upper, &mut transfer)).transpose()?;
                longest = longest.max(upper.as_ref().map_or(0, |upper| upper.1));
                pairs.push((lower, upper.map(|upper| upper.0)));
            }
            transfer.critical_bytes += longest;
            let first = merges;
            merges += pairs.len() as u64;
            messages = self.work(name, false, pairs, |at, (lower, upper)| match upper {
                Some(upper) => merge(first + at as u64, lower, upper),
                None => Ok(lower),
            })?;
        }
        self.log.transfers.push(transfer);
        messages
            .pop()
            .ok_or_else(|| exec_datafusion_err!("a reduce of no messages"))
    }

    /// The messages from every shard to every shard: a list for each receiver, in the order of the senders. `write` appends the message of
    /// a sender to a receiver.
    ///
    /// # Errors
    /// An error if a message cannot be read from its bytes.
    pub(crate) fn exchange<M: Counted + Send>(
        &mut self,
        name: &'static str,
        write: impl Fn(usize, usize, &mut Vec<u8>) + Sync,
    ) -> Result<Vec<Vec<M>>> {
        let shards = self.shards;
        let received = self.local(name, 0..shards, |_, to| {
            let mut bytes = vec![];
            let receive = |from| {
                bytes.clear();
                write(from, to, &mut bytes);
                Reader::message::<M>(&bytes).map(|message| (message, bytes.len() as u64))
            };
            (0..shards).map(receive).collect::<Result<Vec<_>>>()
        })?;
        let (mut sent, mut transfer) = (
            vec![0; shards],
            transfer(name, Collective::Exchange, u32::from(shards > 1)),
        );
        for (to, messages) in received.iter().enumerate() {
            let others = || messages.iter().enumerate().filter(move |(from, _)| *from != to);
            others().for_each(|(from, (message, bytes))| {
                sent[from] += bytes;
                transfer.values += message.values();
            });
            let own: u64 = others().map(|(_, (_, bytes))| bytes).sum();
            transfer.critical_bytes = transfer.critical_bytes.max(own);
        }
        transfer.messages = (shards * (shards - 1)) as u64;
        transfer.bytes = sent.iter().sum();
        transfer.critical_bytes = sent.into_iter().fold(transfer.critical_bytes, u64::max);
        self.log.transfers.push(transfer);
        let messages = |received: Vec<(M, u64)>| received.into_iter().map(|(message, _)| message).collect();
        Ok(received.into_iter().map(messages).collect())
    }

    /// The result of work that only the host does.
    pub(crate) fn host<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let time = start.elapsed();
        self.log.work.push(Work {
            name,
            on_keys: false,
            slowest: time,
            total: time,
        });
        result
    }

    /// Number of levels of a tree over all shards.
    fn levels(&self) -> u32 {
        self.shards.next_power_of_two().ilog2()
    }
}

/// The log's entry for a collective that has sent nothing yet.
fn transfer(name: &'static str, collective: Collective, hops: u32) -> Transfer {
    Transfer {
        name,
        collective,
        messages: 0,
        hops,
        bytes: 0,
        critical_bytes: 0,
        values: 0,
    }
}

/// One message as it arrives, and its number of bytes.
fn send<M: Counted>(message: M, transfer: &mut Transfer) -> Result<(M, u64)> {
    let mut bytes = vec![];
    message.write(&mut bytes);
    transfer.messages += 1;
    transfer.bytes += bytes.len() as u64;
    transfer.values += message.values();
    drop(message);
    Ok((Reader::message(&bytes)?, bytes.len() as u64))
}

/// The results of work on each item, on this number of threads, in order, with the time that each took.
fn spread<S: Send, T: Send>(
    threads: usize,
    items: impl Iterator<Item = S> + Send,
    work: impl Fn(usize, S) -> Result<T> + Sync,
) -> Result<Vec<(T, Duration)>> {
    let timed = |(at, item)| {
        let start = Instant::now();
        let result = work(at, item)?;
        Ok((at, (result, start.elapsed())))
    };
    let in_order = |mut done: Vec<(usize, (T, Duration))>| {
        done.sort_unstable_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, done)| done).collect()
    };
    if threads == 1 {
        return items.enumerate().map(timed).collect::<Result<_>>().map(in_order);
    }
    let queue = Mutex::new(items.enumerate());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    let worker = || std::iter::from_fn(next).map(timed).collect::<Result<Vec<_>>>();
    let done = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(in_order(done.into_iter().flatten().collect()))
}
