//! Types without a fixed-width key against a naive sort: patterns, shapes of queries, partitions.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Decimal256Array, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray,
    Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray, UInt32Array,
    make_comparator,
};
use datafusion::arrow::compute::{SortOptions, cast, filter, take};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, i256};
use datafusion::common::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_quantiles::Method;
use datafusion_quantiles::compute::quantiles;
use proptest::prelude::*;

use crate::patterns::{self, Pattern};
use crate::support::{all_is_given_back, query, register, row, session};

/// How the words of a pattern become texts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Text {
    Digits,
    /// Behind a common prefix of 20 bytes.
    Prefixed,
    /// Behind one of two long prefixes, different at the end.
    Clusters,
    /// Zero bytes and empty texts.
    Zeros,
    /// Equal but for their lengths.
    Lengths,
}

pub(crate) const TEXTS: [Text; 5] = [
    Text::Digits,
    Text::Prefixed,
    Text::Clusters,
    Text::Zeros,
    Text::Lengths,
];

impl Text {
    fn of(self, word: i64) -> String {
        match self {
            Text::Digits => word.to_string(),
            Text::Prefixed => format!("twenty bytes of text{word:020}"),
            Text::Clusters => format!("{}{}{word}", word & 1, "x".repeat(700)),
            Text::Zeros => "\0".repeat(word.rem_euclid(30) as usize),
            Text::Lengths => "é".repeat(word.rem_euclid(50) as usize),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Utf8,
    LargeUtf8,
    Utf8View,
    Binary,
    LargeBinary,
    BinaryView,
    FixedSizeBinary,
    Decimal256,
    List,
    ListOfText,
    LargeList,
    FixedSizeList,
    Struct,
    Dictionary,
    DictionaryOfLists,
    ListOfDictionary,
}

pub(crate) const KINDS: [Kind; 16] = [
    Kind::Utf8,
    Kind::LargeUtf8,
    Kind::Utf8View,
    Kind::Binary,
    Kind::LargeBinary,
    Kind::BinaryView,
    Kind::FixedSizeBinary,
    Kind::Decimal256,
    Kind::List,
    Kind::ListOfText,
    Kind::LargeList,
    Kind::FixedSizeList,
    Kind::Struct,
    Kind::Dictionary,
    Kind::DictionaryOfLists,
    Kind::ListOfDictionary,
];

/// `len` lists of `items` in a row, of 0 to 3 of them each; every eleventh is NULL.
fn lists(items: ArrayRef, words: &[i64]) -> ListArray {
    let mut builder = Vec::new();
    let mut ends = vec![0];
    let mut end = 0;
    for word in words {
        let length = word.rem_euclid(4);
        builder.extend((0..length).map(|i| ((end + i) % items.len() as i64) as u32));
        end += length;
        ends.push(end as i32);
    }
    let items = take(&items, &UInt32Array::from(builder), None).unwrap();
    let field = Arc::new(Field::new_list_field(items.data_type().clone(), true));
    let valid = (0..words.len()).map(|i| i % 11 != 3).collect::<Vec<_>>();
    ListArray::new(
        field,
        datafusion::arrow::buffer::OffsetBuffer::new(ends.into()),
        items,
        Some(valid.into()),
    )
}

/// Values of a kind; every eleventh is NULL.
pub(crate) fn values(kind: Kind, text: Text, words: &[i64]) -> ArrayRef {
    let kept = |i: usize| i % 11 != 3;
    let texts = StringArray::from_iter(
        words
            .iter()
            .enumerate()
            .map(|(i, w)| kept(i).then(|| text.of(*w))),
    );
    let texts: ArrayRef = Arc::new(texts);
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let numbers = || -> ArrayRef {
        Arc::new(Int32Array::from_iter(
            words
                .iter()
                .enumerate()
                .map(|(i, w)| (i % 7 != 2).then_some(*w as i32 >> 20)),
        ))
    };
    let floats = || -> ArrayRef {
        let special = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY];
        Arc::new(Float64Array::from_iter_values(words.iter().enumerate().map(
            |(i, w)| match i % 5 {
                0 => special[i / 5 % 5],
                _ => *w as f64,
            },
        )))
    };
    match kind {
        Kind::Utf8 => texts,
        Kind::LargeUtf8 => cast(&texts, &DataType::LargeUtf8).unwrap(),
        Kind::Utf8View => cast(&texts, &DataType::Utf8View).unwrap(),
        Kind::Binary => cast(&texts, &DataType::Binary).unwrap(),
        Kind::LargeBinary => cast(&texts, &DataType::LargeBinary).unwrap(),
        Kind::BinaryView => cast(&texts, &DataType::BinaryView).unwrap(),
        Kind::Dictionary => cast(&texts, &dictionary).unwrap(),
        Kind::FixedSizeBinary => {
            let rows = words.iter().enumerate();
            let rows = rows.map(|(i, w)| kept(i).then(|| [[7; 12].as_slice(), &w.to_be_bytes()].concat()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(rows, 20).unwrap())
        }
        Kind::Decimal256 => {
            let wide = |w: i64| i256::from_i128(i128::from(w)) * i256::from_i128(10_i128.pow(30));
            let rows = words.iter().enumerate().map(|(i, w)| kept(i).then(|| wide(*w)));
            Arc::new(
                Decimal256Array::from_iter(rows)
                    .with_precision_and_scale(70, 30)
                    .unwrap(),
            )
        }
        Kind::List => Arc::new(lists(floats(), words)),
        Kind::ListOfText => Arc::new(lists(texts, words)),
        Kind::LargeList => {
            let list = lists(numbers(), words);
            cast(&list, &DataType::new_large_list(DataType::Int32, true)).unwrap()
        }
        Kind::FixedSizeList => {
            let pairs = words.iter().enumerate().map(|(i, w)| {
                kept(i).then(|| vec![Some(*w as i32 >> 28), (i % 3 != 1).then_some(*w as i32)])
            });
            Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
                pairs, 2,
            ))
        }
        Kind::Struct => {
            let fields = vec![
                Field::new("n", DataType::Int32, true),
                Field::new("f", DataType::Float64, true),
                Field::new("s", DataType::Utf8, true),
            ];
            let valid = (0..words.len()).map(kept).collect::<Vec<_>>();
            let columns = vec![numbers(), floats(), texts];
            Arc::new(StructArray::new(fields.into(), columns, Some(valid.into())))
        }
        Kind::DictionaryOfLists => {
            let distinct: ArrayRef = Arc::new(lists(numbers(), words));
            let keys = (0..words.len()).map(|i| kept(i).then_some((i * 7 % words.len()) as i32));
            Arc::new(DictionaryArray::<Int32Type>::new(keys.collect(), distinct))
        }
        Kind::ListOfDictionary => Arc::new(lists(cast(&texts, &dictionary).unwrap(), words)),
    }
}

/// The same values without dictionaries.
pub(crate) fn plain(kind: Kind, values: &ArrayRef) -> ArrayRef {
    match kind {
        Kind::Dictionary => cast(values, &DataType::Utf8).unwrap(),
        Kind::DictionaryOfLists => {
            let dictionary = values.as_dictionary::<Int32Type>();
            take(dictionary.values(), dictionary.keys(), None).unwrap()
        }
        Kind::ListOfDictionary => cast(values, &DataType::new_list(DataType::Utf8, true)).unwrap(),
        _ => Arc::clone(values),
    }
}

/// Indices of the values that are not NULL, by Arrow's comparison: not by our bytes, nor by the row format.
pub(crate) fn sorted(values: &ArrayRef, mut rows: Vec<u32>) -> Vec<u32> {
    let options = SortOptions {
        descending: false,
        nulls_first: false,
    };
    let compare = make_comparator(values, values, options).unwrap();
    rows.retain(|row| values.is_valid(*row as usize));
    rows.sort_by(|a, b| compare(*a as usize, *b as usize));
    rows
}

const PER_MILLE: [usize; 7] = [500, 0, 1000, 250, 10, 990, 333];

fn sql_list() -> String {
    let list = PER_MILLE.map(|q| (q as f64 / 1000.0).to_string());
    format!("[{}]", list.join(", "))
}

/// What `disc` answers over sorted rows; `None` without any.
fn expected(values: &ArrayRef, sorted: &[u32], descending: bool) -> Option<ArrayRef> {
    let n = sorted.len();
    let at = PER_MILLE.map(|q| (q * n).div_ceil(1000).max(1));
    let at = at.map(|rank| {
        if descending {
            n.checked_sub(rank)
        } else {
            Some(rank - 1)
        }
    });
    let rows: Vec<u32> = at
        .iter()
        .map(|at| sorted.get((*at)?).copied())
        .collect::<Option<_>>()?;
    Some(take(values, &UInt32Array::from(rows), None).unwrap())
}

#[derive(Debug, Clone)]
struct Case {
    kind: Kind,
    text: Text,
    pattern: Pattern,
    descending: bool,
    len: usize,
    partitions: usize,
    batch: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let what = (
        proptest::sample::select(KINDS.to_vec()),
        proptest::sample::select(TEXTS.to_vec()),
        proptest::sample::select(patterns::ALL.to_vec()),
    );
    let how = (
        prop_oneof![1..40_usize, 300..2000_usize, Just(20_000_usize)],
        1..5_usize,
        20..9000_usize,
    );
    (what, how, any::<bool>(), any::<u64>()).prop_map(
        |((kind, text, pattern), (len, partitions, batch), descending, seed)| Case {
            kind,
            text,
            pattern,
            descending,
            len,
            partitions,
            batch,
            seed,
        },
    )
}

/// The one list in row `row` of the last column.
pub(crate) fn list_at(batches: &[RecordBatch], row: usize) -> Option<ArrayRef> {
    let batch = &datafusion::arrow::compute::concat_batches(&batches[0].schema(), batches).unwrap();
    let list: &ListArray = batch.columns().last().unwrap().as_list();
    list.is_valid(row).then(|| list.value(row))
}

async fn check(case: &Case) {
    let words = case.pattern.words(case.len, case.seed);
    let values = values(case.kind, case.text, &words);
    let plain = plain(case.kind, &values);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..case.len as i64));
    let ctx = session(case.partitions);
    let columns = [("x", values.clone(), true), ("id", ids, true)];
    let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    register(&ctx, "t", &rows, case.partitions, case.batch);
    let direction = if case.descending { "DESC" } else { "ASC" };
    let call = |distinct: &str| {
        format!(
            "exact_quantiles({distinct}{}) WITHIN GROUP (ORDER BY x {direction})",
            sql_list()
        )
    };
    let all: Vec<u32> = (0..case.len as u32).collect();
    let thirds = |third: u32| {
        all.iter()
            .copied()
            .filter(|row| row % 3 == third)
            .collect::<Vec<_>>()
    };
    let expect = |rows: Vec<u32>| expected(&plain, &sorted(&plain, rows), case.descending);

    let session = &ctx;
    let one = |sql: String| async move {
        let batches = query(session, &sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error} {case:?}"));
        list_at(&batches, 0)
    };
    let whole = one(format!("SELECT {} FROM t", call(""))).await;
    same(&whole, &expect(all.clone()), "ungrouped", case);
    let filtered = one(format!("SELECT {} FILTER (WHERE id % 3 = 1) FROM t", call(""))).await;
    same(&filtered, &expect(thirds(1)), "filtered", case);

    let mut distinct = sorted(&plain, all.clone());
    let compare = make_comparator(&plain, &plain, SortOptions::default()).unwrap();
    distinct.dedup_by(|a, b| compare(*a as usize, *b as usize).is_eq());
    let found = one(format!("SELECT {} FROM t", call("DISTINCT "))).await;
    same(
        &found,
        &expected(&plain, &distinct, case.descending),
        "distinct",
        case,
    );

    // With and without a call that has keys beside it.
    let beside = ["", "exact_quantiles(id, 0.5), "][case.partitions % 2];
    let sql = format!(
        "SELECT id % 3 AS g, {beside}{} FROM t GROUP BY g ORDER BY g",
        call("")
    );
    let grouped = query(&ctx, &sql).await.unwrap();
    let groups: usize = grouped.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(groups, case.len.min(3));
    for group in 0..groups {
        same(
            &list_at(&grouped, group),
            &expect(thirds(group as u32)),
            "grouped",
            case,
        );
    }
    if !case.descending {
        window(&ctx, case, &expect).await;
        let list = PER_MILLE.map(|q| q as f64 / 1000.0);
        let alone = quantiles(&values, &list, Method::Disc).unwrap();
        same(
            &Some(alone).filter(|found| found.null_count() == 0),
            &whole,
            "without a session",
            case,
        );
    }
}

async fn window(ctx: &SessionContext, case: &Case, expect: &impl Fn(Vec<u32>) -> Option<ArrayRef>) {
    let sql = format!(
        "SELECT exact_quantiles(x, {}) OVER (PARTITION BY id % 3) AS q, id FROM t ORDER BY id LIMIT 3",
        sql_list()
    );
    let found = query(ctx, &format!("SELECT id, q FROM ({sql}) ORDER BY id"))
        .await
        .unwrap();
    for third in 0..case.len.min(3) {
        let rows = (0..case.len as u32)
            .filter(|row| row % 3 == third as u32)
            .collect();
        same(&list_at(&found, third), &expect(rows), "window", case);
    }
    let sql = format!(
        "SELECT exact_quantiles(x, {}) OVER (ORDER BY id) AS q, id FROM t WHERE id < 50",
        sql_list()
    );
    let found = query(ctx, &format!("SELECT id, q FROM ({sql}) ORDER BY id"))
        .await
        .unwrap();
    for last in [0, 1, 7, 49].into_iter().filter(|last| *last < case.len) {
        same(
            &list_at(&found, last),
            &expect((0..=last as u32).collect()),
            "growing window",
            case,
        );
    }
}

fn same(found: &Option<ArrayRef>, expected: &Option<ArrayRef>, shape: &str, case: &Case) {
    assert_eq!(
        found.as_ref().map(|array| array.to_data()),
        expected.as_ref().map(|array| array.to_data()),
        "{shape} {case:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: crate::select::cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn values_of_any_width_agree_with_a_sort(case in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(check(&case));
    }
}

#[tokio::test]
async fn every_kind_once() {
    for kind in KINDS {
        check(&Case {
            kind,
            text: Text::Prefixed,
            pattern: Pattern::Runs,
            descending: false,
            len: 700,
            partitions: 2,
            batch: 128,
            seed: 7,
        })
        .await;
    }
}

#[tokio::test]
async fn decimals_of_256_bits_are_interpolated_as_those_of_128() {
    let ctx = session(2);
    let words = Pattern::Random.words(1000, 3);
    let narrow = Int64Array::from_iter_values(words.iter().map(|word| word >> 4));
    let rows = RecordBatch::try_from_iter([("x", Arc::new(narrow) as ArrayRef)]).unwrap();
    register(&ctx, "t", &rows, 2, 100);
    for method in ["linear", "midpoint"] {
        let answers = |bits: u32, precision: u32| {
            format!(
                "exact_quantiles(arrow_cast(arrow_cast(x, 'Decimal128(38, 3)'), 'Decimal{bits}({precision}, 3)'), {}, \
                 '{method}')",
                sql_list()
            )
        };
        let (wide, narrow) = (answers(256, 70), answers(128, 38));
        for group in ["", " GROUP BY x IS NOT DISTINCT FROM x"] {
            let wide = row(&ctx, &format!("SELECT {wide} FROM t{group}")).await;
            assert_eq!(wide, row(&ctx, &format!("SELECT {narrow} FROM t{group}")).await);
        }
    }
}

#[tokio::test]
async fn explain_analyze_says_what_levels_did() {
    let ctx = session(2);
    let texts = (0..50_000).map(|i| format!("a prefix and {} and more text {i}", i % 3));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    register(
        &ctx,
        "t",
        &RecordBatch::try_from_iter([("x", texts)]).unwrap(),
        2,
        8192,
    );
    let plan = query(&ctx, "EXPLAIN ANALYZE SELECT exact_quantiles(x, 0.5) FROM t")
        .await
        .unwrap();
    let plan = datafusion::arrow::util::pretty::pretty_format_batches(&plan)
        .unwrap()
        .to_string();
    assert!(
        plan.contains("levels=2") && plan.contains("refined_values=1"),
        "{plan}"
    );
    assert!(
        plan.contains("values_kept=50.00 K") && plan.contains("strategy_"),
        "{plan}"
    );
}

#[tokio::test]
async fn any_memory_limit_is_exact_or_exhausted() {
    let texts = |i: u32| format!("common prefix {:08}", i.wrapping_mul(2_654_435_761) % 100_000_000);
    let array: ArrayRef = Arc::new(StringArray::from_iter_values((0..200_000).map(texts)));
    let rows = RecordBatch::try_from_iter([("x", array)]).unwrap();
    let mut sorted: Vec<String> = (0..200_000).map(texts).collect();
    sorted.sort_unstable();
    let mut answered = Vec::new();
    for limit in [1, 2, 4, 8, 16, 32, 64].map(|mib| mib << 20) {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_limit(limit, 1.0)
            .build_arc()
            .unwrap();
        let config = SessionConfig::new().with_target_partitions(2);
        let ctx = SessionContext::new_with_config_rt(config, runtime);
        datafusion_quantiles::register_all(&ctx).unwrap();
        register(&ctx, "t", &rows, 2, 8192);
        match query(&ctx, "SELECT exact_quantiles(x, [0.5]) FROM t").await {
            Ok(found) => {
                let median: ArrayRef = Arc::new(StringArray::from(vec![sorted[99_999].as_str()]));
                assert_eq!(&list_at(&found, 0).unwrap(), &median);
                answered.push(limit);
            }
            Err(error) => {
                let is_exhausted = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
                assert!(is_exhausted && answered.is_empty(), "{limit}: {error}");
            }
        }
        all_is_given_back(&ctx).await;
    }
    assert!(answered.contains(&(2 << 20)), "{answered:?}");
}

#[tokio::test]
async fn filters_keep_masked_rows_away() {
    let ctx = session(1);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let keep: ArrayRef = Arc::new(datafusion::arrow::array::BooleanArray::from(vec![
        Some(true),
        None,
        Some(false),
    ]));
    let kept = filter(&texts, keep.as_boolean()).unwrap();
    assert_eq!(kept.len(), 1);
    let rows = RecordBatch::try_from_iter_with_nullable([("x", texts, true), ("k", keep, true)]).unwrap();
    register(&ctx, "t", &rows, 1, 10);
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, [0, 1]) FILTER (WHERE k) FROM t").await,
        "[a, a]"
    );
    assert_eq!(
        row(
            &ctx,
            "SELECT exact_quantiles(x || 'z', 0) FILTER (WHERE NOT k) FROM t"
        )
        .await,
        "cz"
    );
}
