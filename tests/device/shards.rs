//! Strategies over shards on devices, without SQL and as stages of a cluster.

use datafusion_quantiles::config::{DeviceChoice, StrategyName};
use datafusion_quantiles::exec::staged::RoundDevice;
use datafusion_quantiles::kernel::cuda::CudaBackend;
use datafusion_quantiles::key::KeyBits;
use datafusion_quantiles::select::LocalShards;
use datafusion_quantiles::threads::Stop;
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::rounds::{ranks_of, run, shard, strategies};
use quantiles_testing::{batch, error, register, row, rows_joined, session, set, staged_session};

use crate::matrix::few_ranks;
use crate::support::{columns, sorted_keys, tests, two_devices, with_nulls};

tests! {
    plain every_strategy_over_shards,
    asynchronous staged_rounds,
    plain executors_have_a_device,
}

/// Every strategy over one shard, and over two shards on two devices, of which one can have most values.
fn every_strategy_over_shards() {
    let devices = two_devices();
    for pattern in patterns::ALL {
        for (name, values) in columns(pattern, 60_013, 6) {
            if !["f64", "i32", "dec"].contains(&name) {
                continue;
            }
            let (spec, sorted) = sorted_keys(&values);
            let ranks = ranks_of(sorted.len() as u64, 12);
            let expected: Vec<KeyBits> = ranks.iter().map(|rank| sorted[*rank as usize - 1]).collect();
            for strategy in strategies() {
                for shares in [vec![60_013], vec![50_000, 10_013], vec![1, 60_012]] {
                    let mut from = 0;
                    let shards = shares.iter().zip(&devices).map(|(share, device)| {
                        let own = values.slice(from, *share);
                        from += share;
                        shard(
                            &CudaBackend::new(std::sync::Arc::clone(device), None),
                            &spec,
                            &[own],
                        )
                    });
                    let shards: Vec<_> = shards.collect();
                    let mut shards = LocalShards::blocking(spec.width(), shards, 2, Stop::default());
                    let solution = run(&mut shards, strategy.as_ref(), &ranks);
                    let found: Vec<KeyBits> =
                        ranks.iter().map(|rank| solution.key_at(*rank).unwrap()).collect();
                    assert_eq!(
                        found,
                        expected,
                        "{} on {shares:?} of {name}, {pattern:?}",
                        strategy.label()
                    );
                }
            }
        }
    }
}

/// The rounds of executors run on their devices, and on the CPU if devices fail.
async fn staged_rounds() {
    let devices = two_devices();
    let columns = with_nulls(columns(Pattern::Clusters, 90_001, 4));
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let sql = few_ranks(&names);
    let rows = batch(columns);
    let plain = session(4);
    register(&plain, "t", &rows, 4, 3000);
    let expected = row(&plain, &sql).await;
    for falls_back in [false, true] {
        let ctx = staged_session(4);
        RoundDevice::on(devices.clone(), falls_back).give(ctx.state_ref().write().config_mut());
        register(&ctx, "t", &rows, 4, 3000);
        for strategy in StrategyName::ALL {
            set(&ctx, "strategy", &strategy.to_string()).await;
            // The setting of the client does not matter.
            set(&ctx, "device", "cpu").await;
            assert_eq!(row(&ctx, &sql).await, expected, "{strategy}");
            let analyzed = rows_joined(&ctx, "EXPLAIN ANALYZE SELECT exact_quantiles(f64, 0.5) FROM t").await;
            for shown in ["kernels=", "device_time=", "cuda_fallback=0"] {
                assert!(analyzed.contains(shown), "{shown} in {analyzed}");
            }
        }
        if !falls_back {
            // The limit of the executor counts, also where the client allows more.
            let limited = RoundDevice::on(devices.clone(), false).with_memory_limit(Some(100 << 10));
            limited.give(ctx.state_ref().write().config_mut());
            let refused = error(&ctx, &sql).await;
            assert!(refused.contains("--cuda-memory-limit"), "{refused}");
            RoundDevice::on(devices.clone(), false).give(ctx.state_ref().write().config_mut());
        }
        // Too little memory for the values of one partition.
        set(&ctx, "cuda_memory_limit", "100k").await;
        match falls_back {
            true => {
                assert_eq!(row(&ctx, &sql).await, expected);
                let analyzed =
                    rows_joined(&ctx, "EXPLAIN ANALYZE SELECT exact_quantiles(f64, 0.5) FROM t").await;
                assert!(analyzed.contains("cuda_fallback=4"), "{analyzed}");
            }
            false => {
                let refused = error(&ctx, &sql).await;
                assert!(refused.contains("quantiles.cuda_memory_limit"), "{refused}");
            }
        }
    }
}

fn executors_have_a_device() {
    RoundDevice::try_new(DeviceChoice::Cuda(None)).unwrap();
}
