//! Random tables: a model, and the sources that are made of it.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::*;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{CsvReadOptions, ParquetReadOptions, SessionContext};

use crate::draw::Draw;
use crate::nearest::{vector_length, vector_types, with_one_special};
use crate::value::{Cell, Value, sql, write};

/// Where rows lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Storage {
    Memory,
    Parquet,
    Csv,
}

#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
}

/// Rows of a table, and how they are stored.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
    pub(crate) storage: Storage,
    /// Partitions in memory, or files.
    pub(crate) parts: usize,
    /// Rows of a batch in memory, or of a row group.
    pub(crate) batch: usize,
}

/// Places of the columns that every table has; `X` and `Y` are of any type.
pub(crate) const ID: usize = 0;
pub(crate) const G: usize = 1;
pub(crate) const H: usize = 2;
pub(crate) const K: usize = 3;
pub(crate) const F: usize = 4;
pub(crate) const S: usize = 5;
pub(crate) const X: usize = 6;
pub(crate) const Y: usize = 7;

fn strings() -> Vec<DataType> {
    vec![
        DataType::Utf8,
        DataType::Utf8View,
        DataType::LargeUtf8,
        dictionary(DataType::Utf8),
    ]
}

fn dictionary(values: DataType) -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(values))
}

/// All types of values that are drawn.
pub(crate) fn all_types() -> Vec<DataType> {
    use DataType::*;
    let nullable = |data_type| Arc::new(Field::new("item", data_type, true));
    let mut types = vec![
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Boolean,
        Date32,
        Date64,
        Decimal32(9, 2),
        Decimal64(18, 3),
        Decimal128(10, 2),
        Decimal128(38, 4),
        Decimal256(60, 3),
        Time32(TimeUnit::Second),
        Time64(TimeUnit::Microsecond),
        Timestamp(TimeUnit::Microsecond, None),
        Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())),
        Duration(TimeUnit::Millisecond),
        Interval(IntervalUnit::YearMonth),
        Binary,
        BinaryView,
        dictionary(Int64),
        dictionary(Float64),
        List(nullable(Int32)),
        List(nullable(Float64)),
        List(nullable(Utf8)),
        LargeList(nullable(Int16)),
        LargeList(nullable(Float32)),
        FixedSizeList(nullable(Int64), 2),
        FixedSizeList(nullable(Float64), 2),
        Struct(vec![Field::new("a", Float64, true), Field::new("b", Boolean, true)].into()),
        Struct(vec![Field::new("a", Int32, true), Field::new("b", Utf8, true)].into()),
    ];
    types.extend(strings());
    types.extend(vector_types());
    types
}

/// One value of a type, of about `distinct` different ones.
pub(crate) fn value(draw: &mut Draw, data_type: &DataType, distinct: usize) -> Value {
    use DataType::*;
    let small = draw.below(distinct) as i128 - (distinct / 2) as i128;
    let unsigned = draw.below(distinct) as i128;
    let extreme = draw.chance(2);
    match data_type {
        Float16 | Float32 | Float64 => Value::Float(float(draw, data_type, small)),
        Boolean => Value::Int(small & 1),
        Int8 => Value::Int(if extreme {
            draw.pick(&[-128, 127])
        } else {
            small % 100
        }),
        UInt8 => Value::Int(if extreme { 255 } else { unsigned % 200 }),
        Int16 => Value::Int(small % 30_000),
        UInt16 => Value::Int(unsigned % 60_000),
        Int64 if extreme => Value::Int(draw.pick(&[i64::MIN, i64::MAX]).into()),
        UInt64 if extreme => Value::Int(u64::MAX.into()),
        UInt32 | UInt64 => Value::Int(unsigned),
        Time32(_) | Time64(_) => Value::Int(unsigned % 86_400),
        Date64 => Value::Int(small * 86_400_000),
        Timestamp(..) => Value::Int(1_600_000_000_000_000 + small * 1_000_003),
        Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView => {
            Value::Text(string(draw, unsigned))
        }
        Dictionary(_, values) => value(draw, values, distinct.min(3000)),
        List(item) | LargeList(item) | FixedSizeList(item, _) => {
            let length = match (vector_length(data_type), data_type) {
                (Some(length), _) => length,
                (None, FixedSizeList(_, length)) => *length as usize,
                _ => draw.below(4),
            };
            let mut items: Vec<Cell> = (0..length)
                .map(|_| nested(draw, item.data_type(), distinct))
                .collect();
            if vector_length(data_type).is_some() {
                with_one_special(&mut items);
            }
            Value::Many(items)
        }
        Struct(fields) => Value::Many(
            fields
                .iter()
                .map(|f| nested(draw, f.data_type(), distinct))
                .collect(),
        ),
        Decimal128(38, _) if extreme => Value::Int(draw.pick(&[-1, 1]) * (10_i128.pow(38) - 1)),
        _ => Value::Int(small),
    }
}

fn nested(draw: &mut Draw, data_type: &DataType, distinct: usize) -> Cell {
    (!draw.chance(10)).then(|| value(draw, data_type, distinct.min(5)))
}

fn float(draw: &mut Draw, data_type: &DataType, small: i128) -> f64 {
    if draw.chance(12) {
        return draw.pick(&[
            f64::NAN.abs(),
            -f64::NAN.abs(),
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
        ]);
    }
    match data_type {
        DataType::Float64 if draw.chance(2) => draw.pick(&[f64::MAX, f64::MIN, 5e-324, -1e300]),
        DataType::Float16 => (small % 1000) as f64 / 4.0,
        _ => small as f64 / 8.0,
    }
}

fn string(draw: &mut Draw, number: i128) -> Vec<u8> {
    match number % 7 {
        0 => format!("{number}"),
        1 => format!("a common prefix of some length {number}"),
        2 => format!("a common prefix of some length {}", number / 7),
        3 => format!("é'{number}"),
        4 => "z".repeat(draw.below(3)),
        5 => format!("k{number:06}"),
        _ => format!("{}{number}", "long ".repeat(30)),
    }
    .into_bytes()
}

impl Table {
    /// A random table of at most `most` rows.
    pub(crate) fn draw(draw: &mut Draw, most: usize) -> Self {
        let storage = draw.pick(&[
            Storage::Memory,
            Storage::Memory,
            Storage::Memory,
            Storage::Parquet,
            Storage::Csv,
        ]);
        let n = match draw.below(20) {
            0 => 0,
            1..=3 => draw.below(4),
            4..=11 => draw.below(40),
            12..=16 => draw.below(400),
            17..=18 => draw.below(3000.min(most)),
            _ => draw.below(most),
        };
        let columns = columns(draw, storage);
        let groups = match draw.below(5) {
            0 => 1,
            1 => draw.below(4) + 1,
            2 => draw.below(50) + 1,
            3 => draw.below(n.max(1)) + 1,
            _ => n.max(1) * 4,
        };
        let groups = if n > 5000 && draw.chance(50) { n } else { groups };
        let shape: Vec<(usize, usize)> = columns
            .iter()
            .enumerate()
            .map(|(i, _)| {
                let distinct = match i {
                    G => groups,
                    H => draw.below(5) + 1,
                    K => draw.pick(&[3, 12, 100]),
                    _ => draw.pick(&[1, 2, 10, 1000, 1_000_000]),
                };
                (distinct, draw.pick(&[0, 0, 5, 40, 100, 10, 50]))
            })
            .collect();
        let mut rows: Vec<Vec<Cell>> = (0..n)
            .map(|id| row(draw, &columns, &shape, storage, id))
            .collect();
        if draw.chance(40) {
            let by = draw.pick(&[G, K, X]);
            rows.sort_by(|a, b| {
                crate::value::compare_cells(&a[by], &b[by], false, crate::value::Order::Total)
            });
        }
        let batch = draw.pick(&[1, 3, 17, 100, 1000, 8192]).max(n / 200);
        Self {
            columns,
            rows,
            storage,
            parts: draw.below(4) + 1,
            batch,
        }
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        let fields = self
            .columns
            .iter()
            .map(|c| Field::new(&c.name, c.data_type.clone(), true));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    fn batches(&self) -> Vec<RecordBatch> {
        let schema = self.schema();
        let arrays = |rows: &[Vec<Cell>]| {
            let column = |i: usize| rows.iter().map(|row| row[i].clone()).collect::<Vec<_>>();
            (0..self.columns.len())
                .map(|i| write(&self.columns[i].data_type, &column(i)))
                .collect::<Vec<_>>()
        };
        self.rows
            .chunks(self.batch)
            .map(|rows| RecordBatch::try_new(schema.clone(), arrays(rows)).unwrap())
            .collect()
    }

    /// The batches of each partition or file.
    fn dealt(&self) -> Vec<Vec<RecordBatch>> {
        let mut dealt = vec![Vec::new(); self.parts];
        for (i, batch) in self.batches().into_iter().enumerate() {
            dealt[i % self.parts].push(batch);
        }
        dealt
    }

    /// Writes the files of the table, if it has any, to a folder.
    pub(crate) fn store(&self, folder: &Path) {
        if self.storage == Storage::Memory {
            return;
        }
        std::fs::create_dir_all(folder).unwrap();
        for (part, batches) in self.dealt().into_iter().enumerate() {
            match self.storage {
                Storage::Csv => self.store_csv(&folder.join(format!("{part}.csv")), &batches),
                _ => self.store_parquet(&folder.join(format!("{part}.parquet")), &batches),
            }
        }
    }

    fn store_parquet(&self, path: &Path, batches: &[RecordBatch]) {
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(self.batch))
            .build();
        let file = std::fs::File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, self.schema(), Some(properties)).unwrap();
        for batch in batches {
            writer.write(batch).unwrap();
        }
        writer.close().unwrap();
    }

    fn store_csv(&self, path: &Path, batches: &[RecordBatch]) {
        let mut text: String = self
            .columns
            .iter()
            .map(|c| c.name.clone())
            .collect::<Vec<_>>()
            .join(",")
            + "\n";
        for batch in batches {
            for row in 0..batch.num_rows() {
                let cells = batch
                    .columns()
                    .iter()
                    .map(|column| match crate::value::read(column, row) {
                        Some(Value::Text(text)) => format!("\"{}\"", String::from_utf8(text).unwrap()),
                        Some(Value::Float(v)) => format!("{v:?}"),
                        Some(Value::Int(v)) => v.to_string(),
                        _ => String::new(),
                    });
                text += &(cells.collect::<Vec<_>>().join(",") + "\n");
            }
        }
        std::fs::write(path, text).unwrap();
    }

    /// Registers the table as `t`; `folder` is where [`Self::store`] wrote it.
    pub(crate) async fn register(&self, ctx: &SessionContext, folder: &Path) -> Result<()> {
        let schema = self.schema();
        let folder = folder.to_str().unwrap();
        match self.storage {
            Storage::Memory => {
                ctx.register_table("t", Arc::new(MemTable::try_new(schema, self.dealt())?))?;
                Ok(())
            }
            Storage::Parquet => {
                ctx.register_parquet("t", folder, ParquetReadOptions::default())
                    .await
            }
            Storage::Csv => {
                ctx.register_csv("t", folder, CsvReadOptions::new().schema(&schema))
                    .await
            }
        }
    }

    /// The table as a statement.
    pub(crate) fn sql(&self) -> String {
        let names: Vec<_> = self.columns.iter().map(|c| c.name.as_str()).collect();
        let row = |row: &Vec<Cell>| {
            let cells: Vec<_> = row
                .iter()
                .zip(&self.columns)
                .map(|(cell, c)| sql(&c.data_type, cell))
                .collect();
            format!("  ({})", cells.join(", "))
        };
        let rows: Vec<_> = match self.rows.is_empty() {
            true => vec![row(&vec![None; self.columns.len()])],
            false => self.rows.iter().take(60).map(row).collect(),
        };
        let none = if self.rows.is_empty() { " WHERE false" } else { "" };
        format!(
            "CREATE TABLE t AS SELECT * FROM (VALUES\n{}\n) AS t({}){none};",
            rows.join(",\n"),
            names.join(", ")
        )
    }
}

fn columns(draw: &mut Draw, storage: Storage) -> Vec<Column> {
    use DataType::*;
    let mut any = all_types();
    let mut groups = vec![
        Int64,
        Int32,
        UInt8,
        Boolean,
        Date32,
        Decimal128(10, 2),
        Timestamp(TimeUnit::Microsecond, None),
    ];
    groups.extend(strings());
    let mut texts = strings();
    if storage == Storage::Csv {
        any = vec![Int64, Int32, Float64, Utf8, Utf8View];
        groups = vec![Int64, Int32, Utf8];
        texts = vec![Utf8, Utf8View];
    }
    let x = if storage != Storage::Csv && draw.chance(15) {
        draw.pick(&vector_types())
    } else {
        draw.pick(&any)
    };
    let types = [
        Int64,
        draw.pick(&groups),
        Int64,
        Int64,
        Float64,
        draw.pick(&texts),
        x,
        draw.pick(&any),
    ];
    let names = ["id", "g", "h", "k", "f", "s", "x", "y"];
    let columns = names.into_iter().zip(types);
    columns
        .map(|(name, data_type)| Column {
            name: name.into(),
            data_type,
        })
        .collect()
}

fn row(
    draw: &mut Draw,
    columns: &[Column],
    shape: &[(usize, usize)],
    storage: Storage,
    id: usize,
) -> Vec<Cell> {
    let cell = |(i, column): (usize, &Column)| {
        if i == ID {
            return Some(Value::Int(id as i128));
        }
        let (distinct, nulls) = shape[i];
        if draw.chance(nulls) {
            return None;
        }
        let value = match (i, value(draw, &column.data_type, distinct)) {
            (K, _) => Value::Int(draw.below(distinct) as i128),
            (H, _) => Value::Int(draw.below(distinct) as i128),
            (_, value) => value,
        };
        match (storage, value) {
            // An empty text is NULL in CSV, and NaNs have no sign there.
            (Storage::Csv, Value::Text(text)) if text.is_empty() => None,
            (Storage::Csv, Value::Float(v)) if !v.is_finite() => Some(Value::Float(1.5)),
            (_, value) => Some(value),
        }
    };
    columns.iter().enumerate().map(cell).collect()
}
