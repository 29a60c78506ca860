//! Byte strings of a hash partition that is too large for one worker.
//!
//! ```text
//! groups of it, by number           0 1 2 3 4 | 5 | 6 7 8 ..
//! bytes of each                     few         heavy
//!                                   read and selected     collected, then selected as all values are
//!                                   together, in memory   without groups: rounds, on all threads, spilling
//! ```
//! Each range of groups and each heavy one is one read of the hash partition.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::concat;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::partition::{FrozenGroups, Partitions, words_of};
use super::select::GATHERED;
use crate::exec::scan::Kept;
use crate::exec::selection::SelectionContext;
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::ByteStrings;
use crate::kernel::cpu::groups::bytes::{PartitionedBytesReader, READ_BYTES, VALUES};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::segments::Plans;
use crate::kernel::cpu::groups::strings::{ByteAnswers, ByteSegments};
use crate::key::ByteSpec;
use crate::memory::Spilling;
use crate::memory::reserve;
use crate::quantile::QuantileSpec;
use crate::threads::Stop;
use crate::threads::StopOnDrop;
use crate::threads::ThreadPool;
use crate::threads::blocking;

/// Memory that groups are selected in together, best first.
const TOGETHER: [usize; 4] = [16 << 20, 4 << 20, 1 << 20, 256 << 10];

/// The byte strings of one column in a part.
#[derive(Clone)]
pub(super) struct Strings<W: GroupKey> {
    pub(super) partitions: Arc<Partitions<W>>,
    pub(super) numbers: Arc<FrozenGroups<W>>,
    pub(super) part: usize,
    pub(super) column: usize,
    pub(super) groups: usize,
}

/// Values of a group.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    values: usize,
    bytes: usize,
    longest: u32,
}

/// How some groups are selected.
#[derive(Debug, PartialEq, Eq)]
enum Share {
    /// Together, in memory.
    Light(Range<usize>),
    Heavy(usize),
}

/// Cuts groups into those that fit in `room` together and those that are too large for it.
fn shares(sizes: &[Size], room: usize) -> Vec<Share> {
    let (mut shares, mut start, mut held) = (Vec::new(), 0, 0);
    for (group, size) in sizes.iter().enumerate() {
        let is_heavy = size.need() > room || size.values > GATHERED;
        if (is_heavy || held + size.need() > room) && start < group {
            shares.push(Share::Light(start..group));
            (start, held) = (group, 0);
        }
        match is_heavy {
            true => {
                shares.push(Share::Heavy(group));
                start = group + 1;
            }
            false => held += size.need(),
        }
    }
    if start < sizes.len() {
        shares.push(Share::Light(start..sizes.len()));
    }
    shares
}

impl Size {
    /// Memory to select in a group.
    fn need(&self) -> usize {
        self.bytes + self.values * ByteSegments::VALUE_BYTES + ByteSegments::GROUP_BYTES
    }
}

impl<W: GroupKey> Strings<W> {
    /// The answers of all groups.
    ///
    /// # Errors
    /// `ResourcesExhausted`; those of reading; when the work was cancelled.
    pub(super) async fn answers(self, mut plans: Plans, solver: &SelectionContext) -> Result<ByteAnswers> {
        let stop = StopOnDrop::default();
        let column = &self.partitions.shared.work.plan.aggregates.columns[self.column];
        let (Some(spec), distinct) = (column.bytes.clone(), column.distinct) else {
            return Err(internal_datafusion_err!("{column} has keys"));
        };
        let memory = self.partitions.memory.new_empty();
        // For what is read at a time, and a size for each group.
        reserve(&memory, reading_bytes::<W>() + self.groups * size_of::<Size>())?;
        let (own, flag) = (self.clone(), stop.0.clone());
        let sizes = Arc::new(blocking(move || own.sizes(&flag)).await?);
        let room = self.room(&sizes);
        let mut found = Found::new(plans.calls());
        let answers = self.partitions.memory.new_empty();
        for share in shares(&sizes, room) {
            match share {
                Share::Light(groups) => {
                    let light = self.light(groups, Arc::clone(&sizes), &spec, plans, distinct, &stop.0);
                    let (back, light, held) = light.await?;
                    plans = back;
                    answers.grow(held.free());
                    found.add(light);
                }
                Share::Heavy(group) => {
                    let quantile_specs: Vec<&QuantileSpec> = plans.quantile_specs().iter().collect();
                    let heavy = self
                        .heavy(group, sizes[group], &spec, distinct, &quantile_specs, solver)
                        .await?;
                    answers.grow(heavy.calls.iter().map(|call| call.get_array_memory_size()).sum());
                    found.add(heavy);
                }
            }
        }
        // All pieces once more, as one.
        reserve(&memory, answers.size())?;
        found.finish()
    }

    /// How many bytes groups may want together: half of what is there, or a little.
    fn room(&self, sizes: &[Size]) -> usize {
        let all: usize = sizes.iter().map(Size::need).sum();
        let memory = self.partitions.memory.new_empty();
        for room in TOGETHER.map(|room| all.min(room)) {
            if memory.try_grow(2 * room).is_ok() {
                return room;
            }
        }
        TOGETHER[TOGETHER.len() - 1]
    }

    /// Memory to select some groups in.
    fn together(&self, sizes: &[Size]) -> Result<MemoryReservation> {
        let memory = self.partitions.memory.new_empty();
        let bytes: usize = sizes.iter().map(Size::need).sum();
        memory.try_grow(bytes).map_err(|error| {
            let groups = sizes.len();
            error.context(format!(
                "the memory limit is too small for exact quantiles: {bytes} bytes wanted to select byte strings of \
                 {groups} groups in"
            ))
        })?;
        Ok(memory)
    }

    /// The size of each group.
    fn sizes(&self, stop: &Stop) -> Result<Vec<Size>> {
        may_fail!("group_sizes");
        let mut sizes = vec![Size::default(); self.groups];
        for run in self.runs() {
            self.each_block(run, stop, |ids, lengths| {
                for (id, length) in ids.iter().zip(lengths) {
                    let size = &mut sizes[*id as usize];
                    size.values += 1;
                    size.bytes += *length as usize;
                    size.longest = size.longest.max(*length);
                }
                Ok(())
            })?;
        }
        Ok(sizes)
    }

    /// All runs, each by its scan and number.
    fn runs(&self) -> Vec<(usize, usize)> {
        let scans = self.partitions.scans.iter().enumerate();
        let runs = scans.flat_map(|(scan, scanned)| (0..scanned.rows.runs.len()).map(move |run| (scan, run)));
        runs.collect()
    }

    /// Calls `each` with the numbers of the groups and the lengths of the values of one run, block by block.
    fn each_block(
        &self,
        (scan, run): (usize, usize),
        stop: &Stop,
        mut each: impl FnMut(&[u32], &[u32]) -> Result<()>,
    ) -> Result<()> {
        let rows = &self.partitions.scans[scan].rows;
        let (run, file) = (&rows.runs[run], rows.file.as_ref());
        let values = run.columns[self.column].byte_strings()?;
        let (mut words, mut ids, mut lengths) = (Vec::<W>::new(), Vec::new(), Vec::new());
        let len = values.partition_len(self.part);
        for from in (0..len).step_by(VALUES) {
            stop.check()?;
            let range = from..len.min(from + VALUES);
            words_of(run, self.column).read(self.part, range.clone(), file, &mut words)?;
            values.lengths(self.part, range, file, &mut lengths)?;
            ids.clear();
            self.numbers
                .append(&self.partitions, self.part, scan, &words, &mut ids, |id| id)?;
            each(&ids, &lengths)?;
        }
        Ok(())
    }

    /// Calls `each` with the group's number and the bytes of the values of one run.
    fn each_value(
        &self,
        run: (usize, usize),
        stop: &Stop,
        mut each: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let rows = &self.partitions.scans[run.0].rows;
        let values = rows.runs[run.1].columns[self.column].byte_strings()?;
        let mut reader = PartitionedBytesReader::new(values, self.part, rows.file.as_ref());
        self.each_block(run, stop, |ids, lengths| {
            reader.each(lengths, stop, |number, value| each(ids[number] as usize, value))
        })
    }

    /// The answers of groups that fit in memory together, and what those reserve.
    async fn light(
        &self,
        groups: Range<usize>,
        sizes: Arc<Vec<Size>>,
        spec: &ByteSpec,
        mut plans: Plans,
        distinct: bool,
        stop: &Stop,
    ) -> Result<(Plans, ByteAnswers, MemoryReservation)> {
        let (own, spec, stop) = (self.clone(), spec.clone(), stop.clone());
        let memory = self.partitions.memory.new_empty();
        let _together = self.together(&sizes[groups.clone()])?;
        blocking(move || {
            let count = groups.len();
            let (mut segments, ids) = own.together_by_group(groups, &sizes, &stop)?;
            let answers = segments.answers(count, &ids, &spec, &mut plans, distinct, &memory)?;
            Ok((plans, answers, memory))
        })
        .await
    }

    /// The values of some groups, and the number of each one's group among these.
    fn together_by_group(
        &self,
        groups: Range<usize>,
        sizes: &[Size],
        stop: &Stop,
    ) -> Result<(ByteSegments, Vec<u32>)> {
        may_fail!("group_light");
        let all = || sizes[groups.clone()].iter();
        let values = all().map(|size| size.values).sum();
        let (mut segments, mut ids) = (ByteSegments::default(), Vec::with_capacity(values));
        segments.begin(values, all().map(|size| size.bytes).sum());
        for run in self.runs() {
            self.each_value(run, stop, |group, value| {
                if groups.contains(&group) {
                    segments.push(value);
                    ids.push((group - groups.start) as u32);
                }
                Ok(())
            })?;
        }
        Ok((segments, ids))
    }

    /// The answers of one group, by rounds over its values.
    async fn heavy(
        &self,
        group: usize,
        size: Size,
        spec: &ByteSpec,
        distinct: bool,
        quantile_specs: &[&QuantileSpec],
        solver: &SelectionContext,
    ) -> Result<ByteAnswers> {
        let values = self.collect(group, size, solver).await?;
        let kept = values.into_iter();
        let kept = kept.map(|values| Kept::Bytes(spec.clone(), Box::new(values)));
        let (_, solution) = solver
            .solve_byte_strings(vec![kept.collect()], 0, distinct, quantile_specs)
            .await?;
        let calls = quantile_specs
            .iter()
            .map(|quantile_spec| solution.answers(quantile_spec, spec));
        Ok(ByteAnswers {
            calls: calls.collect::<Result<_>>()?,
            lengths: vec![solution.n],
        })
    }

    /// The values of a group, in memory or on disk.
    async fn collect(&self, group: usize, size: Size, solver: &SelectionContext) -> Result<Vec<ByteStrings>> {
        let runs = self.runs();
        let each = reading_bytes::<W>() + size.longest as usize;
        let reading = self.partitions.memory.new_empty();
        let most = solver.threads.clamp(1, runs.len().max(1));
        let threads = (2..=most)
            .rev()
            .find(|threads| reading.try_grow(threads * each).is_ok());
        if threads.is_none() {
            reserve(&reading, each)?;
        }
        let threads = threads.unwrap_or(1);
        let share = runs.len().div_ceil(threads).max(1);
        let shares = runs
            .chunks(share)
            .map(|runs| (runs.to_vec(), solver.memory.new_empty()));
        let (own, disk) = (self.clone(), solver.backend.disk());
        let work = move |(runs, memory): (Vec<(usize, usize)>, MemoryReservation), stop: &Stop| {
            own.collected(group, runs, memory, disk.clone(), stop)
        };
        ThreadPool::new(threads, Stop::default())
            .map(shares.collect(), work)
            .await
    }

    /// Those of some runs.
    fn collected(
        &self,
        group: usize,
        runs: Vec<(usize, usize)>,
        memory: MemoryReservation,
        disk: Option<Spilling>,
        stop: &Stop,
    ) -> Result<ByteStrings> {
        may_fail!("group_heavy");
        let mut values = ByteStrings::spilling(memory, disk)?;
        for run in runs {
            self.each_value(run, stop, |of, value| match of == group {
                true => values.push(value).map(drop),
                false => Ok(()),
            })?;
        }
        Ok(values)
    }
}

/// What a thread reads a run into, but for values that are longer.
fn reading_bytes<W>() -> usize {
    READ_BYTES + VALUES * (size_of::<W>() + 2 * size_of::<u32>())
}

/// Answers of groups that were found one share after the other.
struct Found {
    calls: Vec<Vec<ArrayRef>>,
    lengths: Vec<u64>,
}

impl Found {
    fn new(calls: usize) -> Self {
        Self {
            calls: vec![Vec::new(); calls],
            lengths: Vec::new(),
        }
    }

    fn add(&mut self, answers: ByteAnswers) {
        for (all, call) in self.calls.iter_mut().zip(answers.calls) {
            all.push(call);
        }
        self.lengths.extend(answers.lengths);
    }

    fn finish(self) -> Result<ByteAnswers> {
        let calls = self.calls.into_iter().map(|pieces| {
            let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
            Ok(concat(&pieces)?)
        });
        Ok(ByteAnswers {
            calls: calls.collect::<Result<_>>()?,
            lengths: self.lengths,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_cut_into_light_ranges_and_heavy_ones() {
        let size = |bytes: usize| Size {
            values: 1,
            bytes,
            longest: bytes as u32,
        };
        let sizes = [10, 500, 20, 2000, 10, 10, 900].map(size);
        assert_eq!(
            shares(&sizes, 1000),
            [
                Share::Light(0..3),
                Share::Heavy(3),
                Share::Light(4..6),
                Share::Light(6..7)
            ]
        );
        let many = Size {
            values: GATHERED + 1,
            ..Size::default()
        };
        assert_eq!(
            shares(&[many, many], usize::MAX),
            [Share::Heavy(0), Share::Heavy(1)]
        );
        assert_eq!(shares(&[size(7)], 1 << 20), [Share::Light(0..1)]);
        assert!(shares(&[], 1000).is_empty());
    }
}
