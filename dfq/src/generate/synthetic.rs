//! One table of random columns, each hard or easy for quantiles in its own way.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, RecordBatchReader,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Gamma, LogNormal, Zeta};

use super::TargetArgs;
use super::work::{Job, Reader, Work};
use crate::args::parse_rows;

/// Rows that share one state of the random generator.
const CHUNK: u64 = 1 << 16;

#[derive(Debug, clap::Args)]
#[command(after_help = "Writes DIR/synthetic.parquet with the columns\n  \
    lognormal    double, log-normal (3, 1.5)\n  \
    uniform_i64  bigint, uniform in [-2^62, 2^62)\n  \
    price        double, gamma (2, 2500) + 900, two decimal places\n  \
    zipf         int, Zipf (1.3) up to 1000000: heavy duplicates\n  \
    g1000, g1m   int, uniform in 0..1000 and in 0..1000000: groups\n  \
    id           bigint, 0, 1, 2 ...\n\
    The same seed gives the same rows, and fewer rows are the first of more.")]
pub(crate) struct SyntheticArgs {
    /// Number of rows, such as 3e7 or 1_000_000
    #[arg(short, long, value_name = "N", default_value = "1_000_000", value_parser = parse_rows)]
    rows: u64,

    /// Seed of the random numbers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    target: TargetArgs,
}

impl SyntheticArgs {
    /// The file to write.
    pub(crate) fn work(self) -> Work {
        let (rows, seed) = (self.rows, self.seed);
        let job = Job {
            target: self.target.output.join("synthetic.parquet"),
            rows,
            open: Box::new(move || Ok(Box::new(Synthetic::try_new(rows, seed)?) as Reader)),
        };
        Work {
            jobs: vec![job],
            force: self.target.force,
        }
    }
}

/// Generates the rows, chunk by chunk.
struct Synthetic {
    schema: SchemaRef,
    rows: u64,
    seed: u64,
    next: u64,
    lognormal: LogNormal<f64>,
    gamma: Gamma<f64>,
    zipf: Zeta<f64>,
}

impl Synthetic {
    fn try_new(rows: u64, seed: u64) -> Result<Self> {
        let fields = [
            ("lognormal", DataType::Float64),
            ("uniform_i64", DataType::Int64),
            ("price", DataType::Float64),
            ("zipf", DataType::Int32),
            ("g1000", DataType::Int32),
            ("g1m", DataType::Int32),
            ("id", DataType::Int64),
        ];
        let fields: Vec<_> = fields
            .into_iter()
            .map(|(name, kind)| Field::new(name, kind, false))
            .collect();
        Ok(Self {
            schema: Arc::new(Schema::new(fields)),
            rows,
            seed,
            next: 0,
            lognormal: LogNormal::new(3.0, 1.5).map_err(|e| internal_datafusion_err!("log-normal: {e}"))?,
            gamma: Gamma::new(2.0, 2500.0).map_err(|e| internal_datafusion_err!("gamma: {e}"))?,
            zipf: Zeta::new(1.3).map_err(|e| internal_datafusion_err!("zeta: {e}"))?,
        })
    }

    /// The random numbers of one column in one chunk, independent of all others.
    fn random(&self, column: u64) -> StdRng {
        let mut seed = [0; 32];
        for (bytes, part) in seed
            .chunks_exact_mut(8)
            .zip([self.seed, self.next / CHUNK, column])
        {
            bytes.copy_from_slice(&part.to_le_bytes());
        }
        StdRng::from_seed(seed)
    }

    fn floats(&self, column: u64, rows: u64, draw: impl Fn(&mut StdRng) -> f64) -> ArrayRef {
        let mut random = self.random(column);
        Arc::new(Float64Array::from_iter_values(
            (0..rows).map(|_| draw(&mut random)),
        ))
    }

    fn ints(&self, column: u64, rows: u64, draw: impl Fn(&mut StdRng) -> i32) -> ArrayRef {
        let mut random = self.random(column);
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| draw(&mut random))))
    }

    fn longs(&self, column: u64, rows: u64, draw: impl Fn(&mut StdRng) -> i64) -> ArrayRef {
        let mut random = self.random(column);
        Arc::new(Int64Array::from_iter_values((0..rows).map(|_| draw(&mut random))))
    }

    fn chunk(&self, rows: u64) -> Result<RecordBatch, ArrowError> {
        let first = self.next as i64;
        let columns = vec![
            self.floats(0, rows, |r| self.lognormal.sample(r)),
            self.longs(1, rows, |r| r.random_range(-(1 << 62)..1 << 62)),
            self.floats(2, rows, |r| {
                ((self.gamma.sample(r) + 900.0) * 100.0).round() / 100.0
            }),
            self.ints(3, rows, |r| self.zipf.sample(r).min(1e6) as i32),
            self.ints(4, rows, |r| r.random_range(0..1000)),
            self.ints(5, rows, |r| r.random_range(0..1_000_000)),
            Arc::new(Int64Array::from_iter_values(first..first + rows as i64)),
        ];
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
    }
}

impl Iterator for Synthetic {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = CHUNK.min(self.rows - self.next);
        (rows > 0).then(|| {
            let batch = self.chunk(rows);
            self.next += rows;
            batch
        })
    }
}

impl RecordBatchReader for Synthetic {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::compute::concat_batches;

    fn all(rows: u64, seed: u64) -> RecordBatch {
        let source = Synthetic::try_new(rows, seed).unwrap();
        let schema = source.schema();
        let batches = source.collect::<Result<Vec<_>, _>>().unwrap();
        concat_batches(&schema, &batches).unwrap()
    }

    #[test]
    fn a_seed_gives_the_same_rows_and_fewer_rows_are_the_first_of_more() {
        let rows = CHUNK + 77;
        let long = all(rows, 5);
        assert_eq!(long.num_rows() as u64, rows);
        assert_eq!(long, all(rows, 5));
        assert_eq!(long.slice(0, 1000), all(1000, 5));
        assert_ne!(long.slice(0, 1000), all(1000, 6));
    }
}
