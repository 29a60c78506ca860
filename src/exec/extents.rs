//! Extents: consecutive rows of a file, of which statistics give the number of values and their bounds. A read leaves out the rows of an
//! extent whose values all count for one cell.

use std::ops::Range;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};

use crate::cells::Bracket;
use crate::kernel::round::{Reply, Request};
use crate::key::KeyBits;

/// Consecutive rows of a scan: a page of the column, or a row group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    /// Positions among all rows of the scan.
    pub(super) rows: Range<u64>,
    /// What the statistics say of the values there; `None`: nothing that can be trusted.
    pub(super) known: Option<KnownValues>,
}

/// Values that are known without being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownValues {
    /// Number of values that are not NULL.
    pub(super) values: u64,
    /// Keys that no value is less, or greater, than.
    pub(super) bounds: Bracket,
}

/// The extents of a column, in the order of the rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Extents(Vec<Extent>);

/// What one read has to read, and what it need not.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Ranges of positions to read, ascending.
    pub(super) rows: Vec<Range<u64>>,
    /// Number of rows that are not read.
    pub(super) rows_left_out: u64,
    /// Number of values in rows that are not read.
    pub(super) values: u64,
    /// Cells of values in rows that are not read, with the number of these values.
    pub(super) counted: Vec<(u32, u64)>,
}

impl Reading {
    /// Counts the values that were not read.
    ///
    /// # Errors
    /// An internal error for the reply to another request.
    pub(super) fn add_to(&self, reply: &mut Reply) -> Result<()> {
        match reply {
            Reply::Counts { counts, .. } => {
                for (cell, values) in &self.counted {
                    counts[*cell as usize] += values;
                }
                Ok(())
            }
            Reply::Extracted(_) if self.counted.is_empty() => Ok(()),
            _ => internal_err!("values are counted that were not asked for"),
        }
    }
}

impl Extents {
    /// Extents in the order of their rows.
    pub(super) fn new(extents: Vec<Extent>) -> Self {
        Self(extents)
    }

    /// Number of values of the whole column; `None` if some statistics do not say it.
    pub(super) fn values(&self) -> Option<u64> {
        self.0.iter().map(|extent| Some(extent.known?.values)).sum()
    }

    /// The least and the greatest bound of values; `None` if there is none.
    pub(super) fn ends(&self) -> Option<[KeyBits; 2]> {
        let known = self.0.iter().filter_map(|extent| extent.known);
        let bounds = known.filter(|known| known.values > 0).map(|known| known.bounds);
        let ends = bounds.map(|bounds| [bounds.first, bounds.last]);
        ends.reduce(|[least, greatest], [first, last]| [least.min(first), greatest.max(last)])
    }

    /// For each rank (from 1, ascending) a bracket that is proved to hold its key; `None` if some extent is unknown.
    pub(super) fn brackets(&self, ranks: &[u64]) -> Option<Vec<Bracket>> {
        let known: Option<Vec<KnownValues>> = self.0.iter().map(|extent| extent.known).collect();
        let known = known?;
        // At most the values of all extents that begin at or below a key are at or below it, and at least those of all extents that end
        // there.
        let at = |key: fn(&KnownValues) -> KeyBits| {
            let mut ends: Vec<(KeyBits, u64)> =
                known.iter().map(|known| (key(known), known.values)).collect();
            ends.sort_unstable();
            let mut sum = 0;
            for end in &mut ends {
                sum += end.1;
                end.1 = sum;
            }
            ends
        };
        let (firsts, lasts) = (at(|known| known.bounds.first), at(|known| known.bounds.last));
        let of_rank = |ends: &[(KeyBits, u64)], rank: u64| {
            let reached = ends.partition_point(|end| end.1 < rank);
            ends.get(reached).map(|end| end.0)
        };
        let bracket = |rank: &u64| {
            Some(Bracket {
                first: of_rank(&firsts, *rank)?,
                last: of_rank(&lasts, *rank)?,
            })
        };
        ranks.iter().map(bracket).collect()
    }

    /// Number of values in extents that may hold a key of the brackets, which ascend.
    pub(super) fn values_touching(&self, brackets: &[Bracket]) -> u64 {
        let touching = self.0.iter().filter_map(|extent| extent.known);
        let touching = touching.filter(|known| known.bounds.touches_any(brackets));
        touching.map(|known| known.values).sum()
    }

    /// What a read for `request` has to read.
    pub(super) fn reading(&self, request: &Request) -> Reading {
        let mut reading = Reading::default();
        for Extent { rows, known } in &self.0 {
            let cell = known.and_then(|known| left_out(request, &known));
            match (cell, known) {
                (Some(cell), Some(known)) => {
                    reading.rows_left_out += rows.end - rows.start;
                    reading.values += known.values;
                    reading.counted.extend(cell.map(|cell| (cell, known.values)));
                }
                _ => match reading.rows.last_mut() {
                    Some(last) if last.end == rows.start => last.end = rows.end,
                    _ => reading.rows.push(rows.clone()),
                },
            }
        }
        reading
    }
}

/// Whether the statistics of a type's values bound all of them: those of floating-point numbers leave NaN out.
pub(super) fn are_trusted(data_type: &DataType) -> bool {
    !data_type.is_floating() && data_type.primitive_width().is_some()
}

/// Whether the values need not be read for a request, and the cell that all of them count for, if any. `None`: they must be read.
fn left_out(request: &Request, known: &KnownValues) -> Option<Option<u32>> {
    if known.values == 0 {
        return Some(None);
    }
    let bounds = &known.bounds;
    match request {
        Request::Extract { brackets } => (!bounds.touches_any(brackets.as_slice())).then_some(None),
        Request::Count { within, .. } if !bounds.touches_any(within.as_slice()) => Some(None),
        Request::Count { cells, within, keep } => {
            let (first, last) = (cells.cell(bounds.first)?, cells.cell(bounds.last)?);
            let is_inside = within
                .as_slice()
                .iter()
                .any(|bracket| bracket.first <= bounds.first && bounds.last <= bracket.last);
            (first == last && is_inside && keep.binary_search(&first).is_err()).then_some(Some(first))
        }
        Request::Sample { .. } | Request::Sketch { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Brackets, Cells, Edges};
    use crate::key::Width;

    /// Extents of 10 rows each; `None`: nothing is known. Values and bounds of the others.
    fn extents(list: &[Option<(u64, KeyBits, KeyBits)>]) -> Extents {
        let extents = list.iter().enumerate().map(|(index, known)| Extent {
            rows: 10 * index as u64..10 * (index as u64 + 1),
            known: known.map(|(values, first, last)| KnownValues {
                values,
                bounds: Bracket { first, last },
            }),
        });
        Extents::new(extents.collect())
    }

    #[test]
    fn brackets_hold_the_keys_of_all_possible_values() {
        let bounds = [(3, 5, 9), (2, 0, 5), (4, 8, 8), (0, 0, 0), (1, 20, 30)];
        let list: Vec<_> = bounds.into_iter().map(Some).collect();
        let extents = extents(&list);
        assert_eq!(extents.values(), Some(10));
        let brackets = extents.brackets(&(1..=10).collect::<Vec<_>>()).unwrap();
        // The least and the greatest sorted values that the extents permit.
        let sorted = |key: fn(&(u64, KeyBits, KeyBits)) -> KeyBits| {
            let keys = bounds
                .iter()
                .flat_map(|extent| (0..extent.0).map(move |_| key(extent)));
            let mut keys: Vec<KeyBits> = keys.collect();
            keys.sort_unstable();
            keys
        };
        let (least, greatest) = (sorted(|extent| extent.1), sorted(|extent| extent.2));
        for (rank, bracket) in brackets.iter().enumerate() {
            assert_eq!(
                (bracket.first, bracket.last),
                (least[rank], greatest[rank]),
                "{rank}"
            );
        }
    }

    #[test]
    fn unknown_extents_prove_nothing() {
        let extents = extents(&[Some((10, 1, 2)), None]);
        assert_eq!((extents.values(), extents.brackets(&[1])), (None, None));
    }

    #[test]
    fn only_values_of_one_cell_that_is_not_kept_are_left_out() {
        let extents = extents(&[
            Some((10, 0, 4)),
            Some((7, 5, 9)),
            Some((10, 4, 5)),
            None,
            Some((0, 0, 0)),
            Some((9, 10, 99)),
        ]);
        let count = |keep: Vec<u32>| Request::Count {
            cells: Cells::Edges(Edges::try_new(vec![5, 10]).unwrap()),
            within: Brackets::all(Width::W32),
            keep,
        };
        let reading = extents.reading(&count(vec![1]));
        assert_eq!(reading.rows, [Range { start: 10, end: 40 }]);
        assert_eq!((reading.rows_left_out, reading.values), (30, 19));
        assert_eq!(reading.counted, [(0, 10), (2, 9)]);
        assert_eq!(
            extents.reading(&count(vec![])).rows,
            [Range { start: 20, end: 40 }]
        );

        let brackets = Brackets::try_new(vec![Bracket { first: 6, last: 12 }]).unwrap();
        let reading = extents.reading(&Request::Extract { brackets });
        assert_eq!(reading.rows, [10..20, 30..40, 50..60]);
        assert_eq!((reading.values, reading.counted), (20, vec![]));
    }
}
