//! Time, rounds and bytes of every method, over numbers of values and of shards.

use std::time::Duration;

use datafusion::common::{Result, exec_err};
use datafusion_quantiles::select::baseline::{Rival, Setup};

use super::Arguments;
use super::methods::{Input, Method, Run, ranks};
use super::output::{Line, Table, add_point, plot};

const SHARDS: [u64; 5] = [1, 4, 16, 64, 120];
const RANKS: [u64; 2] = [1, 99];

const COLUMNS: [&str; 14] = [
    "values",
    "shards",
    "ranks",
    "method",
    "seconds",
    "of psrs",
    "slowest shards, s",
    "rounds",
    "hops",
    "messages",
    "bytes",
    "share of psrs's",
    "critical bytes",
    "values sent",
];

pub(crate) fn tables(arguments: &Arguments) -> Result<()> {
    let title = format!("Every method, {} threads, random u64", arguments.threads);
    let mut table = Table::try_new(&arguments.output, "shards", &title, &COLUMNS)?;
    let (mut times, mut rounds, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let sizes = (4..)
        .map(|power| 10_u64.pow(power))
        .take_while(|n| *n as f64 <= arguments.rows);
    for n in sizes {
        for shards in SHARDS {
            let input = Input::random(n, shards, false);
            for count in RANKS {
                let runs = runs(&input, &ranks(n, count), arguments)?;
                let Some(psrs) = runs.iter().find(|run| run.0 == Method::Rival(Rival::Psrs)) else {
                    return exec_err!("no psrs to compare with");
                };
                for (method, run) in &runs {
                    row(&mut table, [n, shards, count], *method, run, &psrs.1)?;
                    if shards == SHARDS[4] {
                        let name = method.name();
                        let ledger = &run.ledger;
                        if count == 1 {
                            add_point(&mut times, name, (n as f64, run.time.as_secs_f64()));
                            add_point(&mut rounds, name, (n as f64, ledger.rounds().len() as f64));
                            add_point(&mut bytes, name, (n as f64, ledger.bytes() as f64));
                        }
                    }
                }
            }
        }
    }
    let draw = |name, title, y, lines: &[Line]| plot(&arguments.output, name, title, ["values", y], lines);
    draw("time", "Median, 120 shards in one process", "seconds", &times)?;
    draw("rounds", "Median, 120 shards", "rounds", &rounds)?;
    draw("bytes", "Median, 120 shards", "bytes in all messages", &bytes)
}

/// Every method, each the fastest of some runs; an error if their keys differ.
fn runs(input: &Input, ranks: &[u64], arguments: &Arguments) -> Result<Vec<(Method, Run)>> {
    let repeat = match input.len() {
        ..=10_000_000 => arguments.repeat,
        _ => arguments.repeat.div_ceil(2),
    };
    let mut fastest: Vec<(Method, Run)> = Vec::new();
    for round in 0..repeat {
        for (index, method) in Method::ALL.into_iter().enumerate() {
            let setup = Setup {
                threads: arguments.threads,
                ..Setup::default()
            };
            let run = input.run(method, ranks, &setup)?;
            match fastest.get_mut(index) {
                Some(best) if best.1.time > run.time => best.1 = run,
                Some(_) => {}
                None => fastest.push((method, run)),
            }
        }
        if let Some((method, _)) = fastest.iter().find(|(_, run)| run.keys != fastest[0].1.keys) {
            return exec_err!(
                "{} gives other keys than {} (run {round})",
                method.name(),
                fastest[0].0.name()
            );
        }
    }
    Ok(fastest)
}

fn row(table: &mut Table, [n, shards, count]: [u64; 3], method: Method, run: &Run, psrs: &Run) -> Result<()> {
    let seconds = |time: Duration| format!("{:.5}", time.as_secs_f64());
    let ledger = &run.ledger;
    let share = ledger.bytes() as f64 / (psrs.ledger.bytes() as f64).max(1.0);
    table.row(&[
        &n,
        &shards,
        &count,
        &method.name(),
        &seconds(run.time),
        &format!("{:.3}", run.time.as_secs_f64() / psrs.time.as_secs_f64()),
        &seconds(ledger.slowest()),
        &ledger.rounds().len(),
        &ledger.hops(),
        &ledger.messages(),
        &ledger.bytes(),
        &format!("{share:.5}"),
        &ledger.critical_bytes(),
        &ledger.values(),
    ])
}
