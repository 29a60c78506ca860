//! What a call asks of a column, and answers made of counts.

use std::fmt::{self, Debug};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Builder, ListArray, UInt64Builder};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::cut::{Cut, Cuts, Edges};
use super::name::RankName;
use crate::functions::types::answer_type;
use crate::kernel::cpu::edges::EdgeCells;
use crate::key::{ByteSpec, Order, Width, with_key};

/// The order that a call counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Direction {
    /// Whether the greatest value comes first.
    pub(crate) descending: bool,
    /// Whether NULLs come before the values. Only hypothetical-set functions count NULLs.
    pub(crate) nulls_first: bool,
}

impl Direction {
    /// The direction of `ORDER BY x` and `ORDER BY x DESC`: NULL is above all values.
    pub(crate) fn of(descending: bool) -> Self {
        Self {
            descending,
            nulls_first: descending,
        }
    }
}

/// What a call asks of a column.
#[derive(Debug)]
pub(super) struct RankSpec {
    sql_name: RankName,
    direction: Direction,
    order: Order,
    cuts: Cuts,
    edges: Edges,
    counter: Box<dyn CountCells>,
}

/// Counts values between the cuts.
pub(super) trait CountCells: Debug + Send + Sync {
    /// Adds the number of values in each cell to `counts`, which has one for each cell. No value is NULL.
    ///
    /// # Errors
    /// An internal error for values of another type.
    fn count(&self, values: &ArrayRef, counts: &mut [u64]) -> Result<()>;

    /// Appends the cell of each value. No value is NULL.
    ///
    /// # Errors
    /// An internal error for values of another type.
    fn numbers(&self, values: &ArrayRef, numbers: &mut Vec<u16>) -> Result<()>;

    /// Memory held, in bytes.
    fn size(&self) -> usize;
}

/// Cells of keys of one width.
struct KeyCells<K>(EdgeCells<K>);

impl<K> Debug for KeyCells<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyCells")
    }
}

impl<K: crate::key::Key> CountCells for KeyCells<K> {
    fn count(&self, values: &ArrayRef, counts: &mut [u64]) -> Result<()> {
        self.0.count(values, counts)
    }

    fn numbers(&self, values: &ArrayRef, numbers: &mut Vec<u16>) -> Result<()> {
        self.0.numbers(values, numbers)
    }

    fn size(&self) -> usize {
        self.0.size()
    }
}

/// Cells of byte strings.
#[derive(Debug)]
struct ByteCells {
    spec: ByteSpec,
    edges: Vec<Vec<u8>>,
}

impl ByteCells {
    fn each(&self, values: &ArrayRef, mut each: impl FnMut(usize)) -> Result<()> {
        self.spec.each(values.as_ref(), None, |bytes| {
            each(self.edges.partition_point(|edge| edge.as_slice() <= bytes));
            Ok(())
        })
    }
}

impl CountCells for ByteCells {
    fn count(&self, values: &ArrayRef, counts: &mut [u64]) -> Result<()> {
        self.each(values, |cell| counts[cell] += 1)
    }

    fn numbers(&self, values: &ArrayRef, numbers: &mut Vec<u16>) -> Result<()> {
        self.each(values, |cell| numbers.push(cell as u16))
    }

    fn size(&self) -> usize {
        self.edges
            .iter()
            .map(|edge| edge.capacity() + size_of::<Vec<u8>>())
            .sum()
    }
}

impl RankSpec {
    /// What a call of `sql_name` asks of values of a type.
    ///
    /// # Errors
    /// A planning error for too many constants; an execution error for cuts of another type.
    pub(super) fn try_new(
        sql_name: RankName,
        direction: Direction,
        data_type: &DataType,
        cuts: Cuts,
    ) -> Result<Self> {
        let order = Order::try_new(data_type)?;
        let edges = Edges::try_new(&order, &cuts)?;
        let counter: Box<dyn CountCells> = match (&order, &edges) {
            (Order::Keys(spec), Edges::Keys(edges)) => with_key!(spec.width(), K => {
                Box::new(KeyCells::<K>(EdgeCells::new(spec.clone(), edges.clone())))
            }),
            (Order::Bytes(spec), Edges::Bytes(edges)) => Box::new(ByteCells {
                spec: spec.clone(),
                edges: edges.clone(),
            }),
            _ => return datafusion::common::internal_err!("edges of another order than the values'"),
        };
        Ok(Self {
            sql_name,
            direction,
            order,
            cuts,
            edges,
            counter,
        })
    }

    /// How values are ordered.
    pub(super) fn order(&self) -> &Order {
        &self.order
    }

    /// Counts values between the cuts.
    pub(super) fn counter(&self) -> &dyn CountCells {
        self.counter.as_ref()
    }

    /// Whether NULLs are rows that count.
    pub(super) fn counts_nulls(&self) -> bool {
        self.sql_name.is_hypothetical()
    }

    /// Number of cells between the cuts.
    pub(super) fn cells(&self) -> usize {
        self.edges.cells()
    }

    /// Number of counts of a group: one for each cell, and one for NULLs.
    pub(super) fn width(&self) -> usize {
        self.cells() + 1
    }

    /// Memory of the specification, in bytes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.cuts.list.len() * size_of::<Option<Cut>>() + self.counter.size()
    }

    /// The answers of groups, each given by its [`Self::width`] counts.
    ///
    /// # Errors
    /// An error of Arrow for more answers than a list can have.
    pub(super) fn answers<'a>(&self, groups: impl Iterator<Item = &'a [u64]>) -> Result<ArrayRef> {
        let cuts: Vec<Option<usize>> = self
            .cuts
            .list
            .iter()
            .map(|cut| cut.as_ref().map(|cut| self.edges.cells_before(cut)))
            .collect();
        let mut answers = Answers::new(self.sql_name.answer_type());
        let (mut lengths, mut valid) = (Vec::new(), Vec::new());
        let mut group = Group::default();
        for counts in groups {
            group.fill(counts, self.cells());
            let is_valid = self.sql_name != RankName::ExactCdf || group.values > 0;
            valid.push(is_valid);
            lengths.push(if is_valid { cuts.len() } else { 0 });
            if is_valid || !self.cuts.is_list {
                cuts.iter()
                    .for_each(|cut| answers.push(self.answer(&group, *cut)));
            }
        }
        let answers = answers.finish();
        if !self.cuts.is_list {
            return Ok(answers);
        }
        let item = Arc::new(Field::new_list_field(self.sql_name.answer_type(), true));
        let offsets = OffsetBuffer::from_lengths(lengths);
        let nulls = NullBuffer::from(valid);
        Ok(Arc::new(ListArray::try_new(item, offsets, answers, Some(nulls))?))
    }

    /// The answer for one constant: `cut` is the number of cells before it, in ascending order.
    fn answer(&self, group: &Group, cut: Option<usize>) -> Answer {
        let Direction {
            descending,
            nulls_first,
        } = self.direction;
        let is_hypothetical = self.sql_name.is_hypothetical();
        let nulls_before = if is_hypothetical && nulls_first {
            group.nulls
        } else {
            0
        };
        // Values before the constant, and where the function counts them those that are equal to it: the cut is behind these.
        let before = match cut {
            Some(cells) => {
                let below = group.below[cells];
                nulls_before + if descending { group.values - below } else { below }
            }
            None if !is_hypothetical => return Answer::Null,
            None => {
                let values = if nulls_first { 0 } else { group.values };
                values
                    + if self.sql_name.counts_equal() {
                        group.nulls
                    } else {
                        0
                    }
            }
        };
        let rows = group.values + group.nulls;
        match self.sql_name {
            RankName::ExactRank => Answer::Count(before),
            RankName::ExactCdf => share(before, group.values),
            RankName::Rank | RankName::DenseRank => Answer::Count(before + 1),
            RankName::PercentRank if rows == 0 => Answer::Share(0.0),
            RankName::PercentRank => share(before, rows),
            RankName::CumeDist => share(before + 1, rows + 1),
        }
    }
}

/// A fraction of counts; NULL of nothing.
fn share(part: u64, whole: u64) -> Answer {
    match whole {
        0 => Answer::Null,
        _ => Answer::Share(part as f64 / whole as f64),
    }
}

/// The counts of a group.
#[derive(Default)]
struct Group {
    /// Number of values in the first cells: in none, in one, and so on.
    below: Vec<u64>,
    /// Number of all values.
    values: u64,
    /// Number of NULLs.
    nulls: u64,
}

impl Group {
    /// Takes the counts of the next group, of which the first `cells` are of values.
    fn fill(&mut self, counts: &[u64], cells: usize) {
        self.below.clear();
        self.values = 0;
        self.below.push(0);
        for count in &counts[..cells] {
            self.values += count;
            self.below.push(self.values);
        }
        self.nulls = counts[cells..].iter().sum();
    }
}

/// One answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Count(u64),
    Share(f64),
    Null,
}

/// A column of answers of one type.
enum Answers {
    Counts(UInt64Builder),
    Shares(Float64Builder),
}

impl Answers {
    fn new(data_type: DataType) -> Self {
        if data_type == DataType::UInt64 {
            Answers::Counts(UInt64Builder::new())
        } else {
            Answers::Shares(Float64Builder::new())
        }
    }

    fn push(&mut self, answer: Answer) {
        match (self, answer) {
            (Answers::Counts(builder), Answer::Count(count)) => builder.append_value(count),
            (Answers::Shares(builder), Answer::Share(share)) => builder.append_value(share),
            (Answers::Counts(builder), _) => builder.append_null(),
            (Answers::Shares(builder), _) => builder.append_null(),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Answers::Counts(mut builder) => Arc::new(builder.finish()),
            Answers::Shares(mut builder) => Arc::new(builder.finish()),
        }
    }
}

/// The type of an answer.
pub(super) fn result_type(sql_name: RankName, is_list: bool) -> DataType {
    answer_type(sql_name.answer_type(), is_list)
}
