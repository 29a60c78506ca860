//! Requests and replies from damaged bytes: a shard answers a request that is read, and a reply that is read can be
//! merged.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
use rand::Rng;
use rand::rngs::SmallRng;

use super::*;
use crate::kernel::{Backend, CpuBackend, Shard};
use crate::key::KeySpec;
use crate::mutated::{Decoder, SLACK};
use crate::sketch::{AnySketch, Variant};
use crate::threads::Stop;

pub(crate) const WIDTHS: [Width; 3] = [Width::W32, Width::W64, Width::W128];

/// A key of few bits or of many.
fn key(width: Width, random: &mut SmallRng) -> KeyBits {
    let shift = random.random_range(0..8 * width.bytes() as u32);
    (random.random::<u128>() & width.max_key()) >> shift
}

fn keys(width: Width, most: usize, random: &mut SmallRng) -> Vec<KeyBits> {
    let count = random.random_range(0..=most);
    (0..count).map(|_| key(width, random)).collect()
}

fn key_list(width: Width, random: &mut SmallRng) -> KeyVec {
    KeyVec::from_bits(keys(width, 24, random).into_iter(), width)
}

fn lists(width: Width, random: &mut SmallRng) -> Vec<KeyVec> {
    let count = random.random_range(0..4);
    (0..count).map(|_| key_list(width, random)).collect()
}

fn some_brackets(width: Width, random: &mut SmallRng) -> Brackets {
    let mut ends = keys(width, 12, random);
    ends.sort_unstable();
    ends.dedup();
    let brackets = ends.chunks_exact(2).map(|ends| Bracket {
        first: ends[0],
        last: ends[1],
    });
    if random.random() {
        Brackets::all(width)
    } else {
        Brackets::try_new(brackets.collect()).unwrap()
    }
}

fn some_cells(width: Width, random: &mut SmallRng) -> Cells {
    match random.random_range(0..3) {
        0 => {
            let mut sample = KeyVec::from_bits(keys(width, 40, random).into_iter().chain([7]), width);
            sample.sort();
            let mut heavy = keys(width, 3, random);
            heavy.sort_unstable();
            heavy.dedup();
            let table = CellTable::from_sample(&sample, random.random_range(1..200)).unwrap();
            Cells::Table(table.with_heavy(heavy).unwrap())
        }
        1 => {
            let brackets = some_brackets(width, random);
            let pieces = brackets
                .as_slice()
                .iter()
                .map(|bracket| (*bracket, 5))
                .collect::<Vec<_>>();
            match Linear::try_new(&pieces, width) {
                Ok(linear) => Cells::Linear(linear),
                Err(_) => Cells::Edges(Edges::try_new(vec![5]).unwrap()),
            }
        }
        _ => {
            let mut edges = keys(width, 20, random);
            edges.push(9);
            edges.sort_unstable();
            edges.dedup();
            Cells::Edges(Edges::try_new(edges).unwrap())
        }
    }
}

fn some_summary(width: Width, random: &mut SmallRng) -> Option<AnySummary> {
    let eps = Epsilon::try_new(random.random_range(2.0..100.0)).unwrap();
    let mut sketch = AnySketch::new(width, eps, Variant::Modified);
    sketch.extend_keys(keys(width, 60, random).into_iter()).unwrap();
    random.random::<bool>().then(|| sketch.partial().unwrap())
}

fn some_request(width: Width, random: &mut SmallRng) -> Request {
    match random.random_range(0..4) {
        0 => Request::Sample {
            size: random.random_range(0..1000),
            population: random.random(),
            seed: random.random(),
            within: some_brackets(width, random),
            extremes: random.random(),
        },
        1 => {
            let cells = some_cells(width, random);
            let keep = (0..cells.len() as u32)
                .filter(|_| random.random_range(0..10) == 0)
                .collect();
            Request::Count {
                cells,
                within: some_brackets(width, random),
                keep,
            }
        }
        2 => Request::Sketch {
            eps: Epsilon::try_new(random.random_range(0.001..0.9)).unwrap(),
        },
        _ => Request::Extract {
            brackets: some_brackets(width, random),
        },
    }
}

fn some_reply(width: Width, random: &mut SmallRng) -> Reply {
    match random.random_range(0..4) {
        0 => Reply::Sample {
            keys: key_list(width, random),
            extremes: random.random::<bool>().then(|| {
                let (one, other) = (key(width, random), key(width, random));
                (one.min(other), one.max(other))
            }),
        },
        1 => Reply::Counts {
            counts: (0..random.random_range(0..40))
                .map(|_| random.random::<u64>() >> 40)
                .collect(),
            kept: lists(width, random),
        },
        2 => Reply::Sketch(some_summary(width, random)),
        _ => Reply::Extracted(lists(width, random)),
    }
}

fn written<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    bytes
}

fn shard(width: Width) -> Box<dyn Shard> {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 24));
    let (data_type, values): (DataType, ArrayRef) = match width {
        Width::W32 => (
            DataType::Int32,
            Arc::new(Int32Array::from_iter_values((-9..9).map(|i| i * i * i))),
        ),
        _ => (
            DataType::Int64,
            Arc::new(Int64Array::from_iter_values((-9..9).map(|i: i64| i.pow(19)))),
        ),
    };
    let spec = KeySpec::try_new(&data_type).unwrap();
    let reservation = MemoryConsumer::new("test").register(&pool);
    let mut shard = CpuBackend::new(pool.as_ref()).open(&spec, reservation).unwrap();
    shard.append(&values, None).unwrap();
    shard
}

/// Answers the request as a machine does that receives it.
fn answered(sent: &SentRequest) -> Result<()> {
    if sent.width == Width::W128 {
        return Ok(());
    }
    shard(sent.width)
        .answer(&sent.request, &Stop::default())
        .map(drop)
}

#[test]
fn mutated_requests_do_no_harm() {
    Decoder {
        slack: SLACK,
        name: "requests",
        test: (module_path!(), "mutated_requests_do_no_harm"),
        valid: &|random| {
            let sent = |random: &mut SmallRng| {
                let width = WIDTHS[random.random_range(0..3)];
                let request = Arc::new(some_request(width, random));
                written(&SentRequest { width, request })
            };
            (0..200).map(|_| sent(random)).collect()
        },
        seal: &|_| {},
        decode: &|bytes| Reader::message::<SentRequest>(bytes),
        apply: &|sent| {
            assert_eq!(
                written(&Reader::message::<SentRequest>(&written(&sent))?),
                written(&sent)
            );
            answered(&sent)
        },
    }
    .check();
}

#[test]
fn mutated_replies_do_no_harm() {
    Decoder {
        slack: SLACK,
        name: "replies",
        test: (module_path!(), "mutated_replies_do_no_harm"),
        valid: &|random| {
            let reply = |random: &mut SmallRng| {
                let width = WIDTHS[random.random_range(0..3)];
                written(&some_reply(width, random))
            };
            (0..200).map(|_| reply(random)).collect()
        },
        seal: &|_| {},
        decode: &|bytes| Reader::message::<Reply>(bytes),
        apply: &|reply| {
            assert_eq!(Reader::message::<Reply>(&written(&reply))?, reply);
            let mut both = reply.clone();
            both.merge(reply)
        },
    }
    .check();
}

#[test]
fn mutated_keys_do_no_harm() {
    let written = |keys: &KeyVec| {
        let mut out = Vec::new();
        put_key_vec(&mut out, keys);
        out
    };
    let read = |bytes: &[u8]| {
        let mut reader = Reader::new("list of keys", bytes);
        let keys = key_vec(&mut reader)?;
        reader.end().map(|()| keys)
    };
    Decoder {
        slack: SLACK,
        name: "keys",
        test: (module_path!(), "mutated_keys_do_no_harm"),
        valid: &|random| {
            let list = |random: &mut SmallRng| key_list(WIDTHS[random.random_range(0..3)], random);
            (0..100).map(|_| written(&list(random))).collect()
        },
        seal: &|_| {},
        decode: &read,
        apply: &|keys| {
            assert_eq!(read(&written(&keys))?, keys);
            Ok(())
        },
    }
    .check();
}
