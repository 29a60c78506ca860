//! Pairs of query vectors and rows of a column of vectors that may be among the `k` best of their query: the launches of
//! `kernels/pairs.cu`.
//!
//! ```text
//! a group of queries x a step of rows ── product in tensor cores ── pairs within the limit of their query are listed ──┐
//!   first few rows, then more and more       settle: the limit is the k-th least of the greatest scores  <────────────┤
//!                                            at the end: distances of all listed pairs in f64, those up to the k-th ──┘
//! ```
//! Tensor cores multiply numbers of 16 bits, so both vectors are scaled to a length of at most 1. A component that is rounded to 16 bits is within `2^-11` of
//! itself, or within `2^-25`, so a product of two vectors is within `2^-10` and a little of the product of their lengths. By that margin the limit is
//! wider than the k-th score, which lets in few pairs more than `k`. Scores and their limits are those of [`Ranking`], on the CPU as here.
//!
//! A list has room for some times `k` pairs. Steps are as long as rows in any order fill an eighth of it; where more come, the step is repeated for
//! the queries in question in parts that fit whatever their order. Lists that are half full of pairs which cannot be told apart are
//! fetched in between.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::filter::{Predicate, RowMask};
use super::launch::{Kernels, Launch};
use super::pair_kernels::{PairsArgument, SLICE, TILE, TILE_THREADS, pairs_program, relative_margin};
use super::report::Report;
use super::source::vector_of;
use super::timeline::Timeline;
use crate::failpoint::may_fail;
use crate::kernel::cpu::distance::{Marks, Measure, Ranking, rounded_up};

/// Threads of a query where its list is looked at.
const QUERY_THREADS: u32 = 256;
/// Warps of a block that looks at single rows.
const ROW_WARPS: u32 = 8;
/// Fewest pairs that a list has room for.
const LEAST_ROOM: usize = 2048;
/// Bytes of the lists of a group of queries, about.
const LIST_BYTES: u64 = 512 << 20;
/// How often the lists of a group of queries are fetched, at most: else too many pairs are alike.
const MOST_LISTS: usize = 16;
/// Bytes of the scaled vectors of a step, about.
const HALVES_BYTES: u64 = 256 << 20;
/// Bytes of a pair on its way to the host: row and distance.
const PAIR_BYTES: usize = size_of::<u32>() + size_of::<f64>();

/// A request for the pairs of some queries.
#[derive(Debug)]
pub(crate) struct NearPairs<'a> {
    /// All columns of the table.
    pub(crate) columns: &'a [&'a DeviceColumn],
    /// Index of the column of vectors.
    pub(crate) vectors: usize,
    pub(crate) ranking: Ranking,
    pub(crate) k: usize,
    /// The condition for a row to count. `None`: all rows count.
    pub(crate) filter: Option<&'a Predicate>,
    /// Marks of queries and rows; pairs of equal marks are left out.
    pub(crate) marks: Option<Marks<'a>>,
    /// Most bytes of device memory that this crate may hold.
    pub(crate) limit: Option<u64>,
    /// Whether to measure the time of each kernel.
    pub(crate) timed: bool,
    /// Host memory of the pairs.
    pub(crate) memory: &'a MemoryReservation,
    /// Set when nobody wants the pairs any more.
    pub(crate) stop: &'a AtomicBool,
}

/// The query vectors of a range of queries, one behind the other; `None` if one has another length, or is no vector.
pub(crate) type QueryVectors<'a> = dyn Fn(Range<usize>) -> Option<Vec<f64>> + 'a;

/// Pairs of consecutive queries, in order of the queries.
#[derive(Debug, Default)]
pub(crate) struct PairList {
    /// The first query.
    pub(crate) first: usize,
    /// Number of pairs up to the end of each query.
    pub(crate) ends: Vec<u64>,
    /// The row of each pair.
    pub(crate) rows: Vec<u32>,
    /// Its distance, with the bits that the CPU gives.
    pub(crate) distances: Vec<f64>,
}

impl NearPairs<'_> {
    /// Greatest `k`.
    pub(crate) const MOST: usize = 8192;

    /// Whether a device can compare vectors of this column with queries of so many components, for the `k` best of each.
    pub(crate) fn can_rank(vectors: &DeviceColumn, k: usize) -> bool {
        (1..=Self::MOST).contains(&k)
            && vectors.rows() < u64::from(u32::MAX)
            && vectors.device().has_tensor_cores()
            && vector_of(vectors.data_type()).is_some_and(|(_, width)| relative_margin(width) < 0.1)
    }

    /// The pairs of `count` queries: all that are among the best of their query, and few others. `None` if a device cannot tell: a query or a
    /// row has no score, or too many pairs of a query are alike.
    ///
    /// # Errors
    /// An execution error if the device fails; `ResourcesExhausted` if its memory ends, or that of the pool.
    pub(crate) fn pairs(
        &self,
        count: usize,
        queries: &QueryVectors<'_>,
        report: &mut Report,
    ) -> Result<Option<Vec<PairList>>> {
        let vectors = self.columns.get(self.vectors);
        let Some((vectors, (item, width))) =
            vectors.and_then(|own| Some((*own, vector_of(own.data_type())?)))
        else {
            return internal_err!("a column of vectors is not there");
        };
        if vectors.rows() == 0 || count == 0 {
            return Ok(Some(Vec::new()));
        }
        may_fail!("cuda_pairs");
        vectors.device().check()?;
        let mask = self
            .filter
            .map(|filter| RowMask::evaluate(filter, self.columns, self.limit, report));
        let mask = mask.transpose()?;
        let mut search = Search::try_new(self, vectors, (*item == DataType::Float16, width), report)?;
        search.argument.mask = mask.as_ref().map_or(0, |mask| mask.bits().address());
        if !search.knows_rows(report)? {
            return Ok(None);
        }
        let mut all = Vec::new();
        let group = search.group();
        for first in (0..count).step_by(group) {
            let of = first..count.min(first + group);
            let bytes = of.len() * width * size_of::<f64>();
            self.memory.try_grow(bytes)?;
            let Some(components) = queries(of.clone()) else {
                return Ok(None);
            };
            let Some(mut lists) = search.of_group(of, &components, report)? else {
                return Ok(None);
            };
            all.append(&mut lists);
            drop(components);
            self.memory.shrink(bytes);
        }
        Ok(Some(all))
    }
}

/// Bytes of a device that may still be taken, if there is a limit.
fn left(device: &Device, limit: Option<u64>) -> Option<u64> {
    limit.map(|limit| limit.saturating_sub(device.held_bytes()))
}

/// The device's side of a request.
struct Search<'a> {
    ask: &'a NearPairs<'a>,
    device: &'a Arc<Device>,
    kernels: Kernels,
    /// Names of the kernels for the vectors' components: parts, halves, distances.
    names: [&'static str; 3],
    argument: PairsArgument,
    /// What the argument points to, for all groups.
    _memory: Vec<DeviceBuffer>,
    flags: DeviceBuffer,
    width: usize,
    /// Bytes of a vector.
    row_bytes: u64,
    room: usize,
    /// Most rows of a step.
    most_rows: u64,
}

/// What the flags say after a step.
struct Flags {
    /// Number of lists that had too little room.
    overflowed: u32,
    /// Entries of the longest list.
    longest: u32,
}

impl<'a> Search<'a> {
    fn try_new(
        ask: &'a NearPairs<'a>,
        vectors: &'a DeviceColumn,
        (half, width): (bool, usize),
        report: &mut Report,
    ) -> Result<Self> {
        let device = vectors.device();
        let expected = [0, TILE, SLICE, 0];
        let kernels = Kernels::load(device, &pairs_program(), expected)?;
        let names = if half {
            ["vp_parts_16", "vp_halves_16", "vp_distances_16"]
        } else {
            ["vp_parts_32", "vp_halves_32", "vp_distances_32"]
        };
        let (rows, depth) = (vectors.rows() as usize, width.next_multiple_of(SLICE));
        let parts = device.allocate(4 * size_of::<f32>() * rows, ask.limit)?;
        let scales = device.allocate(size_of::<f32>() * rows, ask.limit)?;
        let mut flags = device.allocate(4 * size_of::<u32>(), ask.limit)?;
        flags.zero(0..flags.len())?;
        let row_marks = ask
            .marks
            .map(|marks| DeviceBuffer::from_numbers(device, marks.rows, ask.limit, report));
        let row_marks = row_marks.transpose()?;
        let room = (8 * ask.k).next_power_of_two().max(LEAST_ROOM);
        // Rooms are multiples of a tile.
        let bytes = left(device, ask.limit).map_or(HALVES_BYTES, |left| HALVES_BYTES.min(left / 8));
        let most_rows = bytes as usize / (depth * size_of::<u16>()) / TILE * TILE;
        let most_rows = most_rows.min(rows.next_multiple_of(TILE)).max(room);
        let halves = device.allocate(most_rows * depth * size_of::<u16>(), ask.limit)?;
        let argument = PairsArgument {
            vectors: vectors.values_address(),
            validity: vectors.validity_address(),
            parts: parts.address(),
            scales: scales.address(),
            halves: halves.address(),
            row_marks: row_marks.as_ref().map_or(0, DeviceBuffer::address),
            flags: flags.address(),
            rows: vectors.rows(),
            width: width as u32,
            depth: depth as u32,
            k: ask.k as u32,
            room: room as u32,
            measure: match ask.ranking.measure {
                Measure::Euclidean => 0,
                Measure::Cosine => 1,
                Measure::InnerProduct => 2,
            },
            sign: if ask.ranking.ascending { 1.0 } else { -1.0 },
            margin: rounded_up(relative_margin(width)),
            ..PairsArgument::default()
        };
        report.bytes_read += vectors.bytes() as u64;
        Ok(Self {
            ask,
            device,
            kernels,
            names,
            argument,
            _memory: [parts, scales, halves].into_iter().chain(row_marks).collect(),
            flags,
            width,
            row_bytes: vectors.value_bytes() as u64,
            room,
            most_rows: most_rows as u64,
        })
    }

    /// Computes the parts of all rows. Returns whether all that count have a score.
    fn knows_rows(&mut self, report: &mut Report) -> Result<bool> {
        let launch = self.of_rows(self.names[0], self.argument.rows)?;
        self.run(&launch, &self.argument, report)?;
        self.knows_all()
    }

    /// Runs a kernel.
    fn run(&self, launch: &Launch, argument: &PairsArgument, report: &mut Report) -> Result<()> {
        let mut timeline = Timeline::start(self.device, self.ask.timed)?;
        timeline.launch(launch, argument)?;
        timeline.end()?;
        timeline.report(report)
    }

    /// Whether all rows and queries that were looked at have a score.
    fn knows_all(&self) -> Result<bool> {
        let unknown = self.flags.to_numbers::<u32>(0..size_of::<u32>())?;
        Ok(unknown[0] == 0)
    }

    /// A launch of a kernel that takes a warp for each of so many rows.
    fn of_rows(&self, name: &'static str, rows: u64) -> Result<Launch> {
        let blocks = rows.div_ceil(ROW_WARPS.into());
        let blocks = blocks.min(u64::from(8 * self.device.multiprocessors())) as u32;
        self.kernels.launch(name, [blocks, 32 * ROW_WARPS], 0)
    }

    /// Queries of a group: as many as there is memory for.
    fn group(&self) -> usize {
        let each = self.room * (size_of::<u64>() + PAIR_BYTES) + 2 * self.width * size_of::<f64>();
        let bytes = left(self.device, self.ask.limit).map_or(LIST_BYTES, |left| LIST_BYTES.min(left / 4));
        ((bytes / each as u64) as usize / TILE * TILE).clamp(TILE, 1 << 16)
    }

    /// The pairs of a group of queries.
    fn of_group(
        &mut self,
        of: Range<usize>,
        components: &[f64],
        report: &mut Report,
    ) -> Result<Option<Vec<PairList>>> {
        let mut group = Group::try_new(self, of, components, report)?;
        let launch = self.of_rows("vp_points", group.count as u64)?;
        self.run(&launch, &group.argument, report)?;
        if !self.knows_all()? {
            return Ok(None);
        }
        let (rows, safe) = (self.argument.rows, self.room as u64 / 2);
        // Of rows in any order, so many times those before bring an eighth of a list.
        let growth = (self.room / (8 * self.ask.k)) as u64;
        let mut first = 0;
        while first < rows {
            let step = if first == 0 {
                self.room as u64
            } else {
                (first * growth).clamp(safe, self.most_rows)
            };
            let end = rows.min(first + step);
            let flags = group.step(self, first..end, None, report)?;
            if !group.settled(self, &flags, report)? {
                return Ok(None);
            }
            if flags.overflowed > 0 && !group.in_parts(self, first..end, safe, report)? {
                return Ok(None);
            }
            first = end;
        }
        if !group.fetch(self, report)? {
            return Ok(None);
        }
        Ok(Some(group.lists))
    }
}

/// A group of queries on the device.
struct Group {
    argument: PairsArgument,
    count: usize,
    first: usize,
    /// Marks of queries whose list had too little room, in this step and in the one before.
    again: [DeviceBuffer; 2],
    counts: DeviceBuffer,
    before: DeviceBuffer,
    starts: DeviceBuffer,
    places: DeviceBuffer,
    /// What else the argument points to.
    _memory: Vec<DeviceBuffer>,
    lists: Vec<PairList>,
}

impl Group {
    fn try_new(
        search: &Search<'_>,
        of: Range<usize>,
        components: &[f64],
        report: &mut Report,
    ) -> Result<Self> {
        let (device, limit, count) = (search.device, search.ask.limit, of.len());
        let zeroed = || -> Result<DeviceBuffer> {
            let mut words = device.allocate(count * size_of::<u32>(), limit)?;
            words.zero(0..words.len())?;
            Ok(words)
        };
        let (counts, before, again) = (zeroed()?, zeroed()?, [zeroed()?, zeroed()?]);
        let items = device.allocate(count * search.room * size_of::<u64>(), limit)?;
        let place = || device.allocate(count * size_of::<u64>(), limit);
        let (starts, places) = (place()?, place()?);
        let limits = DeviceBuffer::from_numbers(device, &vec![f32::INFINITY; count], limit, report)?;
        let factors = device.allocate(4 * size_of::<f32>() * count, limit)?;
        let depth = search.argument.depth as usize;
        let halves = device.allocate(count.next_multiple_of(TILE) * depth * size_of::<u16>(), limit)?;
        let queries = DeviceBuffer::from_numbers(device, components, limit, report)?;
        let marks = search.ask.marks.map(|marks| {
            let own = &marks.queries[of.clone()];
            DeviceBuffer::from_numbers(device, own, limit, report)
        });
        let marks = marks.transpose()?;
        let argument = PairsArgument {
            points: halves.address(),
            queries: queries.address(),
            limits: limits.address(),
            factors: factors.address(),
            query_marks: marks.as_ref().map_or(0, DeviceBuffer::address),
            counts: counts.address(),
            before: before.address(),
            items: items.address(),
            starts: starts.address(),
            places: places.address(),
            query_count: count as u32,
            ..search.argument
        };
        let memory = [items, limits, factors, halves, queries].into_iter();
        Ok(Self {
            argument,
            count,
            first: of.start,
            again,
            counts,
            before,
            starts,
            places,
            _memory: memory.chain(marks).collect(),
            lists: Vec::new(),
        })
    }

    /// Lists the pairs of some rows, of all queries or of those that are marked, and settles their lists.
    fn step(
        &mut self,
        search: &mut Search<'_>,
        rows: Range<u64>,
        active: Option<u64>,
        report: &mut Report,
    ) -> Result<Flags> {
        if search.ask.stop.load(Ordering::Relaxed) {
            return exec_err!("nobody waits for the nearest rows any more");
        }
        let argument = PairsArgument {
            first: rows.start,
            end: rows.end,
            active: active.unwrap_or(0),
            again: self.again[0].address(),
            ..self.argument
        };
        let count = rows.end - rows.start;
        let tiles = self.count.div_ceil(TILE) as u64 * count.div_ceil(TILE as u64);
        let kernels = &search.kernels;
        let launches = [
            search.of_rows(search.names[1], count)?,
            kernels.launch("vp_product", [tiles as u32, TILE_THREADS], kernels.size(3))?,
            kernels.launch("vp_settle", [self.count as u32, QUERY_THREADS], 0)?,
        ];
        search.flags.zero(0..search.flags.len())?;
        let mut timeline = Timeline::start(search.device, search.ask.timed)?;
        for launch in &launches {
            timeline.launch(launch, &argument)?;
        }
        timeline.end()?;
        let flags = search.flags.to_numbers::<u32>(0..3 * size_of::<u32>())?;
        timeline.report(report)?;
        report.bytes_read += count * search.row_bytes;
        Ok(Flags {
            overflowed: flags[1],
            longest: flags[2],
        })
    }

    /// Makes room where a list is half full. Returns whether that is possible.
    fn settled(&mut self, search: &mut Search<'_>, flags: &Flags, report: &mut Report) -> Result<bool> {
        if flags.longest as usize <= search.room / 2 {
            return Ok(true);
        }
        self.fetch(search, report)
    }

    /// Repeats a step for the queries whose lists had too little room, in parts of so many rows that there is room for all of them. Returns
    /// whether that is possible.
    fn in_parts(
        &mut self,
        search: &mut Search<'_>,
        rows: Range<u64>,
        part: u64,
        report: &mut Report,
    ) -> Result<bool> {
        self.again.swap(0, 1);
        let active = self.again[1].address();
        let mut first = rows.start;
        while first < rows.end {
            let end = rows.end.min(first + part);
            let flags = self.step(search, first..end, Some(active), report)?;
            if flags.overflowed > 0 {
                return internal_err!("{} lists of near pairs without room", flags.overflowed);
            }
            if !self.settled(search, &flags, report)? {
                return Ok(false);
            }
            first = end;
        }
        Ok(true)
    }

    /// Fetches the listed pairs with their distances, up to the k-th of each list, and empties the lists. Returns `false` if there are too many of
    /// them.
    fn fetch(&mut self, search: &mut Search<'_>, report: &mut Report) -> Result<bool> {
        if self.lists.len() >= MOST_LISTS {
            return Ok(false);
        }
        let (starts, total) = places(&self.before.to_numbers::<u32>(0..self.before.len())?);
        let (device, limit) = (search.device, search.ask.limit);
        self.starts.fill(bytemuck::cast_slice(&starts[..self.count]))?;
        let found = device.allocate(total * PAIR_BYTES, limit)?;
        let argument = PairsArgument {
            found: found.address(),
            found_rows: found.address() + (total * size_of::<f64>()) as u64,
            ..self.argument
        };
        let grid = [self.count as u32, QUERY_THREADS];
        let launches = [search.names[2], "vp_collect"].map(|name| search.kernels.launch(name, grid, 0));
        let [distances, collect] = launches;
        search.run(&distances?, &argument, report)?;
        let (places, left) = places(&self.counts.to_numbers::<u32>(0..self.counts.len())?);
        let bytes = left * PAIR_BYTES + size_of_val(places.as_slice());
        search.ask.memory.try_grow(bytes)?;
        self.places.fill(bytemuck::cast_slice(&places[..self.count]))?;
        let out = device.allocate(left * PAIR_BYTES, limit)?;
        let rows_at = left * size_of::<f64>();
        let argument = PairsArgument {
            out: out.address(),
            out_rows: out.address() + rows_at as u64,
            ..argument
        };
        search.run(&collect?, &argument, report)?;
        self.lists.push(PairList {
            first: self.first,
            ends: places[1..].to_vec(),
            rows: out.to_numbers(rows_at..left * PAIR_BYTES)?,
            distances: out.to_numbers(0..rows_at)?,
        });
        report.bytes_from_device += out.len() as u64;
        for words in [&mut self.counts, &mut self.before] {
            words.zero(0..words.len())?;
        }
        Ok(true)
    }
}

/// Where lists of these lengths begin that lie one behind the other, with the end of the last, and that end.
fn places(counts: &[u32]) -> (Vec<u64>, usize) {
    let mut places = Vec::with_capacity(counts.len() + 1);
    let mut end = 0;
    places.push(end);
    for count in counts {
        end += u64::from(*count);
        places.push(end);
    }
    (places, end as usize)
}
