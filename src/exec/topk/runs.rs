//! Rows in order of their group's part, with what they carry, in memory or on disk.

use std::io::Cursor;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::logical_expr::ColumnarValue;

use crate::kernel::cpu::FreePages;
use crate::kernel::cpu::columns::{row_bytes, to_write};
use crate::kernel::cpu::groups::runs::{Run, Staged, scatter};
use crate::kernel::cpu::groups::words::{PARTS, Word};
use crate::kernel::spill::SpillFile;
use crate::key::{KeySpec, Width};

/// A run with what its rows carry.
pub(super) struct TopRun {
    pub(super) run: Run,
    carried: Carried,
}

enum Carried {
    Memory(Vec<ArrayRef>),
    /// Offset and length of each part's rows in the scan's file, as an Arrow IPC stream.
    Disk(Vec<(u64, usize)>),
}

/// The spec that says no more than a width: keys are made already.
pub(super) fn spec_of(width: Width) -> Result<KeySpec> {
    KeySpec::try_new(&match width {
        Width::W32 => DataType::UInt32,
        Width::W64 => DataType::UInt64,
        Width::W128 => DataType::Decimal128(38, 0),
    })
}

impl TopRun {
    /// Puts batches in order of part; `specs` are those of their key columns.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(super) fn new<W: Word>(
        staged: &[Staged<W>],
        specs: &[&KeySpec],
        free: Option<&Arc<FreePages>>,
    ) -> Result<Self> {
        let mut run = scatter(staged, specs, free)?;
        let carried = std::mem::take(&mut run.others)
            .into_iter()
            .map(|column| match column {
                ColumnarValue::Array(column) => Ok(column),
                ColumnarValue::Scalar(value) => internal_err!("rows carry the one value {value}"),
            });
        Ok(Self {
            carried: Carried::Memory(carried.collect::<Result<_>>()?),
            run,
        })
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let carried = match &self.carried {
            Carried::Memory(columns) => columns.iter().map(row_bytes).sum(),
            Carried::Disk(parts) => parts.capacity() * size_of::<(u64, usize)>(),
        };
        self.run.bytes() + carried
    }

    pub(super) fn rows(&self) -> usize {
        self.run.part_range(PARTS - 1).end
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.run.bytes() > 0
    }

    /// What the rows of a part carry; `file` is the one that this was spilled to.
    ///
    /// # Errors
    /// Those of reading it back.
    pub(super) fn carried(&self, part: usize, file: Option<&SpillFile>) -> Result<Vec<ArrayRef>> {
        let range = self.run.part_range(part);
        match &self.carried {
            Carried::Memory(columns) => {
                let slice = |column: &ArrayRef| column.slice(range.start, range.len());
                Ok(columns.iter().map(slice).collect())
            }
            Carried::Disk(parts) => {
                let (offset, length) = parts[part];
                let file = file.ok_or_else(|| internal_datafusion_err!("spilled rows without their file"))?;
                let mut stream = vec![0; length];
                file.read_at(offset, &mut stream)?;
                match StreamReader::try_new(Cursor::new(stream), None)?
                    .next()
                    .transpose()?
                {
                    Some(batch) if batch.num_rows() == range.len() => Ok(batch.columns().to_vec()),
                    _ => internal_err!("spilled rows of part {part} are not there"),
                }
            }
        }
    }

    /// Moves all to the end of `file`.
    ///
    /// # Errors
    /// Those of the file.
    pub(super) fn spill<W: Word>(&mut self, specs: &[&KeySpec], file: &mut SpillFile) -> Result<()> {
        self.run.spill::<W>(specs, file)?;
        let Carried::Memory(columns) = &self.carried else {
            return Ok(());
        };
        if columns.is_empty() {
            return Ok(());
        }
        let field = |column: &ArrayRef| Field::new("", column.data_type().clone(), true);
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let mut parts = vec![(0, 0); PARTS];
        for (part, place) in parts.iter_mut().enumerate() {
            let range = self.run.part_range(part);
            if range.is_empty() {
                continue;
            }
            let columns = columns
                .iter()
                .map(|column| to_write(&column.slice(range.start, range.len())));
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns.collect::<Result<_>>()?)?;
            let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
            writer.write(&batch)?;
            let stream = writer.into_inner()?;
            *place = (file.append(&stream)?, stream.len());
        }
        self.carried = Carried::Disk(parts);
        Ok(())
    }
}
