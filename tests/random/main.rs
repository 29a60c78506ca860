//! Random statements over random tables and settings, judged by a naive evaluation, and a second time by DataFusion
//! without the crate's planner.
//!
//! `cargo test --test random` runs the share of every change; these variables make it more:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `QUANTILES_RANDOM_STATEMENTS` | how many statements are run; 2000 if not set |
//! | `QUANTILES_RANDOM_SEED` | the number that all tables and statements follow from; a failure names its own |
//! | `QUANTILES_RANDOM_SECONDS` | ends the run after this time |
//! | `QUANTILES_RANDOM_ROWS` | most rows of a table; 20000 if not set |
//! | `QUANTILES_RANDOM_DEVICE` | value of `quantiles.device`, such as `cuda`; most tables are pinned there |
//! | `QUANTILES_RANDOM_CLUSTER` | the scheduler of a cluster on this machine, such as `df://127.0.0.1:50050` |
//! | `QUANTILES_RANDOM_ADAPTIVE` | `true` for adaptive planning there |
//! | `QUANTILES_RANDOM_TOKEN_FILE` | the file that the cluster was started with as `--token-file` |
//! | `QUANTILES_RANDOM_REPORT` | a file for the number of each clause that was drawn |

mod config;
mod draw;
mod drawn;
mod exact;
mod groups;
mod in_order;
mod judge;
mod known;
mod naive;
mod nearest;
mod report;
mod run;
mod shrink;
mod spelling;
mod statement;
mod summary;
mod table;
mod value;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::config::{Config, Places, joined_sql};
use crate::draw::Draw;
use crate::report::Report;
use crate::run::{Bench, Outcome};
use crate::shrink::{Case, kind, shrink};
use crate::table::{Storage, Table};

/// Statements over one table.
const PER_TABLE: u64 = 20;

/// Failures of one kind that are shrunk and shown; more are counted.
const SHOWN: u64 = 2;

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(format!("QUANTILES_RANDOM_{name}")).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("QUANTILES_RANDOM_{name} is a whole number, got '{value}'")),
    )
}

/// The statement that runs, and since when: for the watch, should it block its thread.
static RUNNING: Mutex<Option<(Instant, String)>> = Mutex::new(None);

fn watch() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(5));
            let running = RUNNING.lock().unwrap().clone();
            let late = running.filter(|(start, _)| start.elapsed() > Duration::from_secs(180));
            if let Some((_, what)) = late {
                eprintln!("FAILURE: a statement blocks its thread for 3 minutes\n{what}");
                std::process::exit(1);
            }
        }
    });
}

struct Run<'a> {
    bench: Bench<'a>,
    report: Report,
    failures: BTreeMap<String, u64>,
    places: Places,
    most_rows: usize,
}

impl Run<'_> {
    /// A table and its statements; all follow from the seed.
    fn table(&mut self, seed: u64, statements: u64) {
        let mut draw = Draw::new(seed);
        let mut table = Table::draw(&mut draw, self.most_rows);
        if self.places.cluster.is_some() && table.storage == Storage::Memory {
            // Executors read files only.
            table.storage = Storage::Parquet;
        }
        let mut configs: Vec<Config> = (0..3).map(|_| Config::draw(&mut draw, &self.places)).collect();
        if table.rows.len() > 1000 {
            // DataFusion's windows take time in the square of the number of batches.
            configs
                .iter_mut()
                .for_each(|config| config.batch_size = config.batch_size.max(100));
        }
        self.report.table(&table);
        let sessions = self.bench.sessions(&table, &configs).unwrap();
        for number in 0..statements {
            let mut draw = Draw::new(seed.rotate_left(32) ^ (number + 1));
            let at = draw.below(configs.len());
            let statement = drawn::statement(&mut draw, &table);
            let (sql, _) = statement.sql();
            *RUNNING.lock().unwrap() = Some((
                Instant::now(),
                format!("seed {seed}, statement {number}\n{sql:#?}"),
            ));
            let outcome = self
                .bench
                .outcome(&sessions[at], &table, &configs[at], &statement);
            *RUNNING.lock().unwrap() = None;
            self.report.statement(&sql, &configs[at], &outcome);
            if let Outcome::Wrong(why) = outcome {
                let case = Case {
                    table: table.clone(),
                    statement,
                    config: configs[at].clone(),
                };
                self.fail(seed, number, case, why);
            }
        }
    }

    fn fail(&mut self, seed: u64, number: u64, case: Case, why: String) {
        let count = self.failures.entry(kind(&why)).or_default();
        *count += 1;
        if *count > SHOWN {
            eprintln!(
                "FAILURE (not shrunk) seed {seed}, statement {number}: {}",
                why.lines().next().unwrap_or("")
            );
            return;
        }
        let (small, why_small) = shrink(&self.bench, case, why.clone());
        let (sql, _) = small.statement.sql();
        eprintln!(
            "FAILURE: QUANTILES_RANDOM_SEED={seed} QUANTILES_RANDOM_STATEMENTS={PER_TABLE}, statement {number}\n{why}\n\
             -- shrunk: {why_small}\n-- {:?}, {:?}, {} parts, batches of {}\n{}\n{}\n{};\n{};\n",
            small.config,
            small.table.storage,
            small.table.parts,
            small.table.batch,
            small.table.sql(),
            joined_sql(),
            small.config.sql().join(";\n"),
            sql.join(";\n"),
        );
    }
}

#[test]
fn random_statements_answer_what_a_naive_evaluation_does() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    watch();
    let mut run = Run {
        bench: Bench {
            runtime: &runtime,
            folder: folder.path().to_owned(),
        },
        report: Report::default(),
        failures: BTreeMap::new(),
        places: Places {
            device: std::env::var("QUANTILES_RANDOM_DEVICE").ok(),
            cluster: std::env::var("QUANTILES_RANDOM_CLUSTER").ok(),
        },
        most_rows: variable("ROWS").unwrap_or(20_000) as usize,
    };
    let statements = variable("STATEMENTS").unwrap_or(2000);
    let seed = variable("SEED").unwrap_or(1);
    let most = variable("SECONDS").map(Duration::from_secs);
    let start = Instant::now();
    let mut done = 0;
    while done < statements && most.is_none_or(|most| start.elapsed() < most) {
        let now = PER_TABLE.min(statements - done);
        run.table(seed.wrapping_add(done / PER_TABLE), now);
        done += now;
    }
    if let Ok(path) = std::env::var("QUANTILES_RANDOM_REPORT") {
        std::fs::write(path, run.report.text()).unwrap();
    }
    let failures: u64 = run.failures.values().sum();
    assert_eq!(failures, 0, "of {done} statements failed: {:#?}", run.failures);
}
