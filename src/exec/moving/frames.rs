//! The frames of rows that are sorted by `PARTITION BY` and `ORDER BY`.

use std::cmp::Ordering;
use std::ops::Range;

use datafusion::arrow::array::{ArrayRef, DynComparator, make_comparator};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::arrow::compute::{SortColumn, SortOptions};
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};

/// The rows among which frames are looked for.
pub(super) struct FramedRows<'a> {
    /// Values of `ORDER BY`.
    pub(super) order: &'a [SortColumn],
    /// The rows of each group of `PARTITION BY`, in order.
    pub(super) groups: &'a [Range<usize>],
    /// Whether no further rows belong to the last group.
    pub(super) is_last_ended: bool,
}

impl FramedRows<'_> {
    /// The frames of row `from` and those after it, as far as they are complete. Each begins and ends nowhere before the last one; an empty
    /// one may begin anywhere between.
    ///
    /// # Errors
    /// Those of adding an offset to values of `ORDER BY`.
    pub(super) fn frames(&self, frame: &WindowFrame, from: usize) -> Result<Vec<Range<usize>>> {
        let mut frames = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            if group.end <= from {
                continue;
            }
            let group = Group {
                rows: group.clone(),
                is_ended: self.is_last_ended || index + 1 < self.groups.len(),
            };
            let rows = group.rows.start.max(from)..group.rows.end;
            let mut start = End::try_new(frame, &frame.start_bound, Side::Start, self.order, &rows)?;
            let mut end = End::try_new(frame, &frame.end_bound, Side::End, self.order, &rows)?;
            let peers = match frame.units {
                WindowFrameUnits::Groups => self.peers(&group)?,
                WindowFrameUnits::Rows | WindowFrameUnits::Range => Vec::new(),
            };
            let all = rows.len();
            let known = rows.map_while(|row| {
                let end = end.at(row, &group, &peers)?;
                // A start that is not known yet lies behind the end: the frame is empty.
                let start = start.at(row, &group, &peers).map_or(end, |start| start.min(end));
                Some(start..end)
            });
            let before = frames.len();
            frames.extend(known);
            if frames.len() - before < all {
                break;
            }
        }
        Ok(frames)
    }

    /// The peers of `ORDER BY` in a group: ranges of rows with equal values.
    fn peers(&self, group: &Group) -> Result<Vec<Range<usize>>> {
        let start = group.rows.start;
        let order: Vec<SortColumn> = self
            .order
            .iter()
            .map(|column| SortColumn {
                values: column.values.slice(start, group.rows.len()),
                options: column.options,
            })
            .collect();
        let peers = evaluate_partition_ranges(group.rows.len(), &order)?;
        Ok(peers
            .into_iter()
            .map(|peers| start + peers.start..start + peers.end)
            .collect())
    }
}

/// The rows of one group of `PARTITION BY`.
struct Group {
    rows: Range<usize>,
    /// Whether no further rows belong to it.
    is_ended: bool,
}

impl Group {
    /// Its end, once it is known.
    fn end(&self) -> Option<usize> {
        self.is_ended.then_some(self.rows.end)
    }

    /// A row, or the end where that is known to come first.
    fn clamped(&self, row: usize) -> Option<usize> {
        if row <= self.rows.end {
            Some(row)
        } else {
            self.end()
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The first row of a frame.
    Start,
    /// The row after the last one.
    End,
}

/// One end of the frames of consecutive rows.
enum End {
    /// The start of the group.
    First,
    /// The end of the group.
    Last,
    /// The row at this distance, and one more for the end of a frame.
    Rows(i64),
    /// The peers at this distance, of which the first row, or the row after the last one.
    Peers { distance: i64, side: Side, row: usize },
    /// The first row whose values are not less, or are greater, than the target of a row.
    Values(Search),
}

impl End {
    /// The ends of the frames of `rows`, all of one group.
    fn try_new(
        frame: &WindowFrame,
        bound: &WindowFrameBound,
        side: Side,
        order: &[SortColumn],
        rows: &Range<usize>,
    ) -> Result<Self> {
        let (offset, is_preceding) = match bound {
            WindowFrameBound::Preceding(offset) if offset.is_null() => return Ok(End::First),
            WindowFrameBound::Following(offset) if offset.is_null() => return Ok(End::Last),
            WindowFrameBound::Preceding(offset) => (Some(offset), true),
            WindowFrameBound::Following(offset) => (Some(offset), false),
            WindowFrameBound::CurrentRow => (None, false),
        };
        Ok(match frame.units {
            WindowFrameUnits::Rows => {
                End::Rows(distance(offset, is_preceding)?.saturating_add(i64::from(side == Side::End)))
            }
            WindowFrameUnits::Groups => End::Peers {
                distance: distance(offset, is_preceding)?,
                side,
                row: 0,
            },
            WindowFrameUnits::Range => End::Values(Search::try_new(order, offset, is_preceding, side, rows)?),
        })
    }

    /// The end of the frame of `row`, where it is known. Rows ascend from call to call.
    fn at(&mut self, row: usize, group: &Group, peers: &[Range<usize>]) -> Option<usize> {
        match self {
            End::First => Some(group.rows.start),
            End::Last => group.end(),
            End::Rows(distance) => {
                let at = (row as i64).saturating_add(*distance);
                group.clamped(at.max(group.rows.start as i64) as usize)
            }
            End::Peers {
                distance,
                side,
                row: own,
            } => {
                while peers[*own].end <= row {
                    *own += 1;
                }
                let at = (*own as i64).saturating_add(*distance);
                match (usize::try_from(at).ok(), side) {
                    (None, _) => Some(group.rows.start),
                    (Some(at), Side::Start) if at < peers.len() => Some(peers[at].start),
                    (Some(at), Side::End) if at + 1 < peers.len() => Some(peers[at].end),
                    (Some(_), _) => group.end(),
                }
            }
            End::Values(search) => search.at(row, group),
        }
    }
}

/// The distance of a frame of `ROWS` or `GROUPS`.
fn distance(offset: Option<&ScalarValue>, is_preceding: bool) -> Result<i64> {
    let offset = match offset {
        None => 0,
        Some(ScalarValue::UInt64(Some(offset))) => i64::try_from(*offset).unwrap_or(i64::MAX),
        Some(other) => return internal_err!("{other} is not a number of rows"),
    };
    Ok(if is_preceding { -offset } else { offset })
}

/// A search for the end of frames of `RANGE`, from row to row.
struct Search {
    /// Compares a row's values with the target of another row, for each column of `ORDER BY`.
    comparators: Vec<DynComparator>,
    /// The row of the first target.
    first: usize,
    /// Whether a row's target is beyond all values of its type.
    is_beyond: Vec<bool>,
    is_preceding: bool,
    side: Side,
    /// The last row that was found.
    found: usize,
}

impl Search {
    /// Ends at `offset` from the values of each of `rows`; `None`: at the rows' own values.
    fn try_new(
        order: &[SortColumn],
        offset: Option<&ScalarValue>,
        is_preceding: bool,
        side: Side,
        rows: &Range<usize>,
    ) -> Result<Self> {
        let own = |column: &SortColumn| column.values.slice(rows.start, rows.len());
        let (mut targets, mut is_beyond): (Vec<ArrayRef>, _) = (order.iter().map(own).collect(), Vec::new());
        if let Some(offset) = offset {
            let [column] = order else {
                return exec_err!(
                    "RANGE with an offset needs one column in ORDER BY, not {}",
                    order.len()
                );
            };
            let is_added = is_preceding == column.options.unwrap_or_default().descending;
            (targets[0], is_beyond) = moved(&targets[0], offset, is_added)?;
        }
        let comparators = order.iter().zip(&targets).map(|(column, target)| {
            let options: SortOptions = column.options.unwrap_or_default();
            Ok(make_comparator(column.values.as_ref(), target.as_ref(), options)?)
        });
        Ok(Self {
            comparators: comparators.collect::<Result<_>>()?,
            first: rows.start,
            is_beyond,
            is_preceding,
            side,
            found: 0,
        })
    }

    fn at(&mut self, row: usize, group: &Group) -> Option<usize> {
        self.found = self.found.max(group.rows.start);
        let target = row - self.first;
        if self.is_beyond.get(target) == Some(&true) {
            return if self.is_preceding {
                Some(self.found)
            } else {
                group.end()
            };
        }
        while self.found < group.rows.end && self.is_before(self.found, target) {
            self.found += 1;
        }
        if self.found == group.rows.end {
            return group.end();
        }
        Some(self.found)
    }

    /// Whether a row lies before the end that a target means.
    fn is_before(&self, row: usize, target: usize) -> bool {
        let compared = self.comparators.iter().map(|compare| compare(row, target));
        let compared = compared.fold(Ordering::Equal, Ordering::then);
        match self.side {
            Side::Start => compared.is_lt(),
            Side::End => compared.is_le(),
        }
    }
}

/// Each value with `offset` added or subtracted, and whether that is beyond all values of the type. NULL stays NULL. An unsigned number ends
/// at 0, as in DataFusion.
fn moved(values: &ArrayRef, offset: &ScalarValue, is_added: bool) -> Result<(ArrayRef, Vec<bool>)> {
    if is_added || !values.data_type().is_unsigned_integer() {
        let offset = offset.to_scalar()?;
        let all = if is_added {
            numeric::add(values, &offset)
        } else {
            numeric::sub(values, &offset)
        };
        if let Ok(all) = all {
            return Ok((all, Vec::new()));
        }
    }
    let mut is_beyond = vec![false; values.len()];
    let each = is_beyond.iter_mut().enumerate().map(|(row, is_beyond)| {
        let value = ScalarValue::try_from_array(values, row)?;
        if value.is_null() {
            return Ok(value);
        }
        let moved = if is_added {
            value.add_checked(offset)
        } else if value.is_unsigned() && value < *offset {
            value.sub(&value)
        } else {
            value.sub_checked(offset)
        };
        *is_beyond = moved.is_err();
        Ok(moved.unwrap_or(value))
    });
    let each = each.collect::<Result<Vec<ScalarValue>>>()?;
    Ok((ScalarValue::iter_to_array(each)?, is_beyond))
}
