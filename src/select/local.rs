//! Lanes of this process, worked on by threads.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::{Result, exec_datafusion_err};

use super::Shards;
use crate::failpoint::may_fail;
use crate::kernel::Lane;
use crate::kernel::round::{Reply, Request};
use crate::key::Width;
use crate::memory::{Held, Room, Workspace};
use crate::threads::{Stop, ThreadPool};

/// Below this many values a round is answered where it is asked: waking threads would cost more.
const INLINE: u64 = 1 << 16;

type Group = Vec<Box<dyn Lane>>;

/// Lanes in groups of about equal size, one group a thread of a [`ThreadPool`]. Dropping the shards stops what still runs.
pub struct LocalShards {
    width: Width,
    population: u64,
    groups: Vec<Group>,
    pool: ThreadPool,
    room: Room,
    /// What merged replies are reserved in, where the lanes share it.
    workspace: Option<Arc<Workspace>>,
    /// For the last sample, which strategies keep.
    sample: Option<Held>,
}

impl LocalShards {
    /// Spreads what `lanes` hold over at most `threads` threads, as [`ThreadPool::new`] has them, splitting lanes that are too large for
    /// one. `stop` ends their rounds.
    pub fn new(width: Width, lanes: Vec<Box<dyn Lane>>, threads: usize, stop: Stop) -> Self {
        Self::on(width, lanes, ThreadPool::new(threads, stop))
    }

    /// As [`Self::new`], on the threads of [`ThreadPool::scoped`]: a round's future is ready when it is first polled.
    pub fn blocking(width: Width, lanes: Vec<Box<dyn Lane>>, threads: usize, stop: Stop) -> Self {
        Self::on(width, lanes, ThreadPool::scoped(threads, stop))
    }

    /// As [`Self::new`], on the threads of `pool`.
    pub(crate) fn on(width: Width, lanes: Vec<Box<dyn Lane>>, pool: ThreadPool) -> Self {
        let population = lanes.iter().map(|lane| lane.len()).sum();
        let groups = balance(lanes, pool.threads(), population);
        Self {
            width,
            population,
            groups,
            pool,
            room: Room::UNLIMITED,
            workspace: None,
            sample: None,
        }
    }

    /// The same, in the room that `workspace` has.
    pub(crate) fn within(mut self, room: Room, workspace: Arc<Workspace>) -> Self {
        (self.room, self.workspace) = (room, Some(workspace));
        self
    }

    /// Memory for the counts of every group, merged.
    fn hold_counts(&self, request: &Request) -> Result<Option<Held>> {
        match (request, &self.workspace) {
            (Request::Count { cells, .. }, Some(workspace)) => {
                let bytes = (1 + self.groups.len()) * cells.len() * size_of::<u64>();
                workspace.hold(bytes, "counts").map(Some)
            }
            _ => Ok(None),
        }
    }

    fn hold_sample(&mut self, reply: &Reply) -> Result<()> {
        if let (Reply::Sample { keys, .. }, Some(workspace)) = (reply, &self.workspace) {
            // What is sorted by merging needs room to merge in.
            self.sample = Some(workspace.hold(2 * keys.len() * self.width.bytes(), "a sample")?);
        }
        Ok(())
    }

    /// The merged reply. The lanes travel with the work: a round that failed or was cancelled loses them, and the selection with
    /// it.
    async fn ask(&mut self, request: Arc<Request>) -> Result<Reply> {
        if self.groups.len() == 1 && self.population <= INLINE {
            return merge([answer(&mut self.groups[0], &request, self.pool.stop())?]);
        }
        let groups = std::mem::take(&mut self.groups);
        let answers = self.pool.map(groups, move |mut group, stop| {
            let reply = answer(&mut group, &request, stop)?;
            Ok((group, reply))
        });
        let (groups, replies): (_, Vec<_>) = answers.await?.into_iter().unzip();
        self.groups = groups;
        merge(replies)
    }
}

/// Cuts lanes to about an equal share, then gives each, largest first, to the group that holds least.
fn balance(lanes: Vec<Box<dyn Lane>>, threads: usize, population: u64) -> Vec<Group> {
    let share = population.div_ceil(threads as u64).max(INLINE);
    let mut pieces = Vec::new();
    for mut lane in lanes.into_iter().filter(|lane| !lane.is_empty()) {
        while lane.len() > share + share / 8 {
            match lane.split(share) {
                Some(piece) => pieces.push(piece),
                None => break,
            }
        }
        pieces.push(lane);
    }
    pieces.sort_by_key(|lane| std::cmp::Reverse(lane.len()));
    let mut groups: Vec<(u64, Group)> = (0..threads).map(|_| (0, Vec::new())).collect();
    for piece in pieces {
        if let Some(least) = groups.iter_mut().min_by_key(|group| group.0) {
            least.0 += piece.len();
            least.1.push(piece);
        }
    }
    groups
        .into_iter()
        .map(|group| group.1)
        .filter(|group| !group.is_empty())
        .collect()
}

/// Merges what the lanes of a group answer, one after the other.
fn answer(group: &mut Group, request: &Request, stop: &Stop) -> Result<Option<Reply>> {
    let mut merged: Option<Reply> = None;
    for lane in group {
        let reply = lane.answer(request, stop)?;
        match &mut merged {
            Some(merged) => merged.merge(reply)?,
            None => merged = Some(reply),
        }
    }
    Ok(merged)
}

fn merge(replies: impl IntoIterator<Item = Option<Reply>>) -> Result<Reply> {
    may_fail!("merge");
    let mut replies = replies.into_iter().flatten();
    let first = replies.next();
    let mut merged = first.ok_or_else(|| exec_datafusion_err!("a round was asked of no lane"))?;
    replies.try_for_each(|reply| merged.merge(reply))?;
    Ok(merged)
}

#[async_trait]
impl Shards for LocalShards {
    fn width(&self) -> Width {
        self.width
    }

    fn population(&self) -> u64 {
        self.population
    }

    fn parallelism(&self) -> usize {
        self.groups.len().max(1)
    }

    fn room(&self) -> Room {
        self.room
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        let _counts = self.hold_counts(&request)?;
        let reply = self.ask(request).await?;
        self.hold_sample(&reply)?;
        Ok(reply)
    }
}
