//! Selections from byte strings, compared with a sort.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::arrow::array::BooleanArray;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use futures::FutureExt;

use super::*;
use crate::kernel::CpuBackend;
use crate::kernel::round::Request;
use crate::key::KeySpec;
use crate::quantile::{Method, Quantile};

/// Number of values: more than are selected by comparing.
const MANY: usize = 3 * FEW as usize;

fn mixed(i: usize) -> usize {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i << 7)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn selection(pool: ThreadPool) -> ByteStringSelection {
    let unlimited: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let memory = MemoryConsumer::new("test").register(&unlimited);
    ByteStringSelection {
        backend: Arc::new(CpuBackend::new(unlimited.as_ref())),
        strategy: StrategyName::Auto,
        pool,
        round_memory: RoundMemory::new(memory.new_empty()),
        memory,
        budget: MemoryBudget::UNLIMITED,
        disk: None,
    }
}

fn asked() -> QuantileSpec {
    let per_mille = [0, 1, 10, 250, 333, 500, 501, 750, 990, 999, 1000];
    let quantiles = per_mille.map(|q| Quantile::try_from_f64(f64::from(q) / 1000.0).unwrap());
    QuantileSpec {
        quantiles: quantiles.into(),
        method: Method::Disc,
        descending: false,
    }
}

/// Selects from values in two parts, and compares every rank with a sort.
fn check(name: &str, strings: &[Vec<u8>]) -> ByteStringSolution {
    let mut parts = vec![ByteStrings::default(), ByteStrings::default()];
    for (i, string) in strings.iter().enumerate() {
        parts[i % 2].push(string).unwrap();
    }
    let quantile_spec = asked();
    let selection = selection(ThreadPool::scoped(3, Stop::default()));
    let solution = selection
        .solve(ByteStrings::merged(parts), &[&quantile_spec])
        .now_or_never()
        .unwrap()
        .unwrap();
    let mut sorted = strings.to_vec();
    sorted.sort_unstable();
    assert_eq!(solution.n, sorted.len() as u64);
    for rank in quantile_spec.ranks(solution.n) {
        let expected = &sorted[rank as usize - 1];
        assert_eq!(solution.value_at(rank).unwrap(), expected, "{name}, rank {rank}");
    }
    assert_eq!(selection.memory.size(), 0, "{name}");
    solution
}

fn strings(of: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    (0..MANY).map(of).collect()
}

#[test]
fn keys_that_hold_all_that_follows_the_prefix_need_one_level() {
    for digits in [6, 12] {
        let solution = check(
            "prefix of 20 bytes",
            &strings(|i| format!("a common prefix of 20{:0digits$}", mixed(i) % 1_000_000).into()),
        );
        assert_eq!((solution.levels, solution.refined), (1, 0));
    }
    let solution = check("short", &strings(|i| format!("{}", mixed(i) % 99_999).into()));
    assert_eq!((solution.levels, solution.refined), (1, 0));
}

#[test]
fn equal_values_need_no_rounds() {
    for length in [0, 3, 5000] {
        let solution = check("all equal", &vec![vec![b'x'; length]; MANY]);
        assert_eq!((solution.levels, solution.rounds.len()), (1, 0));
    }
}

#[test]
fn ties_are_refined() {
    let few = |i: usize| {
        format!(
            "{} and so on, in many more words: {}",
            mixed(i) % 4,
            mixed(i) % 8 / 4
        )
    };
    let solution = check("few long ones", &strings(|i| few(i).into()));
    assert!(
        solution.levels > 1 && solution.refined >= MANY as u64 / 2,
        "{solution:?}"
    );
    let ends = |i: usize| format!("{}{}{}", mixed(i) % 2, "-".repeat(300), mixed(i));
    let solution = check("clusters that differ at the end", &strings(|i| ends(i).into()));
    assert_eq!((solution.levels, solution.refined), (2, MANY as u64));
    let half = |i: usize| match i % 2 {
        0 => "half of the values are this one".to_owned(),
        _ => format!("half {}", mixed(i)),
    };
    check("half equal", &strings(|i| half(i).into()));
}

#[test]
fn lengths_tell_apart_what_bytes_do_not() {
    check("zeros", &strings(|i| vec![0; mixed(i) % 40]));
    check(
        "zeros after a prefix",
        &strings(|i| [b"abc".to_vec(), vec![0; mixed(i) % 20]].concat()),
    );
    check("staircase", &strings(|i| vec![b'a'; mixed(i) % 600]));
    check("ones of 255", &strings(|i| vec![255; mixed(i) % 33]));
    check("empty or not", &strings(|i| vec![b'z'; 20 * (mixed(i) % 2)]));
}

#[test]
fn long_common_prefixes() {
    let long = "x".repeat(2000);
    check("2 kB", &strings(|i| format!("{long}{}", mixed(i)).into()));
}

#[test]
fn few_values_are_compared() {
    for n in [1, 2, 3, 1000] {
        let all = strings(|i| format!("value {}", mixed(i)).into());
        let solution = check("few", &all[..n]);
        assert_eq!((solution.levels, solution.rounds.len()), (1, 0));
    }
    let none = selection(ThreadPool::new(2, Stop::default()));
    let none = none
        .solve(ByteStrings::default(), &[&asked()])
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!((none.n, none.levels), (0, 0));
    assert!(none.value_at(1).is_err());
}

#[test]
fn the_runtime_s_threads_find_the_same() {
    let mut values = ByteStrings::default();
    let all = strings(|i| format!("{}{}", mixed(i) % 3, mixed(i + 1)).repeat(3).into());
    for value in &all {
        values.push(value).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let selection = selection(ThreadPool::new(3, Stop::default()));
    let solution = runtime.block_on(selection.solve(values, &[&asked()])).unwrap();
    let mut sorted = all;
    sorted.sort_unstable();
    let median = solution.value_at(MANY as u64 / 2).unwrap();
    assert_eq!(median, sorted[MANY / 2 - 1]);
}

#[test]
fn without_memory_for_keys_the_error_says_so() {
    let mut values = ByteStrings::default();
    let all = strings(|i| format!("{}", mixed(i)).into());
    for value in &all {
        values.push(value).unwrap();
    }
    let mut selection = selection(ThreadPool::scoped(2, Stop::default()));
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100_000));
    selection.memory = MemoryConsumer::new("test").register(&pool);
    let error = selection
        .solve(values, &[&asked()])
        .now_or_never()
        .unwrap()
        .unwrap_err();
    let root = error.find_root();
    assert!(
        matches!(root, datafusion::common::DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn values_on_disk_are_selected_in_little_memory() {
    const LIMIT: usize = 3 << 20;
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(LIMIT));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::clone(&pool))
        .build()
        .unwrap();
    type Text = fn(usize) -> String;
    let of: [(&str, Text); 5] = [
        ("prefix", |i| format!("a common prefix of 20{}", mixed(i))),
        ("clusters", |i| {
            format!("{}{}{}", mixed(i) % 3, "-".repeat(100), mixed(i))
        }),
        ("two levels of few", |i| {
            format!("{:030}{:030}{i}", mixed(i) % 2, mixed(i) % 3)
        }),
        ("staircase", |i| "a".repeat(mixed(i) % 200)),
        ("half equal", |i| match i % 2 {
            0 => "half of the values are this one".to_owned(),
            _ => format!("half {}", mixed(i)),
        }),
    ];
    for (name, of) in of {
        let memory = MemoryConsumer::new("test").register(&pool);
        let round_memory = RoundMemory::new(memory.new_empty());
        let backend = CpuBackend::in_workspace(&runtime, Arc::clone(&round_memory));
        let mut sorted: Vec<String> = (0..MANY).map(of).collect();
        let parts = sorted.chunks(MANY / 3).map(|texts| {
            let mut part = ByteStrings::spilling(memory.new_empty(), backend.disk()).unwrap();
            for text in texts {
                part.push(text.as_bytes()).unwrap();
            }
            part.spill(usize::MAX, &Stop::default()).unwrap();
            part
        });
        let values = ByteStrings::merged(parts.collect());
        assert!(values.is_spilled(), "{name}");
        let selection = ByteStringSelection {
            disk: backend.disk(),
            backend: Arc::new(backend),
            strategy: StrategyName::Auto,
            pool: ThreadPool::scoped(2, Stop::default()),
            round_memory,
            memory,
            budget: MemoryBudget::UNLIMITED,
        };
        let quantile_spec = asked();
        let solution = selection
            .solve(values, &[&quantile_spec])
            .now_or_never()
            .unwrap()
            .unwrap();
        sorted.sort_unstable();
        for rank in quantile_spec.ranks(solution.n) {
            let found = solution.value_at(rank).unwrap();
            assert_eq!(found, sorted[rank as usize - 1].as_bytes(), "{name}, rank {rank}");
        }
        drop(selection);
        assert_eq!(
            (pool.reserved(), runtime.disk_manager.used_disk_space()),
            (0, 0),
            "{name}"
        );
    }
}

/// A backend whose shards must all be open before one of them is filled.
#[derive(Debug, Default)]
struct OpenedFirst {
    inner: CpuBackend,
    opened: Arc<AtomicUsize>,
}

/// A shard of [`OpenedFirst`].
struct Filled {
    inner: Box<dyn Shard>,
    opened: Arc<AtomicUsize>,
}

impl Backend for OpenedFirst {
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Shard>> {
        if self.opened.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Filled {
            inner: self.inner.open(spec, reservation)?,
            opened: Arc::clone(&self.opened),
        }))
    }
}

impl Shard for Filled {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        assert_eq!(self.opened.load(Ordering::SeqCst), 3);
        self.inner.append(values, filter)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn held_bytes(&self) -> usize {
        self.inner.held_bytes()
    }

    fn split(&mut self, values: u64) -> Option<Box<dyn Shard>> {
        self.inner.split(values)
    }

    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply> {
        self.inner.answer(request, stop)
    }
}

#[test]
fn every_shard_has_its_first_memory_before_one_is_filled() {
    let mut parts = vec![
        ByteStrings::default(),
        ByteStrings::default(),
        ByteStrings::default(),
    ];
    let mut sorted: Vec<String> = (0..MANY).map(|i| format!("{:016}", mixed(i))).collect();
    for (i, text) in sorted.iter().enumerate() {
        parts[i % 3].push(text.as_bytes()).unwrap();
    }
    let selection = ByteStringSelection {
        backend: Arc::new(OpenedFirst::default()),
        ..selection(ThreadPool::scoped(3, Stop::default()))
    };
    let quantile_spec = asked();
    let solution = selection
        .solve(ByteStrings::merged(parts), &[&quantile_spec])
        .now_or_never()
        .unwrap()
        .unwrap();
    sorted.sort_unstable();
    let median = solution.value_at(MANY as u64 / 2).unwrap();
    assert_eq!(median, sorted[MANY / 2 - 1].as_bytes());
}
