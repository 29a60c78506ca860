//! A lane on a device: the same requests as on the CPU, and the same replies, but for the order of keys in a list.
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

use super::buffer::{DeviceBuffer, numbers};
use super::column::{ColumnUpload, DeviceColumn};
use super::device::{Device, locked};
use super::launch::ColumnArgument;
use super::pass::{NO_LIST, Passes, cells_of};
use super::report::Report;
use super::source::{Program, Words};
use super::upload::Staging;
use crate::cells::Cells;
use crate::cells::{Bracket, Brackets};
use crate::failpoint::may_fail;
use crate::kernel::intervals::{LEAST_SHARE, intervals};
use crate::kernel::round::{Reply, Request, share};
use crate::kernel::{Backend, Lane};
use crate::key::KeyVec;
use crate::key::LaneKey;
use crate::key::{KeySpec, Width, dense};
use crate::memory::Room;
use crate::sketch::{AnySketch, AnySummary, Epsilon, Variant};
use crate::threads::Stop;

/// Bytes of values that are copied to the device at once.
const CHUNK: usize = 64 << 20;
/// Keys that are brought back at once to be sketched.
const SKETCHED: u64 = 1 << 22;
/// Keys in brackets are set apart where they are at most one in so many.
const REDUCED: u64 = 4;

/// Opens lanes on one device.
#[derive(Debug, Clone)]
pub struct CudaBackend {
    device: Arc<Device>,
    limit: Option<u64>,
    report: Arc<Mutex<Report>>,
}

impl CudaBackend {
    /// On `device`, of whose memory this crate may then hold `limit` bytes.
    pub fn new(device: Arc<Device>, limit: Option<u64>) -> Self {
        Self {
            device,
            limit,
            report: Arc::default(),
        }
    }

    /// The kernels of its lanes, over values of one kind.
    pub fn program(words: Words) -> Program {
        super::pass::program(words, false)
    }

    /// What all its lanes did so far.
    pub fn report(&self) -> Report {
        locked(&self.report).clone()
    }

    /// What counts should be limited to: the cells that a block's shared memory has counters for.
    pub fn room(&self) -> Room {
        Room {
            cells: (self.device.shared_memory() / 12).min(1 << 14),
            ..Room::UNLIMITED
        }
    }

    /// A lane of the values of a column on the same device, keys as `spec` says; of those in `mask`, if given, a bit a row.
    ///
    /// # Errors
    /// Those of the device; `ResourcesExhausted` where values are missing, and there is no device memory for the others.
    pub(crate) fn over(
        &self,
        column: Arc<DeviceColumn>,
        spec: &KeySpec,
        mask: Option<&DeviceBuffer>,
        reservation: MemoryReservation,
    ) -> Result<CudaLane> {
        let mut lane = CudaLane::try_new(self, spec, column.words(spec), reservation)?;
        if mask.is_none() && !column.has_nulls() {
            lane.len = column.rows();
            lane.parts.push(Part::Column(column));
            return Ok(lane);
        }
        let passes = lane.passes_over(true)?;
        let argument = ColumnArgument::of(&column, mask.map_or(0, DeviceBuffer::address));
        let (cells, _) = cells_of(&[], spec.width())?;
        let kept = passes.compact(&[argument], &cells, &[0], column.value_bytes(), column.rows())?;
        if let Some((values, rows)) = kept {
            lane.len = rows;
            lane.parts.push(Part::Values(values, rows));
        }
        Ok(lane)
    }
}

impl Backend for CudaBackend {
    fn open(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<Box<dyn Lane>> {
        self.open_lane(spec, reservation)
            .map(|lane| Box::new(lane) as Box<dyn Lane>)
    }
}

impl CudaBackend {
    /// The same, as what it is.
    ///
    /// # Errors
    /// An execution error if the device failed before; an internal error for a type that it cannot hold.
    pub(crate) fn open_lane(&self, spec: &KeySpec, reservation: MemoryReservation) -> Result<CudaLane> {
        let Some(bytes) = super::source::storage_bytes(spec.data_type()) else {
            return internal_err!("a lane on a device for values of type {}", spec.data_type());
        };
        CudaLane::try_new(self, spec, Words::stored(bytes, spec.encoding()), reservation)
    }
}

/// Values on the device, none of them missing.
#[derive(Debug)]
enum Part {
    Column(Arc<DeviceColumn>),
    /// Words, and how many.
    Values(DeviceBuffer, u64),
}

impl Part {
    fn argument(&self) -> ColumnArgument {
        match self {
            Part::Column(column) => ColumnArgument::of(column, 0),
            Part::Values(values, rows) => ColumnArgument::dense(values.address(), *rows),
        }
    }

    /// Copies its words to `whole`, from the byte `at` on; how many bytes.
    fn copy_to(&self, whole: &mut DeviceBuffer, at: usize, width: usize) -> Result<usize> {
        match self {
            Part::Column(column) => column.copy_values(whole, at),
            Part::Values(values, rows) => whole.copy_from(at, values, *rows as usize * width),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Part::Column(column) => column.bytes(),
            Part::Values(values, _) => values.len(),
        }
    }
}

/// The keys inside some brackets, set apart.
#[derive(Debug)]
struct Reduced {
    brackets: Brackets,
    values: DeviceBuffer,
    len: u64,
    /// As they come in the lane.
    in_order: bool,
}

/// Keys of one column's values in the memory of a device.
#[derive(Debug)]
pub(crate) struct CudaLane {
    backend: CudaBackend,
    spec: KeySpec,
    words: Words,
    len: u64,
    /// In host memory, without NULLs.
    pending: Vec<ArrayRef>,
    pending_bytes: usize,
    parts: Vec<Part>,
    reduced: Option<Reduced>,
    /// The cells of all keys, as they were counted last.
    counted: Option<(Cells, Vec<u64>)>,
    /// Of host memory: what waits, or the keys of the last reply.
    reservation: MemoryReservation,
}

impl CudaLane {
    fn try_new(
        backend: &CudaBackend,
        spec: &KeySpec,
        words: Words,
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

    fn width(&self) -> Width {
        self.spec.width()
    }

    fn passes_over(&self, masked: bool) -> Result<Passes> {
        let CudaBackend {
            device,
            limit,
            report,
        } = &self.backend;
        Passes::try_new(device, self.words, self.width(), masked, *limit, report)
    }

    /// Has values wait for their copy; whether that should come now. Where this fails, none of them are in the lane.
    pub(crate) fn hold(&mut self, values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<bool> {
        may_fail!("cuda_hold");
        if values.data_type() != self.spec.data_type() {
            return internal_err!(
                "a lane of {} got values of {}",
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

    /// What waits in host memory, for another lane; whether the device holds nothing then.
    pub(crate) fn take_pending(&mut self) -> (Vec<ArrayRef>, bool) {
        self.reservation.free();
        self.pending_bytes = 0;
        let taken = mem::take(&mut self.pending);
        self.len -= taken.iter().map(|values| values.len() as u64).sum::<u64>();
        (taken, self.parts.is_empty())
    }

    fn columns(&self) -> Vec<ColumnArgument> {
        self.parts.iter().map(Part::argument).collect()
    }

    fn word_bytes(&self) -> usize {
        self.words.value_bytes()
    }

    /// The columns that hold all keys inside `within`, which is not all, and whether they hold nothing else.
    fn source(&self, within: &Brackets) -> (Vec<ColumnArgument>, bool) {
        match &self.reduced {
            Some(reduced) if reduced.brackets.cover(within) => {
                let column = ColumnArgument::dense(reduced.values.address(), reduced.len);
                (vec![column], reduced.brackets == *within)
            }
            _ => (self.columns(), false),
        }
    }

    /// Keys inside each of `brackets`, where the last count tells.
    fn known_sizes(&self, brackets: &Brackets) -> Result<Option<Vec<u64>>> {
        let Some((cells, counts)) = &self.counted else {
            return Ok(None);
        };
        let mut sizes = Vec::with_capacity(brackets.as_slice().len());
        for bracket in brackets.as_slice() {
            // Beyond all cells there may be keys.
            let (Some(first), Some(last)) = (cells.cell(bracket.first), cells.cell(bracket.last)) else {
                return Ok(None);
            };
            let range = |cell| cells.range(cell, self.width());
            let (Some(from), Some(to)) = (range(first), range(last)) else {
                return Ok(None);
            };
            let joined = match cells {
                Cells::Linear(_) => (first..last).all(|cell| {
                    let (own, next) = (range(cell), range(cell + 1));
                    own.zip(next)
                        .is_some_and(|(own, next)| own.last + 1 == next.first)
                }),
                Cells::Table(_) | Cells::Edges(_) => true,
            };
            if !joined || from.first < bracket.first || to.last > bracket.last {
                return Ok(None);
            }
            sizes.push(counts[first as usize..=last as usize].iter().sum());
        }
        Ok(Some(sizes))
    }

    /// The lists of cells that hold whole brackets.
    fn map_of(cells: &Cells, brackets: &Brackets) -> Result<Vec<u16>> {
        let mut map = vec![NO_LIST; cells.len()];
        for (list, bracket) in brackets.as_slice().iter().enumerate() {
            let (first, last) = cells.span(bracket)?;
            map[first as usize..=last as usize].fill(list as u16);
        }
        Ok(map)
    }

    /// Sets the keys inside `within` apart, where they are few and there is memory; perhaps more than those.
    fn reduce(&mut self, within: &Brackets, stop: &Stop) -> Result<()> {
        if within.is_all(self.width()) || self.covers(within) {
            return Ok(());
        }
        stop.check()?;
        let passes = self.passes_over(false)?;
        let (columns, _) = self.source(within);
        let (cells, map, sizes) = match self.known_sizes(within)? {
            Some(sizes) => {
                let (cells, _) = self.counted.clone().unzip();
                let Some(cells) = cells else { return Ok(()) };
                let map = Self::map_of(&cells, within)?;
                (cells, map, sizes)
            }
            None => {
                let (cells, map) = cells_of(within.as_slice(), self.width())?;
                let counts = passes.count(&columns, &cells, None)?;
                let sizes = sums(&counts, &map, within.as_slice().len());
                (cells, map, sizes)
            }
        };
        let total = sizes.iter().sum::<u64>();
        if total > self.len / REDUCED {
            return Ok(());
        }
        stop.check()?;
        // One list of all: their order does not matter.
        let map: Vec<u16> = map
            .into_iter()
            .map(|list| if list == NO_LIST { NO_LIST } else { 0 })
            .collect();
        let words = Some(self.word_bytes());
        let collected = passes.collect(&columns, &cells, (&map, &[total]), None, words);
        if let Some(values) = granted(collected)? {
            self.reduced = Some(Reduced {
                brackets: within.clone(),
                values,
                len: total,
                in_order: false,
            });
        }
        Ok(())
    }

    fn covers(&self, within: &Brackets) -> bool {
        self.reduced
            .as_ref()
            .is_some_and(|reduced| reduced.brackets.cover(within))
    }

    /// Sets exactly the keys inside `within` apart, in their order; how many. `None`: there is no memory for them.
    fn in_order(&mut self, within: &Brackets) -> Result<Option<u64>> {
        if let Some(reduced) = &self.reduced
            && reduced.in_order
            && reduced.brackets == *within
        {
            return Ok(Some(reduced.len));
        }
        let passes = self.passes_over(false)?;
        let (cells, map) = cells_of(within.as_slice(), self.width())?;
        let columns = match &self.reduced {
            Some(reduced) if reduced.in_order => self.source(within).0,
            _ => self.columns(),
        };
        let compacted = passes.compact(&columns, &cells, &map, self.word_bytes(), u64::MAX);
        let Some(Some((values, len))) = granted(compacted)? else {
            return Ok(None);
        };
        self.reduced = Some(Reduced {
            brackets: within.clone(),
            values,
            len,
            in_order: true,
        });
        Ok(Some(len))
    }

    /// The keys that can have a cell.
    fn domain(&self, cells: &Cells, within: &Brackets) -> Result<Brackets> {
        match cells {
            Cells::Linear(linear) if within.is_all(self.width()) => {
                let mut domain: Vec<Bracket> = Vec::new();
                for piece in &linear.pieces {
                    let piece = piece.bracket();
                    match domain.last_mut() {
                        Some(last) if last.last + 1 == piece.first => last.last = piece.last,
                        _ => domain.push(piece),
                    }
                }
                // The whole range of the data, as in DIBMS's first phase.
                match domain.len() {
                    1 if self.reduced.is_none() => Ok(within.clone()),
                    _ => Brackets::try_new(domain),
                }
            }
            _ => Ok(within.clone()),
        }
    }

    fn count(&mut self, cells: &Cells, within: &Brackets, keep: &[u32], stop: &Stop) -> Result<Reply> {
        let domain = self.domain(cells, within)?;
        self.reduce(&domain, stop)?;
        stop.check()?;
        let all = domain.is_all(self.width());
        let passes = self.passes_over(false)?;
        let (columns, exact) = match all {
            true => (self.columns(), true),
            false => self.source(&domain),
        };
        // Outside of all pieces there is no cell anyway.
        let by_cells = matches!(cells, Cells::Linear(_)) && within.is_all(self.width());
        let inside = (!exact && !by_cells).then_some(&domain);
        let counts = passes.count(&columns, cells, inside)?;
        if all {
            self.counted = Some((cells.clone(), counts.clone()));
        }
        let kept = match keep {
            [] => Vec::new(),
            keep => {
                let mut map = vec![NO_LIST; cells.len()];
                let mut sizes = Vec::with_capacity(keep.len());
                for (list, cell) in keep.iter().enumerate() {
                    map[*cell as usize] = list as u16;
                    sizes.push(counts[*cell as usize]);
                }
                stop.check()?;
                self.lists(&passes, &columns, cells, (&map, &sizes), inside)?
            }
        };
        Ok(Reply::Counts { counts, kept })
    }

    fn extract(&mut self, brackets: &Brackets, stop: &Stop) -> Result<Reply> {
        let wanted = brackets.as_slice();
        if wanted.is_empty() {
            return Ok(Reply::Extracted(Vec::new()));
        }
        let passes = self.passes_over(false)?;
        let reduced = self.covers(brackets);
        let known = match reduced {
            true => None,
            false => self.known_sizes(brackets)?,
        };
        if let (Some(sizes), Some((cells, _))) = (known, &self.counted) {
            let map = Self::map_of(cells, brackets)?;
            let cells = cells.clone();
            let lists = self.lists(&passes, &self.columns(), &cells, (&map, &sizes), None)?;
            return Ok(Reply::Extracted(lists));
        }
        let (columns, _) = self.source(brackets);
        let (cells, map) = cells_of(wanted, self.width())?;
        let counts = passes.count(&columns, &cells, None)?;
        let sizes = sums(&counts, &map, wanted.len());
        stop.check()?;
        let lists = self.lists(&passes, &columns, &cells, (&map, &sizes), None)?;
        Ok(Reply::Extracted(lists))
    }

    /// The keys of some cells, a list for each; no lists where there is no memory for them.
    fn lists(
        &self,
        passes: &Passes,
        columns: &[ColumnArgument],
        cells: &Cells,
        (map, sizes): (&[u16], &[u64]),
        within: Option<&Brackets>,
    ) -> Result<Vec<KeyVec>> {
        let (width, total) = (self.width(), sizes.iter().sum::<u64>());
        if total == 0 {
            return Ok(sizes.iter().map(|_| KeyVec::new(width)).collect());
        }
        let bytes = total as usize * width.bytes();
        // Twice: as bytes, then as keys.
        if self.reservation.try_resize(2 * bytes).is_err() {
            return Ok(Vec::new());
        }
        let collected = passes.collect(columns, cells, (map, sizes), within, None);
        let Some(collected) = granted(collected)? else {
            self.reservation.free();
            return Ok(Vec::new());
        };
        let fetched = passes.fetched(&collected, bytes)?;
        let mut rest = fetched.as_slice();
        let lists = sizes.iter().map(|size| {
            let (own, others) = rest.split_at(*size as usize * width.bytes());
            rest = others;
            keys_from(own, width)
        });
        Ok(lists.collect())
    }

    fn sample(
        &mut self,
        within: &Brackets,
        share: impl Fn(u64) -> u64,
        seed: u64,
        extremes: bool,
        stop: &Stop,
    ) -> Result<Reply> {
        let empty = Reply::Sample {
            keys: KeyVec::new(self.width()),
            extremes: None,
        };
        let (own, columns) = if within.is_all(self.width()) {
            (self.len, self.columns())
        } else {
            match self.in_order(within)? {
                Some(own) => (own, self.source(within).0),
                // Whoever gets no sample counts instead.
                None => return Ok(empty),
            }
        };
        if own == 0 {
            return Ok(empty);
        }
        stop.check()?;
        let passes = self.passes_over(false)?;
        let extremes = match extremes {
            true => Some(passes.extremes(&columns)?),
            false => None,
        };
        let count = share(own).min(own);
        self.reservation
            .try_resize(2 * count as usize * self.width().bytes())?;
        let mut keys = match count {
            0 => KeyVec::new(self.width()),
            count => keys_from(&passes.sample(&columns, own, count, seed)?, self.width()),
        };
        keys.sort();
        Ok(Reply::Sample { keys, extremes })
    }

    fn sketch<K: LaneKey>(&mut self, eps: Epsilon, stop: &Stop) -> Result<Reply> {
        let (width, n) = (self.width(), self.len);
        let most = eps.budget(n).saturating_sub(1);
        if most >= LEAST_SHARE
            && let Some((ends, intervals)) = intervals::<K>(self, width, most, true, stop)?
        {
            // What was set apart for counts of a few ranges serves none of the rounds to come.
            self.reduced = None;
            let summary = AnySummary::from_intervals(width, eps, ends, &intervals)?;
            return Ok(Reply::Sketch(Some(summary)));
        }
        let block = SKETCHED.min(n) as usize * 2 * width.bytes();
        let bytes = AnySketch::most_bytes(width, eps, n) + block;
        if self.reservation.try_resize(bytes).is_err() {
            return Ok(Reply::Sketch(None));
        }
        let mut sketch = AnySketch::new(width, eps, Variant::Modified);
        let passes = self.passes_over(false)?;
        for column in self.columns() {
            let mut from = 0;
            while from < column.row_count() {
                stop.check()?;
                let count = SKETCHED.min(column.row_count() - from);
                let keys: Vec<K> = numbers(&passes.keys(column, from, count)?);
                sketch.extend_slice(&keys)?;
                from += count;
            }
        }
        Ok(Reply::Sketch(Some(sketch.partial()?)))
    }
}

impl Lane for CudaLane {
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

    fn split(&mut self, _values: u64) -> Option<Box<dyn Lane>> {
        // Threads do not make a device faster.
        None
    }

    fn answer(&mut self, request: &Request, stop: &Stop) -> Result<Reply> {
        stop.check()?;
        self.flush()?;
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

impl CudaLane {
    /// Bytes of device memory.
    pub(crate) fn device_bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum::<usize>()
            + self.reduced.as_ref().map_or(0, |reduced| reduced.values.len())
    }
}

/// Keys in each list.
fn sums(counts: &[u64], map: &[u16], lists: usize) -> Vec<u64> {
    let mut sizes = vec![0; lists];
    for (count, list) in counts.iter().zip(map) {
        if *list != NO_LIST {
            sizes[usize::from(*list)] += count;
        }
    }
    sizes
}

fn keys_from(bytes: &[u8], width: Width) -> KeyVec {
    match width {
        Width::W32 => KeyVec::W32(numbers(bytes)),
        Width::W64 => KeyVec::W64(numbers(bytes)),
        Width::W128 => KeyVec::W128(numbers(bytes)),
    }
}

/// What was given, or `None` where memory was refused: nothing is lost but time.
fn granted<T>(result: Result<T>) -> Result<Option<T>> {
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
