//! Rows between stages, and states in them, of damaged bytes: all that a stage does with them.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, Float64Array, Int16Array};
use datafusion::arrow::array::{UInt32Builder, UInt64Builder};
use datafusion::arrow::datatypes::{DataType, Schema, UInt32Type, UInt64Type};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::physical_plan::empty::EmptyExec;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::config::StrategyName;
use crate::exec::staged::rows::Seen;
use crate::exec::staged::{Rounds, StagedCall, Workload};
use crate::kernel::round::Request;
use crate::kernel::{Backend, CpuBackend, Lane};
use crate::mutated::{Decoder, Loose, SLACK, put_piece, uncounted};
use crate::quantile::Ask;
use crate::quantile::{Method, Quantile};
use crate::threads::Stop;
use crate::wire::put;

const STRATEGIES: [StrategyName; 3] = [
    StrategyName::GkSelect,
    StrategyName::DistributedBms,
    StrategyName::Dibms,
];

fn types() -> Vec<DataType> {
    vec![DataType::Float64, DataType::Int16]
}

/// What stages by a strategy compute, over two columns.
fn columns(strategy: usize) -> StagedColumns {
    let call = |column: usize, method, quantiles: &[f64]| StagedCall {
        column,
        ask: Ask {
            quantiles: quantiles
                .iter()
                .map(|q| Quantile::try_from_f64(*q).unwrap())
                .collect(),
            method,
            descending: column == 1,
        },
        is_list: column == 0,
        bounds: column == 1,
    };
    let calls = vec![
        call(0, Method::Disc, &[0.0, 0.3, 0.9]),
        call(1, Method::Disc, &[0.5]),
        call(0, Method::Linear, &[0.77]),
    ];
    let empty = EmptyExec::new(Arc::new(Schema::empty())).with_partitions(2);
    let rounds = Rounds::try_new(STRATEGIES[strategy % 3], &Workload::of(&empty, 5).unwrap()).unwrap();
    StagedColumns::try_new(types(), calls, rounds).unwrap()
}

/// The lanes of a partition, which hold what is drawn, and what was read of each.
fn lanes(columns: &StagedColumns, random: &mut SmallRng) -> Vec<(Box<dyn Lane>, Seen)> {
    let n = random.random_range(1..80);
    let few = random.random_range(1..500);
    let floats = (0..n).map(|_| f64::from(random.random_range(-few..few)) / 7.0);
    let floats: ArrayRef = Arc::new(Float64Array::from_iter_values(floats));
    let integers = (0..n).map(|_| random.random::<i16>());
    let integers: ArrayRef = Arc::new(Int16Array::from_iter_values(integers));
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 24));
    let lane = |(spec, values): (&crate::key::KeySpec, &ArrayRef)| {
        let reservation = MemoryConsumer::new("test").register(&pool);
        let mut lane = CpuBackend::new(pool.as_ref()).open(spec, reservation).unwrap();
        lane.append(values, None).unwrap();
        let (n, check) = spec.checksum(values.as_ref()).unwrap();
        (lane, Seen { n, check })
    };
    columns.specs().zip(&[floats, integers]).map(lane).collect()
}

/// What all partitions send to the stage after a read.
fn sent(
    columns: &StagedColumns,
    lanes: &mut [Vec<(Box<dyn Lane>, Seen)>],
    state: Option<&State>,
) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    for lanes in lanes {
        let mut rows = Rows::default();
        for (index, (lane, seen)) in lanes.iter_mut().enumerate() {
            let request: Arc<Request> = match state {
                None => Arc::new(columns.rounds.first_request(seen.n, columns.specs[index].width())),
                Some(state) => match &state.0[index].order {
                    Some(order) => Arc::clone(&order.request),
                    None => continue,
                },
            };
            let reply = lane.answer(&request, &Stop::default()).unwrap();
            rows.reply(index as u32, *seen, reply).unwrap();
        }
        if let Some(state) = state {
            rows.state(&state.to_bytes()).unwrap();
        }
        batches.extend(rows.finish().unwrap().0);
    }
    batches
}

/// As bytes, behind the number of the strategy and of the read.
fn written(strategy: usize, read: usize, batches: &[RecordBatch]) -> Vec<u8> {
    let mut out = vec![strategy as u8, read as u8];
    for batch in batches {
        let body = batch.column(4).as_binary::<i32>();
        for row in 0..batch.num_rows() {
            out.push((0..4).fold(0, |flags, column| {
                flags | u8::from(batch.column(column).is_valid(row)) << column
            }));
            for column in [0, 1] {
                put(
                    &mut out,
                    batch.column(column).as_primitive::<UInt32Type>().value(row),
                );
            }
            for column in [2, 3] {
                put(
                    &mut out,
                    batch.column(column).as_primitive::<UInt64Type>().value(row),
                );
            }
            put_piece(&mut out, body.value(row));
        }
    }
    out
}

fn batch(mut loose: Loose<'_>) -> RecordBatch {
    let (mut part, mut list) = (UInt32Builder::new(), UInt32Builder::new());
    let (mut n, mut check) = (UInt64Builder::new(), UInt64Builder::new());
    let mut body = BinaryBuilder::new();
    while !loose.is_empty() {
        let flags = loose.byte();
        let valid = |column: u8| flags >> column & 1 == 1;
        part.append_option(Some(loose.number() as u32).filter(|_| valid(0)));
        list.append_option(Some(loose.number() as u32).filter(|_| valid(1)));
        n.append_option(Some(loose.number()).filter(|_| valid(2)));
        check.append_option(Some(loose.number()).filter(|_| valid(3)));
        body.append_option(Some(loose.piece()).filter(|_| !valid(7)));
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(part.finish()),
        Arc::new(list.finish()),
        Arc::new(n.finish()),
        Arc::new(check.finish()),
        Arc::new(body.finish()),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// The rows of each read of a table.
fn reads(random: &mut SmallRng) -> Vec<Vec<u8>> {
    let strategy = random.random_range(0..3);
    let columns = columns(strategy);
    let mut lanes: Vec<_> = (0..2).map(|_| lanes(&columns, random)).collect();
    let (mut found, mut state) = (Vec::new(), None);
    for read in 0..columns.rounds.reads() {
        let batches = sent(&columns, &mut lanes, state.as_ref());
        found.push(written(strategy, read, &batches));
        let mut merged = Merged::default();
        batches.iter().for_each(|batch| merged.add(batch).unwrap());
        let Ok(next) = step(&columns, read, merged) else {
            break;
        };
        if next.0.iter().all(|column| column.order.is_none()) {
            break;
        }
        state = Some(next);
    }
    found
}

/// What stages do with the rows that come after a read: levels of merges, the coordinator, and the machines that it asks next.
fn used(columns: &StagedColumns, read: usize, batch: &RecordBatch, merged: Merged) -> Result<()> {
    let mut level = Merged::default();
    if level.add_replies(batch).is_ok() {
        let headers = (0..columns.len() as u32).map(|part| level.header(part));
        for (part, header) in headers.enumerate() {
            if let Ok(Some((seen, reply, lengths))) = header {
                Rows::default().header(part as u32, seen, &reply, &lengths)?;
            }
        }
    }
    let state = step(columns, read, merged)?;
    let bytes = state.to_bytes();
    assert_eq!(State::from_bytes(&bytes)?.to_bytes(), bytes);
    if read + 1 == columns.rounds.reads() {
        return answers(columns, &state, &Arc::new(Schema::empty())).map(drop);
    }
    let mut lanes = lanes(columns, &mut SmallRng::seed_from_u64(7));
    for ((lane, _), column) in lanes.iter_mut().zip(&state.0) {
        if let Some(order) = &column.order {
            lane.answer(&order.request, &Stop::default())?;
        }
    }
    Ok(())
}

#[test]
fn mutated_rows_between_stages_do_no_harm() {
    let plans = [0, 1, 2].map(columns);
    Decoder {
        slack: SLACK,
        name: "rows between stages",
        test: (module_path!(), "mutated_rows_between_stages_do_no_harm"),
        valid: &|random| (0..24).flat_map(|_| reads(random)).collect(),
        seal: &|_| {},
        decode: &|bytes| {
            let mut loose = Loose(bytes);
            let (strategy, read) = (usize::from(loose.byte()) % 3, usize::from(loose.byte()));
            let batch = uncounted(|| batch(loose));
            let mut merged = Merged::default();
            merged.add(&batch)?;
            merged.state().map(State::from_bytes).transpose()?;
            Ok((strategy, read % plans[strategy].rounds.reads(), batch, merged))
        },
        apply: &|(strategy, read, batch, merged)| used(&plans[strategy], read, &batch, merged),
    }
    .check();
}
