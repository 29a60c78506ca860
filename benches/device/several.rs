//! A column on one device and on all of them together: the selection alone, without SQL.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::ArrayRef;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, Report, Selection, SpreadSelection};
use datafusion_quantiles::key::KeyBits;
use quantiles_testing::numbers::{floats, mixed, normal, uniform};
use quantiles_testing::rounds::ranks_of;

use crate::selection::selection;
use crate::timing::median;

/// 2^`QUANTILES_LOG` values on one device and on all of them together: the selection alone, without SQL.
pub(crate) fn one_device_and_several() {
    const RUNS: usize = 30;
    let log: u32 = std::env::var("QUANTILES_LOG").map_or(28, |log| log.parse().unwrap());
    let n = 1_u64 << log;
    let there: Vec<_> = (0..Device::count().unwrap())
        .map(|device| Device::get(device).unwrap())
        .collect();
    println!(
        "{} of {}; 2^{log} values, medians of {RUNS}; milliseconds",
        there.len(),
        there[0]
    );
    println!(
        "| values | ranks | one device, kernels | with the host | {} devices, kernels | with the host | ratio | kernels |",
        there.len()
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, double, value) in [
        ("Float32, uniform", false, uniform as fn(u64) -> f64),
        ("Float32, normal", false, normal),
        ("Float32, 1000 values", false, |row| uniform(mixed(row) % 1000)),
        ("Float64, normal", true, normal),
    ] {
        let values = floats(n, double, value);
        let data_type = values[0].data_type().clone();
        let upload = |device: &Arc<Device>, values: &[ArrayRef]| {
            DeviceColumn::upload(device, &data_type, values).unwrap()
        };
        let whole = [upload(&there[0], &values)];
        let shares = values.chunks(values.len().div_ceil(there.len())).zip(&there);
        let shares: Vec<_> = shares.map(|(values, device)| upload(device, values)).collect();
        drop(values);
        for count in [1, 101, 1000] {
            let ranks = match count {
                1 => vec![n.div_ceil(3)],
                _ => ranks_of(n, count),
            };
            let timed = |answer: &dyn Fn(&mut Report) -> Vec<KeyBits>| {
                let (mut kernels, mut times, mut found) = (Vec::new(), Vec::new(), Vec::new());
                for turn in 0..RUNS + 3 {
                    let (start, mut report) = (Instant::now(), Report::default());
                    found = answer(&mut report);
                    if turn >= 3 {
                        times.push(start.elapsed().as_secs_f64() * 1e3);
                        kernels.push(report.device_time.as_secs_f64() * 1e3);
                    }
                }
                (median(kernels), median(times), found)
            };
            let one = selection(&whole[0], None);
            let (kernels, time, keys) = timed(&|report| one.keys(&ranks, report).unwrap());
            let selections = shares.iter().map(|share| selection(share, None)).collect();
            let all = SpreadSelection { shares: selections };
            let (all_kernels, all_time, all_keys) =
                timed(&|report| all.keys(&ranks, report).unwrap().unwrap_or_default());
            if all_keys.is_empty() {
                println!("| {name} | {count} | {kernels:.3} | {time:.3} | left open | | | |");
                continue;
            }
            assert_eq!(keys, all_keys, "{name}, {count} ranks");
            println!(
                "| {name} | {count} | {kernels:.3} | {time:.3} | {all_kernels:.3} | {all_time:.3} | {:.2} | {:.2} |",
                time / all_time,
                kernels / all_kernels
            );
            if count == 101 {
                let mut report = Report::default();
                let shares = shares.iter().map(|share| Selection {
                    timed: true,
                    ..selection(share, None)
                });
                let all = SpreadSelection {
                    shares: shares.collect(),
                };
                all.keys(&ranks, &mut report).unwrap();
                let times: Vec<_> = report
                    .kernel_times
                    .iter()
                    .map(|(kernel, time)| format!("{kernel} {:.0}", time.as_secs_f64() * 1e6))
                    .collect();
                println!(
                    "of the slower device, microseconds, with what it waited: {}",
                    times.join(", ")
                );
            }
        }
    }
}
