//! Rows between stages of groups from damaged bytes, given to the brackets, the second read and the selection of answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, Float64Array, Int16Array, Int32Array, Int32Builder, StringArray,
    StringBuilder, UInt32Builder,
};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, Schema, UInt32Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::brackets::Bracketing;
use super::count::Counting;
use super::extract::{Extracting, GroupState};
use super::select::Selecting;
use super::*;
use crate::exec::staged::rows::group_rows;
use crate::exec::staged::stage::Consume;
use crate::exec::staged::{KeyColumns, StagedCall};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::key::Width;
use crate::key::with_key;
use crate::mutated::{Decoder, Loose, SLACK, put_piece, uncounted};
use crate::quantile::QuantileSpec;
use crate::quantile::{Method, Quantile};
use crate::threads::Stop;
use crate::wire::put;

/// Columns of stages with an integer group column, which is packed, or with a text column beside it.
fn plan(texts: bool) -> Arc<GroupedColumns> {
    let call = |column: usize, quantiles: &[f64]| StagedCall {
        column,
        quantile_spec: QuantileSpec {
            quantiles: quantiles
                .iter()
                .map(|q| Quantile::try_from_f64(*q).unwrap())
                .collect(),
            method: Method::Disc,
            descending: column == 1,
        },
        is_list: column == 0,
        bounds: false,
    };
    let columns = KeyColumns::try_new(
        vec![DataType::Float64, DataType::Int16],
        vec![call(0, &[0.1, 0.5]), call(1, &[0.9])],
    );
    let field = |name: &str, data_type: DataType| Arc::new(Field::new(name, data_type, true));
    let mut groups = vec![field("k", DataType::Int32)];
    if texts {
        groups.push(field("s", DataType::Utf8));
    }
    let mut answers = groups.clone();
    answers.push(field("a", DataType::new_list(DataType::Float64, true)));
    answers.push(field("b", DataType::Int16));
    let answers = Arc::new(Schema::new(answers));
    Arc::new(GroupedColumns::try_new(&groups, columns.unwrap(), answers, false).unwrap())
}

fn memory() -> MemoryReservation {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 24));
    MemoryConsumer::new("test").register(&pool)
}

/// The rows of a partition.
fn table(plan: &GroupedColumns, random: &mut SmallRng) -> RecordBatch {
    let (rows, groups) = (random.random_range(1..120), random.random_range(1..12));
    let keys: Vec<i32> = (0..rows).map(|_| random.random_range(-3..groups)).collect();
    let texts = keys
        .iter()
        .map(|key| (key % 5 != 0).then(|| format!("group {}", key % 7)));
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(
            keys.iter()
                .map(|key| (*key >= 0).then_some(*key))
                .collect::<Int32Array>(),
        ),
        Arc::new(texts.collect::<StringArray>()),
    ];
    columns.truncate(plan.fields.len());
    let floats = (0..rows).map(|_| f64::from(random.random_range(-900..900)) / 7.0);
    columns.push(Arc::new(floats.collect::<Float64Array>()));
    let integers = (0..rows).map(|_| (random.random_range(0..9) > 0).then(|| random.random::<i16>()));
    columns.push(Arc::new(integers.collect::<Int16Array>()));
    let mut fields = plan.fields.clone();
    let value = |spec: &crate::key::KeySpec| Arc::new(Field::new("v", spec.data_type().clone(), true));
    fields.extend(plan.columns.specs().map(value));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// The output of each of three steps, in the order in which they run.
fn sent<W: GroupKey>(plan: &Arc<GroupedColumns>, random: &mut SmallRng) -> Result<[Vec<RecordBatch>; 3]> {
    let tables = [table(plan, random), table(plan, random)];
    let (mut counted, mut bracketing) = (Vec::new(), Bracketing::<W>::try_new(plan, &memory())?);
    let stop = Stop::default();
    for table in &tables {
        let mut counting = Counting::<W>::try_new(plan, &memory(), None, &stop)?;
        counting.push(table)?;
        counted.extend(counting.finish()?.batches);
    }
    for batch in &counted {
        bracketing.push(batch)?;
    }
    let bracketed = bracketing.finish()?.batches;
    let state = Arc::new(GroupState::try_new(plan, &bracketed, memory())?);
    let mut extracted = Vec::new();
    for table in &tables {
        let mut extracting = Extracting::<W>::try_new(plan, &state, &memory())?;
        extracting.push(table)?;
        extracted.extend(extracting.finish()?.batches);
    }
    Ok([counted, bracketed, extracted])
}

/// Rows as bytes, behind the numbers of the plan and of the step that takes them.
fn written(texts: bool, step: usize, batches: &[RecordBatch]) -> Vec<u8> {
    let mut out = vec![u8::from(texts), step as u8];
    for batch in batches {
        let last = batch.num_columns() - 1;
        for row in 0..batch.num_rows() {
            let valid = (0..last).map(|column| u8::from(batch.column(column).is_valid(row)) << column);
            out.push(valid.sum());
            put(&mut out, batch.column(0).as_primitive::<UInt32Type>().value(row));
            put(
                &mut out,
                batch
                    .column(1)
                    .as_primitive::<Int32Type>()
                    .value(row)
                    .cast_unsigned(),
            );
            if texts {
                put_piece(&mut out, batch.column(2).as_string::<i32>().value(row).as_bytes());
            }
            put_piece(&mut out, batch.column(last).as_binary::<i32>().value(row));
        }
    }
    out
}

fn batch(plan: &GroupedColumns, mut loose: Loose<'_>) -> RecordBatch {
    let (mut class, mut key) = (UInt32Builder::new(), Int32Builder::new());
    let (mut text, mut body) = (StringBuilder::new(), BinaryBuilder::new());
    let texts = plan.fields.len() == 2;
    while !loose.is_empty() {
        let flags = loose.byte();
        let valid = |column: u8| flags >> column & 1 == 1;
        class.append_option(Some(loose.number() as u32).filter(|_| valid(0)));
        key.append_option(Some(loose.number() as i32).filter(|_| valid(1)));
        if texts {
            let piece = String::from_utf8_lossy(loose.piece());
            text.append_option(Some(piece).filter(|_| valid(2)));
        }
        body.append_option(Some(loose.piece()).filter(|_| !valid(7)));
    }
    let mut columns: Vec<ArrayRef> = vec![Arc::new(class.finish()), Arc::new(key.finish())];
    if texts {
        columns.push(Arc::new(text.finish()));
    }
    columns.push(Arc::new(body.finish()));
    RecordBatch::try_new(Arc::clone(&plan.rows), columns).unwrap()
}

/// Runs the step that takes the rows, on them.
fn used<W: GroupKey>(plan: &Arc<GroupedColumns>, step: usize, batch: RecordBatch) -> Result<()> {
    match step {
        0 => {
            let mut bracketing = Bracketing::<W>::try_new(plan, &memory())?;
            bracketing.push(&batch)?;
            bracketing.push(&batch)?;
            bracketing.finish().map(drop)
        }
        1 => {
            let state = Arc::new(GroupState::try_new(plan, &[batch], memory())?);
            let mut extracting = Extracting::<W>::try_new(plan, &state, &memory())?;
            extracting.push(&table(plan, &mut SmallRng::seed_from_u64(7)))?;
            extracting.finish().map(drop)
        }
        _ => {
            let mut selecting = Selecting::<W>::try_new(plan, &memory(), 100)?;
            selecting.push(&batch)?;
            selecting.finish().map(drop)
        }
    }
}

#[test]
fn mutated_rows_of_groups_do_no_harm() {
    let plans = [plan(false), plan(true)];
    Decoder {
        slack: SLACK,
        name: "rows of groups",
        test: (module_path!(), "mutated_rows_of_groups_do_no_harm"),
        valid: &|random| {
            let table = |number: usize| {
                let plan = &plans[number % 2];
                let sent = with_key!(plan.width(), W => sent::<W>(plan, random)).unwrap();
                let steps = sent.iter().enumerate();
                steps
                    .map(|(step, batches)| written(number % 2 == 1, step, batches))
                    .collect::<Vec<_>>()
            };
            (0..30).flat_map(table).collect()
        },
        seal: &|_| {},
        decode: &|bytes| {
            let mut loose = Loose(bytes);
            let (plan, step) = (
                &plans[usize::from(loose.byte() % 2)],
                usize::from(loose.byte() % 3),
            );
            let batch = uncounted(|| batch(plan, loose));
            let mut headers = BTreeMap::new();
            let read = group_rows(&batch, &plan.rows, &plan.columns.specs, |class, header| {
                headers.insert(class, header.own);
                Ok(())
            });
            read.map(drop)?;
            Ok((plan, step, batch))
        },
        apply: &|(plan, step, batch)| with_key!(plan.width(), W => used::<W>(plan, step, batch)),
    }
    .check();
}
