use proptest::prelude::*;

use super::patterns::{self, Pattern};
use super::samplesort::Random;
use super::*;
use crate::message_log::{Collective, Transfer};

/// The distribution of keys over shards.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// Shards of equal size, neighbours together.
    Even,
    /// Each key on any shard.
    Random,
    /// Most shards empty.
    Few,
    /// All keys on the last shard.
    Last,
}

fn spread(words: &[u64], shards: usize, spread: Spread, seed: u64) -> Vec<Vec<u64>> {
    let mut random = Random::new(seed);
    let mut piles = vec![vec![]; shards];
    for (at, word) in words.iter().enumerate() {
        let shard = match spread {
            Spread::Even => at * shards / words.len(),
            Spread::Random => random.below(shards as u64) as usize,
            Spread::Few => (random.below(3) as usize * 5 + 1) % shards,
            Spread::Last => shards - 1,
        };
        piles[shard].push(*word);
    }
    piles
}

fn shards_of(piles: &[Vec<u64>], width: u32) -> Vec<KeyVec> {
    let shard = |words: &Vec<u64>| match width {
        32 => KeyVec::W32(patterns::narrow(words)),
        64 => KeyVec::W64(words.clone()),
        _ => KeyVec::W128(patterns::wide(words)),
    };
    piles.iter().map(shard).collect()
}

fn sorted(shards: &[KeyVec]) -> Vec<KeyBits> {
    let mut keys: Vec<KeyBits> = vec![];
    for shard in shards {
        match shard {
            KeyVec::W32(own) => keys.extend(own.iter().map(|key| KeyBits::from(*key))),
            KeyVec::W64(own) => keys.extend(own.iter().map(|key| KeyBits::from(*key))),
            KeyVec::W128(own) => keys.extend(own),
        }
    }
    keys.sort_unstable();
    keys
}

fn setups() -> impl Strategy<Value = Setup> {
    let sort = prop::sample::select(vec![
        LocalSort::OutOfPlace,
        LocalSort::InPlace,
        LocalSort::Standard,
    ]);
    let few = prop::sample::select(vec![None, Some(0), Some(1), Some(100)]);
    let eps = prop::sample::select(vec![None, Some(2.0), Some(30.0), Some(1e9)]);
    (1..4_usize, any::<u64>(), sort, few, eps).prop_map(|(threads, seed, sort, few, eps)| Setup {
        threads,
        seed,
        sort,
        few,
        eps: eps.map(|accuracy| Epsilon::try_new(accuracy).unwrap()),
    })
}

fn populations() -> impl Strategy<Value = usize> {
    prop_oneof![1 => 0..3_usize, 3 => 0..300_usize, 3 => 300..6000_usize]
}

proptest! {
    #[test]
    fn every_baseline_finds_the_keys_of_a_sort(
        pattern in prop::sample::select(&patterns::ALL[..]),
        len in populations(),
        shards in prop_oneof![Just(1), 2..9_usize, 1..=128_usize],
        lies in prop::sample::select(vec![Spread::Even, Spread::Random, Spread::Few, Spread::Last]),
        width in prop::sample::select(vec![32, 64, 128]),
        picks in prop::collection::btree_set(0..1_000_000_u64, 0..12),
        setup in setups(),
    ) {
        let words = patterns::words(pattern, len, setup.seed);
        let shards = shards_of(&spread(&words, shards, lies, setup.seed), width);
        let mut ranks: Vec<u64> = match len {
            0 => vec![],
            len => picks.iter().map(|pick| 1 + pick * len as u64 / 1_000_000).collect(),
        };
        if len > 1 && setup.seed % 2 == 0 {
            ranks.extend([1, len as u64]);
            ranks.sort_unstable();
        }
        ranks.dedup();
        let all = sorted(&shards);
        let expected: Vec<KeyBits> = ranks.iter().map(|rank| all[*rank as usize - 1]).collect();
        for baseline in Baseline::ALL {
            let outcome = solve(baseline, shards.clone(), &ranks, &setup).unwrap();
            prop_assert_eq!(&outcome.keys, &expected, "{:?}", baseline);
            check_log(baseline, &outcome.log, &shards, len as u64);
        }
    }
}

/// Checks that hold for any keys.
fn check_log(baseline: Baseline, log: &MessageLog, shards: &[KeyVec], len: u64) {
    let count = shards.len() as u64;
    let width = match shards[0] {
        KeyVec::W32(_) => 4,
        KeyVec::W64(_) => 8,
        KeyVec::W128(_) => 16,
    };
    if log.transfers.is_empty() {
        return;
    }
    assert!(log.critical_bytes() <= log.bytes(), "{baseline:?}");
    assert_eq!(log.bytes() == 0, count == 1, "{baseline:?}");
    match baseline {
        Baseline::Psrs => {
            assert_eq!(log.rounds().len(), 3);
            let samples = log.transfers.iter().find(|step| step.name == "samples").unwrap();
            assert!(samples.values <= count * count);
            let exchange = log.transfers.iter().find(|step| step.name == "exchange").unwrap();
            assert!(exchange.values <= len + count * (count - 1));
        }
        Baseline::GkSelectCount => assert!((2..=3).contains(&log.rounds().len())),
        Baseline::AlFuraih | Baseline::Jeffers => assert!(!log.rounds().is_empty()),
        _ => assert_eq!(log.rounds().len(), 1, "{baseline:?}"),
    }
    if matches!(baseline, Baseline::SortAndChooseFlat | Baseline::Quickselect) {
        let host = match &shards[0] {
            KeyVec::W32(own) => own.len(),
            KeyVec::W64(own) => own.len(),
            KeyVec::W128(own) => own.len(),
        };
        assert_eq!(log.values(), len - host as u64);
        assert!(log.bytes() <= log.values() * width + 30 * (count - 1));
        assert_eq!(log.critical_bytes(), log.bytes());
    }
}

/// Shi and Schaeffer's theorem, with `2P` for rounding: here for any keys and shards, equal keys included.
#[test]
fn regular_sampling_gives_no_shard_more_than_twice_its_share() {
    for pattern in patterns::ALL {
        for lies in [Spread::Even, Spread::Random, Spread::Few, Spread::Last] {
            for shards in [2, 7, 32] {
                let piles = spread(&patterns::words(pattern, 20_000, 5), shards, lies, 5);
                let mut cluster = Cluster::try_new(shards, 1).unwrap();
                let loads = psrs::loads(&mut cluster, piles).unwrap();
                assert_eq!(loads.iter().sum::<usize>(), 20_000);
                let most = loads.into_iter().max().unwrap();
                let bound = 2 * 20_000 / shards + 2 * shards;
                assert!(
                    most <= bound,
                    "{pattern:?}, {lies:?}, {shards} shards: {most} > {bound}"
                );
            }
        }
    }
}

/// Random pivots until rank k of n distinct keys is one: `H(k) + H(n + 1 - k) - 1` expected, 22 for this median.
#[test]
fn count_and_discard_takes_logarithmic_rounds_and_few_bytes() {
    let words = patterns::words(Pattern::Random, 100_000, 9);
    let shards = shards_of(&spread(&words, 64, Spread::Random, 9), 64);
    let rounds = |baseline, few, ranks: &[u64]| {
        let of_seed = |seed| {
            let setup = Setup {
                few,
                seed,
                ..Setup::default()
            };
            let log = solve(baseline, shards.clone(), ranks, &setup).unwrap().log;
            assert!(log.bytes() < 100_000 * 8, "{baseline:?}: {} bytes", log.bytes());
            log.rounds().len()
        };
        (0..20).map(of_seed).sum::<usize>() as f64 / 20.0
    };
    for baseline in [Baseline::AlFuraih, Baseline::Jeffers] {
        let several = [1, 20_000, 50_000, 100_000];
        let to_the_end = rounds(baseline, Some(0), &[50_000]);
        let until_few = rounds(baseline, None, &[50_000]);
        let shared = rounds(baseline, Some(0), &several);
        assert!((17.0..27.0).contains(&to_the_end), "{baseline:?}: {to_the_end}");
        assert!((3.0..15.0).contains(&until_few), "{baseline:?}: {until_few}");
        assert!((15.0..40.0).contains(&shared), "{baseline:?}: {shared}");
    }
}

#[test]
fn equal_keys_end_count_and_discard_in_a_round() {
    let shards = shards_of(&vec![vec![7; 1000]; 16], 64);
    let outcome = solve(Baseline::AlFuraih, shards, &[1, 8000, 16_000], &Setup::default()).unwrap();
    assert_eq!(outcome.keys, [7, 7, 7]);
    assert_eq!(outcome.log.rounds().len(), 1);
}

#[test]
fn trees_and_collects_are_counted() {
    let shards = shards_of(&vec![vec![1, 2, 3, 4]; 5], 64);
    let log = |baseline| {
        solve(baseline, shards.clone(), &[1], &Setup::default())
            .unwrap()
            .log
    };
    // Lists of 4, 8 and 4 keys: 1 -> 0, 3 -> 2; 2 -> 0; 4 -> 0. Each with length, width and least key before it.
    let tree = log(Baseline::SortAndChoose);
    let expected = Transfer {
        name: "merge",
        collective: Collective::Reduce,
        messages: 4,
        hops: 3,
        bytes: 7 + 7 + 11 + 7,
        critical_bytes: 7 + 11 + 7,
        values: 20,
    };
    assert_eq!(tree.transfers, [expected]);
    let flat = log(Baseline::SortAndChooseFlat);
    assert_eq!((flat.bytes(), flat.critical_bytes(), flat.hops()), (28, 28, 1));
    let plan = &log(Baseline::Psrs).transfers[0];
    assert_eq!((plan.name, plan.messages, plan.hops), ("stride", 4, 3));
    assert_eq!((plan.bytes, plan.critical_bytes), (4, 3));
}

#[test]
fn bad_input_is_refused() {
    let error = |shards: Vec<KeyVec>, ranks: &[u64], threads| {
        let setup = Setup {
            threads,
            ..Setup::default()
        };
        solve(Baseline::Psrs, shards, ranks, &setup)
            .unwrap_err()
            .strip_backtrace()
    };
    let three = || vec![KeyVec::W64(vec![1, 2]), KeyVec::W64(vec![3])];
    assert_eq!(
        error(vec![], &[], 1),
        "Execution error: a baseline needs at least one shard"
    );
    assert_eq!(
        error(three(), &[1], 0),
        "Execution error: a cluster of 2 shards on 0 threads"
    );
    for ranks in [&[0][..], &[4], &[2, 1], &[2, 2]] {
        let expected =
            format!("Execution error: ranks must be ascending, distinct and between 1 and 3: {ranks:?}");
        assert_eq!(error(three(), ranks, 1), expected);
    }
    let mixed = vec![KeyVec::W64(vec![1]), KeyVec::W32(vec![1])];
    assert_eq!(
        error(mixed, &[1], 1),
        "Execution error: shards hold keys of different widths"
    );
}
