//! Estimates of the rows of a source that keeps no count of them, from the bytes of its files.

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::{file_scan, stored_bytes};

/// Bytes of a text file for each byte of its compressed form.
const TEXT_COMPRESSION: u64 = 4;
/// Bytes of columns for each byte of a Parquet file.
const COLUMN_COMPRESSION: u64 = 2;
/// Characters that a string, or a value of a nested type, is assumed to have.
const STRING_BYTES: u64 = 16;
/// Seconds to parse a byte of CSV: 250 MB/s, as is usual for a core.
const CSV_SECONDS: f64 = 4e-9;
/// Seconds to parse a byte of JSON: half the speed of CSV.
const JSON_SECONDS: f64 = 8e-9;

/// The estimated rows of a source, and the seconds that one task needs to parse them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SourceSize {
    /// Rows of all files together.
    pub(super) rows: u64,
    /// Seconds in addition to a scan of columns: zero where no text is parsed.
    pub(super) parsing: f64,
}

impl SourceSize {
    /// The size of a scan of files; `None` for any other plan.
    pub(super) fn of(plan: &dyn ExecutionPlan) -> Option<Self> {
        let config = file_scan(plan)?;
        let stored = stored_bytes(config);
        let kind = config.file_source().file_type();
        let is_text = matches!(kind, "csv" | "json");
        let compression = match kind {
            _ if is_text && config.file_compression_type.is_compressed() => TEXT_COMPRESSION,
            "parquet" => COLUMN_COMPRESSION,
            _ => 1,
        };
        let bytes = stored.saturating_mul(compression);
        let columns = config.file_schema().fields().iter();
        let width = columns.map(|field| match kind {
            "csv" => text_width(field.data_type()) + 1,
            "json" => text_width(field.data_type()) + json_name_width(field),
            _ => binary_width(field.data_type()),
        });
        Some(Self {
            rows: bytes / width.sum::<u64>().max(1),
            parsing: bytes as f64
                * match kind {
                    "csv" => CSV_SECONDS,
                    "json" => JSON_SECONDS,
                    _ => 0.0,
                },
        })
    }
}

/// Characters of a value of this type as it is commonly written.
fn text_width(data_type: &DataType) -> u64 {
    match data_type {
        DataType::Null => 0,
        DataType::Int8 | DataType::UInt8 => 2,
        DataType::Int16 | DataType::UInt16 => 4,
        DataType::Boolean => 5,
        DataType::Int32 | DataType::UInt32 | DataType::Int64 | DataType::UInt64 => 7,
        DataType::Float16 | DataType::Float32 | DataType::Float64 => 10,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => 10,
        DataType::Timestamp(..) => 20,
        decimal if decimal.is_decimal() => 8,
        _ => STRING_BYTES,
    }
}

/// Characters beside a value of JSON: its name, two quotes, a colon and a comma.
fn json_name_width(field: &Field) -> u64 {
    field.name().len() as u64 + 4
}

/// Bytes of a value of this type in memory.
fn binary_width(data_type: &DataType) -> u64 {
    match data_type {
        DataType::Dictionary(keys, _) => binary_width(keys),
        fixed => fixed.primitive_width().map_or(STRING_BYTES, |width| width as u64),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::{Schema, SchemaRef};
    use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
    use datafusion::datasource::listing::PartitionedFile;
    use datafusion::datasource::object_store::ObjectStoreUrl;
    use datafusion::datasource::physical_plan::{CsvSource, FileScanConfigBuilder, FileSource, JsonSource};
    use datafusion::datasource::source::DataSourceExec;

    use super::*;

    fn columns() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("name", DataType::Utf8, true),
        ]))
    }

    fn size(source: Arc<dyn FileSource>, files: &[u64], compression: FileCompressionType) -> SourceSize {
        let mut builder = FileScanConfigBuilder::new(ObjectStoreUrl::local_filesystem(), source)
            .with_file_compression_type(compression);
        for (i, bytes) in files.iter().enumerate() {
            builder = builder.with_file(PartitionedFile::new(format!("file{i}"), *bytes));
        }
        SourceSize::of(DataSourceExec::from_data_source(builder.build()).as_ref()).unwrap()
    }

    #[test]
    fn rows_of_text_are_bytes_by_the_width_of_a_row() {
        let csv = |files: &[u64], compression| size(Arc::new(CsvSource::new(columns())), files, compression);
        // 7 digits and 16 characters, each with the byte that ends it.
        let two = csv(&[2500, 5000], FileCompressionType::UNCOMPRESSED);
        assert_eq!((two.rows, two.parsing), (300, 7500.0 * CSV_SECONDS));
        assert_eq!(csv(&[2500, 5000], FileCompressionType::GZIP).rows, 1200);
        assert_eq!(csv(&[], FileCompressionType::UNCOMPRESSED).rows, 0);
        assert_eq!(
            csv(&[u64::MAX, u64::MAX], FileCompressionType::GZIP).rows,
            u64::MAX / 25
        );
        // The names of columns are written for each row of JSON.
        let json = size(
            Arc::new(JsonSource::new(columns())),
            &[37 * 11],
            FileCompressionType::UNCOMPRESSED,
        );
        assert_eq!(json.rows, 11);
        assert!(json.parsing > 0.0);
    }
}
