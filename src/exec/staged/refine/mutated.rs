//! Rows between stages, and states in them, from damaged bytes: each is an error, or the stages run.

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, Float64Array, Int16Array, UInt32Builder,
};
use datafusion::arrow::datatypes::{DataType, Schema, UInt32Type};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::physical_plan::empty::EmptyExec;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::config::StrategyName;
use crate::exec::staged::fingerprint::ColumnFingerprint;
use crate::exec::staged::{StagedCall, Workload, rounds};
use crate::kernel::round::Request;
use crate::kernel::{Backend, CpuBackend, Shard};
use crate::mutated::{Decoder, Loose, SLACK, put_piece, uncounted};
use crate::quantile::QuantileSpec;
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

/// Two columns of stages by a strategy.
fn columns(strategy: usize) -> Arc<StagedColumns> {
    let call = |column: usize, method, quantiles: &[f64]| StagedCall {
        column,
        quantile_spec: QuantileSpec {
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
    let rounds = rounds(STRATEGIES[strategy % 3], &Workload::of(&empty, 5).unwrap()).unwrap();
    Arc::new(StagedColumns::try_new(types(), calls, rounds).unwrap())
}

/// The shards of a partition with random values, and the fingerprint of each.
fn shards(columns: &StagedColumns, random: &mut SmallRng) -> Vec<(Box<dyn Shard>, ColumnFingerprint)> {
    let n = random.random_range(1..80);
    let few = random.random_range(1..500);
    let floats = (0..n).map(|_| f64::from(random.random_range(-few..few)) / 7.0);
    let floats: ArrayRef = Arc::new(Float64Array::from_iter_values(floats));
    let integers = (0..n).map(|_| random.random::<i16>());
    let integers: ArrayRef = Arc::new(Int16Array::from_iter_values(integers));
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 24));
    let shard = |(spec, values): (&crate::key::KeySpec, &ArrayRef)| {
        let reservation = MemoryConsumer::new("test").register(&pool);
        let mut shard = CpuBackend::new(pool.as_ref()).open(spec, reservation).unwrap();
        shard.append(values, None).unwrap();
        let (n, check) = spec.checksum(values.as_ref()).unwrap();
        (shard, ColumnFingerprint { n, check })
    };
    columns.specs().zip(&[floats, integers]).map(shard).collect()
}

/// The rows that all partitions send after a read.
fn sent(
    columns: &StagedColumns,
    shards: &mut [Vec<(Box<dyn Shard>, ColumnFingerprint)>],
    state: Option<&State>,
) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    for shards in shards {
        let mut rows = Rows::default();
        for (index, (shard, read)) in shards.iter_mut().enumerate() {
            let request: Arc<Request> = match state {
                None => Arc::new(columns.rounds.first_request(read.n, columns.specs[index].width())),
                Some(state) => match &state.0[index].sent {
                    Some(sent) => Arc::clone(&sent.request),
                    None => continue,
                },
            };
            let reply = shard.answer(&request, &Stop::default()).unwrap();
            rows.reply(index, *read, reply);
        }
        if let Some(state) = state {
            rows.state(&state.to_bytes());
        }
        batches.extend(rows.finish(&schema(&[]), &[]).unwrap().batches);
    }
    batches
}

/// Rows as bytes, behind the numbers of the strategy and of the read.
fn written(strategy: usize, read: usize, batches: &[RecordBatch]) -> Vec<u8> {
    let mut out = vec![strategy as u8, read as u8];
    for batch in batches {
        let (class, body) = (batch.column(0).as_primitive::<UInt32Type>(), batch.column(1));
        for row in 0..batch.num_rows() {
            out.push(u8::from(class.is_valid(row)));
            put(&mut out, class.value(row));
            put_piece(&mut out, body.as_binary::<i32>().value(row));
        }
    }
    out
}

fn batch(mut loose: Loose<'_>) -> RecordBatch {
    let (mut class, mut body) = (UInt32Builder::new(), BinaryBuilder::new());
    while !loose.is_empty() {
        let flags = loose.byte();
        class.append_option(Some(loose.number() as u32).filter(|_| flags & 1 == 1));
        body.append_option(Some(loose.piece()).filter(|_| flags >> 7 == 0));
    }
    let columns: Vec<ArrayRef> = vec![Arc::new(class.finish()), Arc::new(body.finish())];
    RecordBatch::try_new(schema(&[]), columns).unwrap()
}

/// The rows of each read of a table.
fn reads(random: &mut SmallRng) -> Vec<Vec<u8>> {
    let strategy = random.random_range(0..3);
    let columns = columns(strategy);
    let mut shards: Vec<_> = (0..2).map(|_| shards(&columns, random)).collect();
    let (mut found, mut state) = (Vec::new(), None);
    for read in 0..columns.rounds.reads() {
        let batches = sent(&columns, &mut shards, state.as_ref());
        found.push(written(strategy, read, &batches));
        let mut merged = Merged::new(&columns);
        batches.iter().for_each(|batch| merged.add(batch).unwrap());
        let Ok(next) = step(read, merged) else {
            break;
        };
        if next.0.iter().all(|column| column.sent.is_none()) {
            break;
        }
        state = Some(next);
    }
    found
}

/// Runs the stages that take the rows after a read: levels of merges, the coordinator, and the shards that it asks next.
fn used(columns: &Arc<StagedColumns>, read: usize, batch: &RecordBatch, merged: Merged) -> Result<()> {
    let mut level = Merged::new(columns);
    if level.add_replies(batch).is_ok()
        && let Ok(replies) = level.shard_replies()
    {
        let mut rows = Rows::default();
        replies.iter().for_each(|reply| rows.shard_reply(reply));
        rows.finish(&schema(&[]), &[])?;
    }
    let state = step(read, merged)?;
    let bytes = state.to_bytes();
    assert_eq!(State::from_bytes(&bytes)?.to_bytes(), bytes);
    if read + 1 == columns.rounds.reads() {
        return answers(columns, &state, &Arc::new(Schema::empty())).map(drop);
    }
    let mut shards = shards(columns, &mut SmallRng::seed_from_u64(7));
    for ((shard, _), column) in shards.iter_mut().zip(&state.0) {
        if let Some(sent) = &column.sent {
            shard.answer(&sent.request, &Stop::default())?;
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
            let mut merged = Merged::new(&plans[strategy]);
            merged.add(&batch)?;
            merged.state().map(State::from_bytes).transpose()?;
            Ok((strategy, read % plans[strategy].rounds.reads(), batch, merged))
        },
        apply: &|(strategy, read, batch, merged)| used(&plans[strategy], read, &batch, merged),
    }
    .check();
}
