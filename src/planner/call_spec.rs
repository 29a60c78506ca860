//! What a call of this crate asks: read from its expression once, when a plan is rewritten, and then carried by the node to
//! whatever answers it.

use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, ExprSchemable};

use crate::functions::gk::Sampled;
use crate::functions::topk::Call;
use crate::functions::{ExactQuantiles, GkFunction, TopKBy, constant_quantiles};
use crate::key::KeySpec;
use crate::quantile::{Method, QuantileSpec};

/// A call: of which values, over which rows, and what is asked of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CallSpec<A> {
    /// The values that the answer is among.
    pub(super) values: Expr,
    /// Which rows count; `None`: all.
    pub(super) filter: Option<Expr>,
    /// Whether each value counts once.
    pub(super) distinct: bool,
    pub(super) asked: A,
}

/// Quantiles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QuantilesAsked {
    pub(super) quantile_spec: QuantileSpec,
    /// Whether the answer is a list.
    pub(super) is_list: bool,
    /// How the call is answered if not exactly.
    pub(super) sampled: Option<Sampled>,
    /// Whether the values are ordered as `ORDER BY` orders them, which a function of DataFusion's does.
    pub(super) is_builtin: bool,
}

/// Values of the best rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RowsAsked {
    /// What ranks the rows.
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
    /// What an aggregate asks, an alias may be around it; `None`: not for quantiles that are selected.
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
                (Some(function), _) => {
                    let [_, quantiles] = args else {
                        return internal_err!(
                            "{} is planned with two arguments, got {}",
                            call.func.name(),
                            args.len()
                        );
                    };
                    let quantiles = constant_quantiles(function.called(), quantiles)?;
                    let is_builtin = function.called().is_builtin();
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
                (None, None) => return Ok(None),
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
        };
        Ok(Some(Self::of(call, values, asked)))
    }

    /// The least or the greatest value: what `min` or `max` over `call`'s rows asks, as the quantile 0 or 1.
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
        };
        let spec = Self::of(call, values, asked);
        Ok(Self {
            distinct: false,
            ..spec
        })
    }

    /// Whether an operator of ours selects it. Those from a sample it does without groups, over all values of a type in `input`
    /// that has fixed-width keys; sketches are better off as accumulators.
    pub(super) fn is_selected(&self, is_grouped: bool, input: &DFSchema) -> bool {
        let has_keys =
            || matches!(self.values.get_type(input), Ok(data_type) if KeySpec::supports(&data_type));
        self.asked.sampled.is_none() || (!is_grouped && !self.distinct && has_keys())
    }
}

impl CallSpec<RowsAsked> {
    /// What `topk_by` and the like ask, an alias may be around the call; `None`: it is no such call, or one with `DISTINCT` or
    /// an order of its own, or whose number of rows is not a constant.
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
                called: function.called(),
                ascending: function.is_ascending(),
                k: function.k_of(args).ok()?,
            },
        };
        Some(Self::of(call, values, asked))
    }
}
