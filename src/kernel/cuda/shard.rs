//! A shard on a device: the same requests as on the CPU, and the same replies, but for the order of keys in a list.
//!
//! Values wait in host memory until a chunk of them is worth a copy, and then lie on the device as Arrow has them, without NULLs.
//! A request reads them once or twice, at the speed of the device's memory: what the CPU writes down for later rounds (the cell
//! of each key) is computed again here. Keys inside brackets that hold a small part of all are set apart, so that the rounds
//! of a strategy that narrows its brackets (DIBMS) read less and less.

use std::mem;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::buffer::DeviceBuffer;
use super::column::{ColumnUpload, DeviceColumn};
use super::device::Device;
use super::lock::locked;
use super::filter::RowMask;
use super::launch::ColumnArgument;
use super::pass::{Passes, cells_of};
use super::report::Report;
use super::select::Selection;
use super::source::{Program, ColumnFormat};
use super::upload::Staging;
use crate::cells::{Brackets, Cells};
use crate::failpoint::may_fail;
use crate::kernel::round::{Reply, Request, share};
use crate::kernel::{Backend, Shard};
use crate::key::{KeyBits, KeySpec, Width, dense};
use crate::memory::MemoryBudget;
use crate::threads::Stop;

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
    /// On `device`, of whose memory this crate may then hold `limit` bytes.
    pub fn new(device: Arc<Device>, limit: Option<u64>) -> Self {
        Self {
            device,
            limit,
            timed: false,
            report: Arc::default(),
        }
    }

    /// The same; `timed`: whether the report has the time of each kernel of a [`Selection`].
    pub(crate) fn timed(self, timed: bool) -> Self {
        Self { timed, ..self }
    }

    /// The kernels of its shards, over values of one kind.
    pub fn program(words: ColumnFormat) -> Program {
        super::pass::program(words, false)
    }

    /// What all its shards did so far.
    pub fn report(&self) -> Report {
        locked(&self.report).clone()
    }

    /// What counts should be limited to: the cells that a block's shared memory has counters for.
    pub fn budget(&self) -> MemoryBudget {
        MemoryBudget {
            cells: (self.device.shared_memory() / 12).min(1 << 14),
            ..MemoryBudget::UNLIMITED
        }
    }

    /// A shard of the values of a column on the same device, keys as `spec` says. `mask`: the rows that count, and how many of
    /// them are not NULL; `None`: all.
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
        let mut shard = CudaShard::try_new(self, spec, column.words(spec), reservation)?;
        shard.len = mask.as_ref().map_or(column.valid(), |(_, kept)| *kept);
        shard.parts.push(match mask.is_none() && !column.has_nulls() {
            true => Part::Column(column),
            false => Part::Masked(column, mask),
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
    /// The same, as what it is.
    ///
    /// # Errors
    /// An execution error if the device failed before; an internal error for a type that it cannot hold.
    pub(crate) fn open_shard(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<CudaShard> {
        let Some(bytes) = super::source::storage_bytes(spec.data_type()) else {
            return internal_err!("a shard on a device for values of type {}", spec.data_type());
        };
        CudaShard::try_new(self, spec, ColumnFormat::stored(bytes, spec.encoding()), reservation)
    }
}

/// Values on the device.
#[derive(Debug)]
enum Part {
    /// All rows, none of them missing.
    Column(Arc<DeviceColumn>),
    /// Rows that are not NULL; those of the bitmap, which has so many, if given. Until the first request.
    Masked(Arc<DeviceColumn>, Option<(Arc<RowMask>, u64)>),
    /// ColumnFormat, and how many.
    Values(DeviceBuffer, u64),
}

impl Part {
    fn argument(&self) -> ColumnArgument {
        match self {
            Part::Column(column) => ColumnArgument::of(column, 0),
            Part::Masked(column, mask) => {
                ColumnArgument::of(column, mask.as_ref().map_or(0, |(mask, _)| mask.bits().address()))
            }
            Part::Values(values, rows) => ColumnArgument::dense(values.address(), *rows),
        }
    }

    /// Copies its words to `whole`, from the byte `at` on; how many bytes.
    fn copy_to(&self, whole: &mut DeviceBuffer, at: usize, width: usize) -> Result<usize> {
        match self {
            Part::Column(column) | Part::Masked(column, _) => column.copy_values(whole, at),
            Part::Values(values, rows) => whole.copy_from(at, values, *rows as usize * width),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Part::Column(column) | Part::Masked(column, _) => column.bytes(),
            Part::Values(values, _) => values.len(),
        }
    }
}

/// The keys inside some brackets, set apart.
#[derive(Debug)]
pub(super) struct Reduced {
    pub(super) brackets: Brackets,
    pub(super) values: DeviceBuffer,
    pub(super) len: u64,
    /// As they come in the shard.
    pub(super) in_order: bool,
}

/// Keys of one column's values in the memory of a device.
#[derive(Debug)]
pub(crate) struct CudaShard {
    backend: CudaBackend,
    spec: KeySpec,
    words: ColumnFormat,
    pub(super) len: u64,
    /// In host memory, without NULLs.
    pending: Vec<ArrayRef>,
    pending_bytes: usize,
    parts: Vec<Part>,
    pub(super) reduced: Option<Reduced>,
    /// The cells of all keys, as they were counted last.
    pub(super) counted: Option<(Cells, Vec<u64>)>,
    /// Of host memory: what waits, or the keys of the last reply.
    pub(super) reservation: MemoryReservation,
}

impl CudaShard {
    fn try_new(
        backend: &CudaBackend,
        spec: &KeySpec,
        words: ColumnFormat,
        reservation: MemoryReservation,
    ) -> Result<Self> {
        backend.device.check()?;
        Ok(Self {
            backend: backend.clone(),
            spec: spec.clone(),
            words,
            len: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            parts: Vec::new(),
            reduced: None,
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
        Passes::try_new(device, self.words, self.width(), masked, *limit, report)
    }

    /// Has values wait for their copy; whether that should come now. Where this fails, none of them are in the shard.
    pub(crate) fn hold(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<bool> {
        may_fail!("cuda_hold");
        if values.data_type() != self.spec.data_type() {
            return internal_err!(
                "a shard of {} got values of {}",
                self.spec.data_type(),
                values.data_type()
            );
        }
        (self.reduced, self.counted) = (None, None);
        let kept = dense(values.as_ref(), filter)?;
        let values = kept.as_ref().unwrap_or(values);
        if values.is_empty() {
            return Ok(false);
        }
        let bytes = values.len() * self.word_bytes();
        // Without memory to wait in, what waits goes first.
        let held = self.reservation.try_resize(self.pending_bytes + bytes).is_ok();
        self.pending.push(Arc::clone(values));
        self.pending_bytes += bytes;
        self.len += values.len() as u64;
        Ok(!held || self.pending_bytes >= CHUNK)
    }

    /// Copies what waits to the device. If that fails, it still waits.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.parts.is_empty() {
            // Before anything is there that only the device has.
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
        // Values of a byte are widened where a block has little shared memory.
        self.words = column.words(&self.spec);
        self.parts.push(Part::Column(Arc::new(column)));
        self.pending.clear();
        self.pending_bytes = 0;
        self.reservation.free();
        Ok(())
    }

    /// Puts the values of rows that count together, as passes read all rows of a part.
    fn compact(&mut self) -> Result<()> {
        let [Part::Masked(column, _)] = self.parts.as_slice() else {
            return Ok(());
        };
        let (rows, width) = (column.rows(), column.value_bytes());
        let (cells, _) = cells_of(&[], self.width())?;
        let compacted = self
            .passes_over(true)?
            .compact(&self.columns(), &cells, &[0], width, rows)?;
        match compacted {
            Some((values, len)) if len == self.len => self.parts = vec![Part::Values(values, len)],
            other => {
                let found = other.map(|(_, len)| len);
                return internal_err!("{} values of {rows} rows, the device found {found:?}", self.len);
            }
        }
        Ok(())
    }

    /// A question to its values, where they are rows of one column.
    fn selection(&self) -> Option<Selection<'_>> {
        let (column, mask) = match self.parts.as_slice() {
            [Part::Column(column)] => (column, None),
            [Part::Masked(column, mask)] => (column, mask.as_ref().map(|(mask, kept)| (mask.bits(), *kept))),
            _ => return None,
        };
        Some(Selection {
            column,
            words: self.words,
            mask,
            limit: self.backend.limit,
            timed: self.backend.timed,
        })
    }

    /// Makes one of several parts, where there is memory for both: each launch costs as much as reading some megabytes.
    fn join(&mut self) -> Result<()> {
        if self.parts.len() < 2 {
            return Ok(());
        }
        let CudaBackend { device, limit, .. } = &self.backend;
        let width = self.word_bytes();
        let Some(mut whole) = granted(device.allocate(self.len as usize * width, *limit))? else {
            return Ok(());
        };
        let mut at = 0;
        for part in &self.parts {
            at += part.copy_to(&mut whole, at, width)?;
        }
        // Freed on the stream, after the copies.
        self.parts = vec![Part::Values(whole, self.len)];
        Ok(())
    }

    /// What waits in host memory, for another shard; whether the device holds nothing then.
    pub(crate) fn take_pending(&mut self) -> (Vec<ArrayRef>, bool) {
        self.reservation.free();
        self.pending_bytes = 0;
        let taken = mem::take(&mut self.pending);
        self.len -= taken.iter().map(|values| values.len() as u64).sum::<u64>();
        (taken, self.parts.is_empty())
    }

    pub(super) fn columns(&self) -> Vec<ColumnArgument> {
        self.parts.iter().map(Part::argument).collect()
    }

    pub(super) fn word_bytes(&self) -> usize {
        self.words.value_bytes()
    }
}

impl Shard for CudaShard {
    fn append(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<()> {
        match self.hold(values, filter)? {
            true => self.flush(),
            false => Ok(()),
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
    /// Bytes of device memory.
    pub(crate) fn device_bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum::<usize>()
            + self.reduced.as_ref().map_or(0, |reduced| reduced.values.len())
    }
}

/// What was given, or `None` where memory was refused: nothing is lost but time.
pub(super) fn granted<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(given) => Ok(Some(given)),
        Err(error) if is_refused(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether memory ended, of the device or of the pool.
pub(crate) fn is_refused(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}
