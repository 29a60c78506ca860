//! A device and the CPU give the same bits, for type x pattern x length x NULLs x operator.
//!
//! Each [`Case`] is a line of the matrix: statements over tables that differ by pattern, number of rows and NULLs. Each of its
//! patterns is a test of its own, `matrix::CASE::PATTERN`.

mod groups;
mod quantiles;
mod streamed;
mod topk;

use datafusion_quantiles::config::StrategyName;
use datafusion_quantiles::pinned::{unpin_table, use_devices};
use libtest_mimic::Trial;
use quantiles_testing::patterns::Pattern;
use quantiles_testing::{batch, register, session, set};

pub(crate) use quantiles::few_ranks;
pub(crate) use topk::{in_order_of_groups, with_cents, with_id};

use crate::support::{Columns, On, asynchronous, columns, named, pinned, same, two_devices, with_nulls};

/// The operator that plans over pinned columns show.
const PINNED: &str = "PinnedExec: device=cuda:0";
/// What the plan of a query over a table on two devices shows.
const ON_TWO: &str = "+{second} (";

/// Where the statements of a case run.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Over columns that are pinned on device 0.
    Pinned,
    /// Over columns that are sent to device 0 in batches of this number of rows.
    Streamed(usize),
    /// Over columns of which two devices hold half each.
    PinnedOnTwo,
    /// Over columns that are sent to two devices.
    StreamedToTwo(usize),
}

/// A table of a case.
#[derive(Debug)]
struct Table {
    pattern: Pattern,
    rows: usize,
    nulls: bool,
    names: Vec<&'static str>,
}

/// A statement, and the text that its plan shows on the device, where `{second}` stands for the name of the second device and
/// `{strategy}` for the strategy of the case.
type Statement = (String, &'static str);

/// A line of the matrix.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    patterns: &'static [Pattern],
    /// Numbers of rows, and whether a third of the values are NULL.
    sizes: &'static [(usize, bool)],
    /// Number of partitions that the session plans for, and of the table.
    partitions: (usize, usize),
    columns: fn(Pattern, usize, bool) -> Columns,
    place: Place,
    strategy: StrategyName,
    statements: fn(&Table) -> Vec<Statement>,
}

impl Case {
    async fn check(self, pattern: Pattern) {
        for (rows, nulls) in self.sizes {
            self.check_table(pattern, *rows, *nulls).await;
        }
    }

    async fn check_table(self, pattern: Pattern, rows: usize, nulls: bool) {
        let ctx = session(self.partitions.0);
        set(&ctx, "strategy", &self.strategy.to_string()).await;
        let mut on = On::device("");
        let mut second = String::new();
        if let Place::PinnedOnTwo | Place::StreamedToTwo(_) = self.place {
            let devices = two_devices();
            second = named(&devices[1]);
            use_devices(&ctx, devices);
            on.device = "cuda:all";
            set(&ctx, "device", on.device).await;
        }
        let columns = (self.columns)(pattern, rows, nulls);
        let names = columns.iter().map(|(name, _)| *name).collect();
        let table = batch(columns);
        match self.place {
            Place::Pinned | Place::PinnedOnTwo => pinned(&ctx, &table, self.partitions.1).await,
            Place::Streamed(batch_rows) | Place::StreamedToTwo(batch_rows) => {
                register(&ctx, "t", &table, self.partitions.1, batch_rows);
                // With `auto` no column is sent to a device.
                on.otherwise = "auto";
            }
        }
        let made = Table {
            pattern,
            rows,
            nulls,
            names,
        };
        for (sql, shown) in (self.statements)(&made) {
            let shown = shown
                .replace("{second}", &second)
                .replace("{strategy}", &self.strategy.to_string());
            let on = On { shown: &shown, ..on };
            let what = format!("{sql}, {pattern:?}, {rows} rows, nulls: {nulls}");
            same(&ctx, &sql, on, &what).await;
        }
        if let Place::Pinned | Place::PinnedOnTwo = self.place {
            unpin_table(&ctx, "t").unwrap();
        }
    }
}

/// All tests of the matrix.
pub(crate) fn tests() -> Vec<Trial> {
    let cases = [
        quantiles::cases(),
        streamed::cases(),
        groups::cases(),
        topk::cases(),
    ];
    let tests = cases.into_iter().flatten().flat_map(|case| {
        case.patterns.iter().map(move |pattern| {
            let strategy = match case.strategy {
                StrategyName::Auto => String::new(),
                strategy => format!("::{strategy}"),
            };
            let name = format!("matrix::{}{strategy}::{pattern:?}", case.name);
            asynchronous(&name, move || case.check(*pattern))
        })
    });
    tests.collect()
}

/// Each length, without and with NULLs.
macro_rules! lens {
    ($($len:literal),*) => {
        &[$(($len, false), ($len, true)),*]
    };
}
use lens;

/// All columns, with or without NULLs.
fn all(pattern: Pattern, rows: usize, seed: u64, nulls: bool) -> Columns {
    let all = columns(pattern, rows, seed);
    if nulls { with_nulls(all) } else { all }
}

/// The columns with these names.
fn some(columns: Columns, names: &[&str]) -> Columns {
    let some = columns.into_iter().filter(|(name, _)| names.contains(name));
    some.collect()
}

/// Statements of which the plan shows an operator.
fn shown(statements: impl IntoIterator<Item = impl Into<String>>, operator: &'static str) -> Vec<Statement> {
    let statements = statements.into_iter().map(|sql| (sql.into(), operator));
    statements.collect()
}

/// `SELECT` of calls for each column.
fn for_each<const N: usize>(names: &[&str], calls: impl Fn(&str) -> [String; N]) -> String {
    let calls: Vec<_> = names.iter().flat_map(|name| calls(name)).collect();
    format!("SELECT {} FROM t", calls.join(", "))
}
