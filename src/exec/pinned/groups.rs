//! Exact quantiles of pinned columns in groups. For each column its rows become records, which the device sorts by group and key.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_datafusion_err, internal_err, resources_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::calls::{FilteredColumn, OnDevice, PinnedCalls, distinct};
use super::quantiles::sourced_columns;
use super::table::PinnedTable;
use crate::exec::aggregate::{Aggregates, ExecAggregate};
use crate::exec::grouped::{Answers, answered_groups};
use crate::exec::operator::comma_separated;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans};
use crate::kernel::cuda::{GroupRanks, PickedKeys, Predicate, Segments, SpreadGroups};
use crate::key::KeySpec;
use crate::quantile::QuantileSpec;
use crate::threads::{Stop, locked, scoped_map};

/// Bytes of host memory for each key of the answer: the key, as it comes and as a number, and its value.
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

/// Groups of a work chunk, whose rows are a batch: few enough that what is made of them fits the caches.
const CHUNK_GROUPS: usize = 1 << 13;

/// The groups of one column, and the keys at their target ranks, as many for each group.
struct SelectedGroups {
    segments: Segments,
    keys: PickedKeys,
    ranks: CallRanks,
    spec: KeySpec,
}

/// The ranks that the calls over one column need of each group.
struct CallRanks {
    quantile_specs: Arc<[QuantileSpec]>,
    /// The plans of the numbers of rows that were asked for.
    plans: Mutex<Plans>,
    /// Most ranks of a group.
    each: usize,
    memory: MemoryReservation,
}

impl CallRanks {
    fn new(quantile_specs: Arc<[QuantileSpec]>, memory: MemoryReservation) -> Self {
        let most_ranks = |quantile_spec: &QuantileSpec| {
            quantile_spec.quantiles.len() * if quantile_spec.method.interpolates() { 2 } else { 1 }
        };
        Self {
            each: quantile_specs.iter().map(most_ranks).sum(),
            plans: Mutex::new(Plans::new(Arc::clone(&quantile_specs))),
            quantile_specs,
            memory,
        }
    }
}

impl GroupRanks for CallRanks {
    fn each(&self) -> usize {
        self.each
    }

    /// Where calls share ranks, the last one takes the places that are left.
    fn of(&self, n: u64) -> Vec<u64> {
        let mut ranks = locked(&self.plans).of(n).ranks.clone();
        let last = ranks.last().copied().unwrap_or(1);
        ranks.resize(self.each, last);
        ranks
    }

    fn reserve(&self, groups: usize) -> Result<()> {
        self.memory
            .try_grow(groups * (GROUP_BYTES + self.each * KEY_BYTES))
    }
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

    fn select(
        &self,
        column: usize,
        groups: &SpreadGroups<'_>,
        on: &mut OnDevice<'_>,
    ) -> Result<SelectedGroups> {
        let source = &self.sources[column];
        let masks = on.masks_of_shares(source.filter.as_ref(), source.column)?;
        let spec = self.aggregates.columns[column].spec.clone();
        let quantile_specs = self.aggregates.calls_of(column);
        let quantile_specs = quantile_specs.map(|call| call.answer_spec().quantile_spec().clone());
        let ranks = CallRanks::new(quantile_specs.collect(), on.memory.new_empty());
        let among = on.among_shares(source.column, &spec, &masks);
        let (segments, keys) = groups.select(&among, &mut on.report, &ranks)?;
        Ok(SelectedGroups {
            segments,
            keys,
            ranks,
            spec,
        })
    }

    /// The codes of all groups, ascending.
    fn codes<'a>(
        &'a self,
        selected: &'a [SelectedGroups],
        groups: &SpreadGroups<'_>,
        on: &mut OnDevice<'_>,
    ) -> Result<Cow<'a, [u64]>> {
        let known = self.sources.iter().zip(selected);
        let known = known.map(|(source, selected)| (source, selected.segments.codes.as_slice()));
        all_codes(groups, self.groups[0], self.filter.as_ref(), known, on)
    }

    /// The groups in which the rows of one count lie.
    fn counted<'a>(
        &self,
        count: &PinnedCount,
        selected: &'a [SelectedGroups],
        groups: &SpreadGroups<'_>,
        on: &mut OnDevice<'_>,
    ) -> Result<Cow<'a, Segments>> {
        let has_nulls = |column: usize| on.table.has_nulls(column);
        let column = count.column.filter(|column| has_nulls(*column));
        // A column that was selected has these counts if it has values in the same rows.
        let is_same = |source: &FilteredColumn| {
            let own = Some(source.column).filter(|column| has_nulls(*column));
            source.filter == count.filter && own == column
        };
        if let Some(index) = self.sources.iter().position(is_same) {
            return Ok(Cow::Borrowed(&selected[index].segments));
        }
        let valid = column.map(Predicate::is_not_null);
        let filter: Vec<_> = count.filter.iter().cloned().chain(valid).collect();
        let filter = (!filter.is_empty()).then_some(Predicate::And(filter));
        present(groups, self.groups[0], filter.as_ref(), on).map(Cow::Owned)
    }

    /// The rows of the groups `codes`.
    fn rows(
        &self,
        codes: &[u64],
        groups: &SpreadGroups<'_>,
        (selected, counted): (&[SelectedGroups], &[Cow<'_, Segments>]),
        schema: &SchemaRef,
    ) -> Result<RecordBatch> {
        let longest = self.aggregates.calls.iter();
        let longest = longest
            .map(|(_, call)| call.answer_spec().quantile_spec().quantiles.len())
            .max();
        let items = codes.len().checked_mul(longest.unwrap_or(1));
        items
            .filter(|items| *items <= i32::MAX as usize)
            .ok_or_else(|| resources_datafusion_err!("the lists of {} groups are too long", codes.len()))?;
        let answers = selected.iter().map(|selected| selected.answers(codes));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        let counts = counted.iter().map(|segments| -> Result<ArrayRef> {
            let counts = by_code(codes, &segments.codes, |group| segments.length(group) as i64)?;
            Ok(Arc::new(Int64Array::from(counts)))
        });
        let counts = counts.collect::<Result<Vec<_>>>()?;
        answered_groups(&self.aggregates, schema, groups.values(codes)?, &answers, &counts)
    }
}

/// The groups of the rows of `filter`, with the number of these rows.
fn present(
    groups: &SpreadGroups<'_>,
    group_column: usize,
    filter: Option<&Predicate>,
    on: &mut OnDevice<'_>,
) -> Result<Segments> {
    let masks = on.masks_of_shares(filter, group_column)?;
    let masks = masks
        .iter()
        .map(|mask| mask.as_ref().map(|(mask, _)| mask.bits()));
    let segments = groups.present(&masks.collect::<Vec<_>>(), &mut on.report)?;
    on.memory.try_grow(segments.codes.len() * GROUP_BYTES)?;
    Ok(segments)
}

/// The codes of all groups of the rows of `filter`, ascending. `known` has the codes of the groups in which calls found values.
pub(super) fn all_codes<'a>(
    groups: &SpreadGroups<'_>,
    group_column: usize,
    filter: Option<&Predicate>,
    mut known: impl Iterator<Item = (&'a FilteredColumn, &'a [u64])>,
    on: &mut OnDevice<'_>,
) -> Result<Cow<'a, [u64]>> {
    // If a column has a value in every row that makes a group, its codes are all.
    let all =
        known.find(|(source, _)| source.filter.as_ref() == filter && !on.table.has_nulls(source.column));
    match all {
        Some((_, codes)) => Ok(Cow::Borrowed(codes)),
        None => Ok(Cow::Owned(present(groups, group_column, filter, on)?.codes)),
    }
}

/// Divides `groups` groups into work chunks of [`CHUNK_GROUPS`] groups each.
fn work_chunks(groups: usize) -> Vec<Range<usize>> {
    let starts = (0..groups).step_by(CHUNK_GROUPS);
    starts
        .map(|start| start..groups.min(start + CHUNK_GROUPS))
        .collect()
}

impl SelectedGroups {
    /// The answers for each of the groups `codes`. Some of them can have no values in this column.
    fn answers(&self, codes: &[u64]) -> Result<Answers> {
        let mut plans = locked(&self.ranks.plans).clone();
        let groups = own_groups(codes, &self.segments.codes);
        let mut answers = GroupAnswers::with_capacity(&self.ranks.quantile_specs, groups.len());
        for group in groups {
            let n = self.segments.length(group);
            let plan = plans.of(n);
            let key_at = |rank: u64| {
                let place = plan.ranks.binary_search(&rank).ok();
                let key = place.and_then(|place| self.keys.get(group * self.ranks.each + place));
                key.ok_or_else(|| internal_datafusion_err!("rank {rank} of {n} values of group {group}"))
            };
            answers.add(n, plan, &key_at)?;
        }
        let calls = self.ranks.quantile_specs.iter().zip(&answers.found);
        let calls = calls.map(|(quantile_spec, found)| quantile_spec.values(&self.spec, found));
        let lengths = by_code(codes, &self.segments.codes, |group| self.segments.length(group))?;
        Ok(Answers::Values(calls.collect::<Result<_>>()?, lengths))
    }
}

/// The indices in `own` of the groups that lie between the first and the last of `codes`. Both lists are ascending.
pub(super) fn own_groups(codes: &[u64], own: &[u64]) -> Range<usize> {
    let (Some(first), Some(last)) = (codes.first(), codes.last()) else {
        return 0..0;
    };
    own.partition_point(|own| own < first)..own.partition_point(|own| own <= last)
}

/// A value for each of the groups `codes`: that of `of` for the index of the group in `own`, or the default if it is not there. Both
/// lists are ascending.
///
/// # Errors
/// An internal error for a group of `own` between the first and the last of `codes` that is not among them.
pub(super) fn by_code<T: Default>(codes: &[u64], own: &[u64], of: impl Fn(usize) -> T) -> Result<Vec<T>> {
    let groups = own_groups(codes, own);
    if own[groups.clone()] == *codes {
        return Ok(groups.map(of).collect());
    }
    let mut groups = groups.peekable();
    let each = codes
        .iter()
        .map(|code| groups.next_if(|group| own[*group] == *code));
    let each = each.map(|group| group.map_or_else(T::default, &of)).collect();
    match groups.next() {
        None => Ok(each),
        Some(group) => internal_err!("group {} has rows, and is none", own[group]),
    }
}

/// What `made` makes of each work chunk of the groups `codes`, such as a batch of rows; `own` has the groups of each call.
///
/// # Errors
/// Errors of `made`; an internal error for groups of a call that are not in `codes`.
pub(super) fn in_chunks<'a, R: Send>(
    codes: &[u64],
    own: impl Iterator<Item = &'a [u64]>,
    made: impl Fn(&[u64]) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let chunks = work_chunks(codes.len());
    for own in own {
        let known = chunks
            .iter()
            .map(|chunk| own_groups(&codes[chunk.clone()], own).len());
        let known: usize = known.sum();
        if known != own.len() {
            return internal_err!("{} groups have rows, {known} of them are groups", own.len());
        }
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    scoped_map(processors, chunks, &Stop::default(), |chunk, _| {
        made(&codes[chunk])
    })
}

impl PinnedCalls for PinnedGroups {
    fn batches(&self, on: &mut OnDevice<'_>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let groups = on.groups(&self.groups)?;
        let selected = (0..self.sources.len()).map(|column| self.select(column, &groups, on));
        let selected = selected.collect::<Result<Vec<_>>>()?;
        let codes = self.codes(&selected, &groups, on)?;
        let counted = self.counts.iter();
        let counted = counted.map(|count| self.counted(count, &selected, &groups, on));
        let counted = counted.collect::<Result<Vec<_>>>()?;
        let own = selected.iter().map(|selected| &selected.segments);
        let own = own.chain(counted.iter().map(AsRef::as_ref));
        let own = own.map(|segments| segments.codes.as_slice());
        in_chunks(&codes, own, |codes| {
            self.rows(codes, &groups, (&selected, &counted), schema)
        })
    }

    fn fits(&self, on: &mut OnDevice<'_>) -> Result<bool> {
        let Some(groups) = on.fitting_groups(&self.groups)? else {
            return Ok(false);
        };
        let all = vec![None; on.table.shares().len()];
        for (column, source) in self.sources.iter().enumerate() {
            let among = on.among_shares(source.column, &self.aggregates.columns[column].spec, &all);
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
    fn work_chunks_cover_all_groups() {
        for groups in [1, CHUNK_GROUPS, CHUNK_GROUPS + 1, 1_000_003] {
            let chunks = work_chunks(groups);
            assert_eq!((chunks[0].start, chunks[chunks.len() - 1].end), (0, groups));
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn groups_without_rows_have_nothing() {
        let own = [3, 7, 9];
        let found = by_code(&[1, 3, 7, 8, 9], &own, |index| index as u64 + 10).unwrap();
        assert_eq!(found, [0, 10, 11, 0, 12]);
        // Groups of other work chunks do not count.
        assert_eq!(by_code(&[7, 8], &own, |index| index + 1).unwrap(), [2, 0]);
        let missing = by_code(&[3, 9], &own, |index| index);
        assert!(missing.unwrap_err().to_string().contains("group 7"));
    }
}
