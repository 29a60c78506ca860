//! The SQL of statements.

use datafusion::arrow::datatypes::DataType;

use crate::statement::*;
use crate::table::{F, K, Table};

fn number(value: Option<i64>) -> String {
    value.map_or("NULL".into(), |v| v.to_string())
}

impl Pred {
    pub(crate) fn sql(&self) -> String {
        match self {
            Pred::Compare(c, op, v) => format!("{} {op} {}", NAMES[*c], number(*v)),
            Pred::Float(op, v) => format!("{} {op} {v:?}", NAMES[F]),
            Pred::Text(op, v) => format!("s {op} '{v}'"),
            Pred::IsNull(c, is) => format!("{} IS {}NULL", NAMES[*c], if *is { "" } else { "NOT " }),
            Pred::In(c, list, not) => {
                let list: Vec<_> = list.iter().map(|v| number(*v)).collect();
                format!(
                    "{} {}IN ({})",
                    NAMES[*c],
                    if *not { "NOT " } else { "" },
                    list.join(", ")
                )
            }
            Pred::Between(c, a, b) => format!("{} BETWEEN {a} AND {b}", NAMES[*c]),
            Pred::And(a, b) => format!("({} AND {})", a.sql(), b.sql()),
            Pred::Or(a, b) => format!("({} OR {})", a.sql(), b.sql()),
            Pred::Not(a) => format!("NOT ({})", a.sql()),
        }
    }
}

impl Expr {
    pub(crate) fn sql(&self) -> String {
        match self {
            Expr::Column(c) => NAMES[*c].into(),
            Expr::Plus(c, v) => format!("{} + {v}", NAMES[*c]),
            Expr::Decimal(c) => format!("CAST({} AS DECIMAL(20, 0))", NAMES[*c]),
            Expr::Case(pred, c) => format!("CASE WHEN {} THEN {} END", pred.sql(), NAMES[*c]),
        }
    }

    /// Its type, without a dictionary around it.
    pub(crate) fn data_type(&self, table: &Table) -> DataType {
        let column = match self {
            Expr::Decimal(_) => return DataType::Decimal128(20, 0),
            Expr::Column(W) | Expr::Plus(..) | Expr::Case(_, W) => return DataType::Int64,
            Expr::Column(c) | Expr::Case(_, c) => *c,
        };
        match &table.columns[column].data_type {
            DataType::Dictionary(_, values) => values.as_ref().clone(),
            other => other.clone(),
        }
    }
}

impl From {
    fn sql(&self) -> String {
        match self {
            From::Table => "t".into(),
            From::Subquery(pred) => format!("(SELECT * FROM t WHERE {}) AS t", pred.sql()),
            From::View(_) => "v AS t".into(),
            From::Union(a, b) => format!(
                "(SELECT * FROM t WHERE {} UNION ALL SELECT * FROM t WHERE {}) AS t",
                a.sql(),
                b.sql()
            ),
            From::Join { left, greater } => {
                let left = if *left { "LEFT JOIN" } else { "JOIN" };
                let by = if *greater { ">" } else { "=" };
                format!("(SELECT t.*, d.w FROM t {left} d ON t.h {by} d.h) AS t")
            }
            From::Exists { not } => {
                let not = if *not { "NOT " } else { "" };
                format!("(SELECT * FROM t WHERE {not}EXISTS (SELECT 1 FROM d WHERE t.h > d.h)) AS t")
            }
        }
    }
}

impl Call {
    fn quantiles(&self) -> String {
        let qs: Vec<_> = self.qs.iter().map(|q| q.text.as_str()).collect();
        if self.list {
            format!("[{}]", qs.join(", "))
        } else {
            qs[0].into()
        }
    }

    /// `name(x, rest)`, `name(rest) WITHIN GROUP (ORDER BY x)`, or `name_desc(x, rest)`.
    fn spelled(&self, name: &str, rest: &str, within: Option<bool>) -> String {
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        let x = self.x.sql();
        match within {
            None if rest.is_empty() => format!("{name}({distinct}{x})"),
            None => format!("{name}({distinct}{x}, {rest})"),
            Some(true) if self.by_suffix => format!("{name}_desc({x}, {rest})"),
            Some(desc) => {
                format!(
                    "{name}({rest}) WITHIN GROUP (ORDER BY {x}{})",
                    if desc { " DESC" } else { "" }
                )
            }
        }
    }

    /// The weight as one more argument.
    fn weight_sql(&self) -> String {
        let weight = self.weight.as_ref();
        weight.map_or(String::new(), |weight| format!(", {}", weight.sql()))
    }

    /// The call without `FILTER`.
    fn name_and_arguments(&self) -> String {
        let q = if self.qs.is_empty() && !self.list {
            String::new()
        } else {
            self.quantiles()
        };
        match &self.func {
            Func::Quantile { name, method, within } => {
                // A weight stands behind the method, where a name has several.
                let method = match (*method, &self.weight) {
                    ("", Some(_)) if *name == "exact_quantiles" => "disc",
                    (method, _) => method,
                };
                let method = if method.is_empty() {
                    String::new()
                } else {
                    format!(", '{method}'")
                };
                self.spelled(name, &format!("{q}{method}{}", self.weight_sql()), *within)
            }
            Func::Gk {
                name,
                accuracy,
                within,
            } => self.spelled(name, &format!("{q}, {accuracy}"), *within),
            Func::GkBounds { accuracy } => {
                self.spelled("approx_percentile_gk_bounds", &format!("{q}, {accuracy}"), None)
            }
            Func::Sample { buckets, within } => {
                self.spelled("approx_percentile_sample", &format!("{q}, {buckets}"), *within)
            }
            Func::SampleBounds { buckets } => self.spelled(
                "approx_percentile_sample_bounds",
                &format!("{q}, {buckets}"),
                None,
            ),
            Func::Sketch { accuracy } | Func::SketchRank { accuracy, .. } => {
                self.spelled("gk_sketch", &accuracy.to_string(), None)
            }
            Func::Rank {
                name,
                within,
                nulls_first,
                at,
            } => {
                let at: Vec<_> = at.iter().map(point).collect();
                let list = if self.list {
                    format!("[{}]", at.join(", "))
                } else {
                    at[0].clone()
                };
                let call = self.spelled(name, &list, *within);
                match nulls_first {
                    None => call,
                    Some(first) => {
                        let order = call.strip_suffix(')').unwrap_or(&call);
                        format!("{order} NULLS {})", if *first { "FIRST" } else { "LAST" })
                    }
                }
            }
            Func::InOrder(asked) => self.spelled(asked.name, &asked.constants(), None),
            Func::Iqr { method: "" } if self.weight.is_none() => self.spelled("iqr", "", None),
            Func::Iqr { method } => {
                let method = if method.is_empty() { "linear" } else { method };
                self.spelled("iqr", &format!("'{method}'{}", self.weight_sql()), None)
            }
            Func::Top { name, k, asc } => {
                let distinct = if self.distinct { "DISTINCT " } else { "" };
                let k = k.map_or(String::new(), |k| format!(", {k}"));
                let asc = asc.map_or("", |asc| if asc { ", 'asc'" } else { ", 'desc'" });
                format!("{name}({distinct}{}, {}{k}{asc})", self.v.sql(), self.x.sql())
            }
            Func::Builtin { name: "median", .. } => self.spelled("median", "", None),
            Func::Builtin { name, within } => self.spelled(name, &q, *within),
            Func::Plain("count(*)") => "count(*)".into(),
            Func::Plain(name) => self.spelled(name, "", None),
            Func::FirstValue { desc } => {
                let desc = if *desc { " DESC" } else { "" };
                format!("first_value({} ORDER BY k{desc} NULLS LAST, id)", self.x.sql())
            }
        }
    }

    pub(crate) fn sql(&self) -> String {
        let mut call = self.name_and_arguments();
        if let Some(pred) = &self.filter {
            call += &format!(" FILTER (WHERE {})", pred.sql());
        }
        match &self.func {
            Func::Sketch { .. } => format!("gk_quantile({call}, {})", self.quantiles()),
            Func::SketchRank { at, .. } => format!("gk_rank({call}, {at})"),
            _ => call,
        }
    }
}

/// A constant that values are compared with.
fn point(point: &Option<Point>) -> String {
    match point {
        None => "NULL".into(),
        Some(Point::Half(twice)) if twice % 2 == 0 => (twice / 2).to_string(),
        Some(Point::Half(twice)) => format!("{:?}", *twice as f64 / 2.0),
        Some(Point::Float(v)) if v.is_finite() => format!("{v:?}"),
        Some(Point::Float(v)) => format!("'{v}'::double"),
        Some(Point::Text(text)) => format!("'{text}'"),
    }
}

fn keys_sql(keys: &[Key]) -> String {
    let keys = keys.iter().map(|key| {
        let desc = if key.desc { " DESC" } else { "" };
        let nulls = key
            .nulls_first
            .map_or("", |first| if first { " NULLS FIRST" } else { " NULLS LAST" });
        format!("{}{desc}{nulls}", NAMES[key.column])
    });
    keys.collect::<Vec<_>>().join(", ")
}

impl Window {
    fn sql(&self) -> String {
        let mut parts = Vec::new();
        if let Some(column) = self.partition {
            parts.push(format!("PARTITION BY {}", NAMES[column]));
        }
        if let Some(key) = &self.order {
            parts.push(format!("ORDER BY {}", keys_sql(&[*key])));
        }
        if let Some((unit, start, end)) = &self.frame {
            parts.push(format!(
                "{unit} BETWEEN {} AND {}",
                bound(*start, "PRECEDING"),
                bound(*end, "FOLLOWING")
            ));
        }
        parts.join(" ")
    }
}

fn bound(bound: Bound, side: &str) -> String {
    match bound {
        None => format!("UNBOUNDED {side}"),
        Some(0) => "CURRENT ROW".into(),
        Some(n) if n < 0 => format!("{} PRECEDING", -n),
        Some(n) => format!("{n} FOLLOWING"),
    }
}

fn list(columns: &[usize]) -> String {
    columns.iter().map(|c| NAMES[*c]).collect::<Vec<_>>().join(", ")
}

impl Statement {
    /// `WHERE ..` with a blank before it, or nothing.
    fn filter_sql(&self) -> String {
        let mut parts: Vec<String> = self.filter.iter().map(Pred::sql).collect();
        if self.prepared.is_some() {
            parts.push("k >= $1".into());
        }
        if parts.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", parts.join(" AND "))
        }
    }

    /// `FROM ..` with the condition on its rows.
    fn source_sql(&self) -> String {
        format!("FROM {}{}", self.from.sql(), self.filter_sql())
    }

    fn query(&self) -> String {
        let from = self.source_sql();
        match &self.shape {
            Shape::Aggregate {
                groups,
                rollup,
                calls,
                having,
            } => {
                let mut items: Vec<String> = groups.iter().map(|g| NAMES[*g].into()).collect();
                items.extend(
                    calls
                        .iter()
                        .enumerate()
                        .map(|(i, call)| format!("{} AS c{i}", call.sql())),
                );
                let mut sql = format!("SELECT {} {from}", items.join(", "));
                if !groups.is_empty() {
                    let by = list(groups);
                    sql += &if *rollup {
                        format!(" GROUP BY ROLLUP ({by})")
                    } else {
                        format!(" GROUP BY {by}")
                    };
                }
                if let Some(least) = having {
                    sql += &format!(" HAVING count(*) > {least}");
                }
                sql
            }
            Shape::Window { calls } => {
                let calls = calls.iter().enumerate();
                let items: Vec<_> = calls
                    .map(|(i, (call, w))| format!("{} OVER ({}) AS c{i}", call.sql(), w.sql()))
                    .collect();
                format!("SELECT id, {} {from}", items.join(", "))
            }
            Shape::First { keys, limit, offset } => {
                let offset = if *offset > 0 {
                    format!(" OFFSET {offset}")
                } else {
                    String::new()
                };
                format!(
                    "SELECT * {from} ORDER BY {} LIMIT {limit}{offset}",
                    keys_sql(keys)
                )
            }
            Shape::Nearest {
                distance,
                desc,
                nulls_first,
                then,
                limit,
                offset,
            } => {
                let direction = if *desc { " DESC" } else { "" };
                let nulls = match nulls_first {
                    None => "",
                    Some(true) => " NULLS FIRST",
                    Some(false) => " NULLS LAST",
                };
                let then = if then.is_empty() {
                    String::new()
                } else {
                    format!(", {}", keys_sql(then))
                };
                format!(
                    "SELECT *, {} AS c0 {from} ORDER BY c0{direction}{nulls}{then} LIMIT {limit} OFFSET {offset}",
                    distance.sql()
                )
            }
            Shape::Neighbours(neighbours) => neighbours.sql(&from),
            Shape::Best {
                spelling,
                rank,
                partition,
                keys,
                k,
            } => best_sql(&from, *spelling, *rank, partition, keys, *k),
            Shape::Merged { x, accuracy, q } => format!(
                "SELECT gk_quantile(gk_merge(sk), {}) AS c0 FROM (SELECT gk_sketch({}, {accuracy}) AS sk {from} GROUP BY h)",
                q.text, NAMES[*x]
            ),
            Shape::Above { q } => format!(
                "SELECT count(*) AS c0 FROM t WHERE k >= (SELECT exact_quantiles(k, {}) {from})",
                q.text
            ),
            Shape::Summary { columns } => format!("SUMMARIZE SELECT {} {from}", list(columns)),
        }
    }

    /// Conditions that choose rows.
    pub(crate) fn preds(&self) -> impl Iterator<Item = &Pred> {
        let from = match &self.from {
            From::Subquery(pred) | From::View(pred) => vec![pred],
            From::Union(a, b) => vec![a, b],
            From::Table | From::Join { .. } | From::Exists { .. } => Vec::new(),
        };
        from.into_iter().chain(&self.filter)
    }

    /// The conditions of `FILTER` and `CASE`.
    pub(crate) fn filters(&self) -> impl Iterator<Item = &Pred> {
        let calls: Vec<&Call> = match &self.shape {
            Shape::Aggregate { calls, .. } => calls.iter().collect(),
            Shape::Window { calls } => calls.iter().map(|(call, _)| call).collect(),
            _ => Vec::new(),
        };
        calls.into_iter().flat_map(|call| {
            fn case(expr: &Expr) -> Option<&Pred> {
                match expr {
                    Expr::Case(pred, _) => Some(pred),
                    _ => None,
                }
            }
            call.filter.iter().chain(case(&call.x)).chain(case(&call.v))
        })
    }

    /// Whether it calls a function of this crate.
    pub(crate) fn calls_ours(&self) -> bool {
        let is_ours = |call: &Call| {
            !matches!(
                call.func,
                Func::Builtin { .. } | Func::Plain(_) | Func::FirstValue { .. }
            )
        };
        match &self.shape {
            Shape::Aggregate { calls, .. } => calls.iter().any(is_ours),
            Shape::Window { calls } => calls.iter().any(|(call, _)| is_ours(call)),
            Shape::Neighbours(neighbours) => neighbours.is_function(),
            Shape::First { .. } | Shape::Nearest { .. } | Shape::Best { .. } => false,
            Shape::Merged { .. } | Shape::Above { .. } | Shape::Summary { .. } => true,
        }
    }

    /// Whether all functions run as ordinary aggregates too.
    pub(crate) fn can_run_without_our_planner(&self) -> bool {
        match &self.shape {
            Shape::Aggregate { calls, .. } => !calls
                .iter()
                .any(|call| matches!(call.func, Func::SampleBounds { .. })),
            _ => true,
        }
    }

    /// The same statement, not prepared.
    pub(crate) fn with_literals(&self) -> Statement {
        let mut literal = self.clone();
        if let Some(value) = literal.prepared.take() {
            let prepared = Pred::Compare(K, ">=", Some(value));
            literal.filter = Some(match literal.filter.take() {
                Some(filter) => Pred::And(Box::new(filter), Box::new(prepared)),
                None => prepared,
            });
        }
        literal
    }

    /// The statements to run, in order; the query's answer is that of the one named.
    pub(crate) fn sql(&self) -> (Vec<String>, usize) {
        let mut all = Vec::new();
        if let From::View(pred) = &self.from {
            all.push(format!(
                "CREATE OR REPLACE VIEW v AS SELECT * FROM t WHERE {}",
                pred.sql()
            ));
        }
        if let Shape::Neighbours(neighbours) = &self.shape {
            all.extend(neighbours.views(&self.source_sql()));
        }
        match self.prepared {
            None => all.push(self.query()),
            Some(value) => {
                all.push(format!("PREPARE p(BIGINT) AS {}", self.query()));
                all.push(format!("EXECUTE p({value})"));
                all.push("DEALLOCATE p".into());
                let at = all.len() - 2;
                return (all, at);
            }
        }
        let at = all.len() - 1;
        (all, at)
    }
}

fn best_sql(
    from: &str,
    spelling: Spelling,
    rank: bool,
    partition: &[usize],
    keys: &[Key],
    k: usize,
) -> String {
    let by = if partition.is_empty() {
        String::new()
    } else {
        format!("PARTITION BY {} ", list(partition))
    };
    let name = if rank { "rank" } else { "row_number" };
    let over = format!("{name}() OVER ({by}ORDER BY {})", keys_sql(keys));
    match spelling {
        Spelling::Subquery => format!("SELECT * FROM (SELECT *, {over} AS n {from}) AS q WHERE n <= {k}"),
        Spelling::Qualify => format!("SELECT *, {over} AS n {from} QUALIFY n <= {k}"),
        Spelling::DistinctOn => {
            format!(
                "SELECT DISTINCT ON ({}) * {from} ORDER BY {}, {}",
                list(partition),
                list(partition),
                keys_sql(keys)
            )
        }
    }
}
