//! Makes a failure small: fewer rows, fewer clauses, plainer settings, as long as it fails.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::run::{Bench, Outcome};
use crate::statement::*;
use crate::table::{Storage, Table};

/// A table, a statement and settings.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) table: Table,
    pub(crate) statement: Statement,
    pub(crate) config: Config,
}

/// Longest time that one failure is shrunk.
const PATIENCE: Duration = Duration::from_secs(25);

impl Case {
    /// What is wrong, if it is wrong; a settlement of known defects and of memory counts as right.
    pub(crate) fn failure(&self, bench: &Bench) -> Option<String> {
        let sessions = match bench.sessions(&self.table, std::slice::from_ref(&self.config)) {
            Ok(sessions) => sessions,
            Err(error) => return Some(format!("no session: {error}")),
        };
        match bench.outcome(&sessions[0], &self.table, &self.config, &self.statement) {
            Outcome::Wrong(why) => Some(why),
            _ => None,
        }
    }
}

/// The beginning of what is wrong, without numbers: tells failures of two causes apart.
pub(crate) fn kind(why: &str) -> String {
    why.chars().filter(|c| !c.is_ascii_digit()).take(40).collect()
}

/// The failure as small as it gets in some seconds, and what is wrong with it then.
pub(crate) fn shrink(bench: &Bench, case: Case, why: String) -> (Case, String) {
    let start = Instant::now();
    let mut best = (case, why);
    loop {
        let candidates = smaller(&best.0);
        let next = candidates.into_iter().find_map(|case| {
            if start.elapsed() > PATIENCE {
                return None;
            }
            let why = case.failure(bench)?;
            (kind(&why) == kind(&best.1)).then_some((case, why))
        });
        match next {
            Some(next) => best = next,
            None => return best,
        }
    }
}

fn smaller(case: &Case) -> Vec<Case> {
    let mut all = Vec::new();
    let n = case.table.rows.len();
    let mut size = n;
    while size > 0 && all.len() < 64 {
        for start in (0..n).step_by(size).take(16) {
            let mut smaller = case.clone();
            smaller.table.rows.drain(start..(start + size).min(n));
            all.push(smaller);
        }
        size /= 2;
    }
    all.extend(statements(&case.statement).into_iter().map(|statement| Case {
        statement,
        ..case.clone()
    }));
    all.extend(configs(&case.config).into_iter().map(|config| Case {
        config,
        ..case.clone()
    }));
    if case.table.storage != Storage::Memory && case.config.cluster.is_none() {
        let mut smaller = case.clone();
        smaller.table.storage = Storage::Memory;
        all.push(smaller);
    }
    if case.table.parts > 1 {
        let mut smaller = case.clone();
        smaller.table.parts = 1;
        all.push(smaller);
    }
    all
}

fn configs(config: &Config) -> Vec<Config> {
    let plain = Config::plain();
    let mut all = Vec::new();
    let mut add = |differs: bool, next: Config| all.extend(differs.then_some(next));
    add(
        config.partitions != 1,
        Config {
            partitions: 1,
            ..config.clone()
        },
    );
    add(
        config.batch_size != 8192,
        Config {
            batch_size: 8192,
            ..config.clone()
        },
    );
    add(
        config.strategy != "auto",
        Config {
            strategy: plain.strategy,
            ..config.clone()
        },
    );
    add(
        config.read_again != plain.read_again,
        Config {
            read_again: plain.read_again,
            ..config.clone()
        },
    );
    add(
        config.memory.is_some(),
        Config {
            memory: None,
            ..config.clone()
        },
    );
    add(
        config.replace_builtins,
        Config {
            replace_builtins: false,
            ..config.clone()
        },
    );
    add(
        !config.topk,
        Config {
            topk: true,
            ..config.clone()
        },
    );
    add(
        config.staged,
        Config {
            staged: false,
            ..config.clone()
        },
    );
    add(
        config.pinned,
        Config {
            pinned: false,
            ..config.clone()
        },
    );
    add(
        config.device.is_some(),
        Config {
            device: None,
            pinned: false,
            ..config.clone()
        },
    );
    all
}

fn statements(statement: &Statement) -> Vec<Statement> {
    let mut all = Vec::new();
    if !matches!(statement.from, From::Table) {
        all.push(Statement {
            from: From::Table,
            ..statement.clone()
        });
    }
    if statement.filter.is_some() {
        all.push(Statement {
            filter: None,
            ..statement.clone()
        });
    }
    if statement.prepared.is_some() {
        all.push(Statement {
            prepared: None,
            ..statement.clone()
        });
    }
    all.extend(shapes(&statement.shape).into_iter().map(|shape| Statement {
        shape,
        ..statement.clone()
    }));
    all
}

fn shapes(shape: &Shape) -> Vec<Shape> {
    match shape {
        Shape::Aggregate {
            groups,
            rollup,
            calls,
            having,
        } => {
            let with = |groups: &Vec<usize>, rollup, calls: Vec<Call>, having| Shape::Aggregate {
                groups: groups.clone(),
                rollup,
                calls,
                having,
            };
            let mut all: Vec<Shape> = fewer(calls)
                .into_iter()
                .map(|calls| with(groups, *rollup, calls, *having))
                .collect();
            if having.is_some() {
                all.push(with(groups, *rollup, calls.clone(), None));
            }
            if *rollup {
                all.push(with(groups, false, calls.clone(), *having));
            }
            all.extend((0..groups.len()).map(|i| {
                let mut groups = groups.clone();
                groups.remove(i);
                let grouped = !groups.is_empty();
                with(
                    &groups,
                    *rollup && grouped,
                    calls.clone(),
                    having.filter(|_| grouped),
                )
            }));
            all
        }
        Shape::Window { calls } => {
            let mut all = Vec::new();
            for (i, (call, window)) in calls.iter().enumerate() {
                if calls.len() > 1 {
                    let mut fewer = calls.clone();
                    fewer.remove(i);
                    all.push(Shape::Window { calls: fewer });
                }
                for simpler in simpler(call) {
                    let mut calls = calls.clone();
                    calls[i] = (simpler, window.clone());
                    all.push(Shape::Window { calls });
                }
                if window.partition.is_some() {
                    let mut calls = calls.clone();
                    calls[i].1.partition = None;
                    all.push(Shape::Window { calls });
                }
            }
            all
        }
        Shape::First { keys, limit, offset } => {
            let mut all = Vec::new();
            if *offset > 0 {
                all.push(Shape::First {
                    keys: keys.clone(),
                    limit: *limit,
                    offset: 0,
                });
            }
            all.extend(without_one(keys).into_iter().map(|keys| Shape::First {
                keys,
                limit: *limit,
                offset: *offset,
            }));
            all
        }
        Shape::Nearest {
            distance,
            desc,
            nulls_first,
            then,
            limit,
            offset,
        } => {
            let with = |then, limit, offset| Shape::Nearest {
                distance: distance.clone(),
                desc: *desc,
                nulls_first: *nulls_first,
                then,
                limit,
                offset,
            };
            let mut all: Vec<Shape> = without_one(then)
                .into_iter()
                .map(|then| with(then, *limit, *offset))
                .collect();
            if *offset > 0 {
                all.push(with(then.clone(), *limit, 0));
            }
            if then.len() == 1 {
                all.push(with(Vec::new(), *limit, *offset));
            }
            all
        }
        Shape::Neighbours(neighbours) => {
            let fewer = neighbours.with_fewer_queries();
            fewer.into_iter().map(Shape::Neighbours).collect()
        }
        Shape::Best {
            spelling,
            rank,
            partition,
            keys,
            k,
        } => {
            let with = |keys, k| Shape::Best {
                spelling: *spelling,
                rank: *rank,
                partition: partition.clone(),
                keys,
                k,
            };
            let mut all: Vec<Shape> = without_one(keys).into_iter().map(|keys| with(keys, *k)).collect();
            if *k > 1 {
                all.push(with(keys.clone(), 1));
            }
            all
        }
        Shape::Summary { columns } => without_one(columns)
            .into_iter()
            .map(|columns| Shape::Summary { columns })
            .collect(),
        Shape::Merged { .. } | Shape::Above { .. } => Vec::new(),
    }
}

fn without_one<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    let without = |i: usize| {
        items
            .iter()
            .enumerate()
            .filter(|(j, _)| *j != i)
            .map(|(_, item)| item.clone())
            .collect()
    };
    if items.len() > 1 {
        (0..items.len()).map(without).collect()
    } else {
        Vec::new()
    }
}

fn fewer(calls: &[Call]) -> Vec<Vec<Call>> {
    let mut all = without_one(calls);
    for (i, call) in calls.iter().enumerate() {
        for simpler in simpler(call) {
            let mut calls = calls.to_vec();
            calls[i] = simpler;
            all.push(calls);
        }
    }
    all
}

fn simpler(call: &Call) -> Vec<Call> {
    let mut all = Vec::new();
    match &call.filter {
        Some(Pred::And(a, b) | Pred::Or(a, b)) => {
            all.push(Call {
                filter: Some(a.as_ref().clone()),
                ..call.clone()
            });
            all.push(Call {
                filter: Some(b.as_ref().clone()),
                ..call.clone()
            });
        }
        Some(Pred::Not(a)) => all.push(Call {
            filter: Some(a.as_ref().clone()),
            ..call.clone()
        }),
        _ => {}
    }
    if call.filter.is_some() {
        all.push(Call {
            filter: None,
            ..call.clone()
        });
    }
    if call.distinct {
        all.push(Call {
            distinct: false,
            ..call.clone()
        });
    }
    if call.by_suffix {
        all.push(Call {
            by_suffix: false,
            ..call.clone()
        });
    }
    let needs_weight = matches!(&call.func, Func::Quantile { name, .. } if name.ends_with("weighted"));
    if call.weight.is_some() && !needs_weight {
        all.push(Call {
            weight: None,
            ..call.clone()
        });
    }
    if call.list && call.qs.len() > 1 {
        all.extend(
            without_one(&call.qs)
                .into_iter()
                .take(3)
                .map(|qs| Call { qs, ..call.clone() }),
        );
    }
    if let Expr::Case(_, column) = &call.x {
        all.push(Call {
            x: Expr::Column(*column),
            ..call.clone()
        });
    }
    if let Expr::Case(_, column) = &call.v {
        all.push(Call {
            v: Expr::Column(*column),
            ..call.clone()
        });
    }
    all
}
