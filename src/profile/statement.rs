//! The statement `SUMMARIZE`: parser, execution, and the table that it gives.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Float64Array, ListArray, RecordBatch, StringArray, StructArray, UInt64Array,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{Result, ScalarValue, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{Query, Statement};
use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::read::profile;
use super::types::{ColumnProfile, Distinct, Fences, PERCENTAGES, TableProfile};
use crate::functions::rewrite_calls;
use crate::parsing::{expect_end, first_words, syntax};

/// The statement `SUMMARIZE table` or `SUMMARIZE query`.
#[derive(Debug, Clone, PartialEq)]
pub struct SummarizeStatement(Target);

#[derive(Debug, Clone, PartialEq)]
enum Target {
    Table(TableReference),
    Query(Box<Query>),
}

impl SummarizeStatement {
    /// Parses the tokens of one statement. `None` if it is another kind of statement. Names without quotes become lower case if the session
    /// says so (`datafusion.sql_parser.enable_ident_normalization`).
    ///
    /// # Errors
    /// A syntax error with its place, that says what was expected.
    pub fn parse(
        tokens: &[TokenWithSpan],
        dialect: &dyn Dialect,
        options: &ConfigOptions,
    ) -> Result<Option<Self>> {
        if first_words(tokens).0.as_deref() != Some("summarize") {
            return Ok(None);
        }
        let mut parser = Parser::new(dialect)
            .with_recursion_limit(options.sql_parser.recursion_limit.get())
            .with_tokens_with_locations(tokens.to_vec());
        parser.next_token();
        let next = parser.peek_token().token;
        let keyword = |token: &Token| match token {
            Token::Word(word) => word.keyword,
            _ => Keyword::NoKeyword,
        };
        let is_query = matches!(
            keyword(&next),
            Keyword::SELECT | Keyword::WITH | Keyword::VALUES | Keyword::FROM
        ) || next == Token::LParen;
        let target = if is_query {
            Target::Query(parser.parse_query().map_err(syntax)?)
        } else {
            let name = parser.parse_object_name(false).map_err(syntax)?;
            let normalize = options.sql_parser.enable_ident_normalization;
            Target::Table(object_name_to_table_reference(name, normalize)?)
        };
        expect_end(&mut parser)?;
        Ok(Some(Self(target)))
    }

    /// Executes the statement: a row for each column, see [`TableProfile::to_batch`].
    ///
    /// # Errors
    /// Errors of the query, and of [`profile`].
    pub async fn execute(&self, ctx: &SessionContext) -> Result<DataFrame> {
        let profile = profile(self.rows(ctx).await?).await?;
        ctx.read_batch(profile.to_batch()?)
    }

    /// The rows that are profiled.
    ///
    /// # Errors
    /// A table that does not exist, or an error of the query.
    pub async fn rows(&self, ctx: &SessionContext) -> Result<DataFrame> {
        match &self.0 {
            Target::Table(table) => ctx.table(table.clone()).await,
            Target::Query(query) => {
                let plan = ctx.state().statement_to_plan(as_statement(query)).await?;
                ctx.execute_logical_plan(plan).await
            }
        }
    }

    /// The tables that the statement reads, as it names them.
    pub(crate) fn table_references(&self, state: &SessionState) -> Result<Vec<TableReference>> {
        match &self.0 {
            Target::Table(table) => Ok(vec![table.clone()]),
            Target::Query(query) => state.resolve_table_references(&as_statement(query)),
        }
    }
}

/// A query as a statement of DataFusion's.
fn as_statement(query: &Query) -> DataFusionStatement {
    let statement = Statement::Query(Box::new(query.clone()));
    let mut statement = DataFusionStatement::Statement(Box::new(statement));
    rewrite_calls(&mut statement);
    statement
}

/// The columns of a table that is being made, by name.
#[derive(Default)]
struct Columns(Vec<(String, ArrayRef)>);

impl Columns {
    fn add(&mut self, name: &str, column: ArrayRef) {
        self.0.push((name.to_owned(), column));
    }

    fn texts(&mut self, name: &str, column: impl Iterator<Item = Option<String>>) {
        self.add(name, Arc::new(column.collect::<StringArray>()));
    }

    fn counts(&mut self, name: &str, column: impl Iterator<Item = Option<u64>>) {
        self.add(name, Arc::new(column.collect::<UInt64Array>()));
    }

    fn floats(&mut self, name: &str, column: impl Iterator<Item = Option<f64>>) {
        self.add(name, Arc::new(column.collect::<Float64Array>()));
    }
}

impl TableProfile {
    /// The columns of [`Self::to_batch`].
    ///
    /// # Errors
    /// None that is known.
    pub fn schema() -> Result<SchemaRef> {
        let nothing = Self {
            rows: 0,
            columns: Vec::new(),
        };
        Ok(nothing.to_batch()?.schema())
    }

    /// The profile as a table with a row for each column. Values are text, since types differ from column to column.
    ///
    /// # Errors
    /// A value that has no text, such as a date far outside of the calendar.
    pub fn to_batch(&self) -> Result<RecordBatch> {
        let all = || self.columns.iter();
        let mut table = Columns::default();
        table.texts("column_name", all().map(|column| Some(column.name.clone())));
        table.texts(
            "column_type",
            all().map(|column| Some(column.data_type.to_string())),
        );
        table.counts("values", all().map(|column| Some(column.values)));
        table.counts("nulls", all().map(|column| Some(column.nulls)));
        table.counts("nans", all().map(|column| column.nans));
        table.counts(
            "distinct",
            all().map(|column| column.distinct.map(Distinct::number)),
        );
        let is_exact = |column: &ColumnProfile| {
            column
                .distinct
                .map(|distinct| matches!(distinct, Distinct::Exact(_)))
        };
        table.add(
            "distinct_is_exact",
            Arc::new(all().map(is_exact).collect::<BooleanArray>()),
        );
        let range = texts(all().map(|column| column.range.as_ref().map(|range| &range.0)))?;
        table.texts("min", range.into_iter());
        let range = texts(all().map(|column| column.range.as_ref().map(|range| &range.1)))?;
        table.texts("max", range.into_iter());
        table.floats("mean", all().map(|column| column.mean));
        table.floats("stddev", all().map(|column| column.deviation));
        for percent in PERCENTAGES {
            let values = texts(all().map(|column| column.percentile(percent)))?;
            table.texts(&format!("p{percent}"), values.into_iter());
        }
        let fences =
            |part: fn(&Fences) -> &ScalarValue| texts(all().map(|column| column.fences.as_ref().map(part)));
        table.texts("low_fence", fences(|fences| &fences.low)?.into_iter());
        table.texts("high_fence", fences(|fences| &fences.high)?.into_iter());
        let beyond = |column: &ColumnProfile| column.fences.as_ref().and_then(|fences| fences.beyond);
        table.counts("below", all().map(|column| beyond(column).map(|beyond| beyond.0)));
        table.counts("above", all().map(|column| beyond(column).map(|beyond| beyond.1)));
        table.counts(
            "shortest",
            all().map(|column| column.lengths.map(|lengths| lengths.shortest)),
        );
        table.floats(
            "mean_length",
            all().map(|column| column.lengths.map(|lengths| lengths.mean)),
        );
        table.counts(
            "longest",
            all().map(|column| column.lengths.map(|lengths| lengths.longest)),
        );
        table.add("top", top(&self.columns)?);
        table.add("histogram", histograms(&self.columns)?);
        Ok(RecordBatch::try_from_iter_with_nullable(
            table.0.into_iter().map(|(name, column)| (name, column, true)),
        )?)
    }
}

/// Values as text; `None` for NULL, or where there is no value.
fn texts<'a>(values: impl Iterator<Item = Option<&'a ScalarValue>>) -> Result<Vec<Option<String>>> {
    values.map(|value| value.map_or(Ok(None), text)).collect()
}

/// A value as text; `None` for NULL.
///
/// # Errors
/// A value that has no text, such as a date far outside of the calendar.
pub fn text(value: &ScalarValue) -> Result<Option<String>> {
    if value.is_null() {
        return Ok(None);
    }
    let array = value.to_array()?;
    let formatter = ArrayFormatter::try_new(array.as_ref(), &FormatOptions::default())?;
    Ok(Some(formatter.value(0).try_to_string()?))
}

/// Lists of structs, from the number of structs in each list, and the fields of all.
fn lists(lengths: &[Option<usize>], fields: Vec<(&str, ArrayRef)>) -> Result<ArrayRef> {
    let (names, columns): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let fields = names.into_iter().zip(&columns);
    let fields: Fields = fields
        .map(|(name, column)| Field::new(name, column.data_type().clone(), true))
        .collect();
    let structs = StructArray::try_new(fields.clone(), columns, None)?;
    let offsets = OffsetBuffer::from_lengths(lengths.iter().map(|length| length.unwrap_or(0)));
    let nulls = lengths.iter().map(Option::is_some).collect();
    let field = Arc::new(Field::new_list_field(DataType::Struct(fields), true));
    Ok(Arc::new(ListArray::try_new(
        field,
        offsets,
        Arc::new(structs),
        Some(nulls),
    )?))
}

fn top(columns: &[ColumnProfile]) -> Result<ArrayRef> {
    let lengths: Vec<_> = columns.iter().map(|column| Some(column.top.len())).collect();
    let all = || columns.iter().flat_map(|column| &column.top);
    let values = texts(all().map(|(value, _)| Some(value)))?;
    let counts: UInt64Array = all().map(|(_, count)| Some(*count)).collect();
    lists(
        &lengths,
        vec![
            ("value", Arc::new(StringArray::from(values))),
            ("count", Arc::new(counts)),
        ],
    )
}

fn histograms(columns: &[ColumnProfile]) -> Result<ArrayRef> {
    let lengths: Vec<_> = columns
        .iter()
        .map(|column| column.histogram.as_ref().map(Vec::len))
        .collect();
    let all = || {
        columns
            .iter()
            .flat_map(|column| column.histogram.iter().flatten())
    };
    let lows = texts(all().map(|bin| Some(&bin.low)))?;
    let highs = texts(all().map(|bin| Some(&bin.high)))?;
    let counts: UInt64Array = all().map(|bin| Some(bin.count)).collect();
    let fields: Vec<(&str, ArrayRef)> = vec![
        ("low", Arc::new(StringArray::from(lows))),
        ("high", Arc::new(StringArray::from(highs))),
        ("count", Arc::new(counts)),
    ];
    lists(&lengths, fields)
}
