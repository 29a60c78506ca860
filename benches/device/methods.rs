//! Methods for the best rows of groups, without SQL.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{Array, ArrayRef, UInt16Array, UInt32Array};
use datafusion::arrow::datatypes::DataType;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, Report, TopMethod};

use crate::selection::best;
use crate::tables::{Data, PARTITIONS, array};

/// Best rows of groups by both methods. The choice between them is made from these times.
pub(crate) fn ways_to_best_rows_of_groups() {
    const LOG: u32 = 27;
    let device = Device::get(0).unwrap();
    let column = |data_type: DataType, data: Data| {
        let parts: Vec<ArrayRef> = std::thread::scope(|scope| {
            let part = |part| {
                let data_type = &data_type;
                scope.spawn(move || array(data_type, data, part, (1 << LOG) / PARTITIONS))
            };
            let parts: Vec<_> = (0..PARTITIONS).map(part).collect();
            parts.into_iter().map(|part| part.join().unwrap()).collect()
        });
        DeviceColumn::upload(&device, &data_type, &parts).unwrap()
    };
    println!("2^{LOG} rows; kernels, milliseconds, medians of 3");
    println!("| bits of a record | groups | k | all in order | warps | of it ordering | selecting |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (key, value) in [
        (
            (DataType::Float64, Data::Normal),
            (DataType::UInt32, Data::Uniform),
        ),
        (
            (DataType::Int32, Data::Groups(1 << 24)),
            (DataType::Int32, Data::Groups(1 << 16)),
        ),
    ] {
        let (key, value) = (column(key.0, key.1), column(value.0, value.1));
        for groups in [8, 1000, 16_384] {
            let group = column(DataType::Int32, Data::Groups(groups));
            for k in [1, 32, 100, 256, 1000] {
                let mut times: [Vec<f64>; 4] = Default::default();
                for _ in 0..3 {
                    let answer = |method| best(&group, &key, &value, k, false, method).1;
                    let (sort, warps) = (answer(TopMethod::Sort), answer(TopMethod::Warps));
                    let of = |prefix: &str| {
                        let own = warps
                            .kernel_times
                            .iter()
                            .filter(|(name, _)| name.starts_with(prefix));
                        own.map(|(_, time)| *time).sum::<Duration>()
                    };
                    let all = [sort.device_time, warps.device_time, of("so_"), of("gt_select")];
                    for (times, time) in times.iter_mut().zip(all) {
                        times.push(time.as_secs_f64() * 1e3);
                    }
                }
                let medians = times.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    format!("{:.2}", times[times.len() / 2])
                });
                let bits = if key.data_type() == &DataType::Int32 {
                    64
                } else {
                    128
                };
                println!("| {bits} | {groups} | {k} | {} |", medians.join(" | "));
            }
        }
    }
}

/// The rows of a matrix as groups that lie together: times of the kernels that find the best of each, and of everything. The data of
/// Figure 3 of Johnson, Douze and Jegou 2017: lengths of 1000 to 128 000. A time of 0 means that rows were too short for runs.
pub(crate) fn rows_of_matrices() {
    const ROWS: usize = 10_000;
    let device = Device::get(0).unwrap();
    for data in [Data::Uniform, Data::Normal] {
        let each = 128_000 * ROWS / PARTITIONS;
        let part = |part| move || array(&DataType::Float32, data, part, each);
        let keys: Vec<ArrayRef> = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..PARTITIONS).map(|index| scope.spawn(part(index))).collect();
            parts.into_iter().map(|part| part.join().unwrap()).collect()
        });
        println!("{data:?}: {ROWS} rows of a matrix of Float32, medians of 9, milliseconds");
        println!(
            "| length | k | a block a row | with the answer | WarpSelect | with the answer | all in order |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for length in [128_000, 64_000, 32_000, 16_000, 8000, 4000, 2000, 1000] {
            if !matches!(data, Data::Uniform) && length < 128_000 {
                continue;
            }
            let upload = |data_type, parts: &dyn Fn(usize, usize) -> ArrayRef| {
                let whole = (0..PARTITIONS).map(|index| parts(index * each, each));
                let mut left = ROWS * length;
                let cut = whole.map_while(|part| {
                    let own = part.len().min(left);
                    left -= own;
                    (own > 0).then(|| part.slice(0, own))
                });
                DeviceColumn::upload(&device, &data_type, &cut.collect::<Vec<_>>()).unwrap()
            };
            let key = upload(DataType::Float32, &|from, rows| Arc::clone(&keys[from / rows]));
            let value = upload(DataType::UInt32, &|from, rows| {
                Arc::new(UInt32Array::from_iter_values(from as u32..(from + rows) as u32))
            });
            let group = upload(DataType::UInt16, &|from, rows| {
                let numbers = (from..from + rows).map(|row| (row / length) as u16);
                Arc::new(UInt16Array::from_iter_values(numbers))
            });
            for k in [10, 100, 200, 1000] {
                let mut times: [Vec<f64>; 5] = Default::default();
                for run in 0..9 {
                    let answer = |method| best(&group, &key, &value, k, false, method);
                    let (blocks, by_blocks) = answer(TopMethod::RunsByBlocks);
                    let (warps, by_warps) = answer(TopMethod::RunsByWarps);
                    assert!(blocks.values.to_data() == warps.values.to_data());
                    let of = |report: &Report, prefix: &str| {
                        let own = report.kernel_times.iter();
                        let own = own.filter(|(name, _)| name.starts_with(prefix));
                        own.map(|(_, time)| *time).sum::<Duration>()
                    };
                    let all = [
                        of(&by_blocks, "ws_block_runs"),
                        by_blocks.device_time,
                        of(&by_warps, "ws_"),
                        by_warps.device_time,
                    ];
                    for (times, time) in times.iter_mut().zip(all) {
                        times.push(time.as_secs_f64() * 1e3);
                    }
                    if run == 0 {
                        let (sorted, report) = answer(TopMethod::Sort);
                        assert!(blocks.values.to_data() == sorted.values.to_data());
                        times[4].push(report.device_time.as_secs_f64() * 1e3);
                    }
                }
                let medians = times.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    format!("{:.3}", times[times.len() / 2])
                });
                println!("| {length} | {k} | {} |", medians.join(" | "));
            }
        }
    }
}
