//! Columns in the memory of a device, measured without SQL. Every answer is checked by counting on the host.
//! `benches/cuda_anchors.py` measures other libraries at the same tasks on the same device.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::arrow::datatypes::DataType;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, Report, TopSelection};
use datafusion_quantiles::key::{KeyBits, KeySpec};
use quantiles_testing::numbers::{arrays, floats, mixed, normal, parts, uniform};

use crate::selection::selection;
use crate::timing::{RUNS, even_ranks, median, print_kernels};

/// For each of these ascending keys: the number of values less than it, and the number of values at most it.
fn around(values: &[ArrayRef], keys: &[KeyBits]) -> Vec<(u64, u64)> {
    const PIECE: usize = 1 << 16;
    let spec = KeySpec::try_new(values[0].data_type()).unwrap();
    let counts = parts(values.len() as u64, |own| {
        // For each key, the values equal to it, and the values between it and the key before.
        let (mut equal, mut between) = (vec![0; keys.len()], vec![0; keys.len() + 1]);
        for values in &values[own.start as usize..own.end as usize] {
            for from in (0..values.len()).step_by(PIECE) {
                let piece = values.slice(from, PIECE.min(values.len() - from));
                for key in spec.keys(&piece).unwrap() {
                    let at = keys.partition_point(|other| *other < key);
                    match keys.get(at) == Some(&key) {
                        true => equal[at] += 1,
                        false => between[at] += 1,
                    }
                }
            }
        }
        (equal, between)
    });
    let mut below = 0;
    (0..keys.len())
        .map(|at| {
            below += counts.iter().map(|(_, between)| between[at]).sum::<u64>();
            let less = below;
            below += counts.iter().map(|(equal, _)| equal[at]).sum::<u64>();
            (less, below)
        })
        .collect()
}

/// Whether `QUANTILES_DATA` names this kind of data, in a list separated by semicolons. Without the variable all are measured.
fn is_wanted(name: &str) -> bool {
    std::env::var("QUANTILES_DATA").map_or(true, |names| names.split(';').any(|wanted| wanted == name))
}

/// The value of a row, given the row and the number of rows.
type Value = fn(u64, u64) -> f64;

const DATA: [(&str, Value); 12] = [
    ("uniform", |row, _| uniform(row)),
    ("normal", |row, _| normal(row)),
    ("lognormal", |row, _| normal(row).exp()),
    ("sorted", |row, n| row as f64 / n as f64),
    ("50% zeros, normal", |row, _| match mixed(row + 1) >> 63 {
        0 => 0.0,
        _ => normal(row),
    }),
    ("all equal", |_, _| 42.0),
    ("16 values", |row, _| (mixed(row) % 16) as f64 * 1.37),
    ("1000 values", |row, _| (mixed(row) % 1000) as f64 * 1.37),
    ("runs of 64", |row, _| in_runs(row, 64)),
    ("runs of 512", |row, _| in_runs(row, 512)),
    ("runs of 4096", |row, _| in_runs(row, 4096)),
    ("clusters of nine scales, far outliers", |row, _| {
        match mixed(row + 3) {
            word if word % 1_000_000 == 0 => 1e30 * (uniform(row) - 0.5),
            word => 10_f64.powi((word % 9) as i32 * 2 - 8) * (1.0 + 1e-4 * uniform(row)),
        }
    }),
];

fn in_runs(row: u64, length: u64) -> f64 {
    uniform(row / length) + 1e-4 * uniform(row)
}

fn column(data_type: &DataType, n: u64, value: Value) -> Vec<ArrayRef> {
    match data_type {
        DataType::Int64 => arrays(n, |rows| {
            let numbers = rows.map(|row| (value(row, n) * 1e15) as i64);
            Arc::new(Int64Array::from_iter_values(numbers))
        }),
        _ => floats(n, *data_type == DataType::Float64, |row| value(row, n)),
    }
}

pub(crate) fn quantiles() {
    let device = Device::get(0).unwrap();
    println!("{device}; 1 GiB of values, medians of {RUNS}; milliseconds");
    println!(
        "| type | data | median: kernels | with the host | 101 ranks: kernels | with the host | second reads, deepened |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let types = [
        (DataType::Float32, 28),
        (DataType::Float64, 27),
        (DataType::Int64, 27),
    ];
    for (data_type, log) in types {
        let n = 1_u64 << log;
        for (name, value) in DATA {
            let few = data_type != DataType::Float32;
            if few && !["uniform", "normal", "sorted", "50% zeros, normal", "16 values"].contains(&name)
                || !is_wanted(name)
            {
                continue;
            }
            let values = column(&data_type, n, value);
            let column = DeviceColumn::upload(&device, &data_type, &values).unwrap();
            let mut cells = Vec::new();
            let mut trouble = Vec::new();
            for count in [1, 101] {
                let ranks = match count {
                    1 => vec![n / 2],
                    _ => even_ranks(n, count),
                };
                let mut selection = selection(&column, None);
                let (mut kernels, mut all, mut expected) = (Vec::new(), Vec::new(), Vec::new());
                for turn in 0..RUNS + 2 {
                    let mut report = Report::default();
                    selection.timed = turn == 0;
                    let start = Instant::now();
                    let found = selection.keys(&ranks, &mut report).unwrap();
                    all.push(start.elapsed().as_secs_f64() * 1e3);
                    kernels.push(report.device_time.as_secs_f64() * 1e3);
                    match turn {
                        0 => {
                            print_kernels(&report);
                            let mut keys = found.clone();
                            keys.dedup();
                            let places = around(&values, &keys);
                            for (rank, key) in ranks.iter().zip(&found) {
                                let (less, up_to) = places[keys.binary_search(key).unwrap()];
                                assert!(less < *rank && *rank <= up_to, "{name} {data_type}: rank {rank}");
                            }
                            expected = found;
                        }
                        _ => assert_eq!(found, expected, "{name} {data_type}"),
                    }
                    if turn == 1 {
                        trouble.push(format!("{}, {}", report.second_reads, report.deepened));
                    }
                }
                // The first times are not those of a warm device.
                for times in [kernels, all] {
                    cells.push(format!("{:.3}", median(times[2..].to_vec())));
                }
            }
            println!(
                "| {data_type} | {name} | {} | {} |",
                cells.join(" | "),
                trouble.join("; ")
            );
        }
    }
}

pub(crate) fn greatest() {
    let device = Device::get(0).unwrap();
    println!("{device}; keys and rows of the k greatest of 2^28 Float32, medians of {RUNS}; milliseconds");
    println!("| data | k | kernels | with the host | second reads |");
    println!("| --- | --- | --- | --- | --- |");
    let n = 1_u64 << 28;
    for (name, value) in DATA {
        if ["runs of 64", "runs of 4096"].contains(&name) || !is_wanted(name) {
            continue;
        }
        let values = column(&DataType::Float32, n, value);
        let column = DeviceColumn::upload(&device, &DataType::Float32, &values).unwrap();
        let spec = KeySpec::try_new(&DataType::Float32).unwrap();
        let share = values[0].len() as u64;
        for k in [10, 100, 1000, 10_000, 100_000] {
            let (mut kernels, mut all, mut again) = (Vec::new(), Vec::new(), 0);
            for turn in 0..RUNS + 2 {
                let mut top = TopSelection {
                    among: selection(&column, None),
                    least: false,
                };
                top.among.timed = turn == 0;
                let mut report = Report::default();
                let start = Instant::now();
                let found = top.rows(k, &mut report).unwrap();
                all.push(start.elapsed().as_secs_f64() * 1e3);
                kernels.push(report.device_time.as_secs_f64() * 1e3);
                again = report.second_reads;
                if turn > 0 {
                    continue;
                }
                print_kernels(&report);
                // There are k distinct rows, each with its key, and no other row has a key above the least of them.
                let mut rows = found.rows.clone();
                rows.sort_unstable();
                rows.dedup();
                assert_eq!(rows.len() as u64, k);
                for (row, key) in found.rows.iter().zip(&found.keys) {
                    let own = values[(row / share) as usize].slice((row % share) as usize, 1);
                    assert_eq!(spec.keys(&own).unwrap()[0], *key);
                }
                let least = *found.keys.iter().min().unwrap();
                let (_, up_to) = around(&values, &[least])[0];
                let above = found.keys.iter().filter(|key| **key > least).count() as u64;
                assert_eq!(above, n - up_to);
            }
            println!(
                "| {name} | {k} | {:.3} | {:.3} | {again} |",
                median(kernels[2..].to_vec()),
                median(all[2..].to_vec())
            );
        }
    }
}
