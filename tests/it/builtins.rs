//! `quantiles.replace_builtins`: DataFusion's `median` and `percentile_cont` through this crate. Their bits are the same, but that
//! DataFusion cuts the weights of `percentile_cont` to six digits.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, UInt64Array, make_array};
use datafusion::arrow::compute::{cast, concat_batches, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::functions_aggregate::expr_fn::median;
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::{AggregateUDF, AggregateUDFImpl};
use datafusion::prelude::{SessionContext, col};
use proptest::prelude::*;

use quantiles_testing::{batch, cases, error, physical_plan, pseudo_random, query, register, row, session};

/// Floats that part company in careless arithmetic. One NaN only: which of several comes out of a sum is not defined.
const FLOATS: [f64; 16] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    -0.3,
    65504.0,
    1e-7,
    5e-324,
    f64::MAX,
    f64::MIN,
    3e38,
    123456.789,
];

fn types() -> Vec<DataType> {
    use DataType::*;
    vec![
        Float16,
        Float32,
        Float64,
        Int8,
        Int32,
        Int64,
        UInt64,
        Decimal32(9, 2),
        Decimal64(18, 4),
        Decimal128(38, 0),
    ]
}

/// `n` values of a type: few and many distinct ones, extremes, NULLs.
fn values(data_type: &DataType, n: usize, seed: u64) -> ArrayRef {
    let nulls = seed.is_multiple_of(2);
    let words = pseudo_random(n, seed).map(|word| (!nulls || !word.is_multiple_of(7)).then_some(word));
    if data_type.is_floating() {
        let float = |word: u64| match word % 3 {
            0 => (word >> 8) as f64 / 1e15,
            _ => FLOATS[(word >> 8) as usize % FLOATS.len()],
        };
        let floats = Float64Array::from_iter(words.map(|word| word.map(float)));
        return cast(&floats, data_type).unwrap();
    }
    // Raw words as values of the type; decimals and small integers get what fits.
    let bytes = data_type.primitive_width().unwrap();
    let keep = |word: u64| -> i128 {
        let extreme = match data_type {
            DataType::Decimal32(..) => 999_999_999,
            DataType::Decimal64(..) => 999_999_999_999_999_999,
            DataType::Decimal128(..) => 10_i128.pow(38) - 1,
            _ => i128::MAX,
        };
        match word % 5 {
            0 => extreme - i128::from(word >> 60),
            1 => -extreme + i128::from(word >> 60),
            _ => i128::from(word >> 40) % 100 - 50,
        }
    };
    let words: Vec<Option<i128>> = words.map(|word| word.map(keep)).collect();
    let buffer: Vec<u8> = words
        .iter()
        .flat_map(|word| word.unwrap_or(0).to_le_bytes()[..bytes].to_vec())
        .collect();
    let valid = datafusion::arrow::buffer::NullBuffer::from_iter(words.iter().map(Option::is_some));
    let aligned = datafusion::arrow::buffer::MutableBuffer::from_iter(buffer.iter().copied());
    let data = datafusion::arrow::array::ArrayData::builder(data_type.clone())
        .len(n)
        .add_buffer(aligned.into())
        .nulls(Some(valid))
        .align_buffers(true);
    make_array(data.build().unwrap())
}

async fn switch(ctx: &SessionContext, on: bool) {
    query(ctx, &format!("SET quantiles.replace_builtins = {on}"))
        .await
        .unwrap();
}

async fn answer(ctx: &SessionContext, sql: &str) -> RecordBatch {
    let frame = ctx.sql(sql).await.unwrap();
    let schema = Arc::new(frame.schema().as_arrow().clone());
    concat_batches(&schema, &frame.collect().await.unwrap()).unwrap()
}

/// The same rows with the option off and on, in every bit, under the same schema.
async fn same(ctx: &SessionContext, sql: &str, context: &dyn std::fmt::Debug) {
    switch(ctx, false).await;
    let theirs = answer(ctx, sql).await;
    switch(ctx, true).await;
    let ours = answer(ctx, sql).await;
    assert_eq!(theirs.schema(), ours.schema(), "{sql} {context:?}");
    for (theirs, ours) in theirs.columns().iter().zip(ours.columns()) {
        let bits = |array: &ArrayRef| {
            // A copy without offsets, and zeros below NULLs.
            let rows = UInt64Array::from_iter_values(0..array.len() as u64);
            let array = take(array, &rows, None).unwrap();
            let valid: Vec<bool> = (0..array.len()).map(|row| array.is_valid(row)).collect();
            let width = array.data_type().primitive_width().unwrap();
            let data = array.to_data();
            let words = data.buffers()[0].as_slice()[..width * array.len()].chunks(width);
            let words = words.zip(valid);
            words
                .map(|(word, valid)| valid.then(|| word.to_vec()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            bits(theirs),
            bits(ours),
            "{sql} {context:?}\n{theirs:?}\n{ours:?}"
        );
    }
}

/// `t(i, g, x)`: rows in order, few groups, and the values.
fn table(ctx: &SessionContext, x: ArrayRef, partitions: usize) {
    let n = x.len();
    let i: ArrayRef = Arc::new(Int64Array::from_iter_values(0..n as i64));
    let g: ArrayRef = Arc::new(Int64Array::from_iter_values((0..n as i64).map(|i| i * i % 5)));
    register(
        ctx,
        "t",
        &batch(vec![("i", i), ("g", g), ("x", x)]),
        partitions,
        9,
    );
}

fn queries(q: f64) -> Vec<String> {
    // At 0 and 1 DataFusion plans its own min and max, which depend on the order of rows where there are NaNs.
    let inner = if q == 0.0 || q == 1.0 { 0.5 } else { q };
    let calls = format!(
        "median(x) AS a, percentile_cont({inner:?}) WITHIN GROUP (ORDER BY x) AS b,
         percentile_cont({inner:?}) WITHIN GROUP (ORDER BY x DESC) AS c, percentile_cont(x, {inner:?}) AS d,
         median(x) FILTER (WHERE g > 1) AS e"
    );
    let distinct = format!("median(DISTINCT x) AS a, percentile_cont(DISTINCT x, {inner:?}) AS b");
    let over = |frame: &str| {
        format!(
            "SELECT median(x) OVER w AS a, percentile_cont(x, {q:?}) OVER w AS b FROM t WINDOW w AS ({frame}) ORDER BY i"
        )
    };
    vec![
        format!("SELECT {calls} FROM t"),
        format!("SELECT g, {calls} FROM t GROUP BY g ORDER BY g"),
        format!("SELECT {distinct} FROM t"),
        format!("SELECT g, {distinct} FROM t GROUP BY g ORDER BY g"),
        over("PARTITION BY g"),
        over("ORDER BY i"),
        over("PARTITION BY g ORDER BY i ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING"),
        over("ORDER BY i ROWS BETWEEN 6 PRECEDING AND CURRENT ROW"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Sixteen plans a case.
        cases: cases().div_ceil(4), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn the_same_bits_as_datafusion(
        data_type in proptest::sample::select(types()),
        n in prop_oneof![0..6_usize, 6..60_usize],
        partitions in 1..4_usize,
        q in prop_oneof![
            proptest::sample::select(vec![0.0, 1.0, 0.5, 0.25]),
            // Weights of at most six digits, which DataFusion does not cut.
            (0..=64_u32).prop_map(|part| f64::from(part) / 64.0)
        ],
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(async {
            let ctx = session(partitions);
            table(&ctx, values(&data_type, n, seed), partitions);
            for sql in queries(q) {
                same(&ctx, &sql, &(&data_type, n, partitions, seed)).await;
            }
        });
    }
}

/// `percentile_cont` of sorted values without a NaN, in `f64`.
fn naive(sorted: &[f64], q: f64, descending: bool) -> f64 {
    let q = if descending { 1.0 - q } else { q };
    let position = q * (sorted.len() - 1) as f64;
    let (low, high) = (
        sorted[position.floor() as usize],
        sorted[position.ceil() as usize],
    );
    low + (high - low) * (position - position.floor())
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Each makes a session, and plans five statements.
        cases: cases().div_ceil(4), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn weights_are_not_cut(
        values in proptest::collection::vec(-1e9..1e9_f64, 1..60),
        partitions in 1..4_usize,
        qs in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(vec![0.5, 0.1, 0.07, 0.3, 1e-9, 0.9999999999999999, 1.0 / 3.0]),
                0.001..0.999_f64
            ],
            1..5,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(async {
            let ctx = session(partitions);
            table(&ctx, Arc::new(Float64Array::from(values.clone())), partitions);
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let (list, one) = (format!("{qs:?}"), qs[0]);
            let lists = format!(
                "percentile_cont(x, {list}), percentile_cont({list}) WITHIN GROUP (ORDER BY x DESC)"
            );
            let expected = |descending| format!("{:?}", qs.iter().map(|q| naive(&sorted, *q, descending)).collect::<Vec<_>>());
            let expected_lists = format!("{} | {}", expected(false), expected(true));
            // DataFusion refuses lists, so they run here with the option and without.
            assert_eq!(row(&ctx, &format!("SELECT {lists} FROM t")).await, expected_lists);
            switch(&ctx, true).await;
            let scalars = format!("percentile_cont(x, {one:?}), percentile_cont({one:?}) WITHIN GROUP (ORDER BY x DESC)");
            let expected = format!(
                "{:?} | {:?} | {expected_lists}",
                naive(&sorted, one, false),
                naive(&sorted, one, true)
            );
            assert_eq!(row(&ctx, &format!("SELECT {scalars}, {lists} FROM t")).await, expected);
            let grouped = format!("SELECT {scalars}, {lists} FROM t GROUP BY g < 9");
            assert_eq!(row(&ctx, &grouped).await, expected);
            let window = format!("SELECT DISTINCT percentile_cont(x, {one:?}) OVER (), percentile_cont(x, {list}) OVER () FROM t");
            let expected = format!("{:?} | {:?}", naive(&sorted, one, false), qs.iter().map(|q| naive(&sorted, *q, false)).collect::<Vec<_>>());
            assert_eq!(row(&ctx, &window).await, expected);
        });
    }
}

/// Lists of quantiles of other types than floating point, and bad ones.
#[tokio::test]
async fn percentile_cont_takes_a_list() {
    let ctx = session(2);
    table(&ctx, Arc::new(Int64Array::from_iter_values(1..=4)), 2);
    for on in [false, true] {
        switch(&ctx, on).await;
        let sql = "SELECT percentile_cont(x, [0.3, 0.5]), percentile_cont([0.25, 1]) WITHIN GROUP (ORDER BY x DESC), \
                   percentile_cont(CAST(x AS DECIMAL(10, 2)), [0.3]), percentile_cont(CAST(x AS FLOAT), [0.5]), \
                   percentile_cont(DISTINCT x % 2, [0.5]), percentile_cont(x, []) FROM t";
        assert_eq!(
            row(&ctx, sql).await,
            "[1.9, 2.5] | [3.25, 1.0] | [1.9] | [2.5] | [0.5] | []"
        );
        let error = error(&ctx, "SELECT percentile_cont(x, [0.5, 1.5]) FROM t").await;
        assert!(
            error.contains("percentile_cont: quantile 1.5 is out of range"),
            "{error}"
        );
    }
    assert_eq!(row(&ctx, "SELECT percentile_cont(x, 0.3) FROM t").await, "1.9");
}

/// A session with the option on, and `t(i, g, x)` with x from 1 to 10.
async fn switched_on() -> SessionContext {
    let ctx = session(2);
    table(&ctx, Arc::new(Int64Array::from_iter_values(1..=10)), 2);
    switch(&ctx, true).await;
    ctx
}

#[tokio::test]
async fn calls_run_in_the_operator_and_share_its_scan() {
    let ctx = switched_on().await;
    let sql = "SELECT median(x), percentile_cont(0.25) WITHIN GROUP (ORDER BY x DESC), exact_quantiles(x, 0.5), sum(x) FROM t";
    let plan = physical_plan(&ctx, sql).await;
    assert!(plan.starts_with("QuantilesExec"), "{plan}");
    assert!(!plan.contains("Sort"), "{plan}");
    assert_eq!(row(&ctx, sql).await, "5.5 | 7.75 | 5 | 55");
    let grouped = physical_plan(&ctx, "SELECT g, median(x) FROM t GROUP BY g").await;
    assert!(grouped.contains("GroupedQuantilesExec"), "{grouped}");
    let subquery = "SELECT count(*) FROM t WHERE x > (SELECT median(x) FROM t)";
    assert!(physical_plan(&ctx, subquery).await.contains("QuantilesExec"));
    assert_eq!(row(&ctx, subquery).await, "5");
    let frame = ctx.table("t").await.unwrap();
    let frame = frame
        .aggregate(vec![], vec![median(col("x")).alias("m")])
        .unwrap();
    assert_eq!(frame.schema().field(0).name(), "m");
    let plan = frame.create_physical_plan().await.unwrap();
    assert_eq!(plan.name(), "QuantilesExec");
    switch(&ctx, false).await;
    assert!(!physical_plan(&ctx, subquery).await.contains("QuantilesExec"));
}

#[tokio::test]
async fn what_datafusion_refuses_it_still_refuses() {
    let ctx = switched_on().await;
    for sql in [
        "SELECT percentile_cont(x, 1.5) FROM t",
        "SELECT percentile_cont(x, x) FROM t",
        "SELECT median('a') FROM t",
    ] {
        let ours = error(&ctx, sql).await;
        switch(&ctx, false).await;
        assert_eq!(error(&ctx, sql).await, ours);
        switch(&ctx, true).await;
    }
    assert_eq!(
        error(&ctx, "SET quantiles.replace_builtins = 'maybe'").await,
        "Invalid or Unsupported Configuration: option 'quantiles.replace_builtins' is true or false, got 'maybe'"
    );
}

/// NaNs of either sign and any payload have their place in DataFusion's order, so ranks that meet a value keep its bits.
#[tokio::test]
async fn every_nan_keeps_its_bits() {
    let nans = [
        0xfff8_0000_0000_0000,
        0xfff8_0000_0000_0001,
        0x7ff8_0000_0000_0000,
        0x7ff8_0000_0000_0001,
    ]
    .map(f64::from_bits);
    let ctx = session(2);
    let x: Vec<f64> = nans.into_iter().chain([1.0, -1.0, f64::INFINITY]).collect();
    table(&ctx, Arc::new(Float64Array::from(x)), 2);
    for sixth in 1..6 {
        // Seven values: each sixth is one of them.
        let q = f64::from(sixth) / 6.0;
        same(
            &ctx,
            &format!("SELECT percentile_cont(x, {q:?}) AS q, median(x) AS m FROM t"),
            &q,
        )
        .await;
    }
}

/// Another function that is called `median` is none of our business.
#[tokio::test]
async fn a_function_of_the_same_name_stays() {
    #[derive(Debug, PartialEq, Eq, Hash)]
    struct Other(Sum);
    impl AggregateUDFImpl for Other {
        fn name(&self) -> &str {
            "median"
        }
        fn signature(&self) -> &datafusion::logical_expr::Signature {
            self.0.signature()
        }
        fn return_type(&self, types: &[DataType]) -> datafusion::common::Result<DataType> {
            self.0.return_type(types)
        }
        fn coerce_types(&self, types: &[DataType]) -> datafusion::common::Result<Vec<DataType>> {
            self.0.coerce_types(types)
        }
        fn accumulator(
            &self,
            args: datafusion::logical_expr::function::AccumulatorArgs,
        ) -> datafusion::common::Result<Box<dyn datafusion::logical_expr::Accumulator>> {
            self.0.accumulator(args)
        }
    }
    let ctx = switched_on().await;
    ctx.register_udaf(AggregateUDF::from(Other(Sum::new())));
    assert_eq!(row(&ctx, "SELECT median(x) FROM t").await, "55");
}
