//! Random statements over a table.

use datafusion::arrow::datatypes::DataType;

use crate::draw::Draw;
use crate::in_order::{Asked, NUMBERS};
use crate::nearest::{Distance, Neighbours};
use crate::statement::*;
use crate::table::{F, G, H, ID, K, S, Table, X, Y};

/// What a statement may use.
struct Scope<'a> {
    draw: &'a mut Draw,
    table: &'a Table,
    joined: bool,
}

/// A random statement.
pub(crate) fn statement(draw: &mut Draw, table: &Table) -> Statement {
    let mut scope = Scope {
        draw,
        table,
        joined: false,
    };
    let kind = scope.draw.below(20);
    let nearest = scope.nearest();
    let from = if nearest.is_some() || (12..16).contains(&kind) {
        scope.plain_from()
    } else {
        scope.from()
    };
    scope.joined = matches!(from, From::Join { .. });
    let shape = nearest.unwrap_or_else(|| scope.shape(kind));
    let mut filter = scope.draw.chance(25).then(|| scope.pred(2));
    if matches!(shape, Shape::Window { .. }) && table.rows.len() > 300 {
        filter = Some(Pred::Compare(ID, "<", Some(300)));
    }
    // SUMMARIZE is a statement, and cannot be prepared.
    let can_be_prepared = !matches!(shape, Shape::Summary { .. });
    let prepared = (scope.draw.chance(8) && can_be_prepared).then(|| scope.draw.between(0, 5));
    Statement {
        from,
        filter,
        prepared,
        shape,
    }
}

impl Scope<'_> {
    /// What is asked, by a number below 20.
    fn shape(&mut self, kind: usize) -> Shape {
        match kind {
            0..=11 => self.aggregate(),
            12..=13 => self.window(),
            14..=15 => self.first(),
            16..=18 => self.best(),
            _ if self.draw.chance(40) => self.merged(),
            _ if self.draw.chance(60) => self.summary(),
            _ => Shape::Above { q: self.q() },
        }
    }

    /// A source whose rows have ids of their own.
    fn plain_from(&mut self) -> From {
        match self.draw.below(6) {
            0 => From::Subquery(self.pred(1)),
            1 => From::View(self.pred(1)),
            _ => From::Table,
        }
    }

    fn from(&mut self) -> From {
        match self.draw.below(12) {
            0 => From::Union(self.pred(1), self.pred(1)),
            1 => From::Join {
                left: self.draw.chance(50),
                greater: self.draw.chance(50),
            },
            2 if self.draw.chance(50) => From::Exists {
                not: self.draw.chance(50),
            },
            _ => self.plain_from(),
        }
    }

    fn whole_number(&mut self) -> usize {
        self.draw.pick(&[ID, H, K, K, K])
    }

    fn pred(&mut self, depth: usize) -> Pred {
        let column = self.whole_number();
        let op = self.draw.pick(&["<", "<=", ">", ">=", "=", "<>"]);
        let small = self.draw.between(-1, 14);
        match self.draw.below(if depth > 0 { 12 } else { 8 }) {
            0..=2 => Pred::Compare(column, op, Some(small)),
            3 => Pred::Compare(column, op, (!self.draw.chance(15)).then_some(small)),
            4 => Pred::Float(op, self.draw.pick(&[0.5, -2.0, 3.25, 0.0, -0.0])),
            5 => Pred::Text(
                op,
                self.draw
                    .pick(&["k", "a common prefix of some length 7", "zz", "0"]),
            ),
            6 => {
                let null = self.draw.chance(20);
                let list = (0..3)
                    .map(|i| (i > 0 || !null).then(|| self.draw.between(0, 9)))
                    .collect();
                Pred::In(column, list, self.draw.chance(40))
            }
            7 => Pred::Between(column, small - 3, small + 3),
            8 => Pred::IsNull(self.draw.pick(&[G, K, F, X]), self.draw.chance(50)),
            9 => Pred::And(self.pred(depth - 1).into(), self.pred(depth - 1).into()),
            10 => Pred::Or(self.pred(depth - 1).into(), self.pred(depth - 1).into()),
            _ => Pred::Not(self.pred(depth - 1).into()),
        }
    }

    fn column(&mut self) -> usize {
        if self.joined && self.draw.chance(20) {
            return W;
        }
        self.draw.pick(&[X, X, X, Y, Y, F, K, S, ID])
    }

    fn expr(&mut self) -> Expr {
        let column = self.column();
        match self.draw.below(12) {
            0 => Expr::Plus(self.whole_number(), self.draw.between(-5, 1000)),
            1 => Expr::Case(self.pred(1), column),
            _ => Expr::Column(column),
        }
    }

    fn q(&mut self) -> Q {
        let (num, den) = match self.draw.below(3) {
            0 => (self.draw.below(1001) as u64, 1000),
            1 => (self.draw.below(101) as u64, 100),
            _ => self.draw.pick(&[
                (0, 1),
                (1, 1),
                (1, 2),
                (1, 4),
                (1, 10),
                (7, 100),
                (9, 10),
                (5, 100_000),
            ]),
        };
        let text = match (num, den) {
            (0, _) => "0".into(),
            (num, den) if num == den => "1".into(),
            _ => format!("{}", num as f64 / den as f64),
        };
        Q {
            num,
            den,
            text: if text.contains('e') {
                "0.00005".into()
            } else {
                text
            },
        }
    }

    fn call(&mut self, grouped: bool) -> Call {
        let x = self.expr();
        let list = self.draw.chance(40);
        let count = match (list, self.draw.below(10)) {
            (false, _) => 1,
            (true, 0) => 0,
            (true, 1) => 40,
            _ => 1 + self.draw.below(4),
        };
        let qs: Vec<Q> = (0..count).map(|_| self.q()).collect();
        let within = self.draw.chance(30).then(|| self.draw.chance(50));
        let distinct = within.is_none() && self.draw.chance(12);
        let filter = self.draw.chance(30).then(|| self.pred(2));
        let mut call = Call {
            func: Func::Plain("count(*)"),
            v: self.expr(),
            x,
            qs,
            list,
            distinct,
            filter,
            weight: None,
        };
        let fixed = fixed_width(&call.x.data_type(self.table));
        match self.draw.below(26) {
            20..=21 => self.rank(&mut call, within),
            22 => self.iqr(&mut call),
            23..=25 => self.in_order(&mut call),
            0..=6 => {
                call.func = self.quantile(&call.x, within);
                self.weigh(&mut call);
            }
            7..=11 => self.top(&mut call),
            12 => {
                let name = self.draw.pick(&["approx_percentile_gk", "percentile_approx"]);
                call.func = Func::Gk {
                    name,
                    accuracy: self.accuracy(),
                    within,
                };
            }
            13 if fixed => {
                call.func = Func::GkBounds {
                    accuracy: self.accuracy(),
                };
                call.distinct = false;
            }
            14 => {
                call.func = Func::Sample {
                    buckets: self.draw.pick(&[2, 4, 64, 1024]),
                    within,
                }
            }
            15 if fixed && !grouped => {
                call.func = Func::SampleBounds {
                    buckets: self.draw.pick(&[2, 4, 64, 1024]),
                };
                call.distinct = false;
            }
            16 if fixed => self.sketch(&mut call),
            17 => self.builtin(&mut call, within),
            _ => self.plain(&mut call),
        }
        call
    }

    fn accuracy(&mut self) -> u64 {
        self.draw.pick(&[2, 4, 20, 100, 10_000])
    }

    fn quantile(&mut self, x: &Expr, within: Option<bool>) -> Func {
        let between = interpolates(&x.data_type(self.table));
        let methods = [
            "",
            "disc",
            "inverted_cdf",
            "lower",
            "higher",
            "nearest",
            "closest_observation",
            "linear",
            "cont",
            "midpoint",
            "averaged_inverted_cdf",
            "interpolated_inverted_cdf",
            "hazen",
            "weibull",
            "median_unbiased",
            "normal_unbiased",
        ];
        let number = is_number(&x.data_type(self.table));
        let clickhouse = [
            "quantile_exact",
            "quantile_exact_low",
            "quantile_exact_high",
            "quantile_exact_weighted",
            "quantile_exact_inclusive",
            "quantile_exact_exclusive",
        ];
        match self.draw.below(11) {
            4 => Func::Quantile {
                name: self.draw.pick(&clickhouse[..if between { 6 } else { 4 }]),
                method: "",
                within,
            },
            3 if number => Func::Quantile {
                name: "percentile",
                method: "",
                within,
            },
            0 => Func::Quantile {
                name: "percentile_disc",
                method: "",
                within,
            },
            1 => Func::Quantile {
                name: "quantile_disc",
                method: "",
                within,
            },
            2 if between => Func::Quantile {
                name: "quantile_cont",
                method: "",
                within,
            },
            _ => {
                let method = self
                    .draw
                    .pick(&methods[..if between { methods.len() } else { 7 }]);
                Func::Quantile {
                    name: "exact_quantiles",
                    method,
                    within,
                }
            }
        }
    }

    /// Gives rows weights, at times.
    fn weigh(&mut self, call: &mut Call) {
        let is_weighted = match &call.func {
            Func::Quantile { name, .. } if name.starts_with("quantile_exact") => name.ends_with("weighted"),
            _ => self.draw.chance(35),
        };
        if is_weighted {
            call.distinct = false;
            call.weight = Some(match self.draw.below(4) {
                1 => Expr::Decimal(H),
                0 => Expr::Plus(H, self.draw.between(0, 3)),
                _ => Expr::Column(H),
            });
        }
    }

    fn top(&mut self, call: &mut Call) {
        let k = self.draw.pick(&[1, 2, 3, 10, 100]);
        call.func = match self.draw.below(3) {
            0 => Func::Top {
                name: "topk_by",
                k: Some(k),
                asc: self.draw.chance(50).then(|| self.draw.chance(50)),
            },
            1 => Func::Top {
                name: self.draw.pick(&["max_by", "max_by", "arg_max"]),
                k: self.draw.chance(50).then_some(k),
                asc: None,
            },
            _ => Func::Top {
                name: self.draw.pick(&["min_by", "min_by", "arg_min"]),
                k: self.draw.chance(50).then_some(k),
                asc: None,
            },
        };
    }

    fn sketch(&mut self, call: &mut Call) {
        call.distinct = false;
        call.list = false;
        call.qs = vec![self.q()];
        let accuracy = self.accuracy();
        call.func = match self.draw.chance(50) {
            true => Func::Sketch { accuracy },
            false => {
                call.x = Expr::Column(K);
                Func::SketchRank {
                    accuracy,
                    at: self.draw.between(-1, 14),
                }
            }
        };
    }

    fn rank(&mut self, call: &mut Call, within: Option<bool>) {
        let name = self.draw.pick(&[
            "exact_rank",
            "exact_cdf",
            "rank",
            "dense_rank",
            "percent_rank",
            "cume_dist",
        ]);
        let is_exact = name.starts_with("exact");
        let within = if is_exact {
            within
        } else {
            Some(self.draw.chance(50))
        };
        call.distinct &= is_exact;
        let data_type = call.x.data_type(self.table);
        let is_whole = data_type.is_integer();
        if !is_whole && !data_type.is_floating() && !data_type.is_string() {
            call.x = Expr::Column(K);
        }
        let data_type = call.x.data_type(self.table);
        let count = match (call.list, self.draw.below(10)) {
            (false, _) => 1,
            (true, 0) => 0,
            (true, 1) => 70,
            _ => 1 + self.draw.below(4),
        };
        let at: Vec<Option<Point>> = (0..count).map(|_| self.point(&data_type)).collect();
        call.func = Func::Rank {
            name,
            within,
            nulls_first: (!is_exact && self.draw.chance(50)).then(|| self.draw.chance(50)),
            at,
        };
    }

    fn iqr(&mut self, call: &mut Call) {
        let data_type = call.x.data_type(self.table);
        if !data_type.is_integer() && !data_type.is_floating() {
            call.x = Expr::Column(self.draw.pick(&[K, F]));
        }
        (call.list, call.qs) = (false, Vec::new());
        let methods = ["", "linear", "midpoint", "hazen", "weibull", "median_unbiased"];
        call.func = Func::Iqr {
            method: self.draw.pick(&methods),
        };
        self.weigh(call);
    }

    fn in_order(&mut self, call: &mut Call) {
        let names = [
            "mode",
            "top_values",
            "approx_top_k",
            "max",
            "min",
            "histogram",
            "mad",
            "trimmed_mean",
            "winsorized_mean",
            "count_distinct_exact",
        ];
        let name = self.draw.pick(&names);
        call.distinct &= !matches!(name, "mode" | "top_values" | "approx_top_k");
        (call.list, call.qs) = (false, Vec::new());
        let data_type = call.x.data_type(self.table);
        if NUMBERS.contains(&name) && !data_type.is_integer() && !data_type.is_floating() {
            call.x = Expr::Column(self.draw.pick(&[K, F]));
        }
        let kind = match name {
            "histogram" => self.draw.pick(&["", "equi-depth", "equi-width"]),
            _ => "",
        };
        if kind == "equi-width" {
            call.x = Expr::Column(K);
        }
        let k = match name {
            "trimmed_mean" | "winsorized_mean" => self.draw.pick(&[0, 1, 10, 25, 49]),
            _ => self.draw.pick(&[1, 2, 3, 10, 100]),
        };
        call.func = Func::InOrder(Asked { name, k, kind });
    }

    /// A constant to compare values of a type with.
    fn point(&mut self, data_type: &DataType) -> Option<Point> {
        let floats = [
            0.5,
            -2.0,
            3.25,
            0.0,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            -1e300,
            5e-324,
        ];
        let texts = ["k", "", "a common prefix of some length 7", "zz", "0"];
        if self.draw.chance(5) {
            return None;
        }
        Some(match data_type {
            text if text.is_string() => Point::Text(self.draw.pick(&texts)),
            float if float.is_floating() && self.draw.chance(60) => Point::Float(self.draw.pick(&floats)),
            _ => Point::Half(self.draw.between(-3, 40)),
        })
    }

    fn builtin(&mut self, call: &mut Call, within: Option<bool>) {
        let column = self.draw.pick(&[K, F, X]);
        let column = if builtin_type(&self.table.columns[column].data_type) {
            column
        } else {
            K
        };
        call.x = Expr::Column(column);
        call.list = false;
        let (num, den, text) = self.draw.pick(&[(1, 2, "0.5"), (1, 4, "0.25"), (7, 8, "0.875")]);
        call.qs = vec![Q {
            num,
            den,
            text: text.into(),
        }];
        let name = self.draw.pick(&["median", "percentile_cont"]);
        call.func = Func::Builtin {
            name,
            within: if name == "median" { None } else { within },
        };
    }

    fn plain(&mut self, call: &mut Call) {
        call.distinct = false;
        call.func = match self.draw.below(6) {
            0 => Func::Plain("count(*)"),
            1 => Func::Plain("count"),
            2 => Func::FirstValue {
                desc: self.draw.chance(50),
            },
            3 => Func::Plain("sum"),
            4 => Func::Plain("min"),
            _ => Func::Plain("max"),
        };
        if matches!(call.func, Func::Plain("sum" | "min" | "max")) {
            call.x = Expr::Column(self.whole_number());
        }
    }

    fn groups(&mut self) -> Vec<usize> {
        match self.draw.below(8) {
            0..=3 => vec![G],
            4 => vec![H],
            5 => vec![G, H],
            6 => vec![self.draw.pick(&[S, ID])],
            _ if self.draw.chance(50) => vec![self.draw.pick(&[X, X, F])],
            _ => vec![self.draw.pick(&[G, K]), S],
        }
    }

    fn aggregate(&mut self) -> Shape {
        let grouped = self.draw.chance(60);
        let groups = if grouped { self.groups() } else { Vec::new() };
        let rollup = grouped && self.draw.chance(6);
        let count = self.draw.pick(&[1, 1, 1, 2, 3]);
        let mut calls: Vec<Call> = (0..count).map(|_| self.call(grouped)).collect();
        if calls
            .iter()
            .any(|call| matches!(call.func, Func::SampleBounds { .. }))
        {
            // Bounds from a sample stand beside no aggregate that wants an order.
            calls.retain(|call| !matches!(call.func, Func::FirstValue { .. } | Func::Builtin { .. }));
        }
        let having = (grouped && self.draw.chance(12)).then(|| self.draw.between(0, 4));
        Shape::Aggregate {
            groups,
            rollup,
            calls,
            having,
        }
    }

    fn window(&mut self) -> Shape {
        let count = 1 + self.draw.below(2);
        let calls = (0..count).map(|_| {
            loop {
                let mut call = self.call(true);
                let desc = self.draw.chance(30);
                match &call.func {
                    Func::Quantile { .. } | Func::Builtin { .. } | Func::Gk { .. } => {}
                    Func::Rank { name, .. } if name.starts_with("exact") => {}
                    Func::Top { .. } | Func::Plain(_) | Func::Iqr { .. } | Func::InOrder(_) => {}
                    _ => continue,
                }
                // DataFusion has no DISTINCT of its own functions over frames that move.
                call.distinct &= !matches!(call.func, Func::Builtin { .. });
                let order = self.draw.chance(75).then_some(Key {
                    column: ID,
                    desc,
                    nulls_first: None,
                });
                let partition = self.draw.chance(50).then(|| self.draw.pick(&[G, H, S]));
                break (call, self.framed(partition, order));
            }
        });
        Shape::Window {
            calls: calls.collect(),
        }
    }

    fn framed(&mut self, partition: Option<usize>, mut order: Option<Key>) -> Window {
        let mut frame = None;
        if let (Some(key), true) = (&mut order, self.draw.chance(75)) {
            let unit = self.draw.pick(&["ROWS", "RANGE", "GROUPS"]);
            if unit != "ROWS" {
                key.column = K;
            }
            let mut ends = [self.draw.between(-4, 3), self.draw.between(-4, 3)];
            ends.sort();
            let end = |draw: &mut Draw, at| (!draw.chance(25)).then_some(at);
            frame = Some((unit, end(self.draw, ends[0]), end(self.draw, ends[1])));
        }
        Window {
            partition,
            order,
            frame,
        }
    }

    fn keys(&mut self) -> Vec<Key> {
        let mut columns = Vec::new();
        for _ in 0..self.draw.pick(&[1, 1, 2, 3]) {
            let column = self.draw.pick(&[X, Y, F, K, S, ID, G]);
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        let key = |column| Key {
            column,
            desc: self.draw.chance(50),
            nulls_first: self.draw.chance(40).then(|| self.draw.chance(50)),
        };
        columns.into_iter().map(key).collect()
    }

    fn first(&mut self) -> Shape {
        let limit = self.draw.pick(&[1, 2, 5, 20, 300, 5000]);
        let offset = if self.draw.chance(35) {
            self.draw.pick(&[1, 3, 30])
        } else {
            0
        };
        Shape::First {
            keys: self.keys(),
            limit,
            offset,
        }
    }

    /// Rows by a distance, at times, where the table has vectors.
    fn nearest(&mut self) -> Option<Shape> {
        let distance = Distance::draw(self.draw, self.table)?;
        if !self.draw.chance(35) {
            return None;
        }
        if self.draw.chance(40)
            && let Some(neighbours) = Neighbours::draw(self.draw, self.table, &distance)
        {
            return Some(Shape::Neighbours(neighbours));
        }
        let then = if self.draw.chance(40) {
            self.keys()
        } else {
            Vec::new()
        };
        Some(Shape::Nearest {
            distance,
            desc: self.draw.chance(35),
            nulls_first: self.draw.chance(40).then(|| self.draw.chance(50)),
            then,
            limit: self.draw.pick(&[0, 1, 2, 5, 20, 300, 5000]),
            offset: self.draw.pick(&[0, 0, 0, 1, 3, 30]),
        })
    }

    fn best(&mut self) -> Shape {
        let spelling = self
            .draw
            .pick(&[Spelling::Subquery, Spelling::Qualify, Spelling::DistinctOn]);
        let mut partition = self.groups();
        if spelling != Spelling::DistinctOn && self.draw.chance(10) {
            partition.clear();
        }
        let mut keys = self.keys();
        keys.retain(|key| !partition.contains(&key.column));
        if keys.is_empty() {
            keys.push(Key {
                column: F,
                desc: true,
                nulls_first: None,
            });
        }
        let rank = self.draw.chance(40);
        Shape::Best {
            spelling,
            rank,
            partition,
            keys,
            k: self.draw.pick(&[1, 1, 2, 3, 10]),
        }
    }

    fn summary(&mut self) -> Shape {
        let mut columns = vec![ID, H, K, S];
        columns.retain(|_| self.draw.chance(60));
        if columns.is_empty() {
            columns.push(K);
        }
        Shape::Summary { columns }
    }

    fn merged(&mut self) -> Shape {
        let column = self.draw.pick(&[X, F, K]);
        let fixed = fixed_width(&self.table.columns[column].data_type);
        Shape::Merged {
            x: if fixed { column } else { K },
            accuracy: self.accuracy(),
            q: self.q(),
        }
    }
}

fn fixed_width(data_type: &DataType) -> bool {
    (data_type.primitive_width().is_some() || *data_type == DataType::Boolean)
        && !matches!(data_type, DataType::Decimal256(..))
}

/// Whether there are values between values.
fn interpolates(data_type: &DataType) -> bool {
    data_type.primitive_width().is_some() && !matches!(data_type, DataType::Interval(_))
        || *data_type == DataType::Boolean
}

/// What `percentile` takes.
fn is_number(data_type: &DataType) -> bool {
    let is_decimal = data_type.is_decimal() && !matches!(data_type, DataType::Decimal256(..));
    data_type.is_integer() || data_type.is_floating() || is_decimal
}

/// What DataFusion's `median` takes.
fn builtin_type(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_floating() || matches!(data_type, DataType::Decimal128(10, _))
}
