//! The coordinator: brackets around the wanted order statistics, narrowed round by round.
//!
//! A [`Strategy`] is pure: it gets the merged reply to its last request and gives the next request, or is done. It
//! knows neither threads nor machines; [`Shards`] hide where the lanes are. [`solve`] runs one over the other.
//!
//! Every strategy collects candidates in the end, but only once there is memory for them ([`Room`]); until then it counts
//! on inside its brackets. With memory for none at all each ends as DIBMS does, whose counts alone find any rank.
//!
//! | strategy | rounds | source |
//! | --- | --- | --- |
//! | [`SampleSelect`](sample_select::SampleSelect) | sample, count (the cells of all keys are written down), extract | Ribizel and Anzt 2020, section IV |
//! | the same, around few ranks | sample, count and extract in one read | Floyd and Rivest's idea, with counts that prove it |
//! | [`DistributedBms`](bms::DistributedBms) | sample, count, extract | DIBMS, section II-A |
//! | [`Dibms`](bms::Dibms) | sample, count, count ... until resolved, then single keys | DIBMS, section II-B |
//! | [`GkSelect`](gk_select::GkSelect) | sketch, count and extract in one read | GK Select, sections IV and V |

pub mod bms;
pub(crate) mod by_value;
pub(crate) mod distinct;
pub mod gk_select;
pub mod local;
pub(crate) mod ordered;
pub mod progress;
pub mod quantile;
pub mod sample_select;
pub mod splitters;
pub(crate) mod workers;

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use datafusion::common::{
    DataFusionError, Result, exec_err, internal_datafusion_err, internal_err, plan_err,
};

use crate::kernel::choose::Room;
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyBits, Width};
pub use local::LocalShards;
use progress::Progress;
pub use quantile::{Ask, Method, Quantile, Quantiles};

/// Where the lanes are: threads, simulated machines, devices.
#[async_trait]
pub trait Shards: Send {
    /// Width of the keys.
    fn width(&self) -> Width;

    /// Values in all lanes together.
    fn population(&self) -> u64;

    /// Lanes that can work at the same time.
    fn parallelism(&self) -> usize;

    /// What the lanes have memory for.
    fn room(&self) -> Room {
        Room::UNLIMITED
    }

    /// The strategy of this name for `ranks` of the values, in the memory that there is.
    ///
    /// # Errors
    /// Internal errors only.
    fn strategy(&self, name: StrategyName, ranks: &[u64]) -> Result<Box<dyn Strategy>> {
        name.strategy(self.population(), ranks, self.parallelism(), &self.room())
    }

    /// The keys of `ranks` (1-based, ascending, distinct, at most the population), found in one go without rounds, as devices do,
    /// and what found them; `None`: rounds are to find them.
    ///
    /// # Errors
    /// As [`Self::round`].
    async fn select(&mut self, _ranks: &[u64]) -> Result<Option<Found>> {
        Ok(None)
    }

    /// Sends a request to every lane and merges the replies.
    ///
    /// # Errors
    /// A lane's error; an execution error when the work was cancelled.
    async fn round(&mut self, request: Arc<Request>) -> Result<Reply>;
}

/// Keys of ranks that were found without rounds.
#[derive(Debug)]
pub struct Found {
    /// What found them, for `EXPLAIN ANALYZE`.
    pub label: &'static str,
    /// The key of each rank.
    pub keys: Vec<KeyBits>,
}

/// What a strategy wants next.
#[derive(Debug)]
pub enum Step {
    /// Another round: the merged reply comes back to [`Strategy::step`].
    Ask(Progress, Request),
    /// Every rank has its key.
    Done(Progress),
}

/// A sequence of rounds that finds order statistics, as a pure function from state and reply to the next request.
pub trait Strategy: Send + Sync {
    /// What runs, for `EXPLAIN ANALYZE`: the strategy's name and, where it has several, its form.
    fn label(&self) -> &'static str;

    /// The first request.
    ///
    /// # Errors
    /// Internal errors only.
    fn begin(&self, progress: Progress) -> Result<Step>;

    /// The next request, after the merged reply to `asked`.
    ///
    /// # Errors
    /// An internal error if the reply does not fit the request.
    fn step(&self, progress: Progress, asked: &Request, reply: Reply) -> Result<Step>;
}

/// The strategies that `SET quantiles.strategy` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StrategyName {
    /// The cheapest for the data at hand, by [`crate::kernel::choose::choose`].
    #[default]
    Auto,
    /// SampleSelect.
    SampleSelect,
    /// Distributed bucket multiselect.
    DistributedBms,
    /// Distributed iterative bucket multiselect.
    Dibms,
    /// GK Select.
    GkSelect,
}

impl StrategyName {
    /// All strategies.
    pub const ALL: [StrategyName; 5] = [
        StrategyName::Auto,
        StrategyName::SampleSelect,
        StrategyName::DistributedBms,
        StrategyName::Dibms,
        StrategyName::GkSelect,
    ];

    /// Whether SampleSelect may run, which devices run in one go.
    pub(crate) fn is_sample_select(self) -> bool {
        matches!(self, StrategyName::Auto | StrategyName::SampleSelect)
    }

    /// The strategy for ranks (ascending) among `population` values on `threads` threads, in the memory of `room`.
    ///
    /// # Errors
    /// Internal errors only.
    pub fn strategy(
        self,
        population: u64,
        ranks: &[u64],
        threads: usize,
        room: &Room,
    ) -> Result<Box<dyn Strategy>> {
        use crate::kernel::choose::{Choice, Form, choose};
        Ok(match self {
            StrategyName::Auto => Box::new(sample_select::SampleSelect::new(choose(
                population, ranks, threads, room,
            ))),
            StrategyName::SampleSelect => Box::new(sample_select::SampleSelect::new(Choice {
                form: Form::Cells,
                sample: Choice::default().sample.min(room.sample),
            })),
            StrategyName::DistributedBms => Box::new(bms::DistributedBms::default()),
            StrategyName::Dibms => Box::new(bms::Dibms::default()),
            StrategyName::GkSelect => Box::new(gk_select::GkSelect::try_new(
                population,
                threads,
                ranks.len(),
                room.keys,
            )?),
        })
    }
}

impl Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StrategyName::Auto => "auto",
            StrategyName::SampleSelect => "sample_select",
            StrategyName::DistributedBms => "distributed_bms",
            StrategyName::Dibms => "dibms",
            StrategyName::GkSelect => "gk_select",
        })
    }
}

impl FromStr for StrategyName {
    type Err = DataFusionError;

    fn from_str(name: &str) -> Result<Self> {
        let known = StrategyName::ALL
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(name));
        match known {
            Some(known) => Ok(known),
            None => {
                let allowed = StrategyName::ALL.map(|known| known.to_string()).join(", ");
                plan_err!("unknown strategy '{name}': allowed are {allowed}")
            }
        }
    }
}

/// One round, as it went.
#[derive(Debug, Clone)]
pub struct RoundTrace {
    /// sample, count or extract.
    pub request: &'static str,
    /// Values that could still be an answer after it.
    pub candidates: u64,
    /// Wall time, coordinator included.
    pub elapsed: Duration,
    /// Values in the merged reply.
    pub values: u64,
}

/// The order statistics that were asked for.
#[derive(Debug)]
pub struct Solution {
    /// Values that were ranked.
    pub n: u64,
    /// What ran.
    pub strategy: &'static str,
    /// The rounds, in order.
    pub rounds: Vec<RoundTrace>,
    ranks: Vec<u64>,
    keys: Vec<KeyBits>,
    places: Option<Vec<(u64, u64)>>,
}

impl Solution {
    /// The key of a rank that one of the questions needs.
    ///
    /// # Errors
    /// An internal error for any other rank.
    pub fn key_at(&self, rank: u64) -> Result<KeyBits> {
        Ok(self.keys[self.index_of(rank)?])
    }

    /// The least and the greatest rank that the key at a rank is known to have; the rank itself, but for approximate
    /// answers.
    ///
    /// # Errors
    /// As [`Self::key_at`].
    pub fn place_at(&self, rank: u64) -> Result<(u64, u64)> {
        let index = self.index_of(rank)?;
        Ok(self.places.as_ref().map_or((rank, rank), |places| places[index]))
    }

    fn index_of(&self, rank: u64) -> Result<usize> {
        let index = self.ranks.binary_search(&rank);
        index.map_err(|_| internal_datafusion_err!("rank {rank} was not selected"))
    }
}

/// Rounds after which something is wrong: every strategy halves its brackets in each.
const MAX_ROUNDS: usize = 200;

/// The ranks that all of `asks` need among `n` values: 1-based, ascending, distinct.
pub(crate) fn wanted_ranks(asks: &[&Ask], n: u64) -> Vec<u64> {
    let mut ranks: Vec<u64> = asks.iter().flat_map(|ask| ask.ranks(n)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// A number of values that came from elsewhere, if ranks among so many can be counted with.
///
/// # Errors
/// An execution error for more than 2^63 - 1.
pub(crate) fn countable(n: u64) -> Result<u64> {
    match i64::try_from(n) {
        Ok(_) => Ok(n),
        Err(_) => exec_err!("a damaged count: {n} values, where at most 2^63 - 1 can be ranked"),
    }
}

/// Finds the order statistics that all of `asks` need: in one go where the shards can, else in shared rounds.
///
/// # Errors
/// Those of the shards.
pub async fn solve(shards: &mut dyn Shards, strategy: StrategyName, asks: &[&Ask]) -> Result<Solution> {
    let n = shards.population();
    let ranks = wanted_ranks(asks, n);
    if strategy.is_sample_select()
        && let Some(Found { label, keys }) = shards.select(&ranks).await?
    {
        return Ok(Solution {
            n,
            strategy: label,
            rounds: Vec::new(),
            ranks,
            keys,
            places: None,
        });
    }
    let strategy = shards.strategy(strategy, &ranks)?;
    solve_ranks(shards, strategy.as_ref(), ranks).await
}

/// Finds the keys of ranks: 1-based, ascending, distinct, at most the population.
///
/// # Errors
/// Those of the shards; an internal error for ranks that are not so.
pub async fn solve_ranks(
    shards: &mut dyn Shards,
    strategy: &dyn Strategy,
    ranks: Vec<u64>,
) -> Result<Solution> {
    let n = shards.population();
    let mut rounds = Vec::new();
    let mut progress = Progress::try_new(shards.width(), n, ranks.clone())?;
    progress.room = shards.room();
    let mut step = if progress.is_done() {
        Step::Done(progress)
    } else {
        strategy.begin(progress)?
    };
    loop {
        let (progress, request) = match step {
            Step::Ask(progress, request) => (progress, Arc::new(request)),
            Step::Done(mut progress) => {
                let places = progress.take_places();
                let keys = progress.into_keys()?;
                return Ok(Solution {
                    n,
                    strategy: strategy.label(),
                    rounds,
                    ranks,
                    keys,
                    places,
                });
            }
        };
        if rounds.len() == MAX_ROUNDS {
            return internal_err!("{} is not done after {MAX_ROUNDS} rounds", strategy.label());
        }
        let start = Instant::now();
        let reply = shards.round(Arc::clone(&request)).await?;
        let values = reply.values();
        step = strategy.step(progress, &request, reply)?;
        let (Step::Ask(progress, _) | Step::Done(progress)) = &step;
        let candidates = progress.candidates();
        rounds.push(RoundTrace {
            request: request.name(),
            candidates,
            elapsed: start.elapsed(),
            values,
        });
    }
}
