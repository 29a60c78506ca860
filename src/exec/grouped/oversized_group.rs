//! Selection among the byte strings of a hash partition that is too large for one worker.
//!
//! ```text
//! groups, by number     0 1 2 3 4 | 5 | 6 7 8 ..
//!                       ^           ^
//!                       |           a group too large for memory: its values are collected, on disk if need be,
//!                       |           and selected by rounds on all threads, as without GROUP BY
//!                       a range of groups that fit in memory together: their values are read and selected together
//! ```
//! The hash partition is read once for each range, and once for each group that is too large.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::concat;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::partition::{FrozenGroups, Partitions, group_keys_of};
use super::select::GATHERED_ROWS;
use crate::exec::collected::CollectedColumn;
use crate::exec::selection::SelectionContext;
use crate::failpoint::may_fail;
use crate::kernel::byte_strings::ByteStrings;
use crate::kernel::cpu::groups::bytes::{PartitionedBytesReader, READ_BYTES, VALUES};
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::segments::Plans;
use crate::kernel::cpu::groups::strings::{ByteAnswers, ByteSegments};
use crate::key::ByteSpec;
use crate::memory::{reserve, take_over};
use crate::quantile::QuantileSpec;
use crate::threads::Stop;
use crate::threads::StopOnDrop;
use crate::threads::ThreadPool;
use crate::threads::blocking;

/// Bytes in which a range of groups is selected together, best first.
const TOGETHER_BYTES: [usize; 4] = [16 << 20, 4 << 20, 1 << 20, 256 << 10];

/// The byte strings of one column in one hash partition.
#[derive(Clone)]
pub(super) struct PartitionStrings<W: GroupKey> {
    pub(super) partitions: Arc<Partitions<W>>,
    /// Numbers of the hash partition's groups.
    pub(super) numbers: Arc<FrozenGroups<W>>,
    /// Number of the hash partition.
    pub(super) part: usize,
    /// Index of the key column.
    pub(super) column: usize,
    /// Number of groups.
    pub(super) groups: usize,
}

/// Number of values in a group, their bytes together, and those of the longest.
#[derive(Debug, Clone, Copy, Default)]
struct GroupSize {
    values: usize,
    bytes: usize,
    longest: u32,
}

/// Groups that one read of the hash partition selects.
#[derive(Debug, PartialEq, Eq)]
enum GroupBatch {
    /// A range of groups, together in memory.
    Together(Range<usize>),
    /// One group that is too large for memory.
    Alone(usize),
}

/// Cuts groups into ranges that fit in `most_bytes` together, and groups that are too large for that.
fn group_batches(sizes: &[GroupSize], most_bytes: usize) -> Vec<GroupBatch> {
    let (mut batches, mut start, mut held) = (Vec::new(), 0, 0);
    for (group, size) in sizes.iter().enumerate() {
        let is_alone = size.need() > most_bytes || size.values > GATHERED_ROWS;
        if (is_alone || held + size.need() > most_bytes) && start < group {
            batches.push(GroupBatch::Together(start..group));
            (start, held) = (group, 0);
        }
        if is_alone {
            batches.push(GroupBatch::Alone(group));
            start = group + 1;
        } else {
            held += size.need()
        }
    }
    if start < sizes.len() {
        batches.push(GroupBatch::Together(start..sizes.len()));
    }
    batches
}

impl GroupSize {
    /// Bytes needed to select in a group.
    fn need(&self) -> usize {
        self.bytes + self.values * ByteSegments::VALUE_BYTES + ByteSegments::GROUP_BYTES
    }
}

impl<W: GroupKey> PartitionStrings<W> {
    /// The answers of all groups.
    ///
    /// # Errors
    /// `ResourcesExhausted`; errors of reading; an error if the query was cancelled.
    pub(super) async fn answers(self, mut plans: Plans, solver: &SelectionContext) -> Result<ByteAnswers> {
        let stop = StopOnDrop::default();
        let column = &self.partitions.shared.work.plan.aggregates.columns[self.column];
        let (Some(spec), distinct) = (column.bytes.clone(), column.distinct) else {
            return Err(internal_datafusion_err!("{column} has keys"));
        };
        let memory = self.partitions.memory.new_empty();
        // For the rows read at a time, and a size for each group.
        reserve(
            &memory,
            reading_bytes::<W>() + self.groups * size_of::<GroupSize>(),
        )?;
        let (own, flag) = (self.clone(), stop.0.clone());
        let sizes = Arc::new(blocking(move || own.sizes(&flag)).await?);
        let most_bytes = self.together_bytes(&sizes);
        let mut found = CollectedAnswers::new(plans.calls());
        let answers = self.partitions.memory.new_empty();
        for batch in group_batches(&sizes, most_bytes) {
            match batch {
                GroupBatch::Together(groups) => {
                    let selected =
                        self.select_together(groups, Arc::clone(&sizes), &spec, plans, distinct, &stop.0);
                    let (back, selected, held) = selected.await?;
                    plans = back;
                    take_over(&answers, &held);
                    found.add(selected);
                }
                GroupBatch::Alone(group) => {
                    let quantile_specs: Vec<&QuantileSpec> = plans.quantile_specs().iter().collect();
                    let selected = self
                        .select_alone(group, sizes[group], &spec, distinct, &quantile_specs, solver)
                        .await?;
                    answers.grow(
                        selected
                            .calls
                            .iter()
                            .map(|call| call.get_array_memory_size())
                            .sum(),
                    );
                    found.add(selected);
                }
            }
        }
        // The answers are copied once more, into one array for each call.
        reserve(&memory, answers.size())?;
        found.finish()
    }

    /// Bytes in which a range of groups may be selected together: up to half of the memory that is there.
    fn together_bytes(&self, sizes: &[GroupSize]) -> usize {
        let all: usize = sizes.iter().map(GroupSize::need).sum();
        let memory = self.partitions.memory.new_empty();
        for bytes in TOGETHER_BYTES.map(|bytes| all.min(bytes)) {
            if memory.try_grow(2 * bytes).is_ok() {
                return bytes;
            }
        }
        TOGETHER_BYTES[TOGETHER_BYTES.len() - 1]
    }

    /// Reserves memory to select groups of these sizes in.
    fn reserve_together(&self, sizes: &[GroupSize]) -> Result<MemoryReservation> {
        let memory = self.partitions.memory.new_empty();
        let bytes: usize = sizes.iter().map(GroupSize::need).sum();
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
    fn sizes(&self, stop: &Stop) -> Result<Vec<GroupSize>> {
        may_fail!("group_sizes");
        let mut sizes = vec![GroupSize::default(); self.groups];
        for run in self.partitions.run_indices() {
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

    /// Calls `each` with the group numbers and the lengths in bytes of the values of one run, block by block.
    fn each_block(
        &self,
        (scan, run): (usize, usize),
        stop: &Stop,
        mut each: impl FnMut(&[u32], &[u32]) -> Result<()>,
    ) -> Result<()> {
        let rows = &self.partitions.scans[scan].rows;
        let (run, file) = (&rows.runs[run], rows.file.as_ref());
        let values = run.columns[self.column].byte_strings()?;
        let (mut group_keys, mut ids, mut lengths) = (Vec::<W>::new(), Vec::new(), Vec::new());
        let len = values.partition_len(self.part);
        for from in (0..len).step_by(VALUES) {
            stop.check()?;
            let range = from..len.min(from + VALUES);
            group_keys_of(run, self.column).read(self.part, range.clone(), file, &mut group_keys)?;
            values.lengths(self.part, range, file, &mut lengths)?;
            ids.clear();
            self.numbers
                .append(&self.partitions, self.part, scan, &group_keys, &mut ids, |id| id)?;
            each(&ids, &lengths)?;
        }
        Ok(())
    }

    /// Calls `each` with the group number and the bytes of each value of one run.
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

    /// The answers of groups that fit in memory together, and the memory reserved for these. Returns `plans` too.
    async fn select_together(
        &self,
        groups: Range<usize>,
        sizes: Arc<Vec<GroupSize>>,
        spec: &ByteSpec,
        mut plans: Plans,
        distinct: bool,
        stop: &Stop,
    ) -> Result<(Plans, ByteAnswers, MemoryReservation)> {
        let (own, spec, stop) = (self.clone(), spec.clone(), stop.clone());
        let memory = self.partitions.memory.new_empty();
        let _together = self.reserve_together(&sizes[groups.clone()])?;
        blocking(move || {
            let count = groups.len();
            let (mut segments, ids) = own.together_by_group(groups, &sizes, &stop)?;
            let answers = segments.answers(count, &ids, &spec, &mut plans, distinct, &memory)?;
            Ok((plans, answers, memory))
        })
        .await
    }

    /// The values of some groups, and the number of each value's group, counted from the first of these groups.
    fn together_by_group(
        &self,
        groups: Range<usize>,
        sizes: &[GroupSize],
        stop: &Stop,
    ) -> Result<(ByteSegments, Vec<u32>)> {
        may_fail!("group_light");
        let all = || sizes[groups.clone()].iter();
        let values = all().map(|size| size.values).sum();
        let (mut segments, mut ids) = (ByteSegments::default(), Vec::with_capacity(values));
        segments.begin(values, all().map(|size| size.bytes).sum());
        for run in self.partitions.run_indices() {
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
    async fn select_alone(
        &self,
        group: usize,
        size: GroupSize,
        spec: &ByteSpec,
        distinct: bool,
        quantile_specs: &[&QuantileSpec],
        solver: &SelectionContext,
    ) -> Result<ByteAnswers> {
        let values = self.collect(group, size, solver).await?;
        let collected = values
            .into_iter()
            .map(|values| CollectedColumn::Bytes(spec.clone(), Box::new(values)));
        let (_, solution) = solver
            .solve_byte_strings(vec![collected.collect()], 0, distinct, quantile_specs)
            .await?;
        let calls = quantile_specs
            .iter()
            .map(|quantile_spec| solution.answers(quantile_spec, spec));
        Ok(ByteAnswers {
            calls: calls.collect::<Result<_>>()?,
            lengths: vec![solution.n],
        })
    }

    /// The values of one group, in memory or on disk, collected by several threads.
    async fn collect(
        &self,
        group: usize,
        size: GroupSize,
        solver: &SelectionContext,
    ) -> Result<Vec<ByteStrings>> {
        let runs = self.partitions.run_indices();
        let thread_bytes = reading_bytes::<W>() + size.longest as usize;
        let reading = self.partitions.memory.new_empty();
        let most = solver.threads.clamp(1, runs.len().max(1));
        let threads = (2..=most).rev().find(|threads| {
            let beginning = threads * ByteStrings::BEGINNING_BYTES;
            let granted = reading.try_grow(threads * thread_bytes + beginning).is_ok();
            // The lists reserve these bytes again.
            granted.then(|| reading.shrink(beginning)).is_some()
        });
        if threads.is_none() {
            reserve(&reading, thread_bytes)?;
        }
        let threads = threads.unwrap_or(1);
        let chunk = runs.len().div_ceil(threads).max(1);
        // All lists begin before one of them takes memory for its values.
        let chunks = runs.chunks(chunk).map(|runs| {
            let values = ByteStrings::spilling(solver.memory.new_empty(), solver.backend.disk())?;
            Ok((runs.to_vec(), values))
        });
        let own = self.clone();
        let work = move |(runs, values), stop: &Stop| own.collect_runs(group, runs, values, stop);
        ThreadPool::new(threads, Stop::default())
            .map(chunks.collect::<Result<_>>()?, work)
            .await
    }

    /// Adds the values of one group in some runs to `values`.
    fn collect_runs(
        &self,
        group: usize,
        runs: Vec<(usize, usize)>,
        mut values: ByteStrings,
        stop: &Stop,
    ) -> Result<ByteStrings> {
        may_fail!("group_heavy");
        for run in runs {
            self.each_value(run, stop, |of, value| {
                if of == group {
                    values.push(value).map(drop)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(values)
    }
}

/// Bytes of the buffers that a thread reads a run into. A value that is longer takes its own length besides.
fn reading_bytes<W>() -> usize {
    READ_BYTES + VALUES * (size_of::<W>() + 2 * size_of::<u32>())
}

/// Answers of groups, in the order of their numbers, while further ones are added.
struct CollectedAnswers {
    calls: Vec<Vec<ArrayRef>>,
    lengths: Vec<u64>,
}

impl CollectedAnswers {
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
    fn groups_are_cut_into_ranges_and_single_large_ones() {
        let size = |bytes: usize| GroupSize {
            values: 1,
            bytes,
            longest: bytes as u32,
        };
        let sizes = [10, 500, 20, 2000, 10, 10, 900].map(size);
        assert_eq!(
            group_batches(&sizes, 1000),
            [
                GroupBatch::Together(0..3),
                GroupBatch::Alone(3),
                GroupBatch::Together(4..6),
                GroupBatch::Together(6..7)
            ]
        );
        let many = GroupSize {
            values: GATHERED_ROWS + 1,
            ..GroupSize::default()
        };
        assert_eq!(
            group_batches(&[many, many], usize::MAX),
            [GroupBatch::Alone(0), GroupBatch::Alone(1)]
        );
        assert_eq!(group_batches(&[size(7)], 1 << 20), [GroupBatch::Together(0..1)]);
        assert!(group_batches(&[], 1000).is_empty());
    }
}
