//! Writes answers to standard output, or to a file.
//!
//! All formats but tables are written batch by batch, every row, whatever their number. A table needs
//! the widths of all its cells, so its rows are held (and counted against the memory limit) until the end.
//! One that is wider than the terminal is written as lines.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::json::writer::{JsonArray, LineDelimited};
use datafusion::arrow::json::{Writer as JsonWriter, WriterBuilder as JsonWriterBuilder};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::common::exec_err;
use datafusion::config::FormatOptions as FormatConfig;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use futures::StreamExt;
use tempfile::NamedTempFile;

use super::labels::Labels;
use super::plot;
use crate::console::make_room;

/// Columns of a drawing where the output is no terminal.
const WIDTH: usize = 100;

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
    /// A table for Markdown documents
    Markdown,
    /// A line for each value, with the name of its column
    Line,
    /// A Parquet file of one answer
    Parquet,
    /// An Arrow IPC stream of one answer
    Arrow,
}

impl Format {
    /// Whether people read it, and not programs.
    fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Markdown | Self::Line)
    }

    /// Whether a file of this format holds one answer, in bytes that nobody reads.
    pub(crate) fn is_binary(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

/// A file that an answer is written to.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    written: Written,
}

/// How an answer comes to its file.
#[derive(Debug)]
enum Written {
    /// Under another name beside it, until it is whole; then it takes the place of this file.
    Whole(NamedTempFile, PathBuf),
    /// As it comes: into a device, a pipe, or the file that a link is to make.
    Through(File),
}

impl OutputFile {
    /// Begins to write a file. One that there is keeps its permissions; it is replaced at the end. A link is followed.
    ///
    /// # Errors
    /// A file that cannot be written, and a folder.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        match Written::begin(&path) {
            Ok(written) => Ok(Self { path, written }),
            Err(error) => Err(cannot_write(&path, error)),
        }
    }

    /// Writes bytes behind those that were written.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.written {
            Written::Whole(file, _) => file.write_all(bytes),
            Written::Through(file) => file.write_all(bytes),
        };
        written.map_err(|error| cannot_write(&self.path, error))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// A file that cannot be renamed.
    pub(crate) fn finish(self) -> Result<()> {
        let finished = match self.written {
            Written::Whole(file, target) => {
                let synced = file.as_file().sync_all();
                synced.and_then(|()| Ok(file.persist(target)?)).map(drop)
            }
            Written::Through(mut file) => file.flush(),
        };
        finished.map_err(|error| cannot_write(&self.path, error))
    }

    /// Removes what was written, where it is not yet in its place.
    pub(crate) fn remove(self) {
        drop(self);
    }
}

impl Written {
    fn begin(path: &Path) -> std::io::Result<Self> {
        let (target, permissions) = match std::fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(there) if there.is_file() => (std::fs::canonicalize(path)?, Some(there.permissions())),
            // A device or a pipe stays what it is.
            Ok(_) => return Ok(Self::Through(OpenOptions::new().write(true).open(path)?)),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            // A link to a file that is not there.
            Err(_) if path.is_symlink() => return Ok(Self::Through(File::create(path)?)),
            Err(_) => (path.to_owned(), None),
        };
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let (prefix, mut builder) = (format!("{name}."), tempfile::Builder::new());
        builder.prefix(&prefix).suffix(".unfinished");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(folder)?;
        if let Some(permissions) = permissions {
            file.as_file().set_permissions(permissions)?;
        }
        Ok(Self::Whole(file, target))
    }
}

fn cannot_write(path: &Path, error: std::io::Error) -> DataFusionError {
    DataFusionError::IoError(error).context(format!("cannot write '{}'", path.display()))
}

/// Where answers are written, in one format.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
    /// A file in place of standard output.
    pub(crate) file: Option<OutputFile>,
    /// Columns of the terminal; `None` where the output is none.
    pub(crate) width: Option<usize>,
    /// Whether answers are drawn with bars, in place of their format.
    pub(crate) plots: bool,
    /// Headings of the columns where people read them.
    pub(crate) labels: Labels,
    /// Answers with columns that were written.
    pub(crate) answers: usize,
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
    /// Standard output, which is no terminal, with all rows.
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            file: None,
            width: None,
            plots: false,
            labels: Labels::default(),
            answers: 0,
            max_rows: usize::MAX,
            closed: false,
            has_written: false,
        }
    }

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
        if self.plots || self.format.is_for_people() {
            stream = self.labels.head(stream);
        }
        let schema = stream.schema();
        if schema.fields().is_empty() {
            // DDL and SET: nothing to show, but the stream does the work.
            while stream.next().await.transpose()?.is_some() {}
            return Ok(false);
        }
        if self.plots {
            let width = self.width.unwrap_or(WIDTH);
            let text = plot::draw(stream, config, width).await?;
            self.write(text.as_bytes())?;
            return Ok(false);
        }
        if self.format.is_binary() && self.answers > 0 {
            return exec_err!(
                "one file of the format {:?} holds one answer, and there is a second",
                self.format
            );
        }
        self.answers += 1;
        if self.format == Format::Table {
            return self.print_table(stream, config, reservation).await;
        }
        let mut rows = RowWriter::try_new(self.format, &schema, config)?;
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
        let is_wider = |width| {
            text.lines()
                .next()
                .is_some_and(|line| line.chars().count() > width)
        };
        if self.width.is_some_and(is_wider) {
            let mut lines = Lines::new(&batches[0].schema());
            let lines: Result<Vec<_>> = batches.iter().map(|batch| lines.batch(batch, &options)).collect();
            self.write(&lines?.concat())?;
            return Ok(cut);
        }
        if cut {
            text = with_dots(&text);
        }
        text.push('\n');
        self.write(text.as_bytes())?;
        Ok(cut)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.has_written |= !bytes.is_empty();
        if let Some(file) = &mut self.file {
            return file.write(bytes);
        }
        make_room();
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
enum RowWriter<'a> {
    Separated { delimiter: u8 },
    Json(JsonWriter<Vec<u8>, JsonArray>),
    NdJson(JsonWriter<Vec<u8>, LineDelimited>),
    Markdown(FormatOptions<'a>),
    Line(Lines, FormatOptions<'a>),
    Parquet(Box<ArrowWriter<Vec<u8>>>),
    Arrow(StreamWriter<Vec<u8>>),
}

impl<'a> RowWriter<'a> {
    fn try_new(format: Format, schema: &SchemaRef, config: &'a FormatConfig) -> Result<Self> {
        // Without explicit NULLs a column of NULLs would vanish from its rows.
        let json = JsonWriterBuilder::new().with_explicit_nulls(true);
        Ok(match format {
            Format::Tsv => Self::Separated { delimiter: b'\t' },
            Format::Json => Self::Json(json.build(Vec::new())),
            Format::NdJson => Self::NdJson(json.build(Vec::new())),
            Format::Csv | Format::Table => Self::Separated { delimiter: b',' },
            Format::Markdown => Self::Markdown(config.try_into()?),
            Format::Line => Self::Line(Lines::new(schema), config.try_into()?),
            Format::Parquet => {
                let properties =
                    WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
                let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(schema), Some(properties.build()))?;
                Self::Parquet(Box::new(writer))
            }
            Format::Arrow => Self::Arrow(StreamWriter::try_new(Vec::new(), schema)?),
        })
    }

    fn begin(&mut self, schema: &SchemaRef) -> Result<Vec<u8>> {
        match self {
            Self::Separated { delimiter } => {
                separated(&RecordBatch::new_empty(Arc::clone(schema)), *delimiter, true)
            }
            Self::Markdown(_) => Ok(markdown_header(schema)),
            _ => Ok(Vec::new()),
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
            Self::Markdown(options) => markdown(batch, options),
            Self::Line(lines, options) => lines.batch(batch, options),
            Self::Parquet(writer) => {
                writer.write(batch)?;
                Ok(std::mem::take(writer.inner_mut()))
            }
            Self::Arrow(writer) => {
                writer.write(batch)?;
                Ok(std::mem::take(writer.get_mut()))
            }
        }
    }

    fn end(self) -> Result<Vec<u8>> {
        match self {
            Self::Separated { .. } | Self::Markdown(_) | Self::Line(..) => Ok(Vec::new()),
            Self::Json(mut writer) => {
                writer.finish()?;
                let mut bytes = writer.into_inner();
                bytes.push(b'\n');
                Ok(bytes)
            }
            Self::NdJson(mut writer) => {
                writer.finish()?;
                Ok(writer.into_inner())
            }
            Self::Parquet(writer) => Ok(writer.into_inner()?),
            Self::Arrow(mut writer) => {
                writer.finish()?;
                Ok(writer.into_inner()?)
            }
        }
    }
}

/// The two lines above the rows of a Markdown table.
fn markdown_header(schema: &SchemaRef) -> Vec<u8> {
    let names = schema.fields().iter().map(|field| markdown_cell(field.name()));
    let rules = schema.fields().iter().map(|field| {
        if field.data_type().is_numeric() {
            "---:"
        } else {
            "---"
        }
    });
    let (names, rules) = (
        names.collect::<Vec<_>>().join(" | "),
        rules.collect::<Vec<_>>().join(" | "),
    );
    format!("| {names} |\n| {rules} |\n").into_bytes()
}

/// Text within a row of a Markdown table.
fn markdown_cell(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace(['\r', '\n'], " ")
}

fn markdown(batch: &RecordBatch, options: &FormatOptions<'_>) -> Result<Vec<u8>> {
    let columns = formatters(batch, options)?;
    let mut text = String::new();
    for row in 0..batch.num_rows() {
        for column in &columns {
            text.push_str("| ");
            text.push_str(&markdown_cell(&column.value(row).try_to_string()?));
            text.push(' ');
        }
        text.push_str("|\n");
    }
    Ok(text.into_bytes())
}

fn formatters<'a>(batch: &'a RecordBatch, options: &FormatOptions<'a>) -> Result<Vec<ArrayFormatter<'a>>> {
    let columns = batch.columns().iter();
    Ok(columns
        .map(|column| ArrayFormatter::try_new(column.as_ref(), options))
        .collect::<Result<_, ArrowError>>()?)
}

/// Rows as a line for each value, with an empty line between two rows.
struct Lines {
    /// The names of the columns, of the same width.
    names: Vec<String>,
    has_rows: bool,
}

impl Lines {
    fn new(schema: &SchemaRef) -> Self {
        let names = || schema.fields().iter().map(|field| field.name());
        let width = names().map(|name| name.chars().count()).max().unwrap_or(0);
        Self {
            names: names().map(|name| format!("{name:>width$}")).collect(),
            has_rows: false,
        }
    }

    fn batch(&mut self, batch: &RecordBatch, options: &FormatOptions<'_>) -> Result<Vec<u8>> {
        let columns = formatters(batch, options)?;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            if std::mem::replace(&mut self.has_rows, true) {
                text.push('\n');
            }
            for (name, column) in self.names.iter().zip(&columns) {
                let value = column.value(row).try_to_string()?;
                text.push_str(&format!("{name} = {value}\n"));
            }
        }
        Ok(text.into_bytes())
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
