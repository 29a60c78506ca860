//! The nearest rows of a matrix on a device, compared with a sort.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryPool, MemoryReservation, UnboundedMemoryPool,
};
use datafusion_quantiles::kernel::cuda::{DeviceMatrix, Neighbour, Report, squared_distance};
use quantiles_testing::pseudo_random;

use crate::support::{device, tests};

tests! {
    plain nearest_rows,
    plain nearest_rows_of_what_is_wrong,
}

fn reservation() -> MemoryReservation {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    MemoryConsumer::new("points").register(&pool)
}

fn points(values: Vec<f32>, width: usize, nulls: Option<NullBuffer>) -> FixedSizeListArray {
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let values = Arc::new(Float32Array::from(values));
    FixedSizeListArray::try_new(item, width as i32, values, nulls).unwrap()
}

/// The `k` nearest of `rows` by a sort: NaN last, and the lower row first where distances are equal.
fn by_sort(
    values: &[f32],
    width: usize,
    point: &[f32],
    k: usize,
    is_null: impl Fn(usize) -> bool,
) -> Vec<(u64, u32)> {
    let rows = values.chunks_exact(width).enumerate();
    let mut all: Vec<(bool, f32, u64)> = rows
        .filter(|(row, _)| !is_null(*row))
        .map(|(row, other)| {
            let distance = squared_distance(other, point);
            (distance.is_nan(), distance, row as u64)
        })
        .collect();
    all.sort_by(|a, b| {
        a.0.cmp(&b.0)
            .then(a.1.abs().total_cmp(&b.1.abs()))
            .then(a.2.cmp(&b.2))
    });
    all.truncate(k);
    let bits = |distance: f32| {
        if distance.is_nan() {
            f32::NAN.to_bits()
        } else {
            distance.to_bits()
        }
    };
    all.into_iter()
        .map(|(_, distance, row)| (row, bits(distance)))
        .collect()
}

fn nearest_rows() {
    let device = device();
    for width in [1, 3, 4, 31, 128, 200] {
        for rows in [1, 31, 100, 10_007] {
            // Whole numbers, whose distances tie; fractions, where the order of additions matters; a NaN.
            for whole in [false, true] {
                let mut values: Vec<f32> = pseudo_random(rows * width, 7)
                    .map(|word| match whole {
                        true => (word % 3) as f32,
                        false => (word >> 40) as f32 / 1e5 - 80.0,
                    })
                    .collect();
                values[rows / 2 * width] = f32::NAN;
                let point: Vec<f32> = pseudo_random(width, 9)
                    .map(|word| (word % 5) as f32 * 0.4)
                    .collect();
                let valid: Vec<bool> = pseudo_random(rows, 3).map(|word| word % 4 != 0).collect();
                for nulls in [None, Some(NullBuffer::from(valid.clone()))] {
                    let array = points(values.clone(), width, nulls.clone());
                    let parts = [array.slice(0, rows / 3), array.slice(rows / 3, rows - rows / 3)];
                    let parts = parts.map(|part| Arc::new(part) as ArrayRef);
                    let matrix = DeviceMatrix::upload(&device, &parts, None, &reservation()).unwrap();
                    for k in [1, 32, 33, 200, 1024] {
                        let found = matrix.nearest(&point, k, None, false, &mut Report::default());
                        let found: Vec<_> = found
                            .unwrap()
                            .into_iter()
                            .map(
                                |Neighbour {
                                     row,
                                     squared_distance,
                                 }| (row, squared_distance.to_bits()),
                            )
                            .collect();
                        let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                        let expected = by_sort(&values, width, &point, k, is_null);
                        assert!(
                            found == expected,
                            "{rows} rows of {width}, k = {k}, nulls: {}, whole: {whole}",
                            nulls.is_some()
                        );
                    }
                }
            }
        }
    }
}

fn nearest_rows_of_what_is_wrong() {
    let device = device();
    let array: ArrayRef = Arc::new(points(vec![0.0; 12], 3, None));
    let upload = |arrays: &[ArrayRef]| DeviceMatrix::upload(&device, arrays, None, &reservation());
    let matrix = upload(std::slice::from_ref(&array)).unwrap();
    let refusal = |point: &[f32], k| {
        let found = matrix.nearest(point, k, None, false, &mut Report::default());
        found.unwrap_err().strip_backtrace()
    };
    assert!(refusal(&[0.0; 4], 1).contains("a point of 4 coordinates among points of 3"));
    assert!(refusal(&[0.0; 3], 0).contains("0 nearest rows: allowed are 1 to 1024"));
    assert!(refusal(&[0.0; 3], 1025).contains("1025 nearest rows: allowed are 1 to 1024"));
    let other: ArrayRef = Arc::new(points(vec![0.0; 12], 4, None));
    for arrays in [
        vec![],
        vec![Arc::new(Int64Array::from(vec![1])) as ArrayRef],
        vec![array, other],
    ] {
        let error = upload(&arrays).unwrap_err().to_string();
        assert!(error.contains("FixedSizeList<Float32>"), "{error}");
    }
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let holed = Float32Array::from(vec![Some(1.0), Some(2.0), None, Some(3.0)]);
    let holed = FixedSizeListArray::try_new(item, 2, Arc::new(holed), None).unwrap();
    let error = upload(&[Arc::new(holed)]).unwrap_err().to_string();
    assert!(error.contains("point 1 has a coordinate that is NULL"), "{error}");
    let limited = DeviceMatrix::upload(
        &device,
        &[Arc::new(points(vec![0.0; 4096], 4, None)) as ArrayRef],
        Some(1),
        &reservation(),
    );
    assert!(
        limited
            .unwrap_err()
            .to_string()
            .contains("quantiles.cuda_memory_limit")
    );
}
