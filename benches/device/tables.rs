//! Tables of 16 partitions in memory.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, UInt32Array,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Number of partitions of a table.
pub(crate) const PARTITIONS: usize = 16;

/// The distribution of the values of a column.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Data {
    /// Uniform from 0 to 1.
    Uniform,
    /// Sums of twelve uniform numbers.
    Normal,
    /// Ascending values.
    Sorted,
    /// One distinct value.
    AllEqual,
    /// 16 distinct values.
    Values16,
    /// Values of which half are 0.
    Zeros,
    /// Whole numbers below this one.
    Groups(u32),
}

impl Data {
    /// Value `i` of `n`.
    fn value(self, rng: &mut SmallRng, i: usize, n: usize) -> f64 {
        match self {
            Data::Uniform => rng.random(),
            Data::Normal => {
                let mut word: u128 = u128::from(rng.random::<u64>()) << 64 | u128::from(rng.random::<u64>());
                let mut sum = -6.0;
                for _ in 0..12 {
                    sum += (word & 0x3ff) as f64 / 1024.0;
                    word >>= 10;
                }
                sum * 1e5 + word as f64
            }
            Data::Sorted => i as f64 / n as f64,
            Data::AllEqual => 42.0,
            Data::Values16 => f64::from(rng.random::<u32>() & 15) * 1.37,
            Data::Groups(groups) => f64::from(rng.random_range(0..groups)),
            Data::Zeros if rng.random() => 0.0,
            Data::Zeros => rng.random::<f64>() - 0.3,
        }
    }
}

/// One partition of a column.
pub(crate) fn array(data_type: &DataType, data: Data, part: usize, rows: usize) -> ArrayRef {
    let mut rng = SmallRng::seed_from_u64(part as u64);
    let values = (0..rows).map(|i| data.value(&mut rng, part * rows + i, PARTITIONS * rows));
    match data_type {
        DataType::Float32 => Arc::new(Float32Array::from_iter_values(values.map(|x| x as f32))),
        DataType::Float64 => Arc::new(Float64Array::from_iter_values(values)),
        DataType::Int32 => Arc::new(Int32Array::from_iter_values(values.map(|x| x as i32))),
        // The numbers of the rows of this partition.
        DataType::UInt32 => Arc::new(UInt32Array::from_iter_values(
            (0..rows).map(|i| (part * rows + i) as u32),
        )),
        _ => Arc::new(Int64Array::from_iter_values(values.map(|x| (x * 1e12) as i64))),
    }
}

/// A table `t` of one column `x` in 16 partitions.
pub(crate) fn table(ctx: &SessionContext, data_type: &DataType, data: Data, rows: usize) {
    table_of(ctx, &[("x", data_type.clone(), data)], rows);
}

/// A table `t` of some columns in 16 partitions.
pub(crate) fn table_of(ctx: &SessionContext, columns: &[(&str, DataType, Data)], rows: usize) {
    let fields = columns
        .iter()
        .map(|(name, data_type, _)| Field::new(*name, data_type.clone(), false));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let partitions: Vec<Vec<RecordBatch>> = std::thread::scope(|scope| {
        let parts = (0..PARTITIONS).map(|part| {
            let schema = &schema;
            scope.spawn(move || {
                let arrays = columns
                    .iter()
                    .map(|(_, data_type, data)| array(data_type, *data, part, rows / PARTITIONS));
                let all = RecordBatch::try_new(Arc::clone(schema), arrays.collect()).unwrap();
                let starts = (0..all.num_rows()).step_by(1 << 16);
                starts
                    .map(|from| all.slice(from, (1 << 16).min(all.num_rows() - from)))
                    .collect()
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    });
    ctx.deregister_table("t").unwrap();
    ctx.register_table("t", Arc::new(MemTable::try_new(schema, partitions).unwrap()))
        .unwrap();
}
