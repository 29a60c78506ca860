//! Filters over columns on a device: the launches of `kernels/filter.cu`.
//!
//! A predicate becomes a bitmap of the rows where it is true, one launch for each comparison; no pass on the host. Cost: a
//! read of each column that is compared, and of the bitmap.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::launch::{ColumnArgument, Kernels, halves, kernel_argument};
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program};
use crate::key::{KeyBits, KeySpec};

const THREADS: u32 = 1024;

/// Which rows count: a condition over some columns, each by its index, that is true, false, or, of a NULL, neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predicate {
    /// The key of the value, in `ORDER BY`'s order, lies in `[first, last]`; or, for `outside`, it does not.
    Within {
        /// Index of the column.
        column: usize,
        /// The least key.
        first: KeyBits,
        /// The greatest key.
        last: KeyBits,
        /// Whether keys beyond count instead.
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
    /// The value is not NULL.
    pub fn is_not_null(column: usize) -> Self {
        Predicate::Within {
            column,
            first: 0,
            last: KeyBits::MAX,
            outside: false,
        }
    }

    /// The predicate that is true where this one is false.
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
        how: u32,
        outside: u32,
    }
}

/// What becomes of the bits that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Set,
    And,
    Or,
}

/// The rows where a predicate is true, a bit each.
#[derive(Debug)]
pub struct RowMask {
    bits: DeviceBuffer,
    rows: u64,
}

impl RowMask {
    /// The rows of a table where `predicate` is true; `columns` are all of one device and length. Nothing is waited for.
    ///
    /// # Errors
    /// `ResourcesExhausted` where there is no memory for a bit a row and level of the predicate; an execution error if the
    /// device fails; an internal error for a column that is not there.
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
        evaluation.run(predicate, &bits, How::Set)?;
        Ok(Self {
            bits,
            rows: first.rows(),
        })
    }

    /// The rows whose key is `key`, as `words` says of `column`; of those in `among`, where it is given. NULL has no key.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub fn of_key(
        column: &DeviceColumn,
        words: ColumnFormat,
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
            ..evaluation.argument(column, &bits, How::Set)
        };
        evaluation.report.bytes_read += column.bytes() as u64;
        evaluation.launch("fl_within", words, argument)?;
        if let Some(among) = among {
            let argument = FilterArgument {
                other: among.address(),
                ..evaluation.argument(column, &bits, How::And)
            };
            evaluation.launch("fl_combine", ColumnFormat::ALL[0], argument)?;
        }
        let rows = column.rows();
        Ok(Self { bits, rows })
    }

    /// The bits.
    pub fn bits(&self) -> &DeviceBuffer {
        &self.bits
    }

    /// How many of its rows are not NULL in `column`. Waits for the device.
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
            ..evaluation.argument(column, &self.bits, How::Set)
        };
        evaluation.launch("fl_count", ColumnFormat::ALL[0], argument)?;
        count.number(0)
    }
}

struct Evaluation<'a> {
    device: &'a Arc<Device>,
    columns: &'a [&'a DeviceColumn],
    rows: u64,
    limit: Option<u64>,
    report: &'a mut Report,
}

impl<'a> Evaluation<'a> {
    /// A bit a row, in words of 4 bytes.
    fn bitmap(&self) -> Result<DeviceBuffer> {
        let bytes = self.rows.div_ceil(32) * 4;
        self.device.allocate(bytes as usize, self.limit)
    }

    fn run(&mut self, predicate: &Predicate, bits: &DeviceBuffer, how: How) -> Result<()> {
        let (list, own) = match predicate {
            Predicate::Within {
                column,
                first,
                last,
                outside,
            } => return self.within(*column, [*first, *last], *outside, bits, how),
            Predicate::IsNull { column } => {
                let column = self.column(*column)?;
                let argument = self.argument(column, bits, how);
                return self.launch("fl_null", ColumnFormat::ALL[0], argument);
            }
            Predicate::And(list) => (list, How::And),
            Predicate::Or(list) => (list, How::Or),
        };
        if how == How::Set || how == own {
            for (number, part) in list.iter().enumerate() {
                let first = number == 0 && how == How::Set;
                self.run(part, bits, if first { How::Set } else { own })?;
            }
            return Ok(());
        }
        // Freed when it goes out of scope, which the stream does after what is asked here.
        let apart = self.bitmap()?;
        self.run(predicate, &apart, How::Set)?;
        let column = self.column(0)?;
        let argument = FilterArgument {
            other: apart.address(),
            ..self.argument(column, bits, how)
        };
        self.launch("fl_combine", ColumnFormat::ALL[0], argument)
    }

    fn within(
        &mut self,
        column: usize,
        ends: [KeyBits; 2],
        outside: bool,
        bits: &DeviceBuffer,
        how: How,
    ) -> Result<()> {
        let column = self.column(column)?;
        let spec = KeySpec::for_order_by(column.data_type())?;
        let words = column.words(&spec);
        let argument = FilterArgument {
            first: halves(ends[0]),
            last: halves(ends[1].min(spec.width().max_key())),
            outside: u32::from(outside),
            ..self.argument(column, bits, how)
        };
        self.report.bytes_read += column.bytes() as u64;
        self.launch("fl_within", words, argument)
    }

    fn column(&self, index: usize) -> Result<&'a DeviceColumn> {
        let column = self.columns.get(index).copied();
        column.ok_or_else(|| {
            internal_datafusion_err!("a predicate over column {index} of {}", self.columns.len())
        })
    }

    fn argument(&self, column: &DeviceColumn, bits: &DeviceBuffer, how: How) -> FilterArgument {
        FilterArgument {
            column: ColumnArgument::of(column, 0),
            words: bits.address(),
            how: how as u32,
            ..FilterArgument::default()
        }
    }

    /// Bitmaps have a word for each 32 rows.
    fn launch(&mut self, name: &'static str, words: ColumnFormat, argument: FilterArgument) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let kernels = Kernels::load(self.device, &Program::of(KernelFile::Filter, words), [0; 4])?;
        let grid = [2 * self.device.multiprocessors(), THREADS];
        let launch = kernels.launch(name, grid, 0)?;
        self.report.kernels += 1;
        launch.run(self.device, &argument)
    }
}
