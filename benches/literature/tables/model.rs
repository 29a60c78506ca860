//! Rounds and bytes as predicted times, for clusters of up to 10 000 shards.
//!
//! ```text
//! seconds = work on keys * n / cores + work on messages + L * rounds + g * critical bytes
//! ```
//! as in GK Select (Table V): `L` is the price of a round, `g` the price of a byte on a machine's link. Work on keys is measured here,
//! on one thread. Messages are those of a simulation with as many shards, but fewer values. Costs that grow with the number of values are then
//! scaled by it:
//!
//! | method | grows with n | grows with log n |
//! | --- | --- | --- |
//! | sorts, quickselect | all messages but samples | |
//! | gk_select, gk_select_count, distributed_bms | candidates, at the error fraction for n | |
//! | al_furaih, jeffers | | rounds |
//! | dibms | | rounds, hardly: not scaled |
//!
//! The exchange of more than 512 shards is not simulated: `P^2` messages. For psrs its formula stands there, which the
//! simulation of fewer shards confirms.

use datafusion::common::{Result, exec_err};
use datafusion_quantiles::select::gk_select::GkSelect;
use quantiles_literature::MessageLog;
use quantiles_literature::{Baseline, Setup};

use super::Arguments;
use super::methods::{Input, Method, ranks};
use super::output::{Table, add_point, plot};

/// Number of values in the simulation.
const SIMULATED: u64 = 10_000_000;
/// Most shards whose exchange is simulated.
const EXCHANGED: u64 = 512;
/// Candidates, in keys, that al_furaih and jeffers fetch in the end: about as expensive as a round.
const FEW: u64 = 100_000;
const KEY_BYTES: f64 = 8.0;

/// Prices of a network.
struct Network {
    name: &'static str,
    /// Seconds a round.
    barrier: f64,
    /// Seconds a byte, on the link of a machine.
    gap: f64,
}

const NETWORKS: [Network; 3] = [
    // The bandwidth that a machine of the paper's cluster (m5.xlarge) always has; the next is the one that it has for minutes.
    Network {
        name: "L = 0.1 s, 1.25 Gb/s",
        barrier: 0.1,
        gap: 6.4e-9,
    },
    Network {
        name: "L = 0.1 s, 10 Gb/s",
        barrier: 0.1,
        gap: 0.8e-9,
    },
    Network {
        name: "L = 1 ms, 25 Gb/s",
        barrier: 1e-3,
        gap: 0.32e-9,
    },
];

/// A cluster of machines with shards.
struct Cluster {
    shards: u64,
    cores: f64,
    machines: f64,
}

impl Cluster {
    /// A cluster with one core for each shard, and four cores for each machine.
    fn of(shards: u64) -> Self {
        Self {
            shards,
            cores: shards as f64,
            machines: (shards as f64 / 4.0).max(1.0),
        }
    }
}

/// The messages of a method, and its work on them.
struct Sent {
    rounds: f64,
    bytes: f64,
    critical: f64,
    /// Seconds of work of the host, and of the slowest node at each level of trees.
    on_messages: f64,
}

const COLUMNS: [&str; 10] = [
    "network",
    "shards",
    "cores",
    "values",
    "ranks",
    "method",
    "rounds",
    "critical bytes",
    "seconds",
    "psrs / own",
];

pub(crate) fn table(arguments: &Arguments) -> Result<()> {
    let title = "Model: predicted times on clusters, u64 keys";
    let mut table = Table::try_new(&arguments.output, "model", title, &COLUMNS)?;
    let paper = Cluster {
        shards: 120,
        cores: 30.0,
        machines: 7.5,
    };
    let mut lines = Vec::new();
    let on_keys = Method::ALL.map(|method| on_keys(method).map(|seconds| (method, seconds)));
    let on_keys = on_keys.into_iter().collect::<Result<Vec<_>>>()?;
    for (n, count) in [(1_000_000_000, 1), (1_000_000_000, 99), (100_000_000_000, 1)] {
        for cluster in [
            &paper,
            &Cluster::of(100),
            &Cluster::of(1000),
            &Cluster::of(10_000),
        ] {
            let sent = Method::ALL.map(|method| sent(method, cluster, n, count));
            let sent = sent.into_iter().collect::<Result<Vec<_>>>()?;
            for network in &NETWORKS {
                let seconds = |index: usize| {
                    let sent: &Sent = &sent[index];
                    on_keys[index].1 * n as f64 / cluster.cores
                        + sent.on_messages
                        + network.barrier * sent.rounds
                        + network.gap * sent.critical
                };
                let psrs = Method::ALL
                    .iter()
                    .position(|method| *method == Method::Baseline(Baseline::Psrs));
                let Some(psrs) = psrs.map(seconds) else {
                    return exec_err!("no psrs to compare with");
                };
                for (index, method) in Method::ALL.iter().enumerate() {
                    table.row(&[
                        &network.name,
                        &cluster.shards,
                        &cluster.cores,
                        &format!("{n:e}"),
                        &count,
                        &method.name(),
                        &format!("{:.1}", sent[index].rounds),
                        &format!("{:.3e}", sent[index].critical),
                        &format!("{:.4}", seconds(index)),
                        &format!("{:.2}", psrs / seconds(index)),
                    ])?;
                    let is_plotted = cluster.shards != paper.shards && network.name == NETWORKS[1].name;
                    if is_plotted && count == 1 && n == 1_000_000_000 {
                        add_point(&mut lines, method.name(), (cluster.shards as f64, seconds(index)));
                    }
                }
            }
        }
    }
    plot(
        &arguments.output,
        "model",
        "Median of 1e9 values, L = 0.1 s, 10 Gb/s a machine of 4 shards (predicted)",
        ["shards", "seconds"],
        &lines,
    )
}

/// Seconds of work of one thread for each key.
fn on_keys(method: Method) -> Result<f64> {
    let (n, shards) = (SIMULATED, 16);
    let input = Input::random(n, shards, false);
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        let run = input.run(method, &ranks(n, 1), &Setup::default())?;
        let work = run.log.work.iter().filter(|work| work.on_keys);
        least = least.min(work.map(|work| work.total.as_secs_f64()).sum());
    }
    Ok(least / n as f64)
}

fn sent(method: Method, cluster: &Cluster, n: u64, count: u64) -> Result<Sent> {
    let shards = cluster.shards;
    if method == Method::Baseline(Baseline::Psrs) && shards > EXCHANGED {
        return Ok(psrs(cluster, n));
    }
    let eps = GkSelect::try_new(n, shards as usize, count as usize, u64::MAX)?.epsilon();
    let setup = Setup {
        few: Some(FEW),
        eps: Some(eps),
        ..Setup::default()
    };
    let input = Input::random(SIMULATED, shards, false);
    let log = input.run(method, &ranks(SIMULATED, count), &setup)?.log;
    let more = n as f64 / SIMULATED as f64;
    let mut sent = scaled(method, &log, more, shards as f64 / cluster.machines);
    let on_messages = log.work.iter().filter(|work| !work.on_keys);
    sent.on_messages = on_messages.map(|work| work.slowest.as_secs_f64()).sum::<f64>() * grows(method, more);
    Ok(sent)
}

/// The growth of the work on messages.
fn grows(method: Method, more: f64) -> f64 {
    match method {
        Method::Baseline(Baseline::SortAndChoose | Baseline::SortAndChooseFlat | Baseline::Quickselect) => {
            more
        }
        _ => 1.0,
    }
}

/// The messages for `more` times as many values. `each` is the number of shards on a machine, which share its link.
fn scaled(method: Method, log: &MessageLog, more: f64, each: f64) -> Sent {
    let mut sent = Sent {
        rounds: 0.0,
        bytes: 0.0,
        critical: 0.0,
        on_messages: 0.0,
    };
    // Random pivots halve the candidates about once in a round and a half. These are the rounds until few candidates are left.
    let longer = (SIMULATED as f64 * more / FEW as f64).ln() / (SIMULATED as f64 / FEW as f64).ln();
    for transfer in &log.transfers {
        let (times, factor) = match (method, transfer.name) {
            (Method::Baseline(Baseline::Psrs), "exchange") => (1.0, more),
            (
                Method::Baseline(
                    Baseline::SortAndChoose | Baseline::SortAndChooseFlat | Baseline::Quickselect,
                ),
                _,
            ) => (1.0, more),
            (Method::GkSelect, "count") | (Method::DistributedBms, "extract") if transfer.is_round() => {
                (1.0, more)
            }
            (Method::Baseline(Baseline::GkSelectCount), "candidates") => (1.0, more),
            (Method::Baseline(Baseline::AlFuraih | Baseline::Jeffers), "order" | "counts") => (longer, 1.0),
            _ => (1.0, 1.0),
        };
        let shared = if transfer.name == "exchange" { each } else { 1.0 };
        sent.rounds += if transfer.is_round() { times } else { 0.0 };
        sent.bytes += times * factor * transfer.bytes as f64;
        sent.critical += times * factor * shared * transfer.critical_bytes as f64;
    }
    sent
}

/// The full sort on more shards than are simulated: samples to the host, which sorts them, then all keys.
fn psrs(cluster: &Cluster, n: u64) -> Sent {
    let (shards, n) = (cluster.shards as f64, n as f64);
    let (samples, moved) = (shards * shards * KEY_BYTES, n * KEY_BYTES);
    Sent {
        rounds: 3.0,
        bytes: samples + moved,
        critical: samples + moved / cluster.machines,
        // Scaled from the time of the host's sort of fewer samples.
        on_messages: 15e-9 * shards * shards,
    }
}
