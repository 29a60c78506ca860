//! Bounds of keys: the condition that a bound puts on the first `ORDER BY` column, and the values that a key stands
//! for.
//!
//! Most rows are ruled out by their first column alone, so that neither their other columns are read nor a key is made
//! of them.

use datafusion::arrow::array::new_null_array;
use datafusion::common::{Result, ScalarValue, internal_err};

use super::sort::{Field, SortKeys};
use super::{KeyBits, KeySpec};

/// The condition on a row's first column for its key to reach a bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeadBound<'a> {
    pub(crate) spec: &'a KeySpec,
    pub(crate) descending: bool,
    /// The condition on values; `None`: no value passes.
    pub(crate) values: Option<WordBound>,
    /// Whether NULLs pass.
    pub(crate) nulls: bool,
}

/// The condition on the word of a value, where larger words come earlier.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WordBound {
    /// Every word passes.
    Any,
    /// Words above `word` pass; with `ties`, `word` itself too.
    Word { word: KeyBits, ties: bool },
}

impl SortKeys {
    /// The condition on the first column of a row for its key to be at least `bound`; with `ties` false, above it. Some
    /// more rows may pass, but none less. `None` if keys do not hold all columns.
    pub(crate) fn lead_bound(&self, bound: KeyBits, ties: bool) -> Option<LeadBound<'_>> {
        let fields = self.fields()?;
        let field = fields.first()?;
        // Among equal first columns the others decide.
        let ties = ties || fields.len() > 1;
        let word = field.word(bound);
        let mut lead = LeadBound {
            spec: &field.spec,
            descending: field.descending,
            values: Some(WordBound::Word { word, ties }),
            nulls: false,
        };
        let Some(bit) = field.null_bit else {
            return Some(lead);
        };
        let flag = bound >> bit & 1 == 1;
        let (valid, null) = (!field.nulls_first, field.nulls_first);
        match (valid, flag) {
            (true, false) => lead.values = Some(WordBound::Any),
            (false, true) => lead.values = None,
            _ => {}
        }
        lead.nulls = match (null, flag) {
            (true, false) => true,
            (false, true) => false,
            _ => word == 0 && ties,
        };
        Some(lead)
    }

    /// The values that a key stands for, in the order of the columns.
    ///
    /// # Errors
    /// An internal error if keys do not hold all columns.
    pub(crate) fn values(&self, key: KeyBits) -> Result<Vec<ScalarValue>> {
        let Some(fields) = self.fields() else {
            return internal_err!("a prefix stands for no values");
        };
        let value = |field: &Field| {
            let is_null = field
                .null_bit
                .is_some_and(|bit| (key >> bit & 1 == 1) == field.nulls_first);
            let values = if is_null {
                new_null_array(field.spec.data_type(), 1)
            } else {
                let word = field.word(key);
                let encoded = if field.descending {
                    word
                } else {
                    field.greatest() - word
                };
                field.spec.to_array(&[encoded])?
            };
            ScalarValue::try_from_array(&values, 0)
        };
        fields.iter().map(value).collect()
    }
}

impl Field {
    /// The greatest word of the field's width.
    fn greatest(&self) -> KeyBits {
        self.spec.width().max_key()
    }

    /// The bits that the field has in a key.
    fn word(&self, key: KeyBits) -> KeyBits {
        key >> self.shift & self.greatest()
    }
}
