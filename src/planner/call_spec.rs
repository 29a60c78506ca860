//! What a call of one of this crate's functions asks. It is read from the call's expression once, when a plan is
//! rewritten; the logical node carries it to the operator that answers it.

use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, ExprSchemable};

use crate::functions::gk::Sampled;
use crate::functions::shape::asked_of_ranks;
use crate::functions::topk::Call;
use crate::functions::{ExactQuantiles, GkFunction, TopKBy, constant_quantiles};
use crate::key::KeySpec;
use crate::quantile::{AnswerForm, Method, QuantileSpec};

/// A call: the values it is about, the rows it counts, and what it asks of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CallSpec<A> {
    /// The values among which the answer is.
    pub(super) values: Expr,
    /// The condition for rows to count; `None`: all rows count.
    pub(super) filter: Option<Expr>,
    /// Whether each distinct value counts once.
    pub(super) distinct: bool,
    /// What is asked of the values.
    pub(super) asked: A,
}

/// A question for quantiles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QuantilesAsked {
    pub(super) quantile_spec: QuantileSpec,
    /// Whether the answer is a list.
    pub(super) is_list: bool,
    /// How the call is answered from a sample; `None`: it is answered exactly.
    pub(super) sampled: Option<Sampled>,
    /// Whether the call is one of DataFusion's own functions, which order values as `ORDER BY` does.
    pub(super) is_builtin: bool,
    pub(super) form: AnswerForm,
}

/// A question for values of the best rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RowsAsked {
    /// The column that ranks the rows.
    pub(super) key: Expr,
    pub(super) call: Call,
}

/// The aggregate function under any aliases.
pub(super) fn aggregate_call(expr: &Expr) -> Option<&AggregateFunction> {
    match expr {
        Expr::Alias(alias) => aggregate_call(&alias.expr),
        Expr::AggregateFunction(call) => Some(call),
        _ => None,
    }
}

/// Whether an aggregate, under any aliases, is of quantiles with weights.
pub(super) fn has_weights(expr: &Expr) -> bool {
    aggregate_call(expr).is_some_and(|call| {
        let function = ExactQuantiles::of(&call.func);
        function.is_some_and(|function| function.is_weighted(&call.params.args))
    })
}

impl<A> CallSpec<A> {
    fn of(call: &AggregateFunction, values: &Expr, asked: A) -> Self {
        Self {
            values: values.clone(),
            filter: call.params.filter.as_deref().cloned(),
            distinct: call.params.distinct,
            asked,
        }
    }
}

impl CallSpec<QuantilesAsked> {
    /// What an aggregate asks, under any aliases; `None` if it asks for no quantiles that operators select.
    ///
    /// # Errors
    /// A planning error if a quantile is not a constant number in [0, 1].
    pub(super) fn quantiles(expr: &Expr) -> Result<Option<Self>> {
        let Some(call) = aggregate_call(expr) else {
            return Ok(None);
        };
        let args = call.params.args.as_slice();
        let (quantiles, method, descending, sampled, is_builtin) =
            match (ExactQuantiles::of(&call.func), GkFunction::of(&call.func)) {
                // Values with weights are collected by the function's own accumulators.
                (Some(function), _) if function.is_weighted(args) => return Ok(None),
                (Some(function), _) => {
                    let [_, quantiles] = args else {
                        return internal_err!(
                            "{} is planned with two arguments, got {}",
                            call.func.name(),
                            args.len()
                        );
                    };
                    let quantiles = constant_quantiles(function.sql_name(), quantiles)?;
                    let is_builtin = function.sql_name().is_builtin();
                    (
                        quantiles,
                        function.method(),
                        function.is_descending(),
                        None,
                        is_builtin,
                    )
                }
                (None, Some(function)) => match function.sampled() {
                    Some((quantiles, sampled)) => {
                        let descending = function.is_descending();
                        (quantiles.clone(), Method::Disc, descending, Some(sampled), false)
                    }
                    None => return Ok(None),
                },
                (None, None) => return Self::of_ranks(call),
            };
        let Some(values) = args.first() else {
            return internal_err!("{} is planned with its values", call.func.name());
        };
        let asked = QuantilesAsked {
            quantile_spec: QuantileSpec {
                quantiles: quantiles.list,
                method,
                descending,
            },
            is_list: quantiles.is_list,
            sampled,
            is_builtin,
            form: AnswerForm::Values,
        };
        Ok(Some(Self::of(call, values, asked)))
    }

    /// What a call asks that is answered by ranks of its values in another form than theirs; `None` if it is no such call.
    fn of_ranks(call: &AggregateFunction) -> Result<Option<Self>> {
        let (Some((quantile_spec, form)), Some(values)) = (asked_of_ranks(call)?, call.params.args.first())
        else {
            return Ok(None);
        };
        let asked = QuantilesAsked {
            quantile_spec,
            is_list: true,
            sampled: None,
            is_builtin: false,
            form,
        };
        let mut spec = Self::of(call, values, asked);
        spec.distinct |= form == AnswerForm::Count;
        Ok(Some(spec))
    }

    /// `min` or `max` over the rows of `call`, asked as the quantile 0 or 1.
    ///
    /// # Errors
    /// None: both are quantiles.
    #[cfg(feature = "cuda")]
    pub(super) fn end(call: &AggregateFunction, values: &Expr, quantile: f64) -> Result<Self> {
        let asked = QuantilesAsked {
            quantile_spec: QuantileSpec {
                quantiles: vec![crate::quantile::Quantile::try_from_f64(quantile)?],
                method: Method::Disc,
                descending: false,
            },
            is_list: false,
            sampled: None,
            is_builtin: false,
            form: AnswerForm::Values,
        };
        let spec = Self::of(call, values, asked);
        Ok(Self {
            distinct: false,
            ..spec
        })
    }

    /// Whether an operator of this crate selects the answer. Exact quantiles always are. A call that is answered from a
    /// sample, or in another form than its quantiles, is where there are no groups and no `DISTINCT`, and its values, of a
    /// type that `input` tells, have keys of fixed width. A number of distinct values is where there are no groups.
    pub(super) fn is_selected(&self, is_grouped: bool, input: &DFSchema) -> bool {
        let has_keys =
            || matches!(self.values.get_type(input), Ok(data_type) if KeySpec::supports(&data_type));
        if self.asked.form == AnswerForm::Count {
            return !is_grouped;
        }
        let is_plain = self.asked.sampled.is_none() && self.asked.form == AnswerForm::Values;
        is_plain || (!is_grouped && !self.distinct && has_keys())
    }
}

impl CallSpec<RowsAsked> {
    /// What a call of `topk_by`, `max_by` or `min_by` asks, under any aliases. `None` if it is no such call, has
    /// `DISTINCT` or an order of its own, or if its number of rows is not a constant.
    pub(super) fn rows(expr: &Expr) -> Option<Self> {
        let call = aggregate_call(expr)?;
        let (function, args) = (TopKBy::of(&call.func)?, call.params.args.as_slice());
        let [values, key, ..] = args else {
            return None;
        };
        if call.params.distinct || !call.params.order_by.is_empty() {
            return None;
        }
        let asked = RowsAsked {
            key: key.clone(),
            call: Call {
                sql_name: function.sql_name(),
                ascending: function.is_ascending(),
                k: function.k_of(args).ok()?,
            },
        };
        Some(Self::of(call, values, asked))
    }
}
