//! Random calls of functions.

use datafusion::arrow::datatypes::DataType;

use super::Scope;
use crate::in_order::{Asked, NUMBERS};
use crate::statement::*;
use crate::table::{F, H, K, X};

impl Scope<'_> {
    pub(super) fn call(&mut self, grouped: bool) -> Call {
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
            by_suffix: false,
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
        let has_suffix = match &call.func {
            Func::Quantile { .. } | Func::Gk { .. } => true,
            Func::Rank { name, .. } => name.starts_with("exact"),
            _ => false,
        };
        call.by_suffix = has_suffix && self.draw.chance(25);
        call
    }

    pub(super) fn accuracy(&mut self) -> u64 {
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
}

/// Whether values of a type have keys of fixed width.
pub(super) fn fixed_width(data_type: &DataType) -> bool {
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
