//! DIBMS's Table 3: the values that DIBMS sends, compared with sort-and-choose and with DistributedBMS, its variant without iterations.

use datafusion::common::{Result, exec_err};
use datafusion_quantiles::select::bms::{Dibms, DistributedBms};
use quantiles_literature::{Baseline, Setup};

use super::Arguments;
use super::methods::{Input, Method, ranks};
use super::output::Table;

/// Number of nodes, of which one is the host.
const NODES: u64 = 4;

/// The paper's ratios: log2 n, m, to sort-and-choose, to DistributedBMS.
const PAPER: [(u32, u64, f64, f64); 8] = [
    (26, 11, 0.0060, 2.3476),
    (26, 101, 0.0080, 0.7358),
    (26, 501, 0.0144, 0.3036),
    (26, 1001, 0.0241, 0.2578),
    (28, 11, 0.0015, 1.0736),
    (28, 101, 0.0024, 0.2479),
    (28, 501, 0.0041, 0.0895),
    (28, 1001, 0.0067, 0.0730),
];

const COLUMNS: [&str; 11] = [
    "log2 n",
    "m",
    "dibms: values",
    "counts",
    "counts only: values",
    "distributed_bms: values",
    "sort_and_choose: values",
    "dibms / sort_and_choose",
    "the paper's",
    "dibms / distributed_bms",
    "the paper's",
];

pub(crate) fn table(arguments: &Arguments) -> Result<()> {
    check_formula(arguments.threads)?;
    let title = format!("DIBMS, Table 3: values sent, q = {NODES}, random u32");
    let mut table = Table::try_new(&arguments.output, "dibms", &title, &COLUMNS)?;
    for log in &arguments.dibms_log {
        let input = Input::random(1 << log, NODES, true);
        for m in [11, 101, 501, 1001] {
            let ranks = ranks(1 << log, m);
            let own = input.solve(&Dibms::default(), &ranks, arguments.threads)?;
            let pure = Dibms {
                collected: 0,
                ..Dibms::default()
            };
            let pure = input.solve(&pure, &ranks, arguments.threads)?;
            let once = input.solve(&DistributedBms::default(), &ranks, arguments.threads)?;
            if own.keys != once.keys || own.keys != pure.keys {
                return exec_err!("keys differ for n = 2^{log}, m = {m}");
            }
            let counts = own.log.rounds().iter().filter(|name| **name == "count").count();
            let [own, pure, once] = [own, pure, once].map(|run| run.log.values());
            let sorted = sort_and_choose(1 << log);
            let paper = PAPER.iter().find(|row| (row.0, row.1) == (*log, m));
            let ratio = |values: f64| format!("{values:.4}");
            table.row(&[
                log,
                &m,
                &own,
                &counts,
                &pure,
                &once,
                &sorted,
                &format!("{:.5}", own as f64 / sorted as f64),
                &paper.map_or(String::new(), |row| ratio(row.2)),
                &ratio(own as f64 / once as f64),
                &paper.map_or(String::new(), |row| ratio(row.3)),
            ])?;
        }
    }
    Ok(())
}

/// Number of values that sort-and-choose sends up its tree: half of all values at each of its `log2 q` levels.
fn sort_and_choose(n: u64) -> u64 {
    n / 2 * u64::from(NODES.ilog2())
}

/// Checks the formula against counted messages.
fn check_formula(threads: usize) -> Result<()> {
    let n = 1 << 20;
    let setup = Setup {
        threads,
        ..Setup::default()
    };
    let input = Input::random(n, NODES, true);
    let counted = input.run(Method::Baseline(Baseline::SortAndChoose), &ranks(n, 11), &setup)?;
    if counted.log.values() == sort_and_choose(n) {
        Ok(())
    } else {
        exec_err!(
            "sort_and_choose sends {} values, not {}",
            counted.log.values(),
            sort_and_choose(n)
        )
    }
}
