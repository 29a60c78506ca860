//! The best rows of every group of a table on a device: the launches of `kernels/group_top.cu` and `kernels/sort.cu`.
//!
//! A row becomes a record of 64 or 128 bits with three fields: the code of its group, its key, and its value, or its number in the
//! table. Each counts from the least of its column. Records with equal keys are so in the order of their values, and the value is read from the record. If the
//! fields are too wide together, rows are first put in the order of their values, and the place in that order stands for the value.
//! Then one of two methods follows:
//!
//! * All records are sorted, and the first records of each group are its best ([`TopMethod::Sort`]).
//! * Records are sorted by group only. Each warp selects among some thousand records of one group, then among the records that warps
//!   found, until one list for each group is left ([`TopMethod::Warps`]: WarpSelect, Johnson, Douze and Jegou 2017, section IV, in
//!   as many passes as needed). The k-th best record of any list rules out lesser records of the group in all warps.
//!
//! A table of measured times decides. Where the rows of groups lie together in long runs, one read of the keys finds few rows that can
//! be among the best ([`TopMethod::Runs`]), and only these become records. Device memory: two records for each row, and 8 bytes more
//! for each row where places stand for values.

use datafusion::arrow::array::{ArrayRef, new_empty_array};
use datafusion::common::{Result, internal_datafusion_err, internal_err, resources_datafusion_err};

use super::bracket_plan::BracketPlan;
use super::buffer::DeviceBuffer;
use super::gather::{Gather, array};
use super::group::{Groups, HOST_BYTES};
use super::group_brackets::BracketRead;
use super::group_records::{
    Fields, GroupRecords, OtherShare, RecordFieldArgument, THREADS, TopAnswer, everywhere, kernels,
};
use super::launch::kernel_argument;
use super::picked_keys::PickedKeys;
use super::report::Report;
use super::runs::{Candidates, RunReader, RunSelection};
use super::select::Selection;
use super::shares::{QUEUES, TopMethod, is_for_warps, method, share, shares};
use super::sort::{Heads, RecordShape, RecordSort, Segments, SortMemory};
use super::timeline::Timeline;
use super::workspace::{Places, WorkspaceLease};
use crate::failpoint::may_fail;
use crate::key::KeyBits;

/// Warps of a block of `gt_select_K`.
const WARPS: u32 = 4;

kernel_argument! {
    /// `struct AnswerPlan` of `kernels/group_top.cu`.
    struct AnswerPlanArgument = gt_sizes[1] {
        value: RecordFieldArgument,
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
        out_orders: u64,
        k: u32,
        bits: u32,
        first: u32,
        width: u32,
    }
}

/// A request for the best rows of every group.
#[derive(Debug, Clone, Copy)]
pub struct GroupTopSelection<'a> {
    /// The groups of the rows.
    pub groups: &'a Groups<'a>,
    /// The column of the keys, and the rows that count.
    pub keys: Selection<'a>,
    /// What the answer is made of.
    pub answer: TopAnswer<'a>,
    /// The other shares of the table, if it lies on several devices.
    pub others: &'a [OtherShare<'a>],
    /// Whether the least keys are the best.
    pub least: bool,
    /// Most rows of a group, from 1.
    pub k: u64,
    /// The method to use in place of the fastest one; for tests and benchmarks.
    pub forced: Option<TopMethod>,
}

/// The best rows of groups.
#[derive(Debug)]
pub struct GroupTop {
    /// Codes of the groups that have rows, ascending.
    pub codes: Vec<u64>,
    /// The index in `values` of the first row of each group, and the number of all rows.
    pub offsets: Vec<usize>,
    /// Values of these rows, best first, one group after the other.
    pub values: ArrayRef,
    /// What orders these rows among those of all shares of the table, the best first; nothing if there are no other shares.
    orders: PickedKeys,
    /// Lowest bits of these that do not order rows of different shares.
    own_bits: u32,
}

impl GroupTop {
    /// Number of rows of the group at this index.
    pub fn length(&self, group: usize) -> usize {
        let at = |group: usize| self.offsets.get(group).copied().unwrap_or(0);
        at(group + 1).saturating_sub(at(group))
    }

    /// A number that is less the better the row of the value at this index is, among the rows of its group in all shares of the table.
    /// Rows of which an answer of row numbers cannot tell the better one have the same number. `None`: there are no other shares.
    pub(crate) fn order(&self, index: usize) -> Option<KeyBits> {
        self.orders.get(index).map(|order| order >> self.own_bits)
    }
}

/// The best rows of groups, on the device.
struct FoundTop {
    /// Codes of the groups that have rows, ascending.
    codes: Vec<u64>,
    /// The index of the first of the best rows of each group, and the number of all.
    offsets: Vec<usize>,
    /// What the answer is made of, for each of these rows, and then a byte for each, 0 for NULL, if there can be NULLs. `None`: there are
    /// no rows.
    answers: Option<DeviceBuffer>,
    /// What orders these rows among those of all shares, if there are others.
    orders: Option<FoundOrders>,
}

/// The records of rows without the codes of groups, on the device.
struct FoundOrders {
    records: DeviceBuffer,
    shape: RecordShape,
    /// Bits of a record that hold the value.
    value_bits: u32,
}

impl FoundTop {
    fn total(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }
}

impl<'a> GroupTopSelection<'a> {
    /// The best rows. `room` is called with the numbers of groups and rows before these are fetched, so that it can reserve host memory.
    /// Waits for the device.
    ///
    /// # Errors
    /// `ResourcesExhausted` if codes, keys and values, or values and row numbers, take more than 128 bits together, or if the device's
    /// memory, or the limit on it, is too small; an execution error if the device fails; errors of `room`.
    pub fn rows(
        &self,
        report: &mut Report,
        room: impl FnOnce(usize, usize) -> Result<()>,
    ) -> Result<GroupTop> {
        let found = self.found(report, room)?;
        let values = match &found.answers {
            Some(answers) => {
                report.bytes_from_device += answers.len() as u64;
                array(self.answer.data_type(), found.total(), answers)?
            }
            None => new_empty_array(self.answer.data_type()),
        };
        let (mut orders, mut own_bits) = (PickedKeys::default(), 0);
        if let Some(FoundOrders {
            records,
            shape,
            value_bits,
        }) = &found.orders
        {
            report.bytes_from_device += records.len() as u64;
            let width = shape.bytes().unwrap_or(0);
            orders = PickedKeys::new(records.to_host(0..records.len())?, width, shape.key_bits);
            if let TopAnswer::RowNumbers = self.answer {
                own_bits = *value_bits;
            }
        }
        Ok(GroupTop {
            codes: found.codes,
            offsets: found.offsets,
            values,
            orders,
            own_bits,
        })
    }

    /// The best rows where the answer is made of row numbers: the index of the first of each group, the number of all, and the rows, whose
    /// values are fetched from the device column by column.
    ///
    /// # Errors
    /// As [`Self::rows`]; an internal error for an answer of values.
    pub(crate) fn places(
        &self,
        report: &mut Report,
        room: impl FnOnce(usize, usize) -> Result<()>,
    ) -> Result<(Vec<usize>, Option<Gather>)> {
        let TopAnswer::RowNumbers = self.answer else {
            return internal_err!("rows by their values");
        };
        let found = self.found(report, room)?;
        let (rows, total) = (self.keys.column.rows(), found.total());
        let (limit, timed) = (self.groups.limit, self.groups.timed);
        let gather = found.answers;
        let gather = gather.map(|places| Gather::over(places, (total, rows), limit, timed));
        Ok((found.offsets, gather))
    }

    fn found(&self, report: &mut Report, room: impl FnOnce(usize, usize) -> Result<()>) -> Result<FoundTop> {
        may_fail!("cuda_group_top");
        let population = self.keys.population();
        let (groups, device) = (self.groups, self.groups.device);
        if population == 0 || self.k == 0 {
            return Ok(FoundTop {
                codes: Vec::new(),
                offsets: vec![0],
                answers: None,
                orders: None,
            });
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
        let sort = SortMemory::take(&mut layout, population as usize, bytes);
        let cursor = layout.take(size_of::<u64>());
        let mut lease = WorkspaceLease::lock(device);
        let work = &mut lease.reserve(layout.end(), HOST_BYTES, groups.limit)?.device;
        let order = match by_value {
            Some(shape) => {
                Some(records.rows_by_value(&fields, shape, work, (sort, cursor), &mut timeline, report)?)
            }
            None => None,
        };
        let plan = records.plan(&fields, order.as_ref());
        records.make(
            (&plan, population),
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
            answer: self.answer,
            others: self.others,
            least: self.least,
        }
    }

    /// A few rows that include the best of all groups, if the rows of groups lie together in runs, or if a sample gives floors that few
    /// rows reach.
    fn candidates(&self, timeline: &mut Timeline<'_>, report: &mut Report) -> Result<Option<Candidates>> {
        let reader = match self.forced {
            None | Some(TopMethod::Runs) => RunReader::Either,
            Some(TopMethod::Floors) => return self.above_floors(timeline, report),
            Some(TopMethod::RunsByBlocks) => RunReader::Block,
            Some(TopMethod::RunsByWarps) => RunReader::Warp,
            Some(TopMethod::Sort | TopMethod::Warps) => return Ok(None),
        };
        let runs = RunSelection {
            keys: &self.keys,
            least: self.least,
            k: self.k,
            reader,
        };
        match runs.rows(self.groups, timeline, report)? {
            None if self.forced.is_none() => self.above_floors(timeline, report),
            found => Ok(found),
        }
    }

    /// The rows that reach the floors of their groups.
    fn above_floors(&self, timeline: &mut Timeline<'_>, report: &mut Report) -> Result<Option<Candidates>> {
        let shape = self.groups.key_shape(&[&self.keys], report)?;
        let plan = |n| BracketPlan::of_best(self.k, self.least, n);
        match BracketRead::try_new(&[(self.groups, &self.keys)], shape, plan) {
            Some(read) => read.best(self.k, timeline, report),
            None => Ok(None),
        }
    }

    /// The method for `records` records of this shape.
    fn method(&self, records: u64, shape: RecordShape) -> TopMethod {
        let groups = u64::try_from(self.groups.numbers).unwrap_or(u64::MAX);
        self.forced
            .filter(|forced| {
                matches!(forced, TopMethod::Sort | TopMethod::Warps) && is_for_warps(shape, self.k)
            })
            .unwrap_or_else(|| method(records, groups, self.k, shape))
    }

    /// Whether the fields of a record fit in 128 bits, as [`Self::rows`] needs it. Reads the columns of keys and values once in their
    /// lives.
    ///
    /// # Errors
    /// An execution error if the device fails; `ResourcesExhausted` if it has no memory to find the ranges of the columns.
    pub(crate) fn fits(&self, report: &mut Report) -> Result<bool> {
        Ok(self.records().fields(None, report)?.is_ok())
    }

    /// Sorts the records, selects, and puts the answer on the stream.
    fn best(
        &self,
        fields: &Fields<'_>,
        order: Option<&DeviceBuffer>,
        mut sort: RecordSort<'_>,
        room: impl FnOnce(usize, usize) -> Result<()>,
        timeline: &mut Timeline<'_>,
        report: &mut Report,
    ) -> Result<FoundTop> {
        let (device, limit, shape) = (self.groups.device, self.groups.limit, fields.shape);
        let by_warps = self.method(fields.population, shape) == TopMethod::Warps;
        let heads = heads(fields, by_warps, &mut sort, timeline)?;
        let segments = sort.segments(&heads, report)?;
        let offsets = self.answer_rows(&segments);
        let total = offsets.last().copied().unwrap_or(0);
        room(segments.codes.len(), total as usize)?;
        let sent = DeviceBuffer::from_numbers(device, &offsets, limit, report)?;
        let (data_type, nullable) = (self.answer.data_type(), self.answer.has_nulls());
        let Some(width) = self.answer.width() else {
            return internal_err!("values of type {data_type} on a device");
        };
        let total = total as usize;
        let out = device.allocate(total * (width + usize::from(nullable)), limit)?;
        let orders = match (self.others, shape.bytes()) {
            ([_, ..], Some(bytes)) => Some(device.allocate(total * bytes, limit)?),
            _ => None,
        };
        let mut plan = AnswerPlanArgument {
            value: fields.value,
            from: sort.records(),
            offsets: sent.address(),
            groups: segments.codes.len() as u64,
            out: out.address(),
            out_valid: if nullable {
                out.address() + (total * width) as u64
            } else {
                0
            },
            out_orders: orders.as_ref().map_or(0, DeviceBuffer::address),
            k: self.k.min(u64::from(u32::MAX)) as u32,
            bits: shape.key_bits,
            width: width as u32,
            ..AnswerPlanArgument::default()
        };
        if let (Some(order), Some([place_bits, _])) = (order, fields.ranked) {
            plan.order = order.address();
            plan.value.bits = place_bits;
        }
        // Freed on the stream, behind the kernels that read it, as `heads` is.
        let best = if by_warps {
            let record_bytes = shape.bytes().unwrap_or(0);
            let best = device.allocate(total * record_bytes, limit)?;
            plan.best = best.address();
            let lists = (&segments, offsets.as_slice());
            self.select(shape, lists, (plan, sort.room()), timeline, report)?;
            Some(best)
        } else {
            plan.starts = heads.starts();
            None
        };
        let blocks = (total as u64).div_ceil(u64::from(THREADS)) as u32;
        let grid = [blocks.clamp(1, everywhere(device)[0]), THREADS];
        let launch = kernels(device, shape, None)?.launch("gt_answer", grid, 0)?;
        timeline.launch(&launch, &plan)?;
        drop((best, heads, sent));
        Ok(FoundTop {
            codes: segments.codes,
            offsets: offsets.into_iter().map(|offset| offset as usize).collect(),
            answers: Some(out),
            orders: orders.map(|records| FoundOrders {
                records,
                shape,
                value_bits: fields.value.bits,
            }),
        })
    }

    /// The sums of the numbers of rows of all answers before each group's, and of all.
    fn answer_rows(&self, segments: &Segments) -> Vec<u64> {
        let mut offsets = Vec::with_capacity(segments.starts.len() + 1);
        let mut total = 0;
        offsets.push(total);
        segments.lengths().for_each(|length| {
            total += length.min(self.k);
            offsets.push(total);
        });
        offsets
    }

    /// Runs WarpSelect over records in the order of groups, until each group has one list.
    fn select(
        &self,
        shape: RecordShape,
        (segments, offsets): (&Segments, &[u64]),
        (plan, spare): (AnswerPlanArgument, u64),
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
        let mut rooms = [plan.from, spare];
        let mut first = 1;
        loop {
            let chunks = shares(&mut lists, offsets, share, self.k);
            if chunks.is_empty() {
                return Ok(());
            }
            let words: Vec<_> = chunks.iter().map(|chunk| chunk.words()).collect();
            let sent = DeviceBuffer::from_numbers(device, &words, limit, report)?;
            let plan = AnswerPlanArgument {
                from: rooms[0],
                lists: rooms[1],
                chunks: sent.address(),
                chunk_count: chunks.len() as u64,
                floors: floors.address(),
                first,
                ..plan
            };
            let blocks = chunks.len().div_ceil(WARPS as usize) as u32;
            timeline.launch(&kernels.launch(queue.1, [blocks, 32 * WARPS], 0)?, &plan)?;
            rooms.swap(0, 1);
            first = 0;
        }
    }
}

/// Sorts the records, by groups alone if warps select among those of a group, and finds the groups.
fn heads(
    fields: &Fields<'_>,
    by_warps: bool,
    sort: &mut RecordSort<'_>,
    timeline: &mut Timeline<'_>,
) -> Result<Heads> {
    let first = match (by_warps, fields.ranked) {
        (true, _) => fields.shape.key_bits,
        // Records were made in the order of their places, so these bits are in order already.
        (false, Some([place_bits, _])) => place_bits,
        (false, None) => 0,
    };
    match first {
        0 => sort.sort_groups(timeline),
        first => {
            sort.sort(first, timeline)?;
            sort.heads(timeline)
        }
    }
}
