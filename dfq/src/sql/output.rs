//! Writes answers to standard output.
//!
//! csv, tsv, json and nd-json are written batch by batch, every row, whatever their number. A table needs
//! the widths of all its cells, so its rows are held (and counted against the memory limit) until the end.

use std::io::{ErrorKind, Write};
use std::sync::Arc;

use clap::ValueEnum;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::writer::{JsonArray, LineDelimited};
use datafusion::arrow::json::{Writer as JsonWriter, WriterBuilder as JsonWriterBuilder};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::config::FormatOptions as FormatConfig;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use futures::StreamExt;

/// A format of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Boxes for reading
    Table,
    /// Comma-separated values with a header
    Csv,
    /// Tab-separated values with a header
    Tsv,
    /// One JSON array of objects for each statement
    Json,
    /// One JSON object a line
    NdJson,
}

/// Standard output, in one format.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
    /// Most rows of a table, `usize::MAX` for all; other formats always give all.
    pub(crate) max_rows: usize,
    /// The reader went away; nothing more can be written.
    pub(crate) closed: bool,
    /// Whether something of the statement that runs was written.
    #[cfg_attr(
        not(feature = "ballista"),
        allow(dead_code, reason = "statements of a cluster alone are run again")
    )]
    pub(crate) has_written: bool,
}

impl Output {
    /// Writes all of `stream`. Returns whether rows of a table were left out.
    ///
    /// # Errors
    /// The stream's own error; memory for a table past the limit; output that cannot be written
    /// (`closed` is set where its reader went away).
    pub(crate) async fn print(
        &mut self,
        mut stream: SendableRecordBatchStream,
        config: &FormatConfig,
        reservation: &MemoryReservation,
    ) -> Result<bool> {
        let schema = stream.schema();
        if schema.fields().is_empty() {
            // DDL and SET: nothing to show, but the stream does the work.
            while stream.next().await.transpose()?.is_some() {}
            return Ok(false);
        }
        if self.format == Format::Table {
            return self.print_table(stream, config, reservation).await;
        }
        let mut rows = RowWriter::new(self.format);
        // Together with the first rows: a query that fails before has no output, not even a header.
        let mut bytes = rows.begin(&schema)?;
        while let Some(batch) = stream.next().await.transpose()? {
            bytes.extend(rows.batch(&batch)?);
            self.write(&bytes)?;
            bytes.clear();
        }
        bytes.extend(rows.end()?);
        self.write(&bytes)?;
        Ok(false)
    }

    async fn print_table(
        &mut self,
        mut stream: SendableRecordBatchStream,
        config: &FormatConfig,
        reservation: &MemoryReservation,
    ) -> Result<bool> {
        let mut left = self.max_rows;
        // An empty batch first, so that a table without rows still shows its columns.
        let mut batches = vec![RecordBatch::new_empty(stream.schema())];
        let mut cut = false;
        while let Some(batch) = stream.next().await.transpose()? {
            cut = batch.num_rows() > left;
            let batch = if cut { batch.slice(0, left) } else { batch };
            reservation.try_grow(get_record_batch_memory_size(&batch))?;
            left -= batch.num_rows();
            batches.push(batch);
            if cut {
                break;
            }
        }
        let options: FormatOptions = config.try_into()?;
        let mut text = pretty_format_batches_with_options(&batches, &options)?.to_string();
        if cut {
            text = with_dots(&text);
        }
        text.push('\n');
        self.write(text.as_bytes())?;
        Ok(cut)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.has_written |= !bytes.is_empty();
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.flush())
            .map_err(|error| {
                self.closed |= error.kind() == ErrorKind::BrokenPipe;
                DataFusionError::IoError(error).context("cannot write to standard output")
            })
    }
}

/// A line of dots before the last border shows that rows are left out.
fn with_dots(table: &str) -> String {
    let (head, border) = table.rsplit_once('\n').unwrap_or(("", table));
    let width = border.chars().count().saturating_sub(4);
    format!("{head}\n| {:<width$} |\n{border}", ".".repeat(width.min(3)))
}

/// Turns batches into the bytes of a format that needs no look ahead.
enum RowWriter {
    Separated { delimiter: u8 },
    Json(JsonWriter<Vec<u8>, JsonArray>),
    NdJson(JsonWriter<Vec<u8>, LineDelimited>),
}

impl RowWriter {
    fn new(format: Format) -> Self {
        // Without explicit NULLs a column of NULLs would vanish from its rows.
        let json = JsonWriterBuilder::new().with_explicit_nulls(true);
        match format {
            Format::Tsv => Self::Separated { delimiter: b'\t' },
            Format::Json => Self::Json(json.build(Vec::new())),
            Format::NdJson => Self::NdJson(json.build(Vec::new())),
            Format::Csv | Format::Table => Self::Separated { delimiter: b',' },
        }
    }

    fn begin(&mut self, schema: &SchemaRef) -> Result<Vec<u8>> {
        match self {
            Self::Separated { delimiter } => {
                separated(&RecordBatch::new_empty(Arc::clone(schema)), *delimiter, true)
            }
            Self::Json(_) | Self::NdJson(_) => Ok(Vec::new()),
        }
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>> {
        if batch.num_rows() == 0 {
            return Ok(Vec::new());
        }
        match self {
            Self::Separated { delimiter } => separated(batch, *delimiter, false),
            Self::Json(writer) => {
                writer.write(batch)?;
                Ok(std::mem::take(writer.get_mut()))
            }
            Self::NdJson(writer) => {
                writer.write(batch)?;
                Ok(std::mem::take(writer.get_mut()))
            }
        }
    }

    fn end(&mut self) -> Result<Vec<u8>> {
        match self {
            Self::Separated { .. } => Ok(Vec::new()),
            Self::Json(writer) => {
                writer.finish()?;
                let mut bytes = std::mem::take(writer.get_mut());
                bytes.push(b'\n');
                Ok(bytes)
            }
            Self::NdJson(writer) => {
                writer.finish()?;
                Ok(std::mem::take(writer.get_mut()))
            }
        }
    }
}

fn separated(batch: &RecordBatch, delimiter: u8, header: bool) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer = csv::WriterBuilder::new()
        .with_delimiter(delimiter)
        .with_header(header)
        .build(&mut bytes);
    writer.write(&nested_as_text(batch)?)?;
    drop(writer);
    Ok(bytes)
}

/// Lists and structs as their text, which a separated format can hold.
fn nested_as_text(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = batch.schema();
    if !schema.fields().iter().any(|field| field.data_type().is_nested()) {
        return Ok(batch.clone());
    }
    let mut fields = Vec::with_capacity(batch.num_columns());
    let mut columns = Vec::with_capacity(batch.num_columns());
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        let column = if field.data_type().is_nested() {
            as_text(column)?
        } else {
            Arc::clone(column)
        };
        fields.push(Field::new(field.name(), column.data_type().clone(), true));
        columns.push(column);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn as_text(column: &ArrayRef) -> Result<ArrayRef> {
    let options = FormatOptions::default().with_null("NULL");
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
    let nulls = column.logical_nulls();
    let texts = (0..column.len()).map(|row| {
        let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        (!is_null)
            .then(|| formatter.value(row).try_to_string())
            .transpose()
    });
    Ok(Arc::new(texts.collect::<Result<StringArray, ArrowError>>()?))
}
