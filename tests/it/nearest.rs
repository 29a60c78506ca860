//! `ORDER BY` a distance with `LIMIT`: against DataFusion's own plan and against a plain loop.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, Float64Array, Int64Array, ListArray,
    RecordBatch,
};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema};
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::MemTable;
use datafusion::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use quantiles_testing::{query, session, texts};

/// Components of a vector.
pub(super) const DIMENSION: usize = 11;

/// The names of DataFusion's functions, and whether the nearest row is the one of the greatest value.
const FUNCTIONS: [(&str, bool); 5] = [
    ("array_distance", false),
    ("list_distance", false),
    ("cosine_distance", false),
    ("inner_product", true),
    ("dot_product", true),
];

/// How the vectors of a table are drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    pub(super) rows: usize,
    /// Few different components, so that many distances are equal.
    pub(super) few: bool,
    /// NULL vectors, vectors with a NULL, and components that are no finite numbers.
    pub(super) special: bool,
}

fn component(rng: &mut SmallRng, drawn: Drawn) -> Option<f64> {
    match rng.random_range(0..200) {
        0 if drawn.special => None,
        1 if drawn.special => Some(f64::NAN),
        2 if drawn.special => Some(-f64::NAN),
        3 if drawn.special => Some(f64::INFINITY),
        4 if drawn.special => Some(f64::NEG_INFINITY),
        _ if drawn.few => Some(f64::from(rng.random_range(-1..2))),
        _ => Some(rng.random_range(-1.0..1.0)),
    }
}

/// The columns `id`, `g` and `v` of some rows; `v` are vectors of `item`, of fixed size or not.
pub(super) fn batch(
    rng: &mut SmallRng,
    first: usize,
    rows: usize,
    drawn: Drawn,
    item: &DataType,
    fixed: bool,
) -> RecordBatch {
    let components: Float64Array = (0..rows * DIMENSION).map(|_| component(rng, drawn)).collect();
    let values = cast(&components, item).unwrap();
    let field = Arc::new(Field::new("item", item.clone(), true));
    let nulls = drawn
        .special
        .then(|| NullBuffer::from_iter((0..rows).map(|_| rng.random_range(0..9) > 0)));
    let v: ArrayRef = if fixed {
        Arc::new(FixedSizeListArray::new(field, DIMENSION as i32, values, nulls))
    } else {
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(DIMENSION, rows));
        Arc::new(ListArray::new(field, offsets, values, nulls))
    };
    let id: Int64Array = (first..first + rows).map(|id| Some(id as i64)).collect();
    let g: Int64Array = (first..first + rows).map(|id| Some(id as i64 % 7)).collect();
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("g", DataType::Int64, true),
        Field::new("v", v.data_type().clone(), true),
    ]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(id), Arc::new(g), v]).unwrap()
}

/// A table of four partitions, in batches of different lengths.
pub(super) fn table(rng: &mut SmallRng, drawn: Drawn, item: &DataType, fixed: bool) -> Arc<MemTable> {
    let mut partitions = vec![Vec::new(); 4];
    let (mut first, mut turn) = (0, 0);
    loop {
        let rows = rng.random_range(0..500).min(drawn.rows - first);
        partitions[turn % 4].push(batch(rng, first, rows, drawn, item, fixed));
        (first, turn) = (first + rows, turn + 1);
        if first == drawn.rows {
            break;
        }
    }
    let schema = partitions[0][0].schema();
    Arc::new(MemTable::try_new(schema, partitions).unwrap())
}

/// A session of this crate and one of DataFusion, over the same table `t`.
pub(super) fn sessions(table: &Arc<MemTable>) -> [SessionContext; 2] {
    let config = || {
        SessionConfig::new()
            .with_target_partitions(4)
            .with_batch_size(128)
    };
    let theirs = SessionContext::new_with_config(config());
    let ours = SessionContext::new_with_config(config());
    datafusion_quantiles::register_all(&ours).unwrap();
    [ours, theirs].map(|ctx| {
        ctx.register_table("t", Arc::clone(table) as _).unwrap();
        ctx
    })
}

fn query_vector(rng: &mut SmallRng) -> String {
    let components = (0..DIMENSION).map(|_| format!("{:.3}", rng.random_range(-1.0..1.0)));
    format!("[{}]", components.collect::<Vec<_>>().join(", "))
}

/// The bits of the distances of an answer, and the ids; NaNs of every kind keep their bits.
async fn answer(ctx: &SessionContext, sql: &str) -> Result<Vec<(i64, Option<u64>)>> {
    let mut rows = Vec::new();
    for batch in query(ctx, sql).await? {
        let (id, d) = (
            batch.column(0).as_primitive::<Int64Type>(),
            batch.column(1).as_primitive::<Float64Type>(),
        );
        rows.extend((0..batch.num_rows()).map(|row| {
            let d = d.is_valid(row).then(|| d.value(row).to_bits());
            (id.value(row), d)
        }));
    }
    Ok(rows)
}

/// The name of the operator and of the function that run, in the plan of a statement.
async fn runs_fused(ctx: &SessionContext, sql: &str) -> bool {
    let plan = texts(&query(ctx, &format!("EXPLAIN {sql}")).await.unwrap()).join("\n");
    plan.contains("SortLimitExec") && plan.contains("estimates=true")
}

/// Every function, direction and place of NULLs, over every type, with and without a condition: the same distances as DataFusion's own plan,
/// to the bit, and each with an id that has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distances_are_those_of_datafusion() {
    let mut rng = SmallRng::seed_from_u64(11);
    for item in [DataType::Float16, DataType::Float32, DataType::Float64] {
        for fixed in [true, false] {
            for (few, special) in [(false, false), (true, false), (false, true), (true, true)] {
                let rows = 3000;
                let drawn = Drawn { rows, few, special };
                let [ours, theirs] = sessions(&table(&mut rng, drawn, &item, fixed));
                for (function, greatest) in FUNCTIONS {
                    let q = query_vector(&mut rng);
                    let order = ["", " DESC", " NULLS FIRST", " DESC NULLS LAST"][rng.random_range(0..4)];
                    let best = if greatest { " DESC NULLS LAST" } else { "" };
                    for order in [best, order] {
                        let filter = ["", "WHERE g <> 3"][rng.random_range(0..2)];
                        let (k, offset) = (rng.random_range(1..40), rng.random_range(0..3));
                        let all = format!("SELECT id, {function}(v, {q}) AS d FROM t {filter}");
                        let sql = format!("{all} ORDER BY d{order} LIMIT {k} OFFSET {offset}");
                        let got = answer(&ours, &sql).await.unwrap();
                        let expected = answer(&theirs, &sql).await.unwrap();
                        let bits = |rows: &[(i64, Option<u64>)]| -> Vec<Option<u64>> {
                            rows.iter().map(|(_, d)| *d).collect()
                        };
                        assert_eq!(bits(&got), bits(&expected), "{item} {fixed} {drawn:?} {sql}");
                        let all = answer(&theirs, &all).await.unwrap();
                        assert!(got.iter().all(|row| all.contains(row)), "{sql}");
                        assert!(runs_fused(&ours, &sql).await, "{sql}");
                        assert!(!runs_fused(&theirs, &sql).await, "{sql}");
                    }
                }
            }
        }
    }
}

/// Ties by id, against a plain loop over all rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ties_are_ordered_by_what_follows() {
    let mut rng = SmallRng::seed_from_u64(12);
    let drawn = Drawn {
        rows: 5000,
        few: true,
        special: false,
    };
    let table = table(&mut rng, drawn, &DataType::Float32, true);
    let [ours, _] = sessions(&table);
    let q: Vec<f64> = (0..DIMENSION).map(|_| rng.random_range(-1.0..1.0)).collect();
    let mut expected: Vec<(f64, i64)> = Vec::new();
    for batch in query(&ours, "SELECT id, v FROM t").await.unwrap() {
        let vectors = batch.column(1).as_fixed_size_list();
        let components: &Float32Array = vectors.values().as_primitive();
        let ids = batch.column(0).as_primitive::<Int64Type>();
        for (row, v) in components.values().chunks(DIMENSION).enumerate() {
            let squares = v.iter().zip(&q).map(|(v, q)| (f64::from(*v) - q).powi(2));
            expected.push((squares.sum::<f64>().sqrt(), ids.value(row)));
        }
    }
    expected.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let expected: Vec<(i64, Option<u64>)> = expected.iter().map(|(d, id)| (*id, Some(d.to_bits()))).collect();
    let q = format!("{q:?}");
    for k in [1, 10, 100, 6000] {
        for (id, by) in [("id", "d, id"), ("CAST(id AS INT) AS i", "d, i")] {
            let sql = format!(
                "SELECT id, d FROM (SELECT id, {id}, array_distance(v, {q}) AS d FROM t) ORDER BY {by} LIMIT {k}"
            );
            let sql = sql.replace("SELECT id, id,", "SELECT id,");
            let got = answer(&ours, &sql).await.unwrap();
            assert_eq!(got, expected[..k.min(expected.len())], "{sql}");
        }
    }
}

/// What else may be written, each beside what it means.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_spellings_mean_the_same() {
    let mut rng = SmallRng::seed_from_u64(13);
    let drawn = Drawn {
        rows: 2000,
        few: false,
        special: false,
    };
    let [ours, theirs] = sessions(&table(&mut rng, drawn, &DataType::Float32, true));
    let q = query_vector(&mut rng);
    let whole = "[1, 0, -1, 2, 0, 0, 3, 0, 1, 1, 0]";
    for (sql, is_fused) in [
        (format!("SELECT id FROM t ORDER BY array_distance(v, {q}), id LIMIT 5"), false),
        (format!("SELECT id FROM t ORDER BY array_distance(v, {q}), g LIMIT 1"), false),
        (format!("SELECT id FROM t ORDER BY array_distance(v, {q}) LIMIT 5"), true),
        (format!("SELECT id FROM t ORDER BY array_distance({q}, v) LIMIT 5"), true),
        (format!("SELECT *, array_distance(v, {q}) AS d FROM t ORDER BY d LIMIT 5"), true),
        (format!("SELECT id, array_distance(v, {q}) AS d, cosine_distance(v, {q}) AS c FROM t ORDER BY d LIMIT 5"), false),
        (format!("SELECT id FROM t ORDER BY -inner_product(v, {q}) LIMIT 5"), true),
        (format!("SELECT id FROM t ORDER BY array_distance(v, make_array{}) LIMIT 5", q.replace('[', "(").replace(']', ")")), true),
        (format!("SELECT id FROM t ORDER BY array_distance(v, {whole}) LIMIT 5"), true),
        (format!("SELECT id FROM t ORDER BY array_distance(v, arrow_cast({q}, 'FixedSizeList(11, Float32)')) LIMIT 5"), true),
        (format!("SELECT id FROM (SELECT * FROM t WHERE g > 2) ORDER BY cosine_distance(v, {q}) LIMIT 5"), true),
        (format!("SELECT t.id FROM t JOIN t AS u ON t.id = u.id + 1 ORDER BY array_distance(t.v, {q}) LIMIT 5"), true),
        (format!("SELECT id FROM t WHERE array_distance(v, {q}) < 2.2 ORDER BY array_distance(v, {q}) LIMIT 5"), false),
        (format!("SELECT id FROM t ORDER BY array_distance(v, {q}) LIMIT 0"), false),
        (format!("SELECT id FROM t ORDER BY array_distance(v, {q}), id LIMIT 5000"), false),
        // The query differs from row to row.
        ("SELECT t.id FROM t, (SELECT id, v FROM t WHERE id = 3) AS u ORDER BY array_distance(t.v, u.v), t.id LIMIT 5".to_owned(), false),
        ("SELECT id FROM t ORDER BY array_distance(v, (SELECT v FROM t WHERE id = 3)), id LIMIT 5".to_owned(), false),
        (format!("SELECT g, min(array_distance(v, {q})) FROM t GROUP BY g ORDER BY g"), false),
        (format!("SELECT id, array_distance(v, {q}) AS d FROM t WHERE id < 40 ORDER BY id"), false),
    ] {
        // DataFusion does not plan an order by the negative of its function.
        let reference = sql.replace(&format!("-inner_product(v, {q})"), &format!("inner_product(v, {q}) DESC"));
        let got = texts(&query(&ours, &sql).await.unwrap());
        assert_eq!(got, texts(&query(&theirs, &reference).await.unwrap()), "{sql}");
        if is_fused {
            assert!(runs_fused(&ours, &sql).await, "{sql}");
        }
    }
}

/// A parameter, bound when the statement runs.
#[tokio::test]
async fn queries_may_be_parameters() {
    let mut rng = SmallRng::seed_from_u64(14);
    let drawn = Drawn {
        rows: 700,
        few: false,
        special: false,
    };
    let [ours, theirs] = sessions(&table(&mut rng, drawn, &DataType::Float32, true));
    let components: Vec<ScalarValue> = (0..DIMENSION)
        .map(|_| ScalarValue::from(rng.random_range(-1.0..1.0)))
        .collect();
    let list = ScalarValue::List(ScalarValue::new_list(&components, &DataType::Float64, true));
    let mut found = Vec::new();
    for ctx in [&ours, &theirs] {
        let plan = ctx
            .sql("SELECT id FROM t ORDER BY array_distance(v, $1) LIMIT 5")
            .await
            .unwrap();
        let bound = plan.with_param_values(vec![list.clone()]).unwrap();
        found.push(texts(&bound.collect().await.unwrap()));
    }
    assert_eq!(found[0], found[1]);
    for ctx in [&ours, &theirs] {
        query(
            ctx,
            "PREPARE near AS SELECT id FROM t ORDER BY array_distance(v, $1) LIMIT 5",
        )
        .await
        .unwrap();
    }
    let q = query_vector(&mut rng);
    let run = format!("EXECUTE near({q})");
    let [got, expected] = [&ours, &theirs].map(|ctx| async { texts(&query(ctx, &run).await.unwrap()) });
    assert_eq!(got.await, expected.await);
}

/// Vectors of another length are DataFusion's error, wherever the row would have been.
#[tokio::test]
async fn vectors_of_another_length_are_errors() {
    for ctx in [session(2), SessionContext::new()] {
        query(&ctx, "CREATE TABLE u AS VALUES (1, arrow_cast([1.0, 2.0], 'List(Float32)')), (2, arrow_cast([100.0], 'List(Float32)'))")
            .await
            .unwrap();
        query(&ctx, "CREATE TABLE w AS SELECT column1 AS id, arrow_cast([1.0, 2.0], 'FixedSizeList(2, Float32)') AS v FROM (VALUES (1), (2))")
            .await
            .unwrap();
        for (sql, message) in [
            (
                "SELECT column1 FROM u ORDER BY array_distance(column2, [1.0, 2.0]) LIMIT 1",
                "Both arrays must have the same length",
            ),
            (
                "SELECT column1 FROM u ORDER BY cosine_distance(column2, [1.0, 2.0]) LIMIT 1",
                "to have the same length, got 1 and 2",
            ),
            (
                "SELECT id FROM w ORDER BY array_distance(v, [1.0]) LIMIT 1",
                "Both arrays must have the same length",
            ),
            (
                "SELECT id FROM w ORDER BY inner_product(v, [1.0, 2.0, 3.0]) DESC LIMIT 1",
                "to have the same length, got 2 and 3",
            ),
        ] {
            let error = query(&ctx, sql).await.unwrap_err().strip_backtrace();
            assert!(error.contains(message), "{sql}: {error}");
        }
        // Left out by a condition, it is none.
        let sql =
            "SELECT column1 FROM u WHERE column1 = 1 ORDER BY array_distance(column2, [1.0, 2.0]) LIMIT 1";
        assert_eq!(texts(&query(&ctx, sql).await.unwrap()), ["1"]);
    }
}

/// pgvector's operators, in the dialects that have them.
#[tokio::test]
async fn pgvector_operators_are_functions() {
    let mut rng = SmallRng::seed_from_u64(15);
    let drawn = Drawn {
        rows: 900,
        few: false,
        special: false,
    };
    let [ours, theirs] = sessions(&table(&mut rng, drawn, &DataType::Float32, true));
    let q = query_vector(&mut rng);
    let generic = format!("SELECT id FROM t ORDER BY v <-> {q} LIMIT 3");
    assert!(query(&ours, &generic).await.is_err());
    query(&ours, "SET datafusion.sql_parser.dialect = 'postgres'")
        .await
        .unwrap();
    for (operator, function) in [
        (format!("v <-> {q}"), format!("array_distance(v, {q})")),
        (format!("v <=> {q}"), format!("cosine_distance(v, {q})")),
        (format!("v <#> {q}"), format!("inner_product(v, {q}) DESC")),
        (format!("{q} <-> v"), format!("array_distance({q}, v)")),
        // Text has the precision of the column.
        (
            format!("v <-> '{q}'"),
            format!("array_distance(v, arrow_cast({q}, 'List(Float32)'))"),
        ),
        (
            format!("'{q}' <=> v"),
            format!("cosine_distance(v, arrow_cast({q}, 'List(Float32)'))"),
        ),
    ] {
        let sql = |by: &str| format!("SELECT id FROM t ORDER BY {by} LIMIT 7");
        let (got, expected) = (
            query(&ours, &sql(&operator)).await,
            query(&theirs, &sql(&function)).await,
        );
        assert_eq!(texts(&got.unwrap()), texts(&expected.unwrap()), "{operator}");
        assert!(runs_fused(&ours, &sql(&operator)).await, "{operator}");
    }
    // Between anything but vectors the operator means what it did.
    let rows = query(&ours, "SELECT 1 <=> 1, 1 <=> NULL").await.unwrap();
    assert_eq!(texts(&rows), ["true | false"]);
    let error = query(&ours, "SELECT v <-> '[1, x]' FROM t")
        .await
        .unwrap_err()
        .strip_backtrace();
    assert!(
        error.contains("\"[1, x]\" is no vector: write '[1, 2, 3]'"),
        "{error}"
    );
    let parameter = "SELECT id FROM t ORDER BY v <-> $1 LIMIT 3";
    let list = ScalarValue::List(ScalarValue::new_list(
        &vec![ScalarValue::from(0.5); DIMENSION],
        &DataType::Float64,
        true,
    ));
    let bound = ours
        .sql(parameter)
        .await
        .unwrap()
        .with_param_values(vec![list])
        .unwrap();
    assert_eq!(
        bound
            .collect()
            .await
            .unwrap()
            .iter()
            .map(RecordBatch::num_rows)
            .sum::<usize>(),
        3
    );
}
