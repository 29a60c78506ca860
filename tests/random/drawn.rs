//! Random statements over a table.

mod calls;

use crate::draw::Draw;
use crate::nearest::{Distance, Neighbours};
use crate::statement::*;
use crate::table::{F, G, H, ID, K, S, Table, X, Y};
use calls::fixed_width;

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
    // SUMMARIZE is a statement, and cannot be prepared; nor can the views that `nearest` reads.
    let can_be_prepared = match &shape {
        Shape::Summary { .. } => false,
        Shape::Neighbours(neighbours) => !neighbours.is_function(),
        _ => true,
    };
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
