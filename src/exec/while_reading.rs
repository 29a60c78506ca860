//! Quantiles that are selected while their input is read: of every batch the values are counted, and only those kept that may be an
//! answer.
//!
//! ```text
//! sample of the input ─> brackets around the ranks ─> read: count, keep what lies inside ─┬─ all ranks caught: done
//!                                                                                          └─ read again: extract the rest
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::physical_plan::metrics::Count;

use super::aggregate::{Aggregates, KeyColumn};
use super::collected::CollectedColumn;
use super::extents::{Extents, Reading};
use super::files::CHANGED;
use super::plain::PlainAccumulators;
use super::reread::RereadableInput;
use super::run_metrics::RunMetrics;
use super::scan::PartitionScan;
use super::selection::{SelectionContext, cuts_of_fences};
use crate::cells::Cells;
use crate::kernel::cpu::scan_answer::{ScanAnswer, Seen, scan_answer};
use crate::kernel::round::{Reply, Request};
use crate::key::{KeyVec, Width};
use crate::memory::{COLLECTED_BYTES, Lease, MemoryBudget, RoundMemory, is_exhausted, limit};
use crate::quantile::fences::{FencePair, quartile_ranks};
use crate::select::below::{KnownBelow, count_below};
use crate::select::candidates::Candidates;
use crate::select::choose::{KEPT_SHARE, TABLE_EXTRA, brackets_share, table_cells};
use crate::select::requests::sample_of_all;
use crate::select::while_reading::{
    Derived, FEW_RANKS, LEAST_ROWS, LEAST_SAMPLE, SAMPLE, WhileReading, runs,
};
use crate::select::{Shards, Solution, Strategy, Wanted, solve_by, wanted_ranks};
use crate::threads::{Stop, ThreadPool, partitions_in_order};

/// The share of the values, as a divisor, that may have to be read by what is known of them, so that no sample is taken.
const MOST_READ_SHARE: u64 = 8;

/// The share of the values of a table in memory, as a divisor, that may lie around the ranks. More are not worth a sample: the keys of such
/// a table are shared with it, and all threads select among them, but one alone merges what was kept.
const KEPT_IN_MEMORY_SHARE: u64 = 32;

/// Bytes of keys above which they are not kept, even if the input is read twice instead: new pages cost more than a second read.
const MOST_KEPT: u64 = 1 << 30;

/// Times the bytes of a value that the columns of a row in files may have, at most, so that a read of them all costs less than to write and
/// read the value. Measured with four columns of 8 to 16 bytes of Parquet files: equal at 3.5 times.
const WIDE_ROWS: usize = 3;

/// Bytes of working memory of one partition, besides those for its cells: counters, the lists of all cells, and blocks of keys.
const PARTITION_BYTES: usize = 768 << 10;

/// Bytes for a cell in one partition: the sum of its counters, its count in the reply, and the list of its keys.
const CELL_BYTES: usize = 40;

/// Cells of a count around few ranks.
const FEW_CELLS: usize = 16;

/// A column that is selected while it is read.
pub(super) struct ReadingColumn {
    strategy: WhileReading,
    /// Memory of the reads.
    memory: Arc<RoundMemory>,
    /// Statistics of the column, where its rows can be left out by them.
    extents: Option<Extents>,
    /// What the first read has to read; `None`: all rows.
    first: Option<Reading>,
}

impl ReadingColumn {
    /// Ranges of rows to read first; `None`: all rows.
    pub(super) fn rows_to_read(&self) -> Option<&[Range<u64>]> {
        self.first.as_ref().map(|first| first.rows.as_slice())
    }

    /// What a read for `request` has to read, and adds the rows that it leaves out to `metrics`; `None`: all rows.
    fn leaving_out(&self, request: &Request, metrics: &RunMetrics) -> Option<Reading> {
        let reading = self.extents.as_ref()?.reading(request);
        metrics.rows_left_out(reading.rows_left_out);
        (reading.rows_left_out > 0).then_some(reading)
    }

    /// The answer of one partition to the request of the first read, before the first value.
    pub(super) fn first_answer(&self, column: &KeyColumn) -> Result<Box<dyn ScanAnswer>> {
        scan_answer(&column.spec, self.strategy.request(), None, &self.memory)
    }
}

/// A sample of a column.
struct Sampled {
    /// The sampled keys, ascending.
    keys: KeyVec,
    /// Values in the whole column, as estimated.
    values: u64,
}

/// What selecting while reading needs of an execution.
pub(super) struct WhileReadingContext<'a> {
    pub(super) input: &'a RereadableInput,
    /// Indices of the columns that may be selected while they are read.
    pub(super) columns: Vec<usize>,
    pub(super) aggregates: &'a Aggregates,
    pub(super) selection: &'a SelectionContext,
    pub(super) metrics: &'a RunMetrics,
}

impl WhileReadingContext<'_> {
    /// For each column: how it is selected while it is read; `None` if its values are kept.
    ///
    /// # Errors
    /// Those of reading a sample.
    pub(super) async fn plan(&self) -> Result<Vec<Option<ReadingColumn>>> {
        let mut planned: Vec<Option<ReadingColumn>> = self.aggregates.columns.iter().map(|_| None).collect();
        let most = match self.selection.pool.memory_limit() {
            _ if self.columns.is_empty() || self.input.rows() < LEAST_ROWS && !self.input.always() => {
                return Ok(planned);
            }
            MemoryLimit::Infinite => usize::MAX,
            MemoryLimit::Finite(limit) => limit / 3 / self.columns.len(),
            MemoryLimit::Unknown => return Ok(planned),
        };
        let extents = self.extents().await?;
        if let Some(extents) = &extents
            && let Some(proved) = self.plan_proved(extents, most)?
        {
            planned[0] = Some(proved);
        } else {
            let columns = self.columns.iter().copied();
            let columns: Vec<usize> = columns.filter(|column| self.is_worth_a_sample(*column)).collect();
            if !columns.is_empty() {
                let sampled = match self.sample(&columns).await {
                    // Without memory for a sample, values are kept, and go to disk.
                    Err(error) if is_exhausted(&error) => return Ok(planned),
                    sampled => sampled?,
                };
                for (column, sampled) in columns.iter().zip(sampled) {
                    planned[*column] = self.plan_column(*column, sampled, most)?;
                }
            }
        }
        if let (Some(extents), [Some(reading)]) = (extents, planned.as_mut_slice()) {
            reading.extents = Some(extents);
            reading.first = reading.leaving_out(reading.strategy.request(), self.metrics);
        }
        Ok(planned)
    }

    /// Statistics of the column, if it is the only one. `None` if there are other columns, or plain aggregates, that read all rows.
    async fn extents(&self) -> Result<Option<Extents>> {
        match self.aggregates.columns.as_slice() {
            [column] if self.aggregates.plain.is_empty() && column.filter.is_none() => {
                self.input.extents(&column.argument, &column.spec).await
            }
            _ => Ok(None),
        }
    }

    /// How the only column is selected by its statistics, without a sample. `None` if that leaves many rows to read.
    fn plan_proved(&self, extents: &Extents, most: usize) -> Result<Option<ReadingColumn>> {
        let column = &self.aggregates.columns[0];
        // Statistics do not tell where fences lie.
        let Some(n) = extents.values().filter(|_| !column.fences) else {
            return Ok(None);
        };
        let width = column.spec.width();
        let ranks = wanted_ranks(&self.aggregates.quantile_specs(0), n);
        let (Some(brackets), Some((budget, bytes))) = (
            extents.brackets(&ranks),
            self.budget(n, &ranks, width, most, MOST_READ_SHARE),
        ) else {
            return Ok(None);
        };
        let inside = extents.values_touching(&brackets);
        if ranks.is_empty() || inside > n / MOST_READ_SHARE {
            return Ok(None);
        }
        let strategy = WhileReading::proved(width, n, ranks, &brackets, inside, budget)?;
        self.reading_column(strategy, bytes, most)
    }

    /// Whether a sample is worth its time: one read is likely to suffice for a large input, or may suffice where there is no memory for the
    /// values, as that of few distinct ones does.
    fn is_worth_a_sample(&self, column: usize) -> bool {
        let (of, n) = (&self.aggregates.columns[column], self.input.rows());
        if self.input.always() {
            return true;
        }
        let ranks = wanted_ranks(&self.aggregates.quantile_specs(column), n);
        let kept = brackets_share(n, &ranks, SAMPLE) * n as f64;
        let share = if self.input.is_in_memory() {
            KEPT_IN_MEMORY_SHARE
        } else {
            KEPT_SHARE
        };
        kept <= (n / share) as f64 || self.is_too_large(n, of)
    }

    /// Whether `n` values of a column need more memory than there is for them, or than is cleared in the time of a second read.
    fn is_too_large(&self, n: u64, column: &KeyColumn) -> bool {
        let bytes = n.saturating_mul(column.spec.width().bytes() as u64);
        let most = limit(self.selection.pool.as_ref()).map_or(u64::MAX, |limit| {
            limit as u64 / 3 * 2 / self.aggregates.columns.len() as u64
        });
        bytes > most.min(MOST_KEPT)
    }

    /// Whether two reads are better than to keep `n` values of a column, which are too large for memory. A second read of a remote store
    /// costs more; and so does one of wide rows in files, compared with a copy of the values on disk.
    fn is_better_read_twice(&self, n: u64, column: &KeyColumn) -> bool {
        let is_wide = || self.input.file_row_bytes() > WIDE_ROWS * column.spec.width().bytes();
        let is_spilled = limit(self.selection.pool.as_ref()).is_some();
        self.is_too_large(n, column) && self.input.is_local() && !(is_spilled && is_wide())
    }

    /// How a column is selected while it is read in at most `most` bytes of memory; `None` if its values are better kept.
    fn plan_column(&self, column: usize, sampled: Sampled, most: usize) -> Result<Option<ReadingColumn>> {
        let of = &self.aggregates.columns[column];
        let (n, width) = (sampled.values, of.spec.width());
        let ranks = wanted_ranks(&self.aggregates.quantile_specs(column), n);
        let input = self.input;
        let least = if input.always() { 1 } else { LEAST_SAMPLE };
        if ranks.is_empty() || sampled.keys.len() < least {
            return Ok(None);
        }
        let Some((budget, bytes)) = self.budget(n, &ranks, width, most, KEPT_SHARE) else {
            return Ok(None);
        };
        let mut strategy = WhileReading::try_new(width, n, ranks, sampled.keys, budget)?;
        if of.fences {
            strategy = strategy.with_places(
                width,
                &Derived {
                    ranks: quartile_ranks(n)?,
                    cuts: &|quartiles| FencePair::cuts_of_keys(&of.spec, quartiles),
                },
            )?;
        }
        let is_kept = !self.is_better_read_twice(n, of);
        if strategy.reads() > 1 && is_kept && !input.always() {
            return Ok(None);
        }
        self.reading_column(strategy, bytes, most)
    }

    /// A column whose reads take `bytes` bytes. `None` if memory has the limit `most`, and is refused.
    fn reading_column(
        &self,
        strategy: WhileReading,
        bytes: usize,
        most: usize,
    ) -> Result<Option<ReadingColumn>> {
        // More than planned, for the rounds after a sample that misled.
        let memory = RoundMemory::at_most(self.selection.memory.new_empty(), bytes.saturating_mul(2));
        if most < usize::MAX && memory.set_aside(bytes).is_err() {
            return Ok(None);
        }
        Ok(Some(ReadingColumn {
            strategy,
            memory,
            extents: None,
            first: None,
        }))
    }

    /// What the reads for `ranks` of `n` values may collect in at most `most` bytes, and the bytes that this takes: at most one value of
    /// `share` at a time. `None` if more reads would follow from so little memory.
    fn budget(
        &self,
        n: u64,
        ranks: &[u64],
        width: Width,
        most: usize,
        share: u64,
    ) -> Option<(MemoryBudget, usize)> {
        let is_few = ranks.len() <= FEW_RANKS;
        let key_bytes = width.bytes() * COLLECTED_BYTES;
        let budgets = (0..4).filter_map(|halvings| {
            let cells = (table_cells(n) + TABLE_EXTRA) >> halvings;
            let counted = if is_few { FEW_CELLS } else { cells };
            let fixed = self.input.partitions() * (counted * CELL_BYTES + PARTITION_BYTES)
                + SAMPLE as usize * key_bytes;
            let wanted = (n / share).max(1 << 17).min(n);
            let keys = wanted.min(most.checked_sub(fixed)? as u64 / key_bytes as u64);
            let expected = if is_few {
                brackets_share(n, ranks, SAMPLE) * n as f64 * 1.25
            } else {
                // Cells differ in the number of their values.
                2.0 * ranks.len() as f64 * n as f64 / cells as f64
            };
            let budget = MemoryBudget {
                cells,
                sample: SAMPLE,
                keys,
            };
            let suffices = keys as f64 >= expected.min(wanted as f64);
            (suffices || self.input.always()).then_some((budget, fixed + keys as usize * key_bytes))
        });
        budgets.into_iter().next()
    }

    /// A sample of each of these columns.
    async fn sample(&self, columns: &[usize]) -> Result<Vec<Sampled>> {
        let (input, start) = (self.input, Instant::now());
        let runs = runs(input.rows(), SAMPLE.min(input.rows().div_ceil(8)));
        let sampled_rows: u64 = runs.iter().map(|run| run.end - run.start).sum();
        let widths = columns
            .iter()
            .map(|column| self.aggregates.columns[*column].spec.width());
        let widths = widths.collect::<Vec<Width>>();
        let reads = input.read_rows(&runs)?.into_iter().map(|stream| {
            let collected = columns.iter().map(|column| {
                let column = &self.aggregates.columns[*column];
                Ok((column.clone(), self.selection.open(column)?))
            });
            let scan = self.without_plain(collected.collect::<Result<_>>()?, Count::new())?;
            let widths = widths.clone();
            Ok(async move {
                let scan = scan.read(stream).await?;
                let sorted = scan.collected.into_iter().zip(widths);
                sorted
                    .map(|(keys, width)| sorted_keys(keys, width))
                    .collect::<Result<Vec<_>>>()
            })
        });
        let reads = reads.collect::<Result<_>>()?;
        let mut keys: Vec<KeyVec> = widths.into_iter().map(KeyVec::new).collect();
        for sorted in partitions_in_order(reads).await? {
            keys.iter_mut()
                .zip(sorted)
                .try_for_each(|(all, own)| all.append(own))?;
        }
        let sampled = keys.into_iter().map(|mut keys| {
            // Merges the runs of the partitions.
            keys.sort();
            let share = u128::from(input.rows()) * keys.len() as u128;
            Sampled {
                values: (share / u128::from(sampled_rows.max(1))) as u64,
                keys,
            }
        });
        let sampled = sampled.collect();
        self.metrics.sampled(start);
        Ok(sampled)
    }

    /// A scan of columns without plain aggregates beside them.
    fn without_plain(
        &self,
        collected: Vec<(KeyColumn, CollectedColumn)>,
        rows: Count,
    ) -> Result<PartitionScan> {
        let plain = PlainAccumulators::try_new(&[], self.selection.memory.new_empty())?;
        Ok(PartitionScan::new(
            collected,
            plain,
            rows,
            self.metrics.scan_times(),
        ))
    }

    /// Finds the order statistics of a column from the answers of all partitions to the first read, and reads again where they do not
    /// suffice.
    ///
    /// # Errors
    /// Those of reading; an execution error if two reads differ.
    pub(super) async fn solve(
        &self,
        column: usize,
        answers: Vec<CollectedColumn>,
        reading: &ReadingColumn,
    ) -> Result<Solution> {
        let (seen, mut replies, leases) = finished(answers)?;
        let seen = counted(seen, reading.first.as_ref());
        let of = &self.aggregates.columns[column];
        let (width, request) = (of.spec.width(), reading.strategy.request());
        let wanted = Wanted::of(&self.aggregates.quantile_specs(column), seen.values, of.counts);
        if reading.first.is_some() {
            replies = vec![merged(replies, reading.first.as_ref())?];
        }
        let known = match reading.strategy.places() {
            [] => None,
            places => KnownBelow::of(request, &replies, places, (width, &reading.memory))?,
        };
        let candidates = match &reading.first {
            Some(_) => None,
            None => Candidates::of(width, seen.values, &wanted, request, &mut replies)?,
        };
        let mut reads = Reads {
            context: self,
            column: of,
            reading,
            seen,
            first: None,
            counted: None,
            leases,
        };
        let mut solution = match candidates {
            Some(candidates) => {
                let pool = ThreadPool::new(self.selection.threads, Stop::default());
                let (label, memory) = (reading.strategy.label(), &self.selection.memory);
                candidates.solve(label, memory, &reading.memory, pool).await?
            }
            None => {
                reads.first = Some(merged(replies, None)?);
                solve_by(&mut reads, &reading.strategy, wanted).await?
            }
        };
        if of.fences {
            let cuts = cuts_of_fences(&of.spec, &solution)?;
            let is_known = match &known {
                Some(known) => known.add_to(&mut solution, &cuts)?,
                None => false,
            };
            if !is_known {
                count_below(&mut reads, &mut solution, &cuts).await?;
            }
        }
        drop((reads, known));
        // Gives the memory back: other columns want it now.
        reading.memory.set_aside(0)?;
        Ok(solution)
    }
}

/// All keys of a shard, ascending.
fn sorted_keys(collected: CollectedColumn, width: Width) -> Result<KeyVec> {
    let CollectedColumn::Keys(mut shard) = collected else {
        return internal_err!("a sample was not collected as keys");
    };
    let all = sample_of_all(shard.len(), shard.len(), width, false);
    match shard.answer(&all, &Stop::default())? {
        Reply::Sample { keys, .. } => Ok(keys),
        _ => internal_err!("a sample was not taken"),
    }
}

/// What all partitions saw of a column, their answers, and the memory that these take.
fn finished(answers: Vec<CollectedColumn>) -> Result<(Seen, Vec<Reply>, Vec<Lease>)> {
    let (mut seen, mut replies, mut leases) = (Seen::default(), Vec::new(), Vec::new());
    for answer in answers {
        let CollectedColumn::Answered(answer) = answer else {
            return internal_err!("values were kept that were to be counted");
        };
        seen.add(answer.seen());
        let (reply, lease) = answer.finish();
        leases.extend(lease);
        replies.push(reply);
    }
    Ok((seen, replies, leases))
}

/// What was seen, with the number of the values that `reading` left out.
fn counted(mut seen: Seen, reading: Option<&Reading>) -> Seen {
    seen.values += reading.map_or(0, |reading| reading.values);
    seen
}

/// The merged answer of all partitions. Values that `reading` left out are counted too.
fn merged(replies: Vec<Reply>, reading: Option<&Reading>) -> Result<Reply> {
    let reply = Reply::merged(replies)?;
    let mut reply = reply.ok_or_else(|| internal_datafusion_err!("an input has at least one partition"))?;
    if let Some(reading) = reading {
        reading.add_to(&mut reply)?;
    }
    Ok(reply)
}

/// The values of a column, which are read again for every round but the first.
struct Reads<'a> {
    context: &'a WhileReadingContext<'a>,
    column: &'a KeyColumn,
    reading: &'a ReadingColumn,
    /// What the first read saw.
    seen: Seen,
    /// The answer to the first request.
    first: Option<Reply>,
    /// The cells of the last count of all values.
    counted: Option<Cells>,
    /// The memory of the keys of the last reply.
    leases: Vec<Lease>,
}

impl Reads<'_> {
    /// Reads the input again for one request.
    async fn read(&mut self, request: &Request) -> Result<Reply> {
        self.leases.clear();
        self.context.metrics.read_again();
        let reading = self.reading.leaving_out(request, self.context.metrics);
        let streams = match &reading {
            Some(reading) => self.context.input.read_rows(&reading.rows)?,
            None => self.context.input.read()?,
        };
        let scans = streams.into_iter().map(|stream| {
            let memory = &self.reading.memory;
            let answer = scan_answer(&self.column.spec, request, self.counted.as_ref(), memory)?;
            let collected = vec![(self.column.clone(), CollectedColumn::Answered(answer))];
            Ok(self.context.without_plain(collected, Count::new())?.read(stream))
        });
        let scans = partitions_in_order(scans.collect::<Result<_>>()?).await?;
        let answers = scans.into_iter().flat_map(|scan| scan.collected);
        let (seen, replies, leases) = finished(answers.collect())?;
        let seen = counted(seen, reading.as_ref());
        let reply = merged(replies, reading.as_ref())?;
        // Sums of all values can be compared only where all were read.
        let all_read = reading.is_none() && self.reading.first.is_none();
        if seen.values != self.seen.values || all_read && seen != self.seen {
            let column = &self.column;
            return exec_err!(
                "{} values of {column} were read first, {} later: {CHANGED}",
                self.seen.values,
                seen.values
            );
        }
        self.leases = leases;
        Ok(reply)
    }
}

#[async_trait]
impl Shards for Reads<'_> {
    fn width(&self) -> Width {
        self.column.spec.width()
    }

    fn population(&self) -> u64 {
        self.seen.values
    }

    fn parallelism(&self) -> usize {
        self.context.input.partitions()
    }

    fn budget(&self) -> MemoryBudget {
        self.reading.strategy.budget()
    }

    async fn round(&mut self, request: Arc<Request>) -> Result<Reply> {
        let reply = match self.first.take() {
            Some(reply) => reply,
            None => self.read(&request).await?,
        };
        if let Request::Count { cells, within, .. } = request.as_ref()
            && within.is_all(self.width())
        {
            self.counted = Some(cells.clone());
        }
        Ok(reply)
    }
}
