//! A Parquet file that appears under its name only when it is complete.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::exec_datafusion_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;

/// Rows of a row group: the unit in which partitions share a file.
const ROW_GROUP: usize = 1 << 20;

/// A file being written. Dropped before [`finish`](Self::finish), it leaves nothing behind.
pub(crate) struct ParquetFile {
    writer: Option<ArrowWriter<BufWriter<File>>>,
    partial: PathBuf,
    target: PathBuf,
}

impl ParquetFile {
    /// Opens a file under a temporary name in the folder of `target`, which is made if missing.
    ///
    /// # Errors
    /// A folder or file that cannot be made.
    pub(crate) fn create(target: &Path, schema: SchemaRef) -> Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let partial = target.with_file_name(format!(".{name}.partial-{}", std::process::id()));
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder).map_err(|error| {
                exec_datafusion_err!("cannot make the folder '{}': {error}", folder.display())
            })?;
        }
        let file = File::create(&partial)
            .map_err(|error| exec_datafusion_err!("cannot write '{}': {error}", partial.display()))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(ROW_GROUP))
            .build();
        let mut created = Self {
            writer: None,
            partial,
            target: target.to_path_buf(),
        };
        created.writer = Some(ArrowWriter::try_new(
            BufWriter::new(file),
            schema,
            Some(properties),
        )?);
        Ok(created)
    }

    /// Appends rows.
    ///
    /// # Errors
    /// Rows that do not fit the schema, or a full disk.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match &mut self.writer {
            Some(writer) => Ok(writer.write(batch)?),
            None => Ok(()),
        }
    }

    /// Completes the file and gives it its name. Returns its size in bytes.
    ///
    /// # Errors
    /// A full disk, or a name that cannot be taken.
    pub(crate) fn finish(mut self) -> Result<u64> {
        if let Some(writer) = self.writer.take() {
            let file = writer.into_inner()?;
            let file = file
                .into_inner()
                .map_err(|error| DataFusionError::IoError(error.into_error()))?;
            // A crash after the rename must not leave an empty file under the final name.
            file.sync_all()?;
        }
        std::fs::rename(&self.partial, &self.target)
            .map_err(|error| exec_datafusion_err!("cannot write '{}': {error}", self.target.display()))?;
        Ok(std::fs::metadata(&self.target)?.len())
    }
}

impl Drop for ParquetFile {
    fn drop(&mut self) {
        // After `finish` there is nothing under this name.
        let _ = std::fs::remove_file(&self.partial);
    }
}
