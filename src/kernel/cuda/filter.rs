//! Filters over columns on a device: the launches of `kernels/filter.cu`.
//!
//! A predicate becomes a bitmap of the rows where it is true, by one launch for each comparison; the host reads no rows. Cost: one
//! read of each column that is compared, and of the bitmap.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::launch::{ColumnArgument, Kernels, halves, kernel_argument};
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program, vector_of};
use crate::key::{KeyBits, KeySpec};

const THREADS: u32 = 1024;

/// A condition over the columns of a table, each named by its index. For a row it is true, false, or, for a NULL, neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predicate {
    /// The key of the value, in the order of `ORDER BY`, lies in `[first, last]`, or outside of it if `outside` is set.
    Within {
        /// Index of the column.
        column: usize,
        /// The least key.
        first: KeyBits,
        /// The greatest key.
        last: KeyBits,
        /// Whether the keys outside of the interval are meant.
        outside: bool,
    },
    /// The value is NULL.
    IsNull {
        /// Index of the column.
        column: usize,
    },
    /// All of these are true.
    And(Vec<Predicate>),
    /// One of these is true.
    Or(Vec<Predicate>),
}

impl Predicate {
    /// A predicate that is true for values that are not NULL.
    pub fn is_not_null(column: usize) -> Self {
        Predicate::Within {
            column,
            first: 0,
            last: KeyBits::MAX,
            outside: false,
        }
    }

    /// The predicate that is true where this one is false, and false where this one is true.
    pub fn negated(self) -> Self {
        let all = |list: Vec<Predicate>| list.into_iter().map(Predicate::negated).collect();
        match self {
            Predicate::Within {
                column,
                first: 0,
                last: KeyBits::MAX,
                outside: false,
            } => Predicate::IsNull { column },
            Predicate::Within {
                column,
                first,
                last,
                outside,
            } => Predicate::Within {
                column,
                first,
                last,
                outside: !outside,
            },
            Predicate::IsNull { column } => Self::is_not_null(column),
            Predicate::And(list) => Predicate::Or(all(list)),
            Predicate::Or(list) => Predicate::And(all(list)),
        }
    }
}

kernel_argument! {
    /// `struct Filter` of `kernels/filter.cu`.
    struct FilterArgument = fl_sizes[0] {
        column: ColumnArgument,
        words: u64,
        other: u64,
        count: u64,
        first: [u64; 2],
        last: [u64; 2],
        update: u32,
        outside: u32,
    }
}

/// How new bits change a bitmap: `enum Update` of `kernels/filter.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Update {
    Set,
    And,
    Or,
}

/// A bitmap of the rows of a table where a predicate is true.
#[derive(Debug)]
pub struct RowMask {
    bits: DeviceBuffer,
    rows: u64,
}

impl RowMask {
    /// The rows of a table where `predicate` is true. All `columns` are on one device and have the same number of rows. Waits for
    /// nothing.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no device memory for a bit for each row and level of the predicate; an execution error if the
    /// device fails; an internal error for a column that does not exist.
    pub fn evaluate(
        predicate: &Predicate,
        columns: &[&DeviceColumn],
        limit: Option<u64>,
        report: &mut Report,
    ) -> Result<Self> {
        let Some(first) = columns.first() else {
            return internal_err!("a predicate over no columns");
        };
        let mut evaluation = Evaluation {
            device: first.device(),
            columns,
            rows: first.rows(),
            limit,
            report,
        };
        let bits = evaluation.bitmap()?;
        evaluation.run(predicate, &bits, Update::Set)?;
        Ok(Self {
            bits,
            rows: first.rows(),
        })
    }

    /// The rows of `column` whose key is `key`, where `format` gives the keys; only rows of the bitmap `among`, if it is given. NULL has
    /// no key.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub fn of_key(
        column: &DeviceColumn,
        format: ColumnFormat,
        key: KeyBits,
        among: Option<&DeviceBuffer>,
        limit: Option<u64>,
        report: &mut Report,
    ) -> Result<Self> {
        let columns = [column];
        let mut evaluation = Evaluation {
            device: column.device(),
            columns: &columns,
            rows: column.rows(),
            limit,
            report,
        };
        let bits = evaluation.bitmap()?;
        let argument = FilterArgument {
            first: halves(key),
            last: halves(key),
            ..evaluation.argument(column, &bits, Update::Set)
        };
        evaluation.report.bytes_read += column.bytes() as u64;
        evaluation.launch("fl_within", format, argument)?;
        let mut found = Self {
            bits,
            rows: column.rows(),
        };
        if let Some(among) = among {
            found.intersect_bits(among, column, limit, report)?;
        }
        Ok(found)
    }

    /// Drops the rows that are not in `other`, a bitmap of the rows of the same table. `column`: one of its columns.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub(crate) fn intersect(
        &mut self,
        other: &RowMask,
        column: &DeviceColumn,
        limit: Option<u64>,
        report: &mut Report,
    ) -> Result<()> {
        self.intersect_bits(&other.bits, column, limit, report)
    }

    fn intersect_bits(
        &mut self,
        other: &DeviceBuffer,
        column: &DeviceColumn,
        limit: Option<u64>,
        report: &mut Report,
    ) -> Result<()> {
        let columns = [column];
        let mut evaluation = Evaluation {
            device: column.device(),
            columns: &columns,
            rows: self.rows,
            limit,
            report,
        };
        let argument = FilterArgument {
            other: other.address(),
            ..evaluation.argument(column, &self.bits, Update::And)
        };
        evaluation.launch("fl_combine", ColumnFormat::ALL[0], argument)
    }

    /// Its rows, ascending. Waits for the device. `memory` takes the bytes of the bitmap, and 8 for each row.
    ///
    /// # Errors
    /// `ResourcesExhausted` if the pool has no memory for them; an execution error if the device fails.
    pub(crate) fn list(&self, memory: &MemoryReservation, report: &mut Report) -> Result<Vec<u64>> {
        memory.try_grow(self.bits.len())?;
        let words = self.bits.to_numbers::<u32>(0..self.bits.len())?;
        report.bytes_from_device += self.bits.len() as u64;
        // Bits behind the last row are of no row.
        let in_table = |row: &u64| *row < self.rows;
        let count: usize = words.iter().map(|word| word.count_ones() as usize).sum();
        memory.try_grow(size_of::<u64>() * count)?;
        let mut rows = Vec::with_capacity(count);
        for (first, mut word) in (0..).step_by(32).zip(words) {
            while word != 0 {
                rows.extend(Some(first + u64::from(word.trailing_zeros())).filter(in_table));
                word &= word - 1;
            }
        }
        Ok(rows)
    }

    /// The bitmap: bit i of byte i / 8 stands for a row, from row 0 on.
    pub fn bits(&self) -> &DeviceBuffer {
        &self.bits
    }

    /// Number of its rows that are not NULL in `column`. Waits for the device.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub fn count(&self, column: &DeviceColumn, limit: Option<u64>, report: &mut Report) -> Result<u64> {
        let device = column.device();
        let mut count = device.allocate(size_of::<u64>(), limit)?;
        count.zero(0..size_of::<u64>())?;
        let columns = [column];
        let mut evaluation = Evaluation {
            device,
            columns: &columns,
            rows: self.rows,
            limit,
            report,
        };
        let argument = FilterArgument {
            count: count.address(),
            ..evaluation.argument(column, &self.bits, Update::Set)
        };
        evaluation.launch("fl_count", ColumnFormat::ALL[0], argument)?;
        count.number(0)
    }
}

/// The evaluation of a predicate over the columns of one table.
struct Evaluation<'a> {
    device: &'a Arc<Device>,
    columns: &'a [&'a DeviceColumn],
    rows: u64,
    limit: Option<u64>,
    report: &'a mut Report,
}

impl<'a> Evaluation<'a> {
    /// A new bitmap with a bit for each row, in words of 4 bytes.
    fn bitmap(&self) -> Result<DeviceBuffer> {
        let bytes = self.rows.div_ceil(32) * 4;
        self.device.allocate(bytes as usize, self.limit)
    }

    /// Puts the launches for `predicate` on the stream; they change `bits` as `update` says.
    fn run(&mut self, predicate: &Predicate, bits: &DeviceBuffer, update: Update) -> Result<()> {
        let (list, own) = match predicate {
            Predicate::Within {
                column,
                first,
                last,
                outside,
            } => return self.within(*column, [*first, *last], *outside, bits, update),
            Predicate::IsNull { column } => {
                let column = self.column(*column)?;
                let argument = self.argument(column, bits, update);
                return self.launch("fl_null", ColumnFormat::ALL[0], argument);
            }
            Predicate::And(list) => (list, Update::And),
            Predicate::Or(list) => (list, Update::Or),
        };
        if update == Update::Set || update == own {
            for (number, part) in list.iter().enumerate() {
                let first = number == 0 && update == Update::Set;
                self.run(part, bits, if first { Update::Set } else { own })?;
            }
            return Ok(());
        }
        // Freed on the stream when it goes out of scope, so after the launches of this function.
        let separate = self.bitmap()?;
        self.run(predicate, &separate, Update::Set)?;
        let column = self.column(0)?;
        let argument = FilterArgument {
            other: separate.address(),
            ..self.argument(column, bits, update)
        };
        self.launch("fl_combine", ColumnFormat::ALL[0], argument)
    }

    fn within(
        &mut self,
        column: usize,
        ends: [KeyBits; 2],
        outside: bool,
        bits: &DeviceBuffer,
        update: Update,
    ) -> Result<()> {
        let column = self.column(column)?;
        let (format, max_key) = match vector_of(column.data_type()) {
            // Vectors have no keys: one that is there lies within all keys, which is the only interval that is asked for.
            Some(_) if (ends, outside) == ([0, KeyBits::MAX], false) => {
                (ColumnFormat::ALL[0], u32::MAX.into())
            }
            _ => {
                let spec = KeySpec::for_order_by(column.data_type())?;
                (column.format(&spec), spec.width().max_key())
            }
        };
        let argument = FilterArgument {
            first: halves(ends[0]),
            last: halves(ends[1].min(max_key)),
            outside: u32::from(outside),
            ..self.argument(column, bits, update)
        };
        self.report.bytes_read += column.rows() * format.value_bytes() as u64;
        self.launch("fl_within", format, argument)
    }

    fn column(&self, index: usize) -> Result<&'a DeviceColumn> {
        let column = self.columns.get(index).copied();
        column.ok_or_else(|| {
            internal_datafusion_err!("a predicate over column {index} of {}", self.columns.len())
        })
    }

    fn argument(&self, column: &DeviceColumn, bits: &DeviceBuffer, update: Update) -> FilterArgument {
        FilterArgument {
            column: ColumnArgument::of(column, 0),
            words: bits.address(),
            update: update as u32,
            ..FilterArgument::default()
        }
    }

    /// Launches a kernel, unless the table has no rows. The bitmaps of the argument have a word for every 32 rows, or a part of 32.
    fn launch(&mut self, name: &'static str, format: ColumnFormat, argument: FilterArgument) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let kernels = Kernels::load(self.device, &Program::of(KernelFile::Filter, format), [0; 4])?;
        let grid = [2 * self.device.multiprocessors(), THREADS];
        let launch = kernels.launch(name, grid, 0)?;
        self.report.kernels += 1;
        launch.run(self.device, &argument)
    }
}
