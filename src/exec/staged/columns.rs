//! Key columns of a staged plan's input, and the calls over them.

use std::ops::Deref;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_datafusion_err, internal_err};

use super::rounds::Rounds;
use crate::key::KeySpec;
use crate::quantile::{AnswerSpec, QuantileSpec, TypedAnswerSpec};

/// Key columns and calls of a staged plan without groups, and the rounds in which it computes them.
#[derive(Debug, Clone)]
pub(crate) struct StagedColumns {
    pub(super) columns: KeyColumns,
    pub(super) rounds: Rounds,
}

impl Deref for StagedColumns {
    type Target = KeyColumns;

    fn deref(&self) -> &KeyColumns {
        &self.columns
    }
}

/// Key columns, and the calls over them.
#[derive(Debug, Clone)]
pub(crate) struct KeyColumns {
    /// The calls, in the order of the output: a column each.
    pub(super) calls: Vec<StagedCall>,
    /// The key specification of each column of the input.
    pub(super) specs: Vec<KeySpec>,
    /// The output column of each call.
    pub(super) selected: Vec<TypedAnswerSpec>,
}

/// One call over a column of the input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StagedCall {
    /// The column's number in the input, from 0.
    pub(crate) column: usize,
    pub(crate) quantile_spec: QuantileSpec,
    /// Whether the answer is a list.
    pub(crate) is_list: bool,
    /// Whether the answer also names the ranks of its values.
    pub(crate) bounds: bool,
}

impl StagedColumns {
    /// The columns of [`KeyColumns::try_new`], computed in these rounds.
    ///
    /// # Errors
    /// Those of [`KeyColumns::try_new`].
    pub(crate) fn try_new(types: Vec<DataType>, calls: Vec<StagedCall>, rounds: Rounds) -> Result<Self> {
        let columns = KeyColumns::try_new(types, calls)?;
        Ok(Self { columns, rounds })
    }
}

impl KeyColumns {
    /// Columns of these types, with `calls` over them: at least one over each column.
    ///
    /// # Errors
    /// A planning error for types without keys of fixed width; an internal error for columns without calls.
    pub(crate) fn try_new(types: Vec<DataType>, calls: Vec<StagedCall>) -> Result<Self> {
        let mut specs = vec![None; types.len()];
        let mut selected = Vec::with_capacity(calls.len());
        for call in &calls {
            let Some(data_type) = types.get(call.column) else {
                return internal_err!("a call over column {} of {}", call.column, types.len());
            };
            match AnswerSpec::try_new(data_type, call.quantile_spec.clone(), call.is_list, false)? {
                AnswerSpec::Keys(column) => {
                    specs[call.column] = Some(column.spec().clone());
                    selected.push(column);
                }
                AnswerSpec::Bytes(_) => return internal_err!("stages over values of type {data_type}"),
            }
        }
        let specs: Option<Vec<_>> = specs.into_iter().collect();
        Ok(Self {
            specs: specs.ok_or_else(|| internal_datafusion_err!("a column of stages without calls"))?,
            calls,
            selected,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.specs.len()
    }

    pub(super) fn specs(&self) -> impl Iterator<Item = &KeySpec> {
        self.specs.iter()
    }

    /// The quantile specifications of the calls over a column.
    pub(super) fn quantile_specs(&self, column: usize) -> Vec<&QuantileSpec> {
        let own = self.calls.iter().filter(|call| call.column == column);
        own.map(|call| &call.quantile_spec).collect()
    }
}
