//! The best rows of every group of a table on a device: the launches of `kernels/group_top.cu` and `kernels/sort.cu`.
//!
//! A row becomes a record of 64 or 128 bits: the number of its group, its key, its value, each counted from the least of its
//! column, so that equal keys stand in the order of their values, and the value is read off the record. Where that is too
//! wide, rows are put in the order of their values first, and their place there stands for the value. Then either
//!
//! * all records are put in order, and each group's first are its best ([`TopMethod::Sort`]), or
//! * records are put in order of their groups only, and warps select among some thousand of one group each, then among what
//!   they found, until a list a group is left ([`TopMethod::Warps`]: WarpSelect, Johnson, Douze and Jegou 2017, section IV,
//!   in as many passes as it takes). What the lists of a group reach so far rules out lesser records in all of its warps.
//!
//! A table of measured times picks. Where the rows of groups lie together in long runs, all this is done with few rows
//! ([`TopMethod::Runs`]), found in one read of the keys. Device memory: two records a row, and 8 bytes more
//! where places stand for values.

use datafusion::arrow::array::ArrayRef;
use datafusion::common::{Result, internal_datafusion_err, internal_err, resources_datafusion_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::gather::array;
use super::group::{Groups, HOST_BYTES};
use super::group_records::{Fields, GroupRecords, PartArgument, THREADS, everywhere, kernels};
use super::launch::kernel_argument;
use super::report::Report;
use super::runs::{Candidates, RunSelection, Takes};
use super::select::Selection;
use super::shares::{QUEUES, TopMethod, is_for_warps, method, share, shares};
use super::sort::{RecordShape, RecordSort, Segments, SortRoom};
use super::source::storage_bytes;
use super::timeline::Timeline;
use super::workspace::{Places, WorkspaceLease};
use crate::failpoint::may_fail;

/// Warps of a block that selects.
const WARPS: u32 = 4;

kernel_argument! {
    /// `struct Taking` of `kernels/group_top.cu`.
    struct TakingArgument = gt_sizes[1] {
        value: PartArgument,
        from: u64,
        lists: u64,
        best: u64,
        chunks: u64,
        floors: u64,
        chunk_count: u64,
        starts: u64,
        offsets: u64,
        groups: u64,
        order: u64,
        out: u64,
        out_valid: u64,
        k: u32,
        bits: u32,
        first: u32,
        width: u32,
    }
}

/// A question for the best rows of every group.
#[derive(Debug, Clone, Copy)]
pub struct GroupTopSelection<'a> {
    /// What tells groups apart.
    pub groups: &'a Groups<'a>,
    /// Keys, and which rows count.
    pub keys: Selection<'a>,
    /// What is wanted of rows; breaks ties: smaller values first, NULL last.
    pub values: &'a DeviceColumn,
    /// Whether the least keys are the best.
    pub least: bool,
    /// Rows of a group, at most; from 1 on.
    pub k: u64,
    /// How, whatever `method` says.
    pub forced: Option<TopMethod>,
}

/// The best rows of groups.
#[derive(Debug)]
pub struct GroupTop {
    /// Numbers of the groups that have rows, ascending.
    pub codes: Vec<u64>,
    /// Rows of each.
    pub lengths: Vec<usize>,
    /// Values of these rows, best first, one group after the other.
    pub values: ArrayRef,
}

impl<'a> GroupTopSelection<'a> {
    /// The best rows. `room` is asked for memory for so many groups and rows before they come. Waits for the device.
    ///
    /// # Errors
    /// `ResourcesExhausted` where numbers, keys and values, or values and rows, take more than 128 bits together, or the device's
    /// memory, or the limit on it, is too small; an execution error if the device fails; those of `room`.
    pub fn rows(
        &self,
        report: &mut Report,
        room: impl FnOnce(usize, usize) -> Result<()>,
    ) -> Result<GroupTop> {
        may_fail!("cuda_group_top");
        let population = self.keys.population();
        let (groups, device) = (self.groups, self.groups.device);
        if population == 0 || self.k == 0 {
            return self.none();
        }
        let mut timeline = Timeline::start(device, groups.timed)?;
        let among = self.candidates(&mut timeline, report)?;
        let records = self.records();
        let fields = records.fields(among.as_ref(), report)?;
        let fields = fields.map_err(|why| resources_datafusion_err!("{why}"))?;
        let population = fields.population;
        let by_value = fields.ranked.map(|[_, row_bits]| RecordShape {
            key_bits: row_bits,
            code_bits: fields.value.bits,
        });
        let widest = [Some(fields.shape), by_value].into_iter().flatten();
        let widest = widest.filter_map(RecordShape::bytes).max();
        let Some(bytes) = widest else {
            return internal_err!("records of {fields:?}");
        };
        let mut layout = Places::default();
        let sort = SortRoom::take(&mut layout, device, population as usize, bytes);
        let cursor = layout.take(size_of::<u64>());
        let mut lease = WorkspaceLease::lock(device);
        let work = &mut lease.reserve(layout.end(), HOST_BYTES, groups.limit)?.device;
        let order = match by_value {
            Some(shape) => {
                Some(records.rows_by_value(&fields, shape, work, (sort, cursor), &mut timeline, report)?)
            }
            None => None,
        };
        let making = records.making(&fields, order.as_ref());
        records.make(
            (&making, population),
            fields.shape,
            work,
            (sort, cursor),
            &mut timeline,
            report,
        )?;
        let sort = RecordSort::try_new(work, sort, fields.shape, population, groups.limit)?;
        let top = self.best(&fields, order.as_ref(), sort, room, &mut timeline, report)?;
        timeline.end()?;
        device.synchronize("selecting rows of groups on the device")?;
        timeline.report(report)?;
        Ok(top)
    }

    fn records(&self) -> GroupRecords<'_> {
        GroupRecords {
            groups: self.groups,
            keys: &self.keys,
            values: self.values,
            least: self.least,
        }
    }

    fn none(&self) -> Result<GroupTop> {
        Ok(GroupTop {
            codes: Vec::new(),
            lengths: Vec::new(),
            values: array(self.values.data_type(), 0, &[], &[])?,
        })
    }

    /// Few rows that the best of all groups are among, where the rows of groups lie together.
    fn candidates(&self, timeline: &mut Timeline<'_>, report: &mut Report) -> Result<Option<Candidates>> {
        let takes = match self.forced {
            None | Some(TopMethod::Runs) => Takes::Either,
            Some(TopMethod::RunsByBlocks) => Takes::Block,
            Some(TopMethod::RunsByWarps) => Takes::Warp,
            Some(TopMethod::Sort | TopMethod::Warps) => return Ok(None),
        };
        let runs = RunSelection {
            keys: &self.keys,
            least: self.least,
            k: self.k,
            takes,
        };
        runs.rows(self.groups, timeline, report)
    }

    /// How rows are found among so many whose records have this shape.
    fn method(&self, records: u64, shape: RecordShape) -> TopMethod {
        let groups = u64::try_from(self.groups.numbers).unwrap_or(u64::MAX);
        self.forced
            .filter(|forced| {
                matches!(forced, TopMethod::Sort | TopMethod::Warps) && is_for_warps(shape, self.k)
            })
            .unwrap_or_else(|| method(records, groups, self.k, shape))
    }

    /// Whether [`Self::rows`] has room for a record of each row. Reads keys and values once in their lives.
    ///
    /// # Errors
    /// An execution error if the device fails; `ResourcesExhausted` where it has no memory to find the ranges of the columns.
    pub(crate) fn fits(&self, report: &mut Report) -> Result<bool> {
        Ok(self.records().fields(None, report)?.is_ok())
    }

    /// The answer from records that are not in order yet.
    fn best(
        &self,
        fields: &Fields<'_>,
        order: Option<&DeviceBuffer>,
        mut sort: RecordSort<'_>,
        room: impl FnOnce(usize, usize) -> Result<()>,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<GroupTop> {
        let (device, limit, shape) = (self.groups.device, self.groups.limit, fields.shape);
        let by_warps = self.method(fields.population, shape) == TopMethod::Warps;
        let first = match (by_warps, fields.ranked) {
            (true, _) => shape.key_bits,
            // Records were made in the order of their places.
            (false, Some([place_bits, _])) => place_bits,
            (false, None) => 0,
        };
        sort.sort(first, timeline)?;
        let (segments, starts) = sort.segments(timeline, report)?;
        let (lengths, offsets) = self.answer_rows(&segments);
        let total = offsets.last().copied().unwrap_or(0);
        room(lengths.len(), total as usize)?;
        let sent = DeviceBuffer::from_numbers(device, &offsets, limit, report)?;
        let nullable = self.values.has_nulls();
        let Some(width) = storage_bytes(self.values.data_type()) else {
            return internal_err!("values of type {} on a device", self.values.data_type());
        };
        let total = total as usize;
        let out = device.allocate(total * (width + usize::from(nullable)), limit)?;
        let mut taking = TakingArgument {
            value: fields.value,
            from: sort.records(),
            offsets: sent.address(),
            groups: lengths.len() as u64,
            out: out.address(),
            out_valid: if nullable {
                out.address() + (total * width) as u64
            } else {
                0
            },
            k: self.k.min(u64::from(u32::MAX)) as u32,
            bits: shape.key_bits,
            width: width as u32,
            ..TakingArgument::default()
        };
        if let (Some(order), Some([place_bits, _])) = (order, fields.ranked) {
            taking.order = order.address();
            taking.value.bits = place_bits;
        }
        // Held until all is done.
        let best = match by_warps {
            false => {
                taking.starts = starts.address();
                starts
            }
            true => {
                let record_bytes = shape.bytes().unwrap_or(0);
                let best = device.allocate(total * record_bytes, limit)?;
                taking.best = best.address();
                let lists = (&segments, offsets.as_slice());
                self.select(shape, lists, (taking, sort.room()), timeline, report)?;
                best
            }
        };
        let blocks = (total as u64).div_ceil(u64::from(THREADS)) as u32;
        let grid = [blocks.clamp(1, everywhere(device)[0]), THREADS];
        let launch = kernels(device, shape, None)?.launch("gt_answer", grid, 0)?;
        timeline.launch(&launch, &taking)?;
        let host = out.to_host(0..out.len())?;
        drop((best, sent));
        report.bytes_from_device += host.len() as u64;
        let (values, valid) = host.split_at(total * width);
        Ok(GroupTop {
            codes: segments.codes,
            lengths: lengths.into_iter().map(|length| length as usize).collect(),
            values: array(self.values.data_type(), total, values, valid)?,
        })
    }

    /// Rows of each group's answer, and where each group's begin in all, and where the last end.
    fn answer_rows(&self, segments: &Segments) -> (Vec<u64>, Vec<u64>) {
        let lengths = (0..segments.starts.len()).map(|group| segments.length(group).min(self.k));
        let lengths: Vec<u64> = lengths.collect();
        let mut offsets = Vec::with_capacity(lengths.len() + 1);
        offsets.push(0);
        let mut total = 0;
        for length in &lengths {
            total += length;
            offsets.push(total);
        }
        (lengths, offsets)
    }

    /// WarpSelect over records in the order of groups, until each group has one list.
    fn select(
        &self,
        shape: RecordShape,
        (segments, offsets): (&Segments, &[u64]),
        (taking, spare): (TakingArgument, u64),
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<()> {
        let (device, limit) = (self.groups.device, self.groups.limit);
        let queue = QUEUES.iter().find(|(most, ..)| self.k <= *most);
        let queue = queue.ok_or_else(|| internal_datafusion_err!("{} rows of a warp", self.k))?;
        let kernels = kernels(device, shape, Some(queue.0))?;
        let groups = segments.starts.len();
        let mut floors = device.allocate(groups * size_of::<u64>(), limit)?;
        floors.zero(0..floors.len())?;
        let share = share(segments.records, self.k, u64::from(device.multiprocessors()));
        let mut lists: Vec<(u64, u64)> = (0..groups)
            .map(|group| (segments.starts[group], segments.length(group)))
            .collect();
        let mut rooms = [taking.from, spare];
        let mut first = 1;
        loop {
            let chunks = shares(&mut lists, offsets, share, self.k);
            if chunks.is_empty() {
                return Ok(());
            }
            let words: Vec<_> = chunks.iter().map(|chunk| chunk.words()).collect();
            let sent = DeviceBuffer::from_numbers(device, &words, limit, report)?;
            let taking = TakingArgument {
                from: rooms[0],
                lists: rooms[1],
                chunks: sent.address(),
                chunk_count: chunks.len() as u64,
                floors: floors.address(),
                first,
                ..taking
            };
            let blocks = chunks.len().div_ceil(WARPS as usize) as u32;
            timeline.launch(&kernels.launch(queue.1, [blocks, 32 * WARPS], 0)?, &taking)?;
            rooms.swap(0, 1);
            first = 0;
        }
    }
}
