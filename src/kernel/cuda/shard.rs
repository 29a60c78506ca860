//! A shard on a device. It gives the same replies as a shard on the CPU, except that the keys in a list come in another order.
//!
//! Values wait in host memory until there are enough for a copy. On the device they lie as Arrow stores them, without NULLs. A request
//! reads them once or twice, at the speed of the device's memory. The CPU writes down the cell of each key for later rounds; here it is
//! computed again. If brackets hold a small part of all keys, these keys are copied to a buffer of their own, so that a strategy that
//! narrows its brackets (DIBMS) reads less and less.

use std::mem;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::buffer::DeviceBuffer;
use super::column::{ColumnUpload, DeviceColumn};
use super::device::Device;
use super::filter::RowMask;
use super::launch::ColumnArgument;
use super::pass::{Passes, cells_of};
use super::report::Report;
use super::select::Selection;
use super::source::{ColumnFormat, Program};
use super::upload::Staging;
use crate::cells::{Brackets, Cells};
use crate::failpoint::may_fail;
use crate::kernel::round::{Reply, Request, share};
use crate::kernel::{Backend, Shard};
use crate::key::{KeyBits, KeySpec, Width, dense};
use crate::memory::{MemoryBudget, is_exhausted};
use crate::threads::Stop;
use crate::threads::locked;

/// Bytes of values that are copied to the device at once.
const CHUNK: usize = 64 << 20;

/// Opens shards on one device.
#[derive(Debug, Clone)]
pub struct CudaBackend {
    device: Arc<Device>,
    limit: Option<u64>,
    timed: bool,
    report: Arc<Mutex<Report>>,
}

impl CudaBackend {
    /// Shards on `device`. They fail if this crate would hold more than `limit` bytes of its memory.
    pub fn new(device: Arc<Device>, limit: Option<u64>) -> Self {
        Self {
            device,
            limit,
            timed: false,
            report: Arc::default(),
        }
    }

    /// The backend with a setting: `timed` says whether to measure the time of each kernel of a [`Selection`].
    pub(crate) fn timed(self, timed: bool) -> Self {
        Self { timed, ..self }
    }

    /// The compilation of the kernels of a shard for values of one format.
    pub fn program(format: ColumnFormat) -> Program {
        super::pass::program(format, false)
    }

    /// The report on all of its shards so far.
    pub fn report(&self) -> Report {
        locked(&self.report).clone()
    }

    /// The limit for counts: as many cells as the shared memory of a block has counters for.
    pub fn budget(&self) -> MemoryBudget {
        MemoryBudget {
            cells: (self.device.shared_memory() / 12).min(1 << 14),
            ..MemoryBudget::UNLIMITED
        }
    }

    /// A shard of the values of a column on the same device, with the keys of `spec`. `mask` has the rows that count, and how many of
    /// these are not NULL; `None`: all rows count.
    ///
    /// # Errors
    /// An execution error if the device failed before.
    pub(crate) fn over(
        &self,
        column: Arc<DeviceColumn>,
        spec: &KeySpec,
        mask: Option<(Arc<RowMask>, u64)>,
        reservation: MemoryReservation,
    ) -> Result<CudaShard> {
        let mut shard = CudaShard::try_new(self, spec, column.format(spec), reservation)?;
        shard.len = mask.as_ref().map_or(column.valid(), |(_, kept)| *kept);
        shard.columns.push(if mask.is_none() && !column.has_nulls() {
            ShardColumn::Column(column)
        } else {
            ShardColumn::Masked(column, mask)
        });
        Ok(shard)
    }
}

impl Backend for CudaBackend {
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Shard>> {
        self.open_shard(spec, reservation)
            .map(|shard| Box::new(shard) as Box<dyn Shard>)
    }
}

impl CudaBackend {
    /// Opens a shard, as [`Backend::open`] does.
    ///
    /// # Errors
    /// An execution error if the device failed before; an internal error for a type that it cannot hold.
    pub(crate) fn open_shard(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<CudaShard> {
        let Some(bytes) = super::source::storage_bytes(spec.data_type()) else {
            return internal_err!("a shard on a device for values of type {}", spec.data_type());
        };
        CudaShard::try_new(
            self,
            spec,
            ColumnFormat::stored(bytes, spec.encoding()),
            reservation,
        )
    }
}

/// Values of a shard on the device.
#[derive(Debug)]
enum ShardColumn {
    /// A column whose rows all count.
    Column(Arc<DeviceColumn>),
    /// A column whose rows count if they are not NULL, and if they are in the bitmap, where it is given with the number of such rows.
    /// The first request turns it into `Values`.
    Masked(Arc<DeviceColumn>, Option<(Arc<RowMask>, u64)>),
    /// Values without a column, and their number.
    Values(DeviceBuffer, u64),
}

impl ShardColumn {
    fn argument(&self) -> ColumnArgument {
        match self {
            ShardColumn::Column(column) => ColumnArgument::of(column, 0),
            ShardColumn::Masked(column, mask) => {
                ColumnArgument::of(column, mask.as_ref().map_or(0, |(mask, _)| mask.bits().address()))
            }
            ShardColumn::Values(values, rows) => ColumnArgument::dense(values.address(), *rows),
        }
    }

    /// Copies its values, of `width` bytes each, to the byte `at` of `whole`. Returns the number of bytes.
    fn copy_to(&self, whole: &mut DeviceBuffer, at: usize, width: usize) -> Result<usize> {
        match self {
            ShardColumn::Column(column) | ShardColumn::Masked(column, _) => column.copy_values(whole, at),
            ShardColumn::Values(values, rows) => whole.copy_from(at, values, *rows as usize * width),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            ShardColumn::Column(column) | ShardColumn::Masked(column, _) => column.bytes(),
            ShardColumn::Values(values, _) => values.len(),
        }
    }
}

/// A copy of the values whose keys lie inside some brackets.
#[derive(Debug)]
pub(super) struct BracketCopy {
    pub(super) brackets: Brackets,
    pub(super) values: DeviceBuffer,
    pub(super) len: u64,
    /// Whether the values are in the order of the shard.
    pub(super) in_order: bool,
}

/// Keys of one column's values in the memory of a device.
#[derive(Debug)]
pub(crate) struct CudaShard {
    backend: CudaBackend,
    spec: KeySpec,
    format: ColumnFormat,
    pub(super) len: u64,
    /// Values that wait in host memory, without NULLs.
    pending: Vec<ArrayRef>,
    pending_bytes: usize,
    columns: Vec<ShardColumn>,
    pub(super) bracket_copy: Option<BracketCopy>,
    /// The last count of all keys: the cells and the number of keys in each.
    pub(super) counted: Option<(Cells, Vec<u64>)>,
    /// Host memory for waiting values, or for the keys of the last reply.
    pub(super) reservation: MemoryReservation,
}

impl CudaShard {
    fn try_new(
        backend: &CudaBackend,
        spec: &KeySpec,
        format: ColumnFormat,
        reservation: MemoryReservation,
    ) -> Result<Self> {
        backend.device.check()?;
        Ok(Self {
            backend: backend.clone(),
            spec: spec.clone(),
            format,
            len: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            columns: Vec::new(),
            bracket_copy: None,
            counted: None,
            reservation,
        })
    }

    pub(super) fn width(&self) -> Width {
        self.spec.width()
    }

    pub(super) fn passes_over(&self, masked: bool) -> Result<Passes> {
        let CudaBackend {
            device,
            limit,
            report,
            ..
        } = &self.backend;
        Passes::try_new(device, self.format, self.width(), masked, *limit, report)
    }

    /// Takes values, which wait for their copy to the device. Returns whether to call [`Self::flush`] now. After an error none of the
    /// values are in the shard.
    pub(crate) fn hold(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<bool> {
        may_fail!("cuda_hold");
        if values.data_type() != self.spec.data_type() {
            return internal_err!(
                "a shard of {} got values of {}",
                self.spec.data_type(),
                values.data_type()
            );
        }
        (self.bracket_copy, self.counted) = (None, None);
        let kept = dense(values.as_ref(), filter)?;
        let values = kept.as_ref().unwrap_or(values);
        if values.is_empty() {
            return Ok(false);
        }
        let bytes = values.len() * self.word_bytes();
        // Without host memory for more values, those that wait are copied now.
        let held = self.reservation.try_resize(self.pending_bytes + bytes).is_ok();
        self.pending.push(Arc::clone(values));
        self.pending_bytes += bytes;
        self.len += values.len() as u64;
        Ok(!held || self.pending_bytes >= CHUNK)
    }

    /// Copies all waiting values to the device. After an error they still wait.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.columns.is_empty() {
            // Errors of the compiler come now, while the host still has all values.
            self.passes_over(false)?;
        }
        let CudaBackend {
            device,
            limit,
            report,
            ..
        } = &self.backend;
        let memory = self.reservation.new_empty();
        let staging = Staging::new(device, self.reservation.new_empty());
        let mut upload = ColumnUpload::try_new(device, self.spec.data_type(), *limit, memory, &staging)?;
        for values in &self.pending {
            upload.append(values)?;
        }
        may_fail!("cuda_append");
        let column = upload.finish()?;
        locked(report).bytes_to_device += column.bytes() as u64;
        // The column may have widened values of one byte.
        self.format = column.format(&self.spec);
        self.columns.push(ShardColumn::Column(Arc::new(column)));
        self.pending.clear();
        self.pending_bytes = 0;
        self.reservation.free();
        Ok(())
    }

    /// Copies the values of rows that count to a buffer of their own, because passes read all rows of a column.
    fn compact(&mut self) -> Result<()> {
        let [ShardColumn::Masked(column, _)] = self.columns.as_slice() else {
            return Ok(());
        };
        let (rows, width) = (column.rows(), column.value_bytes());
        let (cells, _) = cells_of(&[], self.width())?;
        let compacted = self
            .passes_over(true)?
            .compact(&self.arguments(), &cells, &[0], width, rows)?;
        match compacted {
            Some((values, len)) if len == self.len => self.columns = vec![ShardColumn::Values(values, len)],
            other => {
                let found = other.map(|(_, len)| len);
                return internal_err!("{} values of {rows} rows, the device found {found:?}", self.len);
            }
        }
        Ok(())
    }

    /// A selection in its values, if they are rows of one column.
    fn selection(&self) -> Option<Selection<'_>> {
        let (column, mask) = match self.columns.as_slice() {
            [ShardColumn::Column(column)] => (column, None),
            [ShardColumn::Masked(column, mask)] => {
                (column, mask.as_ref().map(|(mask, kept)| (mask.bits(), *kept)))
            }
            _ => return None,
        };
        Some(Selection {
            column,
            format: self.format,
            mask,
            limit: self.backend.limit,
            timed: self.backend.timed,
        })
    }

    /// Joins several columns to one, if there is memory for both: each launch costs as much time as reading some megabytes.
    fn join(&mut self) -> Result<()> {
        if self.columns.len() < 2 {
            return Ok(());
        }
        let CudaBackend { device, limit, .. } = &self.backend;
        let width = self.word_bytes();
        let Some(mut whole) = granted(device.allocate(self.len as usize * width, *limit))? else {
            return Ok(());
        };
        let mut at = 0;
        for column in &self.columns {
            at += column.copy_to(&mut whole, at, width)?;
        }
        // Freed on the stream, after the copies.
        self.columns = vec![ShardColumn::Values(whole, self.len)];
        Ok(())
    }

    /// Takes out the values that wait in host memory, for another shard. Returns also whether the device has no values.
    pub(crate) fn take_pending(&mut self) -> (Vec<ArrayRef>, bool) {
        self.reservation.free();
        self.pending_bytes = 0;
        let taken = mem::take(&mut self.pending);
        self.len -= taken.iter().map(|values| values.len() as u64).sum::<u64>();
        (taken, self.columns.is_empty())
    }

    pub(super) fn arguments(&self) -> Vec<ColumnArgument> {
        self.columns.iter().map(ShardColumn::argument).collect()
    }

    pub(super) fn word_bytes(&self) -> usize {
        self.format.value_bytes()
    }
}

impl Shard for CudaShard {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        if self.hold(values, filter)? {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn held_bytes(&self) -> usize {
        self.reservation.size()
    }

    fn split(&mut self, _values: u64) -> Option<Box<dyn Shard>> {
        // Threads do not make a device faster.
        None
    }

    fn select(&mut self, ranks: &[u64], stop: &Stop) -> Result<Option<Vec<KeyBits>>> {
        stop.check()?;
        self.flush()?;
        let Some(selection) = self.selection() else {
            return Ok(None);
        };
        let mut report = Report::default();
        let keys = selection.keys(ranks, &mut report)?;
        locked(&self.backend.report).add(&report);
        Ok(Some(keys))
    }

    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply> {
        stop.check()?;
        self.flush()?;
        self.compact()?;
        self.join()?;
        self.reservation.free();
        match request {
            Request::Sample {
                size,
                population,
                seed,
                within,
                extremes,
            } => {
                let share = |own: u64| share(*size, *population, own);
                self.sample(within, share, *seed, *extremes, stop)
            }
            Request::Count { cells, within, keep } => self.count(cells, within, keep, stop),
            Request::Sketch { eps } => match self.width() {
                Width::W32 => self.sketch::<u32>(*eps, stop),
                Width::W64 => self.sketch::<u64>(*eps, stop),
                Width::W128 => self.sketch::<u128>(*eps, stop),
            },
            Request::Extract { brackets } => self.extract(brackets, stop),
        }
    }
}

impl CudaShard {
    /// Bytes of device memory that the shard takes.
    pub(crate) fn device_bytes(&self) -> usize {
        self.columns.iter().map(ShardColumn::bytes).sum::<usize>()
            + self
                .bracket_copy
                .as_ref()
                .map_or(0, |bracket_copy| bracket_copy.values.len())
    }
}

/// The value of a result, or `None` if memory was refused, where the caller has a slower way without that memory.
pub(super) fn granted<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(given) => Ok(Some(given)),
        Err(error) if is_exhausted(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
