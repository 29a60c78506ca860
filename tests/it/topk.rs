//! `topk_by` and its other names against a sort by DataFusion, in a session that knows nothing of this crate.

use proptest::prelude::*;

use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::topk::{EXPRESSIONS, GROUPS, plain, table};
use quantiles_testing::*;

#[derive(Debug, Clone)]
struct Case {
    value: (&'static str, &'static str),
    key: (&'static str, &'static str),
    call: Call,
    group_by: &'static str,
    filter: bool,
    pattern: Pattern,
    groups: u64,
    len: usize,
    partitions: usize,
    batch: usize,
    nulls: bool,
    topk: bool,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
enum Call {
    TopkBy(usize, &'static str),
    Distinct(usize),
    MaxBy(usize),
    MinBy(usize),
    One(&'static str),
}

fn case() -> impl Strategy<Value = Case> {
    let k = || prop_oneof![4 => 1..6_usize, 2 => 6..60_usize, 1 => Just(5000_usize)];
    let call = prop_oneof![
        k().prop_map(|k| Call::TopkBy(k, "")),
        k().prop_map(|k| Call::TopkBy(k, "asc")),
        k().prop_map(|k| Call::TopkBy(k, "DESC")),
        k().prop_map(Call::Distinct),
        k().prop_map(Call::MaxBy),
        k().prop_map(Call::MinBy),
        prop_oneof![Just("max_by"), Just("min_by")].prop_map(Call::One),
    ];
    let expression = || proptest::sample::select(EXPRESSIONS.to_vec());
    let what = (
        expression(),
        expression(),
        call,
        proptest::sample::select(GROUPS.to_vec()),
        any::<bool>(),
    );
    let how = (
        proptest::sample::select(patterns::ALL.to_vec()),
        prop_oneof![Just(1_u64), 2..40_u64, Just(6000_u64)],
        prop_oneof![0..30_usize, 100..4000_usize, Just(20_000_usize)],
        1..5_usize,
        50..9000_usize,
    );
    (what, how, any::<[bool; 2]>(), any::<u64>()).prop_map(
        |(
            (value, key, call, group_by, filter),
            (pattern, groups, len, partitions, batch),
            [nulls, topk],
            seed,
        )| Case {
            value,
            key,
            call,
            group_by,
            filter,
            pattern,
            groups,
            len,
            partitions,
            batch,
            nulls,
            topk,
            seed,
        },
    )
}

impl Case {
    fn sql(&self) -> String {
        let (v, x) = (self.value.0, self.key.0);
        let call = match self.call {
            Call::TopkBy(k, "") => format!("topk_by({v}, {x}, {k})"),
            Call::TopkBy(k, direction) => format!("topk_by({v}, {x}, {k}, '{direction}')"),
            Call::Distinct(k) => format!("topk_by(DISTINCT {v}, {x}, {k})"),
            Call::MaxBy(k) => format!("max_by({v}, {x}, {k})"),
            Call::MinBy(k) => format!("min_by({v}, {x}, {k})"),
            Call::One(name) => format!("{name}({v}, {x})"),
        };
        let filter = if self.filter {
            " FILTER (WHERE id % 3 > 0)"
        } else {
            ""
        };
        match self.group_by {
            "" => format!("SELECT {call}{filter} FROM t"),
            group_by => format!("SELECT {group_by}, {call}{filter} FROM t GROUP BY {group_by}"),
        }
    }

    /// The same by numbering sorted rows.
    fn naive(&self) -> String {
        let (v, x, by_v, by_x) = (self.value.0, self.key.0, self.value.1, self.key.1);
        let (k, ascending, with_value, is_distinct) = match self.call {
            Call::TopkBy(k, direction) => (k, direction == "asc", false, false),
            Call::Distinct(k) => (k, false, false, true),
            Call::MaxBy(k) => (k, false, true, false),
            Call::MinBy(k) => (k, true, true, false),
            Call::One(name) => (1, name == "min_by", true, false),
        };
        let mut counts = format!("{x} IS NOT NULL");
        if with_value {
            counts += &format!(" AND {v} IS NOT NULL");
        }
        if self.filter {
            counts += " AND id % 3 > 0";
        }
        let direction = if ascending {
            "ASC NULLS LAST"
        } else {
            "DESC NULLS FIRST"
        };
        let groups = if self.group_by.is_empty() {
            "0"
        } else {
            self.group_by
        };
        let names: Vec<String> = (0..groups.split(", ").count()).map(|i| format!("g{i}")).collect();
        let named: Vec<String> = groups
            .split(", ")
            .zip(&names)
            .map(|(g, n)| format!("{g} AS {n}"))
            .collect();
        // Distinct NaNs are one value; others that differ in their bits alone stay apart.
        let v = if is_distinct && self.value.0 == "x" {
            by_v
        } else {
            v
        };
        let names = names.join(", ");
        let source = format!(
            "SELECT {}, {v} AS v, {by_v} AS by_v, {by_x} AS by_x, id, {counts} AS counts FROM t",
            named.join(", ")
        );
        // Rows that count stand first in their group; equal ones are numbered once if distinct.
        let number = if is_distinct { "dense_rank" } else { "row_number" };
        let tie = if is_distinct { ", v" } else { ", id" };
        let mut inner = format!(
            "SELECT *, {number}() OVER (PARTITION BY {names}, counts \
             ORDER BY by_x {direction}, by_v ASC NULLS LAST{tie} ROWS UNBOUNDED PRECEDING) AS rn \
             FROM ({source})"
        );
        if is_distinct {
            inner = format!(
                "SELECT *, row_number() OVER (PARTITION BY {names}, counts, rn ORDER BY id) AS copy FROM ({inner})"
            );
        }
        let copy = if is_distinct { " AND copy = 1" } else { "" };
        let answer = format!("array_agg(v ORDER BY rn) FILTER (WHERE counts AND rn <= {k}{copy})");
        let answer = match self.call {
            Call::One(_) => format!("({answer})[1]"),
            _ => answer,
        };
        match self.group_by {
            "" => format!("SELECT {answer} FROM ({inner})"),
            _ => format!("SELECT {names}, {answer} FROM ({inner}) GROUP BY {names}"),
        }
    }
}

async fn check(case: &Case) {
    let table = table(case.pattern, case.len, case.groups, case.nulls, case.seed);
    let ctx = session(case.partitions);
    register(&ctx, "t", &table, case.partitions, case.batch);
    query(&ctx, &format!("SET quantiles.topk = {}", case.topk))
        .await
        .unwrap();
    let (sql, naive) = (case.sql(), case.naive());
    let (found, expected) = (
        sorted_rows(&ctx, &sql).await,
        sorted_rows(&plain(&table), &naive).await,
    );
    assert_same(&found, &expected, &format!("{sql}\n{naive}\n{case:?}"));
    all_is_given_back(&ctx).await;
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_call_agrees_with_a_sort(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check(&case));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_arguments_are_planning_errors_that_name_them() {
    let ctx = session(2);
    let table = table(Pattern::Random, 10, 3, true, 1);
    register(&ctx, "t", &table, 1, 100);
    let cases = [
        (
            "topk_by(i, x, 0)",
            "topk_by: the number of rows must be a constant integer of at least 1, got 0",
        ),
        ("topk_by(i, x, -3)", "at least 1, got -3"),
        ("topk_by(i, x, n)", "constant integer of at least 1, got t.n"),
        ("topk_by(i, x, 2.5)", "got 2.5 of type Float64"),
        ("topk_by(i, x, NULL)", "got NULL of type Null"),
        ("topk_by(i, x, 'ten')", "got ten of type Utf8"),
        ("topk_by(i, x)", "topk_by takes 3 or 4 arguments"),
        (
            "topk_by(i, x, 1, 'up')",
            "topk_by: the direction must be a constant 'asc' or 'desc', got",
        ),
        (
            "topk_by(i, x, 1, s)",
            "topk_by: the direction must be a constant 'asc' or 'desc', got t.s",
        ),
        ("topk_by(i, x, 1, 'asc', 2)", "topk_by takes 3 or 4 arguments"),
        ("max_by(i)", "max_by takes 2 or 3 arguments"),
        (
            "min_by(i, x, 0)",
            "min_by: the number of rows must be a constant integer of at least 1, got 0",
        ),
        (
            "topk_by(i, INTERVAL '1 day', 2)",
            "topk_by: keys of type Interval(MonthDayNano) have no order",
        ),
        (
            "topk_by(i, x, 1 ORDER BY i)",
            "topk_by is ordered by its second argument: remove ORDER BY",
        ),
    ];
    for (call, message) in cases {
        for sql in [
            format!("SELECT {call} FROM t"),
            format!("EXPLAIN SELECT {call} FROM t"),
            format!("SELECT g, {call} FROM t WHERE false GROUP BY g"),
        ] {
            let said = error(&ctx, &sql).await;
            assert!(said.contains(message), "{sql}: {said}");
        }
    }
    let said = error(&ctx, "SELECT topk_by(i, x, 0) OVER (PARTITION BY g) FROM t").await;
    assert!(said.contains("at least 1, got 0"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_agree_with_a_join() {
    let frames = [
        (
            "ROWS BETWEEN 5 PRECEDING AND 2 FOLLOWING",
            "b.id BETWEEN a.id - 5 AND a.id + 2",
        ),
        ("ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", "b.id <= a.id"),
        (
            "ROWS BETWEEN 3 FOLLOWING AND 9 FOLLOWING",
            "b.id BETWEEN a.id + 3 AND a.id + 9",
        ),
        ("ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING", "true"),
    ];
    let calls = [
        ("topk_by", 3, "i", "few"),
        ("topk_by", 2, "s", "x"),
        ("max_by", 4, "few", "s"),
        ("min_by", 1, "n", "few"),
    ];
    let table = table(Pattern::FewDistinct, 150, 3, true, 5);
    let ctx = session(2);
    register(&ctx, "t", &table, 2, 20);
    for (frame, on) in frames {
        for (name, k, v, x) in calls {
            let windowed = format!("SELECT id, {name}({v}, {x}, {k}) OVER (ORDER BY id {frame}) FROM t");
            let joined = format!(
                "SELECT a.id, {name}(b.{v}, b.{x}, {k}) FROM t a LEFT JOIN t b ON {on} GROUP BY a.id"
            );
            assert_eq!(
                sorted_rows(&ctx, &windowed).await,
                sorted_rows(&ctx, &joined).await,
                "{windowed}"
            );
        }
    }
    let distinct = "SELECT id, topk_by(DISTINCT few, few % 2, 3) OVER (ORDER BY id ROWS 4 PRECEDING) FROM t";
    let joined = "SELECT a.id, topk_by(DISTINCT b.few, b.few % 2, 3) FROM t a JOIN t b \
                  ON b.id BETWEEN a.id - 4 AND a.id GROUP BY a.id";
    assert_eq!(sorted_rows(&ctx, distinct).await, sorted_rows(&ctx, joined).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_stand_beside_others_and_in_prepared_statements() {
    let table = table(Pattern::Random, 3000, 50, true, 3);
    let ctx = session(3);
    register(&ctx, "t", &table, 3, 500);
    let together = "SELECT g, topk_by(i, x, 3), count(*), exact_quantiles(x, 0.5), topk_by(i, s, 2, 'asc') FROM t GROUP BY g";
    let apart = "SELECT a.g, a.v, c.n, q.m, b.v FROM (SELECT g, topk_by(i, x, 3) v FROM t GROUP BY g) a \
         JOIN (SELECT g, topk_by(i, s, 2, 'asc') v FROM t GROUP BY g) b ON a.g IS NOT DISTINCT FROM b.g \
         JOIN (SELECT g, count(*) n FROM t GROUP BY g) c ON a.g IS NOT DISTINCT FROM c.g \
         JOIN (SELECT g, exact_quantiles(x, 0.5) m FROM t GROUP BY g) q ON a.g IS NOT DISTINCT FROM q.g";
    assert_eq!(sorted_rows(&ctx, together).await, sorted_rows(&ctx, apart).await);
    query(&ctx, "PREPARE best AS SELECT topk_by(id, i, $1) FROM t")
        .await
        .unwrap();
    assert_eq!(
        row(&ctx, "EXECUTE best(4)").await,
        row(&ctx, "SELECT topk_by(id, i, 4) FROM t").await
    );
    let said = error(&ctx, "EXECUTE best(0)").await;
    assert!(
        said.contains("topk_by: the number of rows must be a constant integer of at least 1, got 0"),
        "{said}"
    );
    assert_eq!(
        row(&ctx, "SELECT topk_by(g, i, 1 + 1), topk_by(g, i, 2) FROM t")
            .await
            .split(" | ")
            .collect::<Vec<_>>()
            .len(),
        2
    );
    assert_eq!(
        names(&ctx, "SELECT topk_by(i, x, 3, 'asc') FROM t").await,
        ["topk_by(t.i,t.x,Int64(3),Utf8(\"asc\"))"]
    );
    let sets = "SELECT g, flag, topk_by(id, i, 2) FROM t GROUP BY ROLLUP (g, flag)";
    let union = "SELECT g, flag, topk_by(id, i, 2) FROM t GROUP BY g, flag UNION ALL \
         SELECT g, NULL, topk_by(id, i, 2) FROM t GROUP BY g UNION ALL SELECT NULL, NULL, topk_by(id, i, 2) FROM t";
    assert_eq!(sorted_rows(&ctx, sets).await, sorted_rows(&ctx, union).await);
}
