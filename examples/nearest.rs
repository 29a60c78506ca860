//! The nearest rows of a column of points, on an NVIDIA device: `cargo run --release --example nearest`.
//!
//! Distances and the selection of the nearest are one kernel, which reads the points once. The answer is compared with
//! that of the processor, bit by bit. Without a device this says so.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type};
use datafusion::common::Result;
use datafusion_quantiles::kernel::cuda::{
    Device, DeviceColumn, NearestSelection, Neighbour, Report, squared_distance,
};

/// Points, coordinates of each, and neighbours that are wanted.
const ROWS: usize = 1_000_000;
const WIDTH: usize = 128;
const K: usize = 10;

/// Reproducible numbers from -1 to 1.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The same by the processor: all distances, sorted.
fn by_sort(points: &FixedSizeListArray, point: &[f32]) -> Vec<Neighbour> {
    let values = points.values().as_primitive::<Float32Type>().values();
    let mut all: Vec<_> = values
        .chunks_exact(WIDTH)
        .zip(0_u64..)
        .map(|(other, row)| Neighbour {
            row,
            squared_distance: squared_distance(other, point),
        })
        .collect();
    all.sort_by(|a, b| a.squared_distance.total_cmp(&b.squared_distance));
    all.truncate(K);
    all
}

fn main() -> Result<()> {
    let device = match Device::get(0) {
        Ok(device) => device,
        Err(error) => {
            println!("nothing to show: {}", error.strip_backtrace());
            return Ok(());
        }
    };
    let item = Arc::new(Field::new_list_field(DataType::Float32, false));
    let values = Arc::new(Float32Array::from(numbers(ROWS * WIDTH)));
    let points = FixedSizeListArray::try_new(item, WIDTH as i32, values, None)?;
    let point = numbers(WIDTH + 7).split_off(7);

    let array: ArrayRef = Arc::new(points.clone());
    let vectors = DeviceColumn::upload(&device, points.data_type(), &[array])?;
    let nearest = NearestSelection {
        vectors: &vectors,
        k: K,
        limit: None,
        timed: true,
    };
    // The first question compiles the kernels, or finds them on disk.
    nearest.rows(&point, &mut Report::default())?;
    let mut report = Report::default();
    let start = Instant::now();
    let nearest = nearest.rows(&point, &mut report)?;
    let elapsed = start.elapsed();

    for neighbour in &nearest {
        println!(
            "row {:>7}  distance {:.4}",
            neighbour.row,
            neighbour.squared_distance.sqrt()
        );
    }
    println!(
        "{ROWS} points of {WIDTH} coordinates on {device}: {elapsed:.2?}, of it kernels {:.2?}",
        report.device_time
    );
    println!(
        "the same by the processor: {}",
        nearest == by_sort(&points, &point)
    );
    Ok(())
}
