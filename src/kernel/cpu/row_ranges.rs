//! Which of consecutive ranges a row lies in, found without a search where they are about equally long.

/// Consecutive ranges of rows, from row 0 on. None is empty.
#[derive(Debug, Default)]
pub(crate) struct RowRanges {
    /// The row behind each range.
    ends: Vec<usize>,
    /// The range of the first row of each block of `1 << shift` rows.
    blocks: Vec<u32>,
    shift: u32,
}

impl RowRanges {
    /// No ranges yet, of about so many rows each.
    pub(crate) fn of_about(rows: usize) -> Self {
        Self {
            shift: rows.max(1).ilog2(),
            ..Self::default()
        }
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.ends.capacity() * size_of::<usize>() + self.blocks.capacity() * size_of::<u32>()
    }

    /// Adds a range of `rows` rows behind the others; nothing if that is 0.
    pub(crate) fn push(&mut self, rows: usize) {
        if rows == 0 {
            return;
        }
        let end = self.rows() + rows;
        let blocks = ((end - 1) >> self.shift) + 1;
        self.blocks.resize(blocks, self.ends.len() as u32);
        self.ends.push(end);
    }

    /// Forgets all ranges.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.blocks.clear();
    }

    /// Gives back memory for further ranges.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.ends.shrink_to_fit();
        self.blocks.shrink_to_fit();
    }

    /// The number of the range that a row lies in, and its first row; `None` for a row behind all of them.
    #[inline]
    pub(crate) fn find(&self, row: usize) -> Option<(usize, usize)> {
        let first = *self.blocks.get(row >> self.shift)? as usize;
        let at = first + self.ends[first..].iter().position(|end| *end > row)?;
        Some((at, at.checked_sub(1).map_or(0, |before| self.ends[before])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_ranges_of_any_length() {
        for about in [0, 1, 5, 64, 1000] {
            let mut ranges = RowRanges::of_about(about);
            assert_eq!(ranges.find(0), None);
            for round in 0..2 {
                let lengths = [3, 0, 1, 700, 1, 1, 64, 0, 63, 5, 2000, 1];
                let mut expected = Vec::new();
                for length in lengths {
                    let (number, first) = (ranges.len(), ranges.rows());
                    ranges.push(length);
                    expected.resize(expected.len() + length, (number, first));
                }
                for (row, range) in expected.iter().enumerate() {
                    assert_eq!(
                        ranges.find(row),
                        Some(*range),
                        "{row}, about {about}, round {round}"
                    );
                }
                assert_eq!(
                    (ranges.find(expected.len()), ranges.rows()),
                    (None, expected.len())
                );
                ranges.clear();
            }
        }
    }
}
