//! Runs what was prepared, and encodes its rows.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Fields, Schema, SchemaRef, UInt64Type};
use datafusion::common::{ParamValues, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Deallocate, LogicalPlan, Statement as PlanStatement};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;
use datafusion_postgres::arrow_pg::datatypes::{
    PG_OID_ALIAS_KEY, arrow_schema_to_pg_fields, encode_recordbatch,
};
use datafusion_quantiles::profile::{SummarizeStatement, TableProfile};
use futures::{StreamExt, stream};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{DataRowEncoder, FieldInfo, QueryResponse};
use pgwire::error::PgWireResult;
use pgwire::types::format::FormatOptions;

use super::failure::{code, error, of_statement};
use super::policy::Writes;
use super::session::Session;
use super::statement::{Command, OBJECTS, Parameter, Planned, Tag};
use super::text::{self, Style};
use crate::console::message_of;
use crate::sql::{check_endless, register_stores};

/// What a statement answers.
pub(super) enum Answer {
    /// Rows, which come as they are asked for.
    Rows(QueryResponse),
    /// Rows that were written, if their number is told.
    Done(Option<u64>),
}

/// Starts a plan with the values of its parameters.
///
/// # Errors
/// DataFusion's.
pub(super) async fn start(
    session: &Session,
    writes: Writes,
    planned: &Planned,
    values: Option<&ParamValues>,
    format: &Format,
    text: &Arc<str>,
) -> PgWireResult<Answer> {
    let of_text = |failure: DataFusionError| of_statement(&failure, text);
    let plan = planned.plan.clone();
    let plan = match values {
        Some(values) => plan.replace_params_with_values(values).map_err(of_text)?,
        None => plan,
    };
    if writes == Writes::Allowed {
        register_stores(&session.ctx, &plan).await.map_err(of_text)?;
    }
    let sets = matches!(plan, LogicalPlan::Statement(PlanStatement::SetVariable(_)));
    let frame = session.ctx.execute_logical_plan(plan).await;
    let frame = frame.map_err(|failure| match sets {
        true => error(code::INVALID_PARAMETER, message_of(&failure, text)),
        false => of_text(failure),
    })?;
    match planned.tag {
        Tag::Done(_) => {
            frame.collect().await.map_err(of_text)?;
            Ok(Answer::Done(None))
        }
        Tag::Written(_) => {
            let batches = frame.collect().await.map_err(of_text)?;
            Ok(Answer::Done(Some(written(&batches).map_err(of_text)?)))
        }
        Tag::Rows(_) | Tag::Answer(_) => rows(session, frame, format, text).await.map(Answer::Rows),
    }
}

/// Starts `SUMMARIZE`, which reads its table before the first row.
///
/// # Errors
/// DataFusion's.
pub(super) async fn summarize(
    session: &Session,
    statement: &SummarizeStatement,
    format: &Format,
    text: &Arc<str>,
) -> PgWireResult<QueryResponse> {
    let answer = statement.execute(&session.ctx).await;
    let answer = answer.map_err(|failure| of_statement(&failure, text))?;
    rows(session, answer, format, text).await
}

/// Forgets a statement that was prepared by SQL.
///
/// # Errors
/// If there is none of that name.
pub(super) async fn deallocate(ctx: &SessionContext, name: &str) -> Result<()> {
    let statement = PlanStatement::Deallocate(Deallocate {
        name: name.to_string(),
    });
    ctx.execute_logical_plan(LogicalPlan::Statement(statement))
        .await
        .map(drop)
}

/// The number of rows that a statement wrote, which is its only answer.
fn written(batches: &[RecordBatch]) -> Result<u64> {
    let count = |batch: &RecordBatch| {
        let count = batch.columns().first()?.as_primitive_opt::<UInt64Type>()?;
        count.iter().next().flatten()
    };
    match batches.iter().find_map(count) {
        Some(count) => Ok(count),
        None => plan_err!("the statement did not tell how many rows it wrote"),
    }
}

async fn rows(
    session: &Session,
    frame: DataFrame,
    format: &Format,
    text: &Arc<str>,
) -> PgWireResult<QueryResponse> {
    let of_text = |failure: DataFusionError| of_statement(&failure, text);
    let task = Arc::new(frame.task_ctx());
    let physical = frame.create_physical_plan().await.map_err(of_text)?;
    check_endless(physical.as_ref()).map_err(of_text)?;
    let batches = execute_stream(physical, task).map_err(of_text)?;
    let fields = fields(session, &batches.schema(), format)?;
    let (shared, text, style) = (Arc::clone(&fields), Arc::clone(text), style(session));
    let rows =
        batches.flat_map(
            move |batch| match batch.and_then(|batch| text::written(&batch, &shared, style)) {
                Ok(batch) => stream::iter(encode_recordbatch(Arc::clone(&shared), batch)).left_stream(),
                Err(failure) => stream::iter([Err(of_statement(&failure, &text))]).right_stream(),
            },
        );
    Ok(QueryResponse::new(fields, rows))
}

fn style(session: &Session) -> Style {
    let settings = session.settings();
    Style {
        digits: settings.show("extra_float_digits").parse().unwrap_or(1),
        plain_intervals: settings.show("intervalstyle") == "postgres",
    }
}

fn fields(session: &Session, schema: &SchemaRef, format: &Format) -> PgWireResult<Arc<Vec<FieldInfo>>> {
    let styles = ["bytea_output", "datestyle", "extra_float_digits", "intervalstyle"];
    let styles: HashMap<_, _> = styles
        .into_iter()
        .map(|name| (name.to_string(), session.settings().show(name)))
        .collect();
    let options = Arc::new(FormatOptions::from_client_metadata(&styles));
    let known: Fields = schema.fields().iter().map(text::known).collect();
    let mut fields = arrow_schema_to_pg_fields(&Schema::new(known), format, Some(Arc::clone(&options)))?;
    for (place, (told, field)) in fields.iter_mut().zip(schema.fields()).enumerate() {
        if field
            .metadata()
            .get(PG_OID_ALIAS_KEY)
            .is_some_and(|kind| kind == OBJECTS)
        {
            let name = field.name().clone();
            let objects = FieldInfo::new(name, None, None, Type::OID_ARRAY, format.format_for(place));
            *told = objects.with_format_options(Arc::clone(&options));
        }
    }
    Ok(Arc::new(fields))
}

/// The columns of a statement's answer, before it runs; none if it has no rows.
///
/// # Errors
/// Types that do not go together, and one that has no counterpart in PostgreSQL.
pub(super) fn described(
    session: &Session,
    command: &Command,
    format: &Format,
    text: &str,
) -> PgWireResult<Arc<Vec<FieldInfo>>> {
    match command {
        Command::Plan(planned) if planned.tag.has_rows() => {
            let schema = analyzed_schema(&session.ctx, planned);
            let schema = schema.map_err(|failure| of_statement(&failure, text))?;
            fields(session, &schema, format)
        }
        Command::Summarize(_) => {
            let schema = TableProfile::schema().map_err(|failure| of_statement(&failure, text))?;
            fields(session, &schema, format)
        }
        Command::Show(name) => Ok(shown_fields(name, format)),
        _ => Ok(Arc::default()),
    }
}

/// The schema of an answer. Types are coerced by the analyzer: those of the plan as it stands may be others.
fn analyzed_schema(ctx: &SessionContext, planned: &Planned) -> Result<SchemaRef> {
    let state = ctx.state();
    let analyzed = |plan: LogicalPlan| {
        let analyzer = state.analyzer();
        analyzer.execute_and_check(plan, state.config_options(), |_, _| {})
    };
    let nulls = Parameter::nulls(&planned.parameters)?;
    let plan = planned.plan.clone().replace_params_with_values(&nulls);
    let plan: LogicalPlan = match plan.and_then(analyzed) {
        // Not every argument may be NULL, such as a quantile. Of their types alone the analyzer may tell as much.
        Err(_) if !planned.parameters.is_empty() => analyzed(planned.plan.clone())?,
        plan => plan?,
    };
    Ok(Arc::clone(plan.schema().inner()))
}

fn shown_fields(name: &str, format: &Format) -> Arc<Vec<FieldInfo>> {
    let format = format.format_for(0);
    Arc::new(vec![FieldInfo::new(
        name.to_string(),
        None,
        None,
        Type::TEXT,
        format,
    )])
}

/// The answer of `SHOW name`.
///
/// # Errors
/// Those of the encoder.
pub(super) fn shown(session: &Session, name: &str, format: &Format) -> PgWireResult<QueryResponse> {
    let fields = shown_fields(name, format);
    let mut encoder = DataRowEncoder::new(Arc::clone(&fields));
    encoder.encode_field(&session.settings().show(name))?;
    let row = encoder.take_row();
    Ok(QueryResponse::new(fields, stream::iter([Ok(row)])))
}
