//! Time, rounds and bytes of every method, over numbers of values and of shards.

use std::time::Duration;

use datafusion::common::{Result, exec_err};
use quantiles_literature::{Baseline, Setup};

use super::Arguments;
use super::methods::{Input, Method, Run, ranks};
use super::output::{Line, Table, add_point, plot};

/// Shards of the plots and of the paper's tables.
const PLOTTED: u64 = 120;
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
    let bits = if arguments.narrow { 32 } else { 64 };
    let title = format!(
        "Every method, {} threads, random keys of {bits} bits",
        arguments.threads
    );
    let mut table = Table::try_new(&arguments.output, "shards", &title, &COLUMNS)?;
    let (mut times, mut rounds, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let mut medians = Vec::new();
    let sizes = (0..19).map(|power| 10_u64.pow(power));
    let sizes = sizes.filter(|n| (arguments.from..=arguments.rows).contains(&(*n as f64)));
    for n in sizes {
        for shards in arguments.shards.iter().copied() {
            let input = Input::random(n, shards, arguments.narrow);
            for count in RANKS {
                let runs = runs(&input, &ranks(n, count), arguments)?;
                let Some(psrs) = runs.iter().find(|run| run.0 == Method::Baseline(Baseline::Psrs)) else {
                    return exec_err!("no psrs to compare with");
                };
                for (method, run) in &runs {
                    row(&mut table, [n, shards, count], *method, run, &psrs.1)?;
                    if (shards, count) == (PLOTTED, 1) {
                        let (name, log) = (method.name(), &run.log);
                        add_point(&mut times, name, (n as f64, run.time.as_secs_f64()));
                        add_point(&mut rounds, name, (n as f64, log.rounds().len() as f64));
                        add_point(&mut bytes, name, (n as f64, log.bytes() as f64));
                    }
                }
                if (shards, count) == (PLOTTED, 1) {
                    medians.push((n, runs));
                }
            }
        }
    }
    let draw = |name, title, y, lines: &[Line]| plot(&arguments.output, name, title, ["values", y], lines);
    draw("time", "Median, 120 shards in one process", "seconds", &times)?;
    draw("rounds", "Median, 120 shards", "rounds", &rounds)?;
    draw("bytes", "Median, 120 shards", "bytes in all messages", &bytes)?;
    figure_2(arguments, &medians)?;
    table_v(arguments, &medians)
}

/// The measurements of all methods over one number of values.
type Medians = [(u64, Vec<(Method, Run)>)];

/// GK Select's Figure 2. Its text gives times on 30 cores, and 10.5 times the speed of the full sort at 1e9 values.
fn figure_2(arguments: &Arguments, medians: &Medians) -> Result<()> {
    let columns = [
        "values",
        "gk_select, s",
        "psrs, s",
        "psrs / gk_select",
        "the paper, 30 cores: gk_select",
    ];
    let title = "GK Select, Figure 2: median, 120 shards in one process";
    let mut table = Table::try_new(&arguments.output, "figure_2", title, &columns)?;
    for (n, runs) in medians {
        let seconds = |method| time_of(runs, method).unwrap_or(f64::NAN);
        let (own, psrs) = (
            seconds(Method::GkSelect),
            seconds(Method::Baseline(Baseline::Psrs)),
        );
        let paper = match *n {
            ..=10_000_000 => "below 1 s",
            100_000_000 => "1 - 1.3 s",
            _ => "7 - 9 s; 10.5 times as fast as the sort",
        };
        table.row(&[
            n,
            &format!("{own:.4}"),
            &format!("{psrs:.4}"),
            &format!("{:.2}", psrs / own),
            &paper,
        ])?;
    }
    Ok(())
}

fn time_of(runs: &[(Method, Run)], method: Method) -> Option<f64> {
    let run = runs.iter().find(|run| run.0 == method);
    run.map(|(_, run)| run.time.as_secs_f64())
}

/// GK Select's Table V, by counted messages, for P shards and sketches of error fraction eps.
fn table_v(arguments: &Arguments, medians: &Medians) -> Result<()> {
    let columns = [
        "method",
        "rounds, least to greatest n",
        "the paper: actions",
        "bytes at the greatest n",
        "the paper: network volume",
    ];
    let title = "GK Select, Table V: median, 120 shards";
    let mut table = Table::try_new(&arguments.output, "table_v", title, &columns)?;
    let Some((_, last)) = medians.last() else {
        return Ok(());
    };
    for (index, (method, run)) in last.iter().enumerate() {
        let rounds: Vec<String> = medians
            .iter()
            .map(|(_, runs)| runs[index].1.log.rounds().len().to_string())
            .collect();
        let (actions, volume) = match method {
            Method::GkSelect | Method::Baseline(Baseline::GkSelectCount) => {
                ("3", "P/eps log(eps n/P) + eps n P")
            }
            Method::Baseline(Baseline::Psrs) => ("2", "n"),
            Method::Baseline(Baseline::AlFuraih | Baseline::Jeffers) => ("log n", "P log n"),
            _ => ("", ""),
        };
        table.row(&[
            &method.name(),
            &rounds.join(" "),
            &actions,
            &run.log.bytes(),
            &volume,
        ])?;
    }
    Ok(())
}

/// The methods to compare.
fn methods(arguments: &Arguments) -> Result<Vec<Method>> {
    let known = |name: &String| match Method::ALL.into_iter().find(|method| method.name() == name) {
        Some(method) => Ok(method),
        None => {
            let allowed = Method::ALL.map(Method::name).join(", ");
            exec_err!("no method '{name}': allowed are {allowed}")
        }
    };
    let mut methods = if arguments.methods.is_empty() {
        Method::ALL.to_vec()
    } else {
        arguments.methods.iter().map(known).collect::<Result<_>>()?
    };
    if !methods.contains(&Method::Baseline(Baseline::Psrs)) {
        methods.push(Method::Baseline(Baseline::Psrs));
    }
    Ok(methods)
}

/// The fastest of some runs of every method. It is an error if their keys differ.
fn runs(input: &Input, ranks: &[u64], arguments: &Arguments) -> Result<Vec<(Method, Run)>> {
    let repeat = match input.len() {
        ..=10_000_000 => arguments.repeat,
        _ => arguments.repeat.div_ceil(2),
    };
    let mut fastest: Vec<(Method, Run)> = Vec::new();
    for round in 0..repeat {
        for (index, method) in methods(arguments)?.into_iter().enumerate() {
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
    let log = &run.log;
    let share = log.bytes() as f64 / (psrs.log.bytes() as f64).max(1.0);
    table.row(&[
        &n,
        &shards,
        &count,
        &method.name(),
        &seconds(run.time),
        &format!("{:.3}", run.time.as_secs_f64() / psrs.time.as_secs_f64()),
        &seconds(log.slowest()),
        &log.rounds().len(),
        &log.hops(),
        &log.messages(),
        &log.bytes(),
        &format!("{share:.5}"),
        &log.critical_bytes(),
        &log.values(),
    ])
}
