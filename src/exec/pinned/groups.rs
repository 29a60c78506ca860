//! Exact quantiles of pinned columns in groups. For each column its rows become records, which the device sorts by group and key.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Int64Array};
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_datafusion_err, internal_err, resources_datafusion_err};

use super::calls::{FilteredColumn, OnDevice, PinnedCalls, distinct};
use super::quantiles::sourced_columns;
use super::table::PinnedTable;
use crate::exec::aggregate::{Aggregates, ExecAggregate};
use crate::exec::grouped::{Answers, answered_groups};
use crate::exec::operator::comma_separated;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plan, Plans};
use crate::kernel::cuda::{Groups, PickedKeys, Predicate, RowMask, Segments};
use crate::key::KeySpec;
use crate::quantile::QuantileSpec;

/// Bytes of host memory for each key of the answer: its place, the key, and its value.
const KEY_BYTES: usize = 96;
/// Bytes of host memory for each group.
pub(super) const GROUP_BYTES: usize = 96;

/// A call of `count`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinnedCount {
    /// Index of the pinned column whose values are counted. `None`: rows are counted.
    pub(crate) column: Option<usize>,
    /// The condition for a row to count. `None`: all rows count.
    pub(crate) filter: Option<Predicate>,
}

/// Calls over pinned columns by group, one output column for each after the group columns.
#[derive(Debug)]
pub(crate) struct PinnedGroups {
    /// Indices of the pinned columns that rows are grouped by.
    groups: Vec<usize>,
    /// The condition for a row to make a group. `None`: all rows do.
    filter: Option<Predicate>,
    aggregates: Aggregates,
    /// The pinned column for each column of `aggregates`.
    sources: Vec<FilteredColumn>,
    /// The counts: the aggregates that are not quantiles.
    counts: Vec<PinnedCount>,
}

/// Least number of groups of a work chunk.
const LEAST_CHUNK: usize = 1 << 14;

/// The groups of one column, and the keys at their target ranks, one group after the other.
struct SelectedGroups {
    segments: Segments,
    keys: PickedKeys,
    /// Work chunks: a range of groups, and the index of its first key.
    chunks: Vec<(Range<usize>, usize)>,
    quantile_specs: Arc<[QuantileSpec]>,
    spec: KeySpec,
}

impl PinnedGroups {
    /// Calls over the pinned columns `sources` for the quantiles, and with `counts` for the other aggregates.
    pub(crate) fn new(
        groups: Vec<usize>,
        filter: Option<Predicate>,
        aggregates: Vec<ExecAggregate>,
        (sources, counts): (Vec<FilteredColumn>, Vec<PinnedCount>),
    ) -> Self {
        let (aggregates, sources) = sourced_columns(aggregates, sources);
        Self {
            groups,
            filter,
            aggregates,
            sources,
            counts,
        }
    }

    fn select(&self, column: usize, groups: &Groups<'_>, on: &mut OnDevice<'_>) -> Result<SelectedGroups> {
        let source = &self.sources[column];
        let values = on.column(source.column);
        let mask = on.mask(source.filter.as_ref(), values)?;
        let spec = self.aggregates.columns[column].spec.clone();
        let quantile_specs = self.aggregates.calls_of(column);
        let quantile_specs: Arc<[QuantileSpec]> = quantile_specs
            .map(|call| call.answer_spec().quantile_spec().clone())
            .collect();
        let ranks = quantile_specs.iter().map(most_ranks).sum::<usize>();
        let among = on.among(values, values.format(&spec), mask.as_ref());
        let memory = &on.memory;
        let mut chunks = Vec::new();
        let wanted = |n| Plan::new(&quantile_specs, n).ranks;
        let (segments, keys) = groups.select(&among, &mut on.report, wanted, |segments| {
            let groups = segments.starts.len();
            memory.try_grow(groups * (GROUP_BYTES + ranks * KEY_BYTES))?;
            let places = in_parallel(&work_chunks(groups), |chunk| {
                Ok((chunk.clone(), places(segments, chunk.clone(), &quantile_specs)))
            })?;
            let mut from = 0;
            for (chunk, places) in &places {
                chunks.push((chunk.clone(), from));
                from += places.len();
            }
            let places: Vec<_> = places.into_iter().map(|(_, places)| places).collect();
            Ok(places.concat())
        })?;
        if chunks.is_empty() {
            // No row has a value, so the places were not asked for.
            chunks.push((0..0, 0));
        }
        Ok(SelectedGroups {
            segments,
            keys,
            chunks,
            quantile_specs,
            spec,
        })
    }

    /// The codes of all groups, ascending.
    fn codes(
        &self,
        selected: &[SelectedGroups],
        groups: &Groups<'_>,
        on: &mut OnDevice<'_>,
    ) -> Result<Vec<u64>> {
        let known = self.sources.iter().zip(selected);
        let known = known.map(|(source, selected)| (source, selected.segments.codes.as_slice()));
        all_codes(groups, self.groups[0], self.filter.as_ref(), known, on)
    }

    /// The counts of one call for each of the groups `codes`.
    fn count(
        &self,
        count: &PinnedCount,
        selected: &[SelectedGroups],
        (groups, codes): (&Groups<'_>, &[u64]),
        on: &mut OnDevice<'_>,
    ) -> Result<ArrayRef> {
        let has_nulls = |column: usize| on.table.column(column).has_nulls();
        let column = count.column.filter(|column| has_nulls(*column));
        // A column that was selected has these counts if it has values in the same rows.
        let is_same = |source: &FilteredColumn| {
            let own = Some(source.column).filter(|column| has_nulls(*column));
            source.filter == count.filter && own == column
        };
        let counted;
        let segments = match self.sources.iter().position(is_same) {
            Some(index) => &selected[index].segments,
            None => {
                let valid = column.map(Predicate::is_not_null);
                let filter: Vec<_> = count.filter.iter().cloned().chain(valid).collect();
                let filter = (!filter.is_empty()).then_some(Predicate::And(filter));
                counted = present(groups, self.groups[0], filter.as_ref(), on)?;
                &counted
            }
        };
        let counts = by_code(codes, &segments.codes, |group| segments.length(group) as i64)?;
        Ok(Arc::new(Int64Array::from(counts)))
    }
}

/// The groups of the rows of `filter`, with the number of these rows.
fn present(
    groups: &Groups<'_>,
    group_column: usize,
    filter: Option<&Predicate>,
    on: &mut OnDevice<'_>,
) -> Result<Segments> {
    let mask = on.mask(filter, on.column(group_column))?;
    let segments = groups.present(mask.as_ref().map(|(mask, _)| mask.bits()), &mut on.report)?;
    on.memory.try_grow(segments.codes.len() * GROUP_BYTES)?;
    Ok(segments)
}

/// The codes of all groups of the rows of `filter`, ascending. `known` has the codes of the groups in which calls found values.
pub(super) fn all_codes<'a>(
    groups: &Groups<'_>,
    group_column: usize,
    filter: Option<&Predicate>,
    mut known: impl Iterator<Item = (&'a FilteredColumn, &'a [u64])>,
    on: &mut OnDevice<'_>,
) -> Result<Vec<u64>> {
    // If a column has a value in every row that makes a group, its codes are all.
    let all = known
        .find(|(source, _)| source.filter.as_ref() == filter && !on.table.column(source.column).has_nulls());
    match all {
        Some((_, codes)) => Ok(codes.to_vec()),
        None => Ok(present(groups, group_column, filter, on)?.codes),
    }
}

/// Most ranks that a call needs in one group.
fn most_ranks(quantile_spec: &QuantileSpec) -> usize {
    quantile_spec.quantiles.len() * if quantile_spec.method.interpolates() { 2 } else { 1 }
}

/// Places, among all records, of the keys at the target ranks of some groups.
fn places(segments: &Segments, groups: Range<usize>, quantile_specs: &Arc<[QuantileSpec]>) -> Vec<u64> {
    let mut plans = Plans::new(Arc::clone(quantile_specs));
    let mut places = Vec::with_capacity(groups.len() * quantile_specs.iter().map(most_ranks).sum::<usize>());
    for group in groups {
        let plan = plans.of(segments.length(group));
        places.extend(plan.ranks.iter().map(|rank| segments.starts[group] + rank - 1));
    }
    places
}

/// Divides `groups` groups into work chunks, at most one for each processor, of [`LEAST_CHUNK`] groups or more.
fn work_chunks(groups: usize) -> Vec<Range<usize>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let chunks = (groups / LEAST_CHUNK).clamp(1, processors);
    let end = |chunk: usize| groups * chunk / chunks;
    (0..chunks).map(|chunk| end(chunk)..end(chunk + 1)).collect()
}

/// Runs `work` on each chunk in a thread of its own. The results come in the order of the chunks.
fn in_parallel<P: Sync, T: Send>(chunks: &[P], work: impl Fn(&P) -> Result<T> + Sync) -> Result<Vec<T>> {
    if let [only] = chunks {
        return Ok(vec![work(only)?]);
    }
    std::thread::scope(|scope| {
        let threads = chunks.iter().map(|chunk| scope.spawn(|| work(chunk)));
        let threads: Vec<_> = threads.collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect()
    })
}

impl SelectedGroups {
    /// The answers for each of the groups `codes`. Some of them can have no values in this column.
    fn answers(&self, codes: &[u64]) -> Result<Answers> {
        let chunks = in_parallel(&self.chunks, |(groups, from)| {
            self.chunk_answers(groups.clone(), *from)
        })?;
        let calls = (0..self.quantile_specs.len()).map(|call| {
            let chunks: Vec<&dyn Array> = chunks.iter().map(|chunk| chunk[call].as_ref()).collect();
            Ok(concat(&chunks)?)
        });
        let calls = calls.collect::<Result<_>>()?;
        let lengths = by_code(codes, &self.segments.codes, |group| self.segments.length(group))?;
        Ok(Answers::Values(calls, lengths))
    }

    /// The answers of each call for the groups of a work chunk, whose first key has the index `from`.
    fn chunk_answers(&self, groups: Range<usize>, mut from: usize) -> Result<Vec<ArrayRef>> {
        let mut plans = Plans::new(Arc::clone(&self.quantile_specs));
        let mut answers = GroupAnswers::new(plans.calls());
        for group in groups {
            let n = self.segments.length(group);
            let plan = plans.of(n);
            let key_at = |rank: u64| {
                let place = plan.ranks.binary_search(&rank).ok();
                let key = place.and_then(|place| self.keys.get(from + place));
                key.ok_or_else(|| internal_datafusion_err!("rank {rank} of {n} values of group {group}"))
            };
            answers.add(n, &plan, &key_at)?;
            from += plan.ranks.len();
        }
        let calls = self.quantile_specs.iter().zip(&answers.found);
        calls
            .map(|(quantile_spec, found)| quantile_spec.values(&self.spec, found))
            .collect()
    }
}

/// A value for each of the groups `codes`: that of `of` for the index of the group in `own`, or the default if it is not there. Both
/// lists are ascending.
///
/// # Errors
/// An internal error for a group of `own` that is not in `codes`.
pub(super) fn by_code<T: Default>(codes: &[u64], own: &[u64], of: impl Fn(usize) -> T) -> Result<Vec<T>> {
    let mut own = own.iter().enumerate().peekable();
    let next = |code: &u64| own.next_if(|(_, own)| *own == code);
    let each = codes.iter().map(next);
    let each = each.map(|found| found.map_or_else(T::default, |(index, _)| of(index)));
    let each = each.collect();
    match own.next() {
        None => Ok(each),
        Some((_, code)) => internal_err!("group {code} has rows, and is none"),
    }
}

impl PinnedCalls for PinnedGroups {
    fn batch(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<RecordBatch> {
        let columns: Vec<_> = self.groups.iter().map(|index| on.column(*index)).collect();
        let groups = Groups::try_new(&columns, on.limit, on.timed, &mut on.report)?;
        let selected = (0..self.sources.len()).map(|column| self.select(column, &groups, on));
        let selected = selected.collect::<Result<Vec<_>>>()?;
        let codes = self.codes(&selected, &groups, on)?;
        if codes.is_empty() {
            return Ok(RecordBatch::new_empty(Arc::clone(schema)));
        }
        let longest = self.aggregates.calls.iter();
        let longest = longest
            .map(|(_, call)| call.answer_spec().quantile_spec().quantiles.len())
            .max();
        let items = codes.len().checked_mul(longest.unwrap_or(1));
        items
            .filter(|items| *items <= i32::MAX as usize)
            .ok_or_else(|| resources_datafusion_err!("the lists of {} groups are too long", codes.len()))?;
        let answers = selected.iter().map(|selected| selected.answers(&codes));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        let counts = self.counts.iter();
        let counts = counts.map(|count| self.count(count, &selected, (&groups, &codes), on));
        let counts = counts.collect::<Result<Vec<_>>>()?;
        answered_groups(
            &self.aggregates,
            schema,
            groups.values(&codes)?,
            &answers,
            &counts,
        )
    }

    fn fits(&self, on: &mut OnDevice<'_>) -> Result<bool> {
        let columns: Vec<_> = self.groups.iter().map(|index| on.column(*index)).collect();
        let Some(groups) = Groups::fitting(&columns, on.limit, false, &mut on.report)? else {
            return Ok(false);
        };
        for (column, source) in self.sources.iter().enumerate() {
            let values = on.column(source.column);
            let format = values.format(&self.aggregates.columns[column].spec);
            let among = on.among::<RowMask>(values, format, None);
            if !groups.fits(&among, &mut on.report)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn columns(&self) -> Vec<usize> {
        let sources = self.sources.iter().map(|source| source.column);
        let counts = self.counts.iter().filter_map(|count| count.column);
        distinct(self.groups.iter().copied().chain(sources).chain(counts))
    }

    fn shown(&self, table: &PinnedTable) -> String {
        let groups = self.groups.iter().map(|index| table.name(*index));
        let calls = self.aggregates.calls.iter().map(|(_, call)| call);
        let mut shown = format!(
            "gby=[{}], calls=[{}]",
            comma_separated(groups),
            comma_separated(calls)
        );
        if !self.counts.is_empty() {
            shown += &format!(", plain=[{}]", comma_separated(self.aggregates.plain.iter()));
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_groups() {
        for groups in [0, 1, LEAST_CHUNK, 1_000_003] {
            let chunks = work_chunks(groups);
            assert_eq!((chunks[0].start, chunks[chunks.len() - 1].end), (0, groups));
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = in_parallel(&chunks, |chunk| Ok(chunk.len())).unwrap();
            assert_eq!(lengths.iter().sum::<usize>(), groups);
        }
        let failed = in_parallel(&[1, 2, 3], |chunk| match chunk {
            2 => internal_err!("chunk {chunk}"),
            _ => Ok(()),
        });
        assert!(failed.unwrap_err().to_string().contains("chunk 2"));
    }

    #[test]
    fn groups_without_rows_have_nothing() {
        let own = [3, 7, 9];
        let found = by_code(&[1, 3, 7, 8, 9], &own, |index| index as u64 + 10).unwrap();
        assert_eq!(found, [0, 10, 11, 0, 12]);
        let missing = by_code(&[3, 9], &own, |index| index);
        assert!(missing.unwrap_err().to_string().contains("group 7"));
    }
}
