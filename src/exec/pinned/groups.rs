//! Exact quantiles of pinned columns in groups: for each column its rows become records, which are put in order by group.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, internal_datafusion_err, resources_datafusion_err};

use super::quantiles::sourced_columns;
use super::{OnCard, PinnedSource, PinnedWork, distinct};
use crate::exec::aggregate::{Aggregates, QuantilesCall};
use crate::exec::grouped::{Answers, answered_groups};
use crate::exec::quantiles::comma_separated;
use crate::kernel::cpu::groups::segments::{GroupAnswers, Plans};
use crate::kernel::cuda::{Groups, Predicate, Segments};
use crate::key::KeyBits;
use crate::pinned::PinnedTable;

/// Bytes of host memory for a key that is wanted: its place, itself, its part in the answer.
const KEY_BYTES: usize = 96;
/// Bytes for a group.
const GROUP_BYTES: usize = 96;

/// Calls over pinned columns by group, one output column for each after the group columns.
#[derive(Debug)]
pub(crate) struct PinnedGroups {
    /// Indices of the pinned columns that rows are grouped by.
    groups: Vec<usize>,
    /// The rows that make groups; `None`: all.
    filter: Option<Predicate>,
    aggregates: Aggregates,
    /// Of each column of `aggregates`.
    sources: Vec<PinnedSource>,
}

/// A column's groups, and their wanted keys, one group after the other.
struct Selected {
    segments: Segments,
    keys: Vec<KeyBits>,
    plans: Plans,
}

impl PinnedGroups {
    pub(crate) fn new(
        groups: Vec<usize>,
        filter: Option<Predicate>,
        calls: Vec<(QuantilesCall, PinnedSource)>,
    ) -> Self {
        let (aggregates, sources) = sourced_columns(calls);
        Self {
            groups,
            filter,
            aggregates,
            sources,
        }
    }

    fn select(&self, column: usize, groups: &Groups<'_>, on: &mut OnCard<'_>) -> Result<Selected> {
        let source = &self.sources[column];
        let values = on.column(source.column);
        let mask = on.kept(source.filter.as_ref(), values)?;
        let words = values.words(&self.aggregates.columns[column].spec);
        let asks = self.aggregates.calls_of(column);
        let asks = asks.map(|call| call.selected().ask().clone());
        let mut plans = Plans::new(asks.collect());
        let among = on.among(values, words, mask.as_ref());
        let memory = &on.memory;
        let (segments, keys) = groups.select(&among, &mut on.report, |segments| {
            let mut places = Vec::new();
            for (index, start) in segments.starts.iter().enumerate() {
                let plan = plans.of(segments.length(index));
                if index == 0 {
                    let ranks = plan
                        .ranks
                        .len()
                        .max(plans.asks().iter().map(|ask| ask.quantiles.len()).sum());
                    memory.try_grow(segments.starts.len() * (GROUP_BYTES + ranks * KEY_BYTES))?;
                }
                places.extend(plan.ranks.iter().map(|rank| start + rank - 1));
            }
            Ok(places)
        })?;
        Ok(Selected {
            segments,
            keys,
            plans,
        })
    }

    /// The numbers of all groups, ascending.
    fn codes(&self, selected: &[Selected], groups: &Groups<'_>, on: &mut OnCard<'_>) -> Result<Vec<u64>> {
        // A column that has a value in every row that makes a group knows them all.
        let knows_all = |source: &PinnedSource| {
            source.filter == self.filter && !on.table.columns[source.column].column.has_nulls()
        };
        if let Some(column) = self.sources.iter().position(knows_all) {
            return Ok(selected[column].segments.codes.clone());
        }
        let rows = on.column(self.groups[0]);
        let mask = on.kept(self.filter.as_ref(), rows)?;
        let codes = groups.present(mask.as_ref().map(|(mask, _)| mask.bits()), &mut on.report)?;
        on.memory.try_grow(codes.len() * GROUP_BYTES)?;
        Ok(codes)
    }
}

impl Selected {
    /// The answers of the groups `codes`, of which some may have no values here.
    fn answers(mut self, codes: &[u64]) -> Result<GroupAnswers> {
        let mut answers = GroupAnswers::new(self.plans.calls());
        let (mut next, mut from) = (0, 0);
        for code in codes {
            if self.segments.codes.get(next) != Some(code) {
                answers.add_empty();
                continue;
            }
            let n = self.segments.length(next);
            let plan = self.plans.of(n);
            let keys = self.keys.get(from..from + plan.ranks.len());
            let keys = keys.ok_or_else(|| internal_datafusion_err!("keys of group {code} are missing"))?;
            let key_at = |rank: u64| {
                let place = plan.ranks.binary_search(&rank);
                let place = place.map_err(|_| internal_datafusion_err!("rank {rank} of {n} values"))?;
                Ok(keys[place])
            };
            answers.add(n, &plan, &key_at)?;
            (next, from) = (next + 1, from + keys.len());
        }
        Ok(answers)
    }
}

impl PinnedWork for PinnedGroups {
    fn name(&self) -> &'static str {
        "PinnedGroupedQuantilesExec"
    }

    fn batch(&self, on: &mut OnCard<'_>, schema: &SchemaRef) -> Result<RecordBatch> {
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
            .map(|(_, call)| call.selected().ask().quantiles.len())
            .max();
        let items = codes.len().checked_mul(longest.unwrap_or(1));
        items
            .filter(|items| *items <= i32::MAX as usize)
            .ok_or_else(|| resources_datafusion_err!("the lists of {} groups are too long", codes.len()))?;
        let answers = selected
            .into_iter()
            .map(|selected| selected.answers(&codes).map(Answers::Keys));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        answered_groups(&self.aggregates, schema, groups.values(&codes)?, &answers, &[])
    }

    fn columns(&self) -> Vec<usize> {
        let sources = self.sources.iter().map(|source| source.column);
        distinct(self.groups.iter().copied().chain(sources))
    }

    fn shown(&self, table: &PinnedTable) -> String {
        let groups = self.groups.iter().map(|index| &table.columns[*index].name);
        let calls = self.aggregates.calls.iter().map(|(_, call)| call);
        format!(
            "gby=[{}], calls=[{}]",
            comma_separated(groups),
            comma_separated(calls)
        )
    }
}
