//! Quantiles of a [`DataFrame`]'s columns.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, Result, ScalarValue, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::prelude::{DataFrame, ident};

use crate::functions::constant_list;
use crate::functions::expr_fn::exact_quantiles;
use crate::quantile::Method;

/// Name of the output column with the quantile that a row is for.
pub const QUANTILE_COLUMN: &str = "quantile";

/// Adds exact quantiles to [`DataFrame`].
pub trait DataFrameQuantilesExt {
    /// Exact quantiles of the named columns, with one row for each of `quantiles` (numbers in [0, 1]), in that order.
    ///
    /// The first output column, `quantile` (Float64), has the quantile; one column for each of `columns` follows, under its
    /// name. NULLs are skipped, and a column without values gives NULLs. All columns are read in one pass if the session has
    /// this crate's planner.
    ///
    /// # Errors
    /// A planning error if `columns` is empty, or if a column does not exist, is named twice or is called `quantile`. Bad
    /// quantiles and types are an error when the result is planned.
    fn quantiles(self, columns: &[&str], quantiles: &[f64], method: Method) -> Result<DataFrame>;
}

impl DataFrameQuantilesExt for DataFrame {
    fn quantiles(self, columns: &[&str], quantiles: &[f64], method: Method) -> Result<DataFrame> {
        if columns.is_empty() {
            return plan_err!("quantiles of a DataFrame need at least one column");
        }
        let list: Vec<_> = quantiles
            .iter()
            .map(|&quantile| ScalarValue::from(quantile))
            .collect();
        let list = constant_list(&list, &DataType::Float64);
        let calls = columns.iter().map(|name| {
            let column = Expr::Column(Column::from_name(*name));
            exact_quantiles(column, list.clone(), method, false).alias(*name)
        });
        let rows = self.aggregate(Vec::new(), calls.collect())?;
        let mut output = vec![list.alias(QUANTILE_COLUMN)];
        output.extend(columns.iter().map(|name| ident(*name)));
        let names: Vec<_> = std::iter::once(&QUANTILE_COLUMN)
            .chain(columns)
            .copied()
            .collect();
        rows.select(output)?.unnest_columns(&names)
    }
}
