//! Statements over a table, and their answers by the formula of its rows.

use super::data::{Kind, Table};

/// A statement of columns `w` and `b`, and its rows, in any order.
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) rows: Vec<(u64, u64)>,
}

impl Statement {
    /// One row.
    fn single(sql: String, b: u64) -> Self {
        Self {
            sql,
            rows: vec![(1, b)],
        }
    }
}

/// What is asked of a table.
pub(super) struct Operator {
    pub(super) name: String,
    pub(super) statement: Box<dyn Fn(&Table) -> Statement>,
    /// Whether it is asked of a type.
    pub(super) takes: fn(Kind) -> bool,
}

/// How many groups a table is asked for.
#[derive(Clone, Copy)]
enum Groups {
    Few,
    Many,
}

impl Groups {
    fn of(self, table: &Table) -> u64 {
        match self {
            Groups::Few => 7,
            Groups::Many => table.rows / 5,
        }
    }
}

/// How many rows are asked for of a table.
type Length = fn(&Table) -> u64;

/// A statement for so many of the best rows of a table.
type Best = fn(&Table, u64) -> Statement;

fn any(_: Kind) -> bool {
    true
}

/// The types of `median` and `percentile_cont`.
fn numbers(kind: Kind) -> bool {
    matches!(kind, Kind::Fixed)
}

/// All operators.
pub(super) fn all() -> Vec<Operator> {
    let mut operators = Vec::new();
    let mut add = |name: &str, takes, statement: Box<dyn Fn(&Table) -> Statement>| {
        operators.push(Operator {
            name: name.to_owned(),
            statement,
            takes,
        });
    };
    add("quantiles", any, Box::new(quantiles));
    add("approx_percentile_gk", any, Box::new(sketch));
    add("median", numbers, Box::new(median));
    add("max_by", any, Box::new(max_by));
    add("OVER frames", any, Box::new(over_frames));
    for (name, beside, held) in PLAIN {
        let statement = move |table: &Table| quantiles_beside(table, beside, held);
        add(&format!("quantiles, {name}"), any, Box::new(statement));
    }
    let lengths: [(&str, Length); 2] = [("10 rows", |_| 10), ("many rows", |t| t.rows / 4)];
    for (label, k) in lengths {
        for (name, ordered) in [("LIMIT", ""), ("LIMIT of WHERE", "WHERE o % 1000003 >= 0")] {
            let statement = move |table: &Table| limit(table, ordered, k(table));
            add(&format!("{name}, {label}"), any, Box::new(statement));
        }
        let statement = move |table: &Table| topk_by(table, k(table));
        add(&format!("topk_by, {label}"), any, Box::new(statement));
    }
    for (label, groups) in [("few groups", Groups::Few), ("many groups", Groups::Many)] {
        for (name, expression, answer) in GROUPED {
            let statement = move |table: &Table| grouped(table, groups.of(table), expression, answer);
            add(&format!("{name}, {label}"), any, Box::new(statement));
        }
        let statement = move |table: &Table| percentile_cont(table, groups.of(table));
        add(&format!("percentile_cont, {label}"), numbers, Box::new(statement));
        let statements: [(&str, Best); 4] = [
            ("row_number", row_number),
            ("DISTINCT ON", distinct_on),
            ("topk_by", topk_by_group),
            ("OVER", over_groups),
        ];
        for (name, build) in statements {
            let statement = move |table: &Table| build(table, groups.of(table));
            add(&format!("{name}, {label}"), any, Box::new(statement));
        }
    }
    operators
}

/// The value of rank `ceil(count * percent / 100)` of ascending numbers.
fn rank(count: u64, percent: u64) -> u64 {
    (count * percent).div_ceil(100).max(1)
}

fn quantiles(table: &Table) -> Statement {
    let [a, b, c] = ["q[1]", "q[2]", "q[3]"].map(|q| table.kind.number(q));
    let told = |percent| table.kind.told(rank(table.rows, percent));
    Statement::single(
        format!(
            "SELECT 1 AS w, {a} + 3 * {b} + 7 * {c} AS b \
             FROM (SELECT exact_quantiles(x, [0.01, 0.5, 0.99]) AS q FROM t)"
        ),
        told(1) + 3 * told(50) + 7 * told(99),
    )
}

/// Whether the rank is as near as promised.
fn sketch(table: &Table) -> Statement {
    let middle = rank(table.rows, 50);
    let (least, most) = (middle - table.rows / 1000 - 1, middle + table.rows / 1000 + 1);
    let number = table.kind.number("m");
    Statement::single(
        format!(
            "SELECT 1 AS w, CAST({number} BETWEEN {} AND {} AS INT) AS b \
             FROM (SELECT approx_percentile_gk(x, 0.5, 1000) AS m FROM t)",
            table.kind.told(least),
            table.kind.told(most),
        ),
        1,
    )
}

fn median(table: &Table) -> Statement {
    let number = table.kind.number("CAST(m AS BIGINT)");
    Statement::single(
        format!("SELECT 1 AS w, {number} AS b FROM (SELECT median(x) AS m FROM t)"),
        rank(table.rows, 50),
    )
}

fn max_by(table: &Table) -> Statement {
    let number = table.kind.number("m");
    Statement::single(
        format!("SELECT 1 AS w, {number} AS b FROM (SELECT max_by(x, o) AS m FROM t)"),
        table.kind.told(table.rows),
    )
}

/// Name of a plain aggregate; its expression; a number of it that is known.
type Plain = (&'static str, &'static str, fn(&Table) -> u64);

const PLAIN: [Plain; 4] = [
    ("sum", "sum(o)", |t| t.rows * (t.rows + 1) / 2),
    ("array_agg", "array_length(array_agg(x))", |t| t.rows),
    (
        "string_agg",
        "length(string_agg(lpad(CAST(o AS VARCHAR), 20, '0'), ','))",
        |t| 21 * t.rows - 1,
    ),
    ("count(DISTINCT)", "count(DISTINCT x)", |t| {
        t.kind.told(t.rows) - t.kind.told(1) + 1
    }),
];

fn quantiles_beside(table: &Table, beside: &str, held: fn(&Table) -> u64) -> Statement {
    let number = table.kind.number("m");
    Statement::single(
        format!(
            "SELECT 1 AS w, {number} + a AS b \
             FROM (SELECT exact_quantiles(x, 0.5) AS m, {beside} AS a FROM t)"
        ),
        table.kind.told(rank(table.rows, 50)) + held(table),
    )
}

/// The numbers of the last rows.
fn last(table: &Table, k: u64) -> Vec<(u64, u64)> {
    let numbers = table.rows - k + 1..=table.rows;
    numbers.map(|o| (1, table.kind.told(o))).collect()
}

fn limit(table: &Table, ordered: &str, k: u64) -> Statement {
    let number = table.kind.number("x");
    Statement {
        sql: format!(
            "SELECT 1 AS w, {number} AS b FROM (SELECT x FROM t {ordered} ORDER BY o DESC LIMIT {k})"
        ),
        rows: last(table, k),
    }
}

fn topk_by(table: &Table, k: u64) -> Statement {
    let number = table.kind.number("m");
    Statement {
        sql: format!("SELECT 1 AS w, {number} AS b FROM (SELECT unnest(topk_by(x, o, {k})) AS m FROM t)"),
        rows: last(table, k),
    }
}

fn over_frames(table: &Table) -> Statement {
    let number = table.kind.number("m");
    let rows = (1..=table.rows).map(|o| (1, table.kind.told(o)));
    Statement {
        sql: format!(
            "SELECT 1 AS w, {number} AS b FROM (SELECT exact_quantiles(x, 1.0) \
             OVER (ORDER BY o ROWS BETWEEN 100 PRECEDING AND CURRENT ROW) AS m FROM t)"
        ),
        rows: rows.collect(),
    }
}

/// Groups by `o % count`, each with its numbers in ascending order.
fn groups(table: &Table, count: u64) -> impl Iterator<Item = (u64, Vec<u64>)> {
    let rows = table.rows;
    (0..count).map(move |group| {
        let first = if group == 0 { count } else { group };
        (group, (first..=rows).step_by(count as usize).collect())
    })
}

fn median_of(numbers: &[u64]) -> u64 {
    numbers[rank(numbers.len() as u64, 50) as usize - 1]
}

/// Name; the aggregates as columns `m`, of which the number is taken, and `a`; both by the numbers of a group.
type Grouped = (&'static str, &'static str, fn(Kind, &[u64]) -> u64);

const GROUPED: [Grouped; 6] = [
    (
        "quantiles",
        "exact_quantiles(x, 0.5) AS m, 0 AS a",
        |kind, all| kind.told(median_of(all)),
    ),
    (
        "approx_percentile_gk",
        "approx_percentile_gk(x, 0.5) AS m, 0 AS a",
        |kind, all| kind.told(median_of(all)),
    ),
    ("max_by", "max_by(x, o) AS m, 0 AS a", |kind, all| {
        kind.told(all[all.len() - 1])
    }),
    (
        "quantiles and sum",
        "exact_quantiles(x, 0.5) AS m, sum(o) AS a",
        |kind, all| kind.told(median_of(all)) + all.iter().sum::<u64>(),
    ),
    (
        "quantiles and array_agg",
        "exact_quantiles(x, 0.5) AS m, array_length(array_agg(x)) AS a",
        |kind, all| kind.told(median_of(all)) + all.len() as u64,
    ),
    (
        "max_by and array_agg",
        "max_by(x, o) AS m, array_length(array_agg(x)) AS a",
        |kind, all| kind.told(all[all.len() - 1]) + all.len() as u64,
    ),
];

fn grouped(table: &Table, count: u64, columns: &str, answer: fn(Kind, &[u64]) -> u64) -> Statement {
    let number = table.kind.number("m");
    let rows = groups(table, count).map(|(group, all)| (group, answer(table.kind, &all)));
    Statement {
        sql: format!(
            "SELECT w, {number} + a AS b FROM (SELECT o % {count} AS w, {columns} FROM t GROUP BY o % {count})"
        ),
        rows: rows.collect(),
    }
}

fn percentile_cont(table: &Table, count: u64) -> Statement {
    let number = table.kind.number("CAST(m AS BIGINT)");
    let rows = groups(table, count).map(|(group, all)| (group, all[0]));
    Statement {
        sql: format!(
            "SELECT w, {number} AS b \
             FROM (SELECT o % {count} AS w, percentile_cont(x, 0.0) AS m FROM t GROUP BY o % {count})"
        ),
        rows: rows.collect(),
    }
}

/// The last rows of each group.
fn last_of_groups(table: &Table, count: u64, k: usize) -> Vec<(u64, u64)> {
    let rows = groups(table, count).flat_map(|(group, all)| {
        let last = all[all.len().saturating_sub(k)..].to_vec();
        last.into_iter().map(move |o| (group, table.kind.told(o)))
    });
    rows.collect()
}

fn row_number(table: &Table, count: u64) -> Statement {
    let number = table.kind.number("x");
    Statement {
        sql: format!(
            "SELECT w, {number} AS b FROM (SELECT o % {count} AS w, x FROM t \
             QUALIFY row_number() OVER (PARTITION BY o % {count} ORDER BY o DESC) <= 3)"
        ),
        rows: last_of_groups(table, count, 3),
    }
}

fn distinct_on(table: &Table, count: u64) -> Statement {
    let number = table.kind.number("x");
    Statement {
        sql: format!(
            "SELECT w, {number} AS b FROM (SELECT DISTINCT ON (o % {count}) o % {count} AS w, x FROM t \
             ORDER BY o % {count}, o DESC)"
        ),
        rows: last_of_groups(table, count, 1),
    }
}

fn topk_by_group(table: &Table, count: u64) -> Statement {
    let number = table.kind.number("m");
    Statement {
        sql: format!(
            "SELECT w, {number} AS b FROM (SELECT w, unnest(l) AS m \
             FROM (SELECT o % {count} AS w, topk_by(x, o, 3) AS l FROM t GROUP BY o % {count}))"
        ),
        rows: last_of_groups(table, count, 3),
    }
}

fn over_groups(table: &Table, count: u64) -> Statement {
    let number = table.kind.number("m");
    let rows = groups(table, count).flat_map(|(group, all)| {
        let median = table.kind.told(median_of(&all));
        all.into_iter().map(move |_| (group, median))
    });
    Statement {
        sql: format!(
            "SELECT w, {number} AS b FROM (SELECT o % {count} AS w, \
             exact_quantiles(x, 0.5) OVER (PARTITION BY o % {count}) AS m FROM t)"
        ),
        rows: rows.collect(),
    }
}
