//! `sql/*.slt`, documentation and tests at once, and the tables that they read.
//!
//! The tables are Parquet files, so that the same scripts run where tables in memory do not travel.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampSecondArray,
};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{DataFusionError, Result};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionContext};
use datafusion_quantiles::statement;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType};

use crate::sessions::root;
use crate::tables::write_parquet;

/// A session that runs scripts.
pub struct Engine(pub SessionContext);

#[async_trait]
impl AsyncDB for Engine {
    type Error = DataFusionError;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>> {
        output(sql, statement::sql(&self.0, sql).await?).await
    }

    async fn shutdown(&mut self) {}
}

/// What a statement gives to a script.
pub async fn output(sql: &str, frame: DataFrame) -> Result<DBOutput<DefaultColumnType>> {
    let columns = frame.schema().fields().len();
    let batches = frame.collect().await?;
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = Vec::new();
    for batch in &batches {
        let formatters = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options));
        let formatters: Vec<_> = formatters.collect::<Result<_, _>>()?;
        let cells = |row| {
            formatters
                .iter()
                .map(|cells| cells.value(row).to_string())
                .collect()
        };
        rows.extend((0..batch.num_rows()).map(cells));
    }
    if columns == 0 || (batches.is_empty() && sql.trim_start().to_ascii_lowercase().starts_with("set")) {
        return Ok(DBOutput::StatementComplete(0));
    }
    Ok(DBOutput::Rows {
        types: vec![DefaultColumnType::Any; columns],
        rows,
    })
}

fn write(folder: &Path, part: usize, batch: &RecordBatch) {
    std::fs::create_dir_all(folder).unwrap();
    write_parquet(
        &folder.join(format!("part-{part}.parquet")),
        batch,
        WriterProperties::default(),
    );
}

/// `numbers(x)`: 1 to 1000 in four files, none of them sorted.
fn write_numbers(folder: &Path) {
    for part in 0..4_i64 {
        let x = Int64Array::from_iter_values((0..250).map(|i| 1 + (part * 250 + i) * 617 % 1000));
        write(
            folder,
            part as usize,
            &RecordBatch::try_from_iter([("x", Arc::new(x) as ArrayRef)]).unwrap(),
        );
    }
}

/// `trips`: twelve rows in two files; a NULL in most columns, a NaN and infinities among the tips.
fn write_trips(folder: &Path) {
    let day = |n: i32| 19_000 + n;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(1..=12))),
        (
            "city",
            Arc::new(StringArray::from_iter(
                (0..12).map(|i| ["Oslo", "Oslo", "Bonn", "Bonn", "Bonn", "Rome"].get(i % 6)),
            )),
        ),
        (
            "fare",
            Arc::new(Float64Array::from_iter(
                [10.0, 12.5, 7.0, 40.0, 8.25, 9.0, 11.0, 30.0, 6.5, 100.0, 15.0]
                    .map(Some)
                    .into_iter()
                    .chain([None]),
            )),
        ),
        (
            "tip",
            Arc::new(Float64Array::from(vec![
                0.0,
                -0.0,
                1.0,
                f64::INFINITY,
                f64::NAN,
                2.0,
                -f64::NAN,
                f64::NEG_INFINITY,
                0.5,
                3.0,
                0.0,
                1.5,
            ])),
        ),
        (
            "distance",
            Arc::new(
                Decimal128Array::from_iter_values([
                    105, 220, 99, 1500, 130, 180, 205, 770, 85, 3100, 240, 310,
                ])
                .with_precision_and_scale(10, 2)
                .unwrap(),
            ),
        ),
        (
            "passengers",
            Arc::new(Int32Array::from_iter_values([1, 2, 1, 4, 1, 1, 2, 3, 1, 6, 2, 1])),
        ),
        (
            "shared",
            Arc::new(BooleanArray::from_iter((0..12).map(|i| Some(i % 3 == 0)))),
        ),
        (
            "day",
            Arc::new(Date32Array::from_iter_values((0..12).map(|i| day(i / 2)))),
        ),
        (
            "started",
            Arc::new(TimestampSecondArray::from_iter_values(
                (0..12).map(|i| 1_700_000_000 + 60 * i),
            )),
        ),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    write(folder, 0, &batch.slice(0, 7));
    write(folder, 1, &batch.slice(7, 5));
}

/// Writes the tables.
pub fn write_tables(folder: &Path) {
    write_numbers(&folder.join("numbers"));
    write_trips(&folder.join("trips"));
}

/// Registers the tables in `folder`.
pub async fn register_tables(ctx: &SessionContext, folder: &Path) -> Result<()> {
    for table in ["numbers", "trips"] {
        let path = folder.join(table);
        ctx.register_parquet(table, path.to_str().unwrap(), ParquetReadOptions::default())
            .await?;
    }
    Ok(())
}

/// All scripts that any session runs.
pub fn scripts() -> Vec<PathBuf> {
    let scripts = scripts_in("sql");
    assert!(scripts.len() >= 5, "few scripts: {scripts:?}");
    scripts
}

/// The scripts of a folder of the workspace.
pub fn scripts_in(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "slt"))
        .collect()
}
