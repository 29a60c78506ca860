//! Headings of answers for people: a call that has no name of its own is headed by what the user wrote, without long lists.
//!
//! ```text
//! SELECT exact_quantiles(fare, [0.01, 0.02, .. 0.99]) FROM trips      exact_quantiles(fare)
//! ```
//! The column keeps its name in every other format, and in SQL.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Query, SelectItem,
    SetExpr, Statement as SqlStatement,
};
use futures::StreamExt;

/// The headings of an answer's columns: one for each that is a call without a name. Empty if the columns are not known from the text.
#[derive(Debug, Default, Clone)]
pub(crate) struct Labels(Vec<Option<String>>);

impl Labels {
    /// The headings of a statement's answer.
    pub(crate) fn of(statement: &DataFusionStatement) -> Self {
        match statement {
            DataFusionStatement::Statement(statement) => match statement.as_ref() {
                SqlStatement::Query(query) => Self::of_query(query),
                _ => Self::default(),
            },
            _ => Self::default(),
        }
    }

    fn of_query(query: &Query) -> Self {
        let Some(items) = items(&query.body) else {
            return Self::default();
        };
        let calls = items.iter().map(|item| match item {
            SelectItem::UnnamedExpr(Expr::Function(call)) => Some(call),
            _ => None,
        });
        let short: Vec<_> = calls.clone().map(|call| call.map(short)).collect();
        let mut times: HashMap<&String, usize> = HashMap::new();
        for label in short.iter().flatten() {
            *times.entry(label).or_default() += 1;
        }
        // Calls that differ in what was left out are told apart by all of their text.
        let labels = short.iter().zip(calls).map(|(label, call)| match label {
            Some(label) if times[label] == 1 => Some(label.clone()),
            Some(_) => call.map(ToString::to_string),
            None => None,
        });
        Self(labels.collect())
    }

    /// The rows with these headings, each where it is shorter than the column's name.
    pub(crate) fn head(&self, stream: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = stream.schema();
        if self.0.len() != schema.fields().len() {
            return stream;
        }
        let fields = schema
            .fields()
            .iter()
            .zip(&self.0)
            .map(|(field, label)| match label {
                Some(label) if label.chars().count() < field.name().chars().count() => {
                    Arc::new(field.as_ref().clone().with_name(label))
                }
                _ => Arc::clone(field),
            });
        let headed: SchemaRef = Arc::new(Schema::new_with_metadata(
            fields.collect::<Vec<_>>(),
            schema.metadata().clone(),
        ));
        let schema = Arc::clone(&headed);
        let batches = stream.map(move |batch| -> Result<RecordBatch> {
            let batch = batch?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let columns = batch.columns().to_vec();
            Ok(RecordBatch::try_new_with_options(
                Arc::clone(&schema),
                columns,
                &options,
            )?)
        });
        Box::pin(RecordBatchStreamAdapter::new(headed, batches))
    }
}

/// The items of a query, or of the first of several that are put together; `None` if one of them stands for any number of columns.
fn items(body: &SetExpr) -> Option<&[SelectItem]> {
    match body {
        SetExpr::Select(select) => {
            let is_one = |item: &SelectItem| {
                matches!(
                    item,
                    SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. }
                )
            };
            select.projection.iter().all(is_one).then_some(&select.projection)
        }
        SetExpr::Query(query) => items(&query.body),
        SetExpr::SetOperation { left, .. } => items(left),
        _ => None,
    }
}

/// A call with its arguments and the columns of its order, but for lists behind the first argument. A call with anything else, such as a
/// FILTER, is written as it is.
fn short(call: &Function) -> String {
    let FunctionArguments::List(list) = &call.args else {
        return call.to_string();
    };
    let is_plain = list.clauses.is_empty() && call.filter.is_none() && call.null_treatment.is_none();
    if !is_plain {
        return call.to_string();
    }
    let is_distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
    let distinct = if is_distinct { "DISTINCT " } else { "" };
    let shown = list.args.iter().enumerate();
    let shown = shown.filter(|(index, argument)| *index == 0 || !is_list(argument));
    let shown = shown.map(|(_, argument)| argument.to_string());
    let order = call.within_group.iter().map(|by| by.expr.to_string());
    let arguments: Vec<_> = shown.chain(order).collect();
    let over = if call.over.is_some() { " OVER" } else { "" };
    format!("{}({distinct}{}){over}", call.name, arguments.join(", "))
}

fn is_list(argument: &FunctionArg) -> bool {
    let value = match argument {
        FunctionArg::Unnamed(value) => value,
        FunctionArg::Named { arg, .. } | FunctionArg::ExprNamed { arg, .. } => arg,
    };
    match value {
        FunctionArgExpr::Expr(Expr::Array(_)) => true,
        FunctionArgExpr::Expr(Expr::Function(call)) => {
            call.name.to_string().eq_ignore_ascii_case("make_array")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn labels(sql: &str) -> Vec<Option<String>> {
        Labels::of(&DFParser::parse_sql(sql).unwrap()[0]).0
    }

    #[test]
    fn calls_are_headed_by_what_was_written_without_lists() {
        let sql = "SELECT city, exact_quantiles(fare, [0.1, 0.9]), median(fare) AS m, topk_by(id, fare, 3), \
                   percentile_cont(0.9) WITHIN GROUP (ORDER BY fare), count(DISTINCT city), sum(fare) OVER (ORDER BY id), \
                   count(*), fare + 1, count(*) FILTER (WHERE fare > 1), array_max([1, 5]) FROM t";
        let expected = [
            None,
            Some("exact_quantiles(fare)"),
            None,
            Some("topk_by(id, fare, 3)"),
            Some("percentile_cont(0.9, fare)"),
            Some("count(DISTINCT city)"),
            Some("sum(fare) OVER"),
            Some("count(*)"),
            None,
            Some("count(*) FILTER (WHERE fare > 1)"),
            Some("array_max([1, 5])"),
        ];
        assert_eq!(labels(sql), expected.map(|label| label.map(str::to_owned)));
        let of_first = labels("(SELECT max(a) FROM t) UNION ALL SELECT min(a) FROM t");
        assert_eq!(of_first, [Some("max(a)".to_owned())]);
    }

    #[test]
    fn calls_that_look_alike_keep_their_lists() {
        let found = labels("SELECT exact_quantiles(x, [0.1]), exact_quantiles(x, [0.2]), max(x) FROM t");
        let expected = ["exact_quantiles(x, [0.1])", "exact_quantiles(x, [0.2])", "max(x)"];
        assert_eq!(found, expected.map(|label| Some(label.to_owned())));
    }

    #[test]
    fn columns_that_are_not_known_have_no_headings() {
        for sql in [
            "SELECT *, max(x) FROM t",
            "EXPLAIN SELECT max(x) FROM t",
            "VALUES (1)",
        ] {
            assert!(labels(sql).is_empty(), "{sql}");
        }
    }
}
