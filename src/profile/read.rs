//! Reads a table for its profile: all columns once, and a second time what one read leaves open.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::common::{Column, JoinType, Result, ScalarValue, exec_err, plan_err};
use datafusion::execution::SessionState;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{
    AggregateUDF, Expr, LogicalPlan, LogicalPlanBuilder, Operator, binary_expr, col, lit,
};
use datafusion::prelude::{DataFrame, SessionContext};

use super::answer::{Answer, Draft};
use super::frequencies::frequencies;
use super::measures::Described;
use super::questions::{CONSTANTS, Constants, GROUP, Questions};
use super::types::{ColumnProfile, GroupProfile, MOST_DISTINCT, MOST_GROUPS, TableProfile};
use crate::memory::limit;
use crate::planner::{check_no_cluster, is_repeatable};

/// Columns that are read at a time where a table can be read again: what is counted of each is held until the end.
const COLUMNS: usize = 32;

/// Part of a memory limit that tables of distinct values may hold, as a divisor.
const TABLES_PART: usize = 4;

/// Bytes that tables of distinct values may hold, where memory has no limit.
const TABLES_BYTES: usize = 2 << 30;

/// Most bytes of one partition's table of distinct values.
const TABLE_BYTES: usize = 16 << 20;

/// Bytes of a table for each distinct value that it counts exactly: it may hold twice as many before it is thinned.
const VALUE_BYTES: usize = 128;

/// Fewest distinct values that are counted exactly.
const FEWEST_DISTINCT: usize = 1024;

/// Fewest distinct values of a group that are counted exactly.
const FEWEST_DISTINCT_OF_GROUPS: usize = 64;

/// Name of the column with the number of rows.
pub(super) const ROWS: &str = "rows";

/// Profiles the rows of a query.
///
/// # Errors
/// Errors of the query; memory past the limit; a table that changes while it is read; a session whose queries run on a
/// cluster. A session without this crate's planner ([`crate::register_all`]) is no error, but slow.
pub async fn profile(rows: DataFrame) -> Result<TableProfile> {
    let mut groups = read(rows, Vec::new()).await?;
    match groups.pop() {
        Some(group) => Ok(group.profile),
        None => exec_err!("a profile without groups has no rows"),
    }
}

/// Profiles the rows of each group of a query: rows that have the same values of `by`. The groups are in order of those values, NULL last.
///
/// # Errors
/// Those of [`profile`]; more than [`MOST_GROUPS`] groups; nothing to group by.
pub async fn profile_by(rows: DataFrame, by: Vec<Expr>) -> Result<Vec<GroupProfile>> {
    if by.is_empty() {
        return plan_err!("a profile by groups needs something to group by");
    }
    read(rows, by).await
}

async fn read(rows: DataFrame, by: Vec<Expr>) -> Result<Vec<GroupProfile>> {
    let (state, plan) = rows.into_parts();
    check_no_cluster(&state, "SUMMARIZE and profiles")?;
    let mut reader = Reader {
        repeatable: is_repeatable(&state.optimize(&plan)?)?,
        state,
        plan,
        by,
        groups: 1,
    };
    if !reader.by.is_empty() {
        reader.groups = reader.count_groups().await?;
    }
    let schema = reader.plan.schema();
    let fields = schema
        .iter()
        .map(|(qualifier, field)| (Column::from((qualifier, field)), field));
    let columns = Described::all(fields)?;
    let together = if reader.repeatable {
        COLUMNS
    } else {
        columns.len().max(1)
    };
    let mut profiles: Vec<GroupProfile> = Vec::new();
    let mut chunks: Vec<_> = columns.chunks(together).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    for columns in chunks {
        let groups = reader.profiles(columns).await?;
        if profiles.is_empty() {
            profiles = groups;
            continue;
        }
        check(&profiles, &groups)?;
        for (all, more) in profiles.iter_mut().zip(groups) {
            all.profile.columns.extend(more.profile.columns);
        }
    }
    Ok(profiles)
}

/// Refuses a read whose groups are not those of another.
fn check(before: &[GroupProfile], now: &[GroupProfile]) -> Result<()> {
    if before.len() != now.len() {
        return changed("groups", before.len() as u64, now.len() as u64);
    }
    for (before, now) in before.iter().zip(now) {
        if before.group != now.group || before.profile.rows != now.profile.rows {
            return changed("rows", before.profile.rows, now.profile.rows);
        }
    }
    Ok(())
}

/// The error for a table that had another number of `things`, rows or groups, in an earlier read.
fn changed<T>(things: &str, before: u64, now: u64) -> Result<T> {
    exec_err!("the table changed while it was profiled: it had {before} {things}, and then {now}")
}

/// A group after the first read.
struct Group {
    group: Vec<ScalarValue>,
    rows: u64,
    drafts: Vec<Draft>,
}

/// Reads one table.
struct Reader {
    state: SessionState,
    plan: LogicalPlan,
    /// Whether each read gives the same rows.
    repeatable: bool,
    /// What rows are grouped by; a table without is one group.
    by: Vec<Expr>,
    /// Number of groups.
    groups: usize,
}

impl Reader {
    fn frame(&self, plan: LogicalPlan) -> DataFrame {
        DataFrame::new(self.state.clone(), plan)
    }

    /// The expressions that rows are grouped by, each under a name of its own.
    fn keys(&self) -> Vec<Expr> {
        self.by
            .iter()
            .enumerate()
            .map(|(place, key)| key.clone().alias(key_name(place)))
            .collect()
    }

    /// Number of groups.
    async fn count_groups(&self) -> Result<usize> {
        let plan = LogicalPlanBuilder::from(self.plan.clone()).aggregate(self.keys(), Vec::<Expr>::new())?;
        let groups = self
            .frame(plan.limit(0, Some(MOST_GROUPS + 1))?.build()?)
            .collect()
            .await?;
        match groups.iter().map(RecordBatch::num_rows).sum() {
            too_many if too_many > MOST_GROUPS => {
                plan_err!("there are more than {MOST_GROUPS} groups, of which no more are profiled")
            }
            groups => Ok(groups),
        }
    }

    /// The profiles of these columns, group by group.
    async fn profiles(&self, columns: &[Described]) -> Result<Vec<GroupProfile>> {
        let mut groups = self.first_read(columns).await?;
        for draft in groups.iter_mut().flat_map(|group| &mut group.drafts) {
            draft.complete_by_counts()?;
        }
        if self.repeatable {
            self.second_read(columns, &mut groups).await?;
        }
        Ok(groups
            .into_iter()
            .map(|group| {
                let columns: Vec<ColumnProfile> =
                    group.drafts.into_iter().map(|draft| draft.profile).collect();
                GroupProfile {
                    group: group.group,
                    profile: TableProfile {
                        rows: group.rows,
                        columns,
                    },
                }
            })
            .collect())
    }

    async fn first_read(&self, columns: &[Described]) -> Result<Vec<Group>> {
        let function = self.frequencies(columns.len());
        let mut calls = vec![count(lit(1)).alias(ROWS)];
        for (place, column) in columns.iter().enumerate() {
            calls.extend(column.calls(place, &function, !self.by.is_empty())?);
        }
        let mut frame = self.frame(self.plan.clone()).aggregate(self.keys(), calls)?;
        if !self.by.is_empty() {
            let order = (0..self.by.len()).map(|place| col(quoted(&key_name(place))).sort(true, false));
            frame = frame.sort(order.collect())?;
        }
        let answers = one_batch(frame).await?;
        (0..answers.num_rows())
            .map(|row| {
                let answer = Answer::new(&answers, row);
                let rows = answer.number(ROWS)?;
                let drafts = columns
                    .iter()
                    .enumerate()
                    .map(|(place, column)| answer.draft(place, column, rows));
                let group = (0..self.by.len()).map(|place| answer.required(&key_name(place)));
                Ok(Group {
                    group: group.collect::<Result<_>>()?,
                    rows,
                    drafts: drafts.collect::<Result<_>>()?,
                })
            })
            .collect()
    }

    /// The function that counts distinct values, for so many columns at a time.
    fn frequencies(&self, columns: usize) -> AggregateUDF {
        let tables = columns.max(1) * self.state.config().target_partitions() * self.groups.max(1);
        let all = limit(self.state.runtime_env().memory_pool.as_ref())
            .map_or(TABLES_BYTES, |limit| limit / TABLES_PART);
        let bytes = (all / tables).min(TABLE_BYTES);
        let fewest = if self.by.is_empty() {
            FEWEST_DISTINCT
        } else {
            FEWEST_DISTINCT_OF_GROUPS
        };
        let distinct = (bytes / VALUE_BYTES).clamp(fewest, MOST_DISTINCT);
        frequencies(distinct, bytes.max(distinct * VALUE_BYTES))
    }

    /// Completes drafts by a second read, where it tells more.
    async fn second_read(&self, columns: &[Described], groups: &mut [Group]) -> Result<()> {
        let mut constants = Constants::new(!self.by.is_empty(), groups.len());
        let mut calls = vec![count(lit(1)).alias(ROWS)];
        let mut questions = Vec::new();
        for (place, column) in columns.iter().enumerate() {
            let drafts: Vec<_> = groups
                .iter()
                .filter_map(|group| group.drafts.get(place))
                .collect();
            if drafts.iter().any(|draft| draft.is_open()) {
                let asked = Questions::ask(place, column, &drafts, &mut constants, &mut calls)?;
                questions.push((place, asked));
            }
        }
        // One call alone is the number of rows.
        if calls.len() == 1 {
            return Ok(());
        }
        let (frame, keys) = self.with_constants(constants, groups)?;
        let answers = one_batch(frame.aggregate(keys, calls)?).await?;
        if answers.num_rows() != groups.len() {
            return changed("groups", groups.len() as u64, answers.num_rows() as u64);
        }
        for row in 0..answers.num_rows() {
            let answer = Answer::new(&answers, row);
            let number = if self.by.is_empty() {
                0
            } else {
                answer.number(GROUP)? as usize
            };
            let Some(group) = groups.get_mut(number) else {
                return exec_err!("a profile has no group {number}");
            };
            let rows = answer.number(ROWS)?;
            if rows != group.rows {
                return changed("rows", group.rows, rows);
            }
            for (place, question) in &questions {
                if let Some(draft) = group.drafts.get_mut(*place).filter(|draft| draft.is_open()) {
                    question.complete(*place, number, &answer, &mut draft.profile)?;
                }
            }
        }
        Ok(())
    }

    /// The rows, each with the constants of its group beside it, and what they are grouped by.
    fn with_constants(&self, constants: Constants, groups: &[Group]) -> Result<(DataFrame, Vec<Expr>)> {
        let frame = self.frame(self.plan.clone());
        if self.by.is_empty() {
            return Ok((frame, Vec::new()));
        }
        let keys = (0..self.by.len()).map(|place| {
            let values = groups.iter().filter_map(|group| group.group.get(place).cloned());
            Ok((key_name(place), ScalarValue::iter_to_array(values)?))
        });
        let batch = constants.batch(keys.collect::<Result<_>>()?)?;
        let constants = SessionContext::new_with_state(self.state.clone()).read_batch(batch)?;
        let constants = constants.alias(CONSTANTS)?.into_unoptimized_plan();
        let same = self.by.iter().enumerate().map(|(place, key)| {
            let constant = Expr::Column(Column::new(Some(CONSTANTS), key_name(place)));
            binary_expr(key.clone(), Operator::IsNotDistinctFrom, constant)
        });
        let joined = frame.join_on(self.frame(constants), JoinType::Inner, same)?;
        let group = Expr::Column(Column::new(Some(CONSTANTS), GROUP)).alias(GROUP);
        Ok((joined, vec![group]))
    }
}

/// The name of a column that rows are grouped by.
fn key_name(place: usize) -> String {
    format!("key {place}")
}

/// A name in quotes, as `col` takes it.
fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

/// The rows of an aggregation as one batch.
async fn one_batch(frame: DataFrame) -> Result<RecordBatch> {
    let batches = frame.collect().await?;
    match batches.first() {
        Some(first) => Ok(concat_batches(&first.schema(), &batches)?),
        None => exec_err!("an aggregation gave no rows"),
    }
}
