//! Rejection of rows by their first `ORDER BY` column: it alone rules out most rows.

use datafusion::arrow::array::Array;
use datafusion::common::{Result, internal_datafusion_err};

use super::filter::{BLOCK, CHUNK, Masks, for_each_bit, passing};
use crate::cells::simd::{Kernel, dispatch};
use crate::key::{Encoding, Key, KeyBits, LeadBound, Width, WordBound, words};

/// Encodes raw words of a column so that larger ones come earlier in the order.
struct EncodeDescending<'a, W> {
    encoding: Encoding,
    ascending: bool,
    raw: &'a [W],
    values: &'a mut [W],
}

impl<W: Key> Kernel for EncodeDescending<'_, W> {
    #[inline(always)]
    fn run(self) {
        self.encoding.encode(self.raw, self.values);
        if self.ascending {
            self.values
                .iter_mut()
                .for_each(|value| *value = W::MAX.minus(*value));
        }
    }
}

impl LeadBound<'_> {
    /// Appends the row indices of the values of a first column that reach the bound.
    ///
    /// # Errors
    /// An internal error if the column does not have the type that the keys are made of.
    pub(crate) fn append_passing(&self, column: &dyn Array, row_indices: &mut Vec<u32>) -> Result<()> {
        let rows = u32::try_from(column.len())
            .map_err(|_| internal_datafusion_err!("a batch of {} rows", column.len()))?;
        let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let is_valid = |row: u32| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row as usize));
        match self.values {
            None if self.nulls => row_indices.extend((0..rows).filter(|row| !is_valid(*row))),
            None => {}
            Some(WordBound::Any) if self.nulls => row_indices.extend(0..rows),
            Some(WordBound::Any) => row_indices.extend((0..rows).filter(|row| is_valid(*row))),
            Some(WordBound::Word { word, ties }) => {
                let from = row_indices.len();
                let raw = self.spec.raw(column)?;
                match self.spec.width() {
                    Width::W32 => self.append_reaching::<u32>(words(&raw), word, ties, row_indices),
                    Width::W64 => self.append_reaching::<u64>(words(&raw), word, ties, row_indices),
                    Width::W128 => self.append_reaching::<u128>(words(&raw), word, ties, row_indices),
                }
                if nulls.is_some() {
                    self.correct_nulls(from, rows, &is_valid, row_indices);
                }
            }
        }
        Ok(())
    }

    /// Appends the row indices of words that reach `least`. Rows whose value is NULL may be among them.
    fn append_reaching<W: Key>(&self, raw: &[W], least: KeyBits, ties: bool, row_indices: &mut Vec<u32>) {
        let least = W::from_bits(least);
        let (mut values, mut masks) = ([W::default(); CHUNK], Masks::default());
        for (from, chunk) in (0..).step_by(CHUNK).zip(raw.chunks(CHUNK)) {
            let values = &mut values[..chunk.len()];
            dispatch(EncodeDescending {
                encoding: self.spec.encoding(),
                ascending: !self.descending,
                raw: chunk,
                values,
            });
            passing(values, least, ties, &mut masks);
            let blocks = chunk.len().div_ceil(BLOCK);
            for (mask, at) in masks[..blocks].iter().zip((from..).step_by(BLOCK)) {
                for_each_bit(*mask, |bit| row_indices.push((at + bit) as u32));
            }
        }
    }

    /// Corrects the row indices from `row_indices[from]` on for NULLs: adds or removes the rows whose value is NULL.
    fn correct_nulls(
        &self,
        from: usize,
        rows: u32,
        is_valid: &dyn Fn(u32) -> bool,
        row_indices: &mut Vec<u32>,
    ) {
        if !self.nulls {
            let mut kept = from;
            for at in from..row_indices.len() {
                row_indices[kept] = row_indices[at];
                kept += usize::from(is_valid(row_indices[at]));
            }
            row_indices.truncate(kept);
            return;
        }
        let valid = row_indices.split_off(from);
        let mut valid = valid.into_iter().filter(|row| is_valid(*row)).peekable();
        for row in 0..rows {
            let passes = valid.next_if_eq(&row).is_some() || !is_valid(row);
            if passes {
                row_indices.push(row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Float64Array, Int32Array};
    use datafusion::arrow::compute::SortOptions;

    use super::*;
    use crate::key::{SortColumn, SortKeys, samples};

    fn column(values: &ArrayRef, options: SortOptions) -> SortColumn {
        SortColumn {
            data_type: values.data_type().clone(),
            nullable: values.null_count() > 0,
            options,
            total_order: true,
        }
    }

    fn all_options() -> [SortOptions; 4] {
        [(false, false), (false, true), (true, false), (true, true)].map(|(descending, nulls_first)| {
            SortOptions {
                descending,
                nulls_first,
            }
        })
    }

    /// Takes each row as a bound. Rows that reach it pass; by one column no other row does. The values of its key make
    /// the key again.
    fn check<K: Key>(keys: &SortKeys, columns: &[ArrayRef]) {
        let all = keys.keys::<K>(columns).unwrap();
        for bound in &all {
            for ties in [true, false] {
                let lead = keys.lead_bound(bound.to_bits(), ties).unwrap();
                let mut row_indices = vec![77];
                lead.append_passing(columns[0].as_ref(), &mut row_indices)
                    .unwrap();
                assert_eq!(row_indices.remove(0), 77);
                assert!(row_indices.is_sorted());
                for (row, key) in all.iter().enumerate() {
                    let reaches = key > bound || (ties && key == bound);
                    let passes = row_indices.binary_search(&(row as u32)).is_ok();
                    assert!(passes || !reaches, "{columns:?}: {row} for {bound:?}");
                    assert!(
                        columns.len() > 1 || passes == reaches,
                        "{columns:?}: {row} for {bound:?}"
                    );
                }
            }
            let values = keys.values(bound.to_bits()).unwrap();
            let values: Vec<ArrayRef> = values.iter().map(|value| value.to_array().unwrap()).collect();
            assert_eq!(keys.keys::<K>(&values).unwrap(), [*bound], "{values:?}");
        }
    }

    fn check_any(columns: &[ArrayRef], options: SortOptions) {
        let spec: Vec<_> = columns.iter().map(|values| column(values, options)).collect();
        let keys = SortKeys::try_new(&spec).unwrap();
        if !keys.is_exact() {
            assert!(keys.lead_bound(0, true).is_none() && keys.values(0).is_err());
            return;
        }
        match keys.width() {
            Width::W32 => check::<u32>(&keys, columns),
            Width::W64 => check::<u64>(&keys, columns),
            Width::W128 => check::<u128>(&keys, columns),
        }
    }

    #[test]
    fn rows_pass_that_reach_a_bound() {
        let many = (0..3000).map(|i: i32| (i % 97 > 3).then_some(i * 7919 % 41));
        let many: ArrayRef = Arc::new(Int32Array::from_iter(many));
        let floats = (0..3000).map(|i| (i % 13 > 0).then_some([1.5, f64::NAN, -f64::NAN, -0.0, 0.0][i % 5]));
        let floats: ArrayRef = Arc::new(Float64Array::from_iter(floats));
        for options in all_options() {
            for values in samples() {
                check_any(&[values], options);
            }
            let some = |values: &ArrayRef| values.slice(5, 1300);
            check_any(&[some(&many)], options);
            check_any(&[some(&floats), some(&many)], options);
        }
    }
}
