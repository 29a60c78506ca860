//! The pairs of a join with a pinned table, found by its device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::arrow::array::{ArrayRef, Float64Array, RecordBatch};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};

use super::marks::QueryMarks;
use super::queries::QueryRows;
use super::spec::{EqualPairs, NearestJoinSpec, PairColumn};
use crate::exec::PinnedScan;
use crate::exec::on_device::record;
use crate::functions::{VectorDistance, vectors_of};
use crate::kernel::cpu::distance::{Marks, Pair};
use crate::kernel::cuda::source::{fixed_bytes, vector_of};
use crate::kernel::cuda::{NearPairs, PairList, Report};
use crate::threads::blocking;

/// Bytes of the columns of pairs that are fetched from the device at once, about, and most of these pairs.
const PART_BYTES: usize = 16 << 20;
const MOST_PAIRS: usize = 1 << 16;

/// All pairs of the join that may be among the best of their query.
#[derive(Debug)]
pub(super) struct DevicePairs {
    rows: Arc<QueryRows>,
    lists: Vec<PairList>,
    /// Number of partitions that pass them on.
    partitions: usize,
    /// Memory of the lists.
    _memory: MemoryReservation,
}

impl DevicePairs {
    /// The pairs of the queries with the pinned table of the specification; `None` if they are left to the CPU.
    ///
    /// # Errors
    /// The device's, unless the specification falls back to the CPU.
    pub(super) async fn find(
        spec: Arc<NearestJoinSpec>,
        rows: Arc<QueryRows>,
        partitions: usize,
        memory: MemoryReservation,
        metrics: ExecutionPlanMetricsSet,
    ) -> Result<Option<Self>> {
        let Some(pinned) = spec.pinned.clone() else {
            return Ok(None);
        };
        let (table, falls_back) = (Arc::clone(&pinned.table), pinned.falls_back);
        let count = |name: &'static str| MetricBuilder::new(&metrics).counter(name, 0).add(1);
        let (queries, of_device) = (Arc::clone(&rows), metrics.clone());
        let find_time = MetricBuilder::new(&metrics).subset_time("find_time", 0);
        let stop = Arc::new(AtomicBool::new(false));
        let _stopped_by_drop = StopOnDrop(Arc::clone(&stop));
        let found = blocking(move || {
            let _timer = find_time.timer();
            let mut report = Report::default();
            let found = found(&spec, &pinned, &queries.batch, (&memory, &stop), &mut report);
            record(&report, &of_device);
            Ok(found?.map(|lists| (lists, memory)))
        });
        match found.await {
            Ok(Some((lists, memory))) => Ok(Some(Self {
                rows,
                lists,
                partitions,
                _memory: memory,
            })),
            Ok(None) => {
                count("left_to_cpu");
                Ok(None)
            }
            Err(error) if falls_back => {
                let table = table.source.name();
                log::warn!("the nearest rows of {table}, which is pinned, are found on the CPU: {error}");
                count("cuda_fallback");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The rows of the queries.
    pub(super) fn queries(&self) -> &QueryRows {
        &self.rows
    }

    /// What a partition passes on, in parts of some queries each.
    pub(super) fn parts<'a>(
        &'a self,
        spec: &'a NearestJoinSpec,
        partition: usize,
    ) -> impl Iterator<Item = Part> + 'a {
        let most = (PART_BYTES / row_bytes(spec)).clamp(1, MOST_PAIRS);
        self.lists.iter().flat_map(move |list| {
            let count = list.ends.len();
            let share = |part: usize| count * part / self.partitions;
            let (mut query, end) = (share(partition), share(partition + 1));
            std::iter::from_fn(move || {
                if query >= end {
                    return None;
                }
                let first = query;
                let start = start_of(list, first);
                // At least one query, and as many as fit.
                query += 1;
                while query < end && list.ends[query] as usize - start <= most {
                    query += 1;
                }
                Some(Part::of(list, first..query, spec))
            })
        })
    }
}

/// Tells the thread that looks for pairs that nobody waits for them.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The first pair of a query of a list.
fn start_of(list: &PairList, query: usize) -> usize {
    query
        .checked_sub(1)
        .map_or(0, |before| list.ends[before] as usize)
}

/// Finds the pairs. `None` if the device cannot tell.
fn found(
    spec: &NearestJoinSpec,
    pinned: &PinnedScan,
    queries: &RecordBatch,
    (memory, stop): (&MemoryReservation, &AtomicBool),
    report: &mut Report,
) -> Result<Option<Vec<PairList>>> {
    let columns: Vec<_> = pinned.table.first().columns.iter().map(Arc::as_ref).collect();
    let (Some(vectors), Some(function)) = (pinned.columns[spec.vector], VectorDistance::of(&spec.function))
    else {
        return internal_err!("the vectors of {} are not pinned", pinned.table.source.name());
    };
    let width = vector_of(columns[vectors].data_type()).map_or(0, |(_, width)| width);
    let marks = spec.without.as_ref();
    let of_marks = memory.new_empty();
    let marks = marks.map(|equal| marks_of(equal, pinned, queries, &of_marks, report));
    let marks = marks.transpose()?;
    let near = NearPairs {
        columns: &columns,
        vectors,
        ranking: function.ranking(spec.ascending),
        k: spec.k,
        filter: pinned.filter.as_ref(),
        marks: marks.as_ref().map(|(queries, rows)| Marks { queries, rows }),
        limit: pinned.limit,
        timed: pinned.timed,
        memory,
        stop,
    };
    let column = queries.column(spec.query);
    let vectors = |of: std::ops::Range<usize>| vectors_of(&column.slice(of.start, of.len()), width);
    near.pairs(queries.num_rows(), &vectors, report)
}

/// Marks of all queries, and of all rows of the pinned table.
fn marks_of(
    equal: &EqualPairs,
    pinned: &PinnedScan,
    queries: &RecordBatch,
    memory: &MemoryReservation,
    report: &mut Report,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let rows = pinned.table.first().rows;
    let columns = equal.rows.iter().map(|column| pinned.columns[*column]);
    let columns: Vec<usize> = columns.collect::<Option<_>>().ok_or_else(|| {
        internal_datafusion_err!("columns of {} are not pinned", pinned.table.source.name())
    })?;
    let widths = columns
        .iter()
        .filter_map(|column| fixed_bytes(pinned.table.column(*column).data_type()));
    // Of each row its number, mark, and place; its values as they come, as an array, and as they are compared.
    memory.try_grow(rows as usize * (24 + 3 * widths.map(|width| width + 1).sum::<usize>()))?;
    let all: Vec<u64> = (0..rows).collect();
    let values = pinned
        .table
        .first()
        .fetch(&all, &columns, (pinned.limit, pinned.timed), report)?;
    let fields = values
        .iter()
        .map(|values| Field::new("", values.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let equal = EqualPairs {
        rows: (0..columns.len()).collect(),
        ..equal.clone()
    };
    let of_queries = QueryMarks::try_new(&equal, queries, memory.new_empty())?;
    memory.try_grow(size_of_val(of_queries.marks.as_slice()))?;
    let of_rows = of_queries.of(&RecordBatch::try_new(schema, values)?)?;
    Ok((of_queries.marks, of_rows))
}

/// Bytes of a pair with its distance, the row's number as the device takes it, and the columns of the table, twice.
fn row_bytes(spec: &NearestJoinSpec) -> usize {
    let value_bytes = |column: &PairColumn| {
        let (index, pinned) = (column.of_row()?, spec.pinned.as_ref()?);
        fixed_bytes(pinned.table.column(pinned.columns[index]?).data_type())
    };
    24 + 2 * spec.output.iter().filter_map(value_bytes).sum::<usize>()
}

/// Pairs of some queries, ordered by query, then by row.
pub(super) struct Part {
    pub(super) pairs: Vec<Pair>,
    pub(super) distances: Float64Array,
    /// The columns of the table that are needed: the index in the table, the pinned column, and its values for the pairs, once these are fetched.
    columns: Vec<(usize, usize, Option<ArrayRef>)>,
    pinned: Option<PinnedScan>,
}

impl Part {
    fn of(list: &PairList, queries: std::ops::Range<usize>, spec: &NearestJoinSpec) -> Self {
        let mut found =
            Vec::with_capacity(list.ends[queries.end - 1] as usize - start_of(list, queries.start));
        for query in queries {
            let of = start_of(list, query)..list.ends[query] as usize;
            let first = found.len();
            let rows = list.rows[of.clone()].iter().zip(&list.distances[of]);
            found.extend(rows.map(|(row, distance)| {
                let query = (list.first + query) as u32;
                (Pair { query, row: *row }, *distance)
            }));
            found[first..].sort_unstable_by_key(|(pair, _)| pair.row);
        }
        let (pairs, distances): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let of_table = spec.output.iter().filter_map(|column| column.of_row());
        let pinned = spec.pinned.clone();
        let column = |index: usize| Some((index, pinned.as_ref()?.columns[index]?, None));
        Self {
            pairs,
            distances: Float64Array::from(distances),
            columns: of_table.filter_map(column).collect(),
            pinned,
        }
    }

    /// Bytes of memory, with columns that are fetched.
    pub(super) fn bytes(&self, spec: &NearestJoinSpec) -> usize {
        self.pairs.len() * row_bytes(spec)
    }

    /// The part with the columns of its table.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn fetched(mut self) -> Result<Self> {
        let needs_columns = !self.columns.is_empty() && !self.pairs.is_empty();
        let Some(pinned) = self.pinned.clone().filter(|_| needs_columns) else {
            return Ok(self);
        };
        let rows: Vec<u64> = self.pairs.iter().map(|pair| u64::from(pair.row)).collect();
        let columns: Vec<usize> = self.columns.iter().map(|(_, column, _)| *column).collect();
        let values = blocking(move || {
            let how = (pinned.limit, pinned.timed);
            pinned
                .table
                .first()
                .fetch(&rows, &columns, how, &mut Report::default())
        });
        for ((_, _, own), values) in self.columns.iter_mut().zip(values.await?) {
            *own = Some(values);
        }
        Ok(self)
    }

    /// Some values of a column of the table.
    ///
    /// # Errors
    /// An internal error if it was not fetched.
    pub(super) fn column(&self, index: usize, first: usize, count: usize) -> Result<ArrayRef> {
        let own = self.columns.iter().find(|(column, _, _)| *column == index);
        match own.and_then(|(_, _, values)| values.as_ref()) {
            Some(values) => Ok(values.slice(first, count)),
            None => internal_err!("column {index} of a pinned table was not fetched"),
        }
    }
}
