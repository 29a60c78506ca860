//! Exact quantiles of pinned columns in groups: for each column its rows become records, which are put in order by group.

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
use crate::exec::quantiles::comma_separated;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans};
use crate::kernel::cuda::{Groups, PickedKeys, Predicate, RowMask, Segments};
use crate::key::KeySpec;
use crate::quantile::QuantileSpec;

/// Bytes of host memory for a key that is wanted: its place, itself, its part in the answer.
const KEY_BYTES: usize = 96;
/// Bytes for a group.
pub(super) const GROUP_BYTES: usize = 96;

/// Rows that are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinnedCount {
    /// Index of the pinned column that has a value in them; `None`: they all count.
    pub(crate) column: Option<usize>,
    /// Which rows count; `None`: all.
    pub(crate) filter: Option<Predicate>,
}

/// Calls over pinned columns by group, one output column for each after the group columns.
#[derive(Debug)]
pub(crate) struct PinnedGroups {
    /// Indices of the pinned columns that rows are grouped by.
    groups: Vec<usize>,
    /// The rows that make groups; `None`: all.
    filter: Option<Predicate>,
    aggregates: Aggregates,
    /// Of each column of `aggregates`.
    sources: Vec<FilteredColumn>,
    /// Of each aggregate that is no quantile.
    counts: Vec<PinnedCount>,
}

/// Groups that are worked on together, by a thread.
const LEAST_PART: usize = 1 << 14;

/// A column's groups, and their wanted keys, one group after the other.
struct Selected {
    segments: Segments,
    keys: PickedKeys,
    /// Groups that are worked on together, and where their keys begin.
    parts: Vec<(Range<usize>, usize)>,
    quantile_specs: Arc<[QuantileSpec]>,
    spec: KeySpec,
}

impl PinnedGroups {
    /// `sources` are those of the quantiles, and of the others.
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

    fn select(&self, column: usize, groups: &Groups<'_>, on: &mut OnDevice<'_>) -> Result<Selected> {
        let source = &self.sources[column];
        let values = on.column(source.column);
        let mask = on.kept(source.filter.as_ref(), values)?;
        let spec = self.aggregates.columns[column].spec.clone();
        let quantile_specs = self.aggregates.calls_of(column);
        let quantile_specs: Arc<[QuantileSpec]> = quantile_specs
            .map(|call| call.selected().quantile_spec().clone())
            .collect();
        let ranks = quantile_specs.iter().map(most_ranks).sum::<usize>();
        let among = on.among(values, values.format(&spec), mask.as_ref());
        let memory = &on.memory;
        let mut parts = Vec::new();
        let (segments, keys) = groups.select(&among, &mut on.report, |segments| {
            let groups = segments.starts.len();
            memory.try_grow(groups * (GROUP_BYTES + ranks * KEY_BYTES))?;
            let places = in_parallel(&even_parts(groups), |part| {
                Ok((part.clone(), places(segments, part.clone(), &quantile_specs)))
            })?;
            let mut from = 0;
            for (part, places) in &places {
                parts.push((part.clone(), from));
                from += places.len();
            }
            let places: Vec<_> = places.into_iter().map(|(_, places)| places).collect();
            Ok(places.concat())
        })?;
        if parts.is_empty() {
            // No row has a value: places were not asked for.
            parts.push((0..0, 0));
        }
        Ok(Selected {
            segments,
            keys,
            parts,
            quantile_specs,
            spec,
        })
    }

    /// The numbers of all groups, ascending.
    fn codes(&self, selected: &[Selected], groups: &Groups<'_>, on: &mut OnDevice<'_>) -> Result<Vec<u64>> {
        let known = self.sources.iter().zip(selected);
        let known = known.map(|(source, selected)| (source, selected.segments.codes.as_slice()));
        all_codes(groups, self.groups[0], self.filter.as_ref(), known, on)
    }

    /// Rows of each of the groups `codes`.
    fn count(
        &self,
        count: &PinnedCount,
        selected: &[Selected],
        (groups, codes): (&Groups<'_>, &[u64]),
        on: &mut OnDevice<'_>,
    ) -> Result<ArrayRef> {
        let has_nulls = |column: usize| on.table.column(column).has_nulls();
        let column = count.column.filter(|column| has_nulls(*column));
        // A column that was selected knows them if it has values in the same rows.
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
        let counts = of_each(codes, &segments.codes, |group| segments.length(group) as i64)?;
        Ok(Arc::new(Int64Array::from(counts)))
    }
}

/// The groups that rows of `filter` are in.
fn present(
    groups: &Groups<'_>,
    group_column: usize,
    filter: Option<&Predicate>,
    on: &mut OnDevice<'_>,
) -> Result<Segments> {
    let mask = on.kept(filter, on.column(group_column))?;
    let segments = groups.present(mask.as_ref().map(|(mask, _)| mask.bits()), &mut on.report)?;
    on.memory.try_grow(segments.codes.len() * GROUP_BYTES)?;
    Ok(segments)
}

/// The numbers of all groups that rows of `filter` are in, ascending; `known` are those in which a call found values.
pub(super) fn all_codes<'a>(
    groups: &Groups<'_>,
    group_column: usize,
    filter: Option<&Predicate>,
    mut known: impl Iterator<Item = (&'a FilteredColumn, &'a [u64])>,
    on: &mut OnDevice<'_>,
) -> Result<Vec<u64>> {
    // A column that has a value in every row that makes a group knows them all.
    let all = known
        .find(|(source, _)| source.filter.as_ref() == filter && !on.table.column(source.column).has_nulls());
    match all {
        Some((_, codes)) => Ok(codes.to_vec()),
        None => Ok(present(groups, group_column, filter, on)?.codes),
    }
}

/// Ranks that a call asks for in a group, at most.
fn most_ranks(quantile_spec: &QuantileSpec) -> usize {
    quantile_spec.quantiles.len() * if quantile_spec.method.interpolates() { 2 } else { 1 }
}

/// Places of the keys that `quantile_specs` want of some groups.
fn places(segments: &Segments, groups: Range<usize>, quantile_specs: &Arc<[QuantileSpec]>) -> Vec<u64> {
    let mut plans = Plans::new(Arc::clone(quantile_specs));
    let mut places = Vec::with_capacity(groups.len() * quantile_specs.iter().map(most_ranks).sum::<usize>());
    for group in groups {
        let plan = plans.of(segments.length(group));
        places.extend(plan.ranks.iter().map(|rank| segments.starts[group] + rank - 1));
    }
    places
}

/// Parts of `groups` groups, one for each processor, of some thousand groups at least.
fn even_parts(groups: usize) -> Vec<Range<usize>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = (groups / LEAST_PART).clamp(1, processors);
    let end = |part: usize| groups * part / parts;
    (0..parts).map(|part| end(part)..end(part + 1)).collect()
}

/// `work` on each part by a thread of its own; the results in their order.
fn in_parallel<P: Sync, T: Send>(parts: &[P], work: impl Fn(&P) -> Result<T> + Sync) -> Result<Vec<T>> {
    if let [only] = parts {
        return Ok(vec![work(only)?]);
    }
    std::thread::scope(|scope| {
        let threads = parts.iter().map(|part| scope.spawn(|| work(part)));
        let threads: Vec<_> = threads.collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect()
    })
}

impl Selected {
    /// The answers of the groups `codes`, of which some may have no values here.
    fn answers(&self, codes: &[u64]) -> Result<Answers> {
        let parts = in_parallel(&self.parts, |(groups, from)| self.part(groups.clone(), *from))?;
        let calls = (0..self.quantile_specs.len()).map(|call| {
            let parts: Vec<&dyn Array> = parts.iter().map(|part| part[call].as_ref()).collect();
            Ok(concat(&parts)?)
        });
        let calls = calls.collect::<Result<_>>()?;
        let lengths = of_each(codes, &self.segments.codes, |group| self.segments.length(group))?;
        Ok(Answers::Values(calls, lengths))
    }

    /// The answers of each call for some groups, whose keys begin at `from`.
    fn part(&self, groups: Range<usize>, mut from: usize) -> Result<Vec<ArrayRef>> {
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

/// What each of the groups `codes` has, by its index among `own`, or nothing; both ascending.
pub(super) fn of_each<T: Default>(codes: &[u64], own: &[u64], of: impl Fn(usize) -> T) -> Result<Vec<T>> {
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
            .map(|(_, call)| call.selected().quantile_spec().quantiles.len())
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
        for groups in [0, 1, LEAST_PART, 1_000_003] {
            let parts = even_parts(groups);
            assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, groups));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = in_parallel(&parts, |part| Ok(part.len())).unwrap();
            assert_eq!(lengths.iter().sum::<usize>(), groups);
        }
        let failed = in_parallel(&[1, 2, 3], |part| match part {
            2 => internal_err!("part {part}"),
            _ => Ok(()),
        });
        assert!(failed.unwrap_err().to_string().contains("part 2"));
    }

    #[test]
    fn groups_without_rows_have_nothing() {
        let own = [3, 7, 9];
        let found = of_each(&[1, 3, 7, 8, 9], &own, |index| index as u64 + 10).unwrap();
        assert_eq!(found, [0, 10, 11, 0, 12]);
        let missing = of_each(&[3, 9], &own, |index| index);
        assert!(missing.unwrap_err().to_string().contains("group 7"));
    }
}
