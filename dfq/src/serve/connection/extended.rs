//! Statements that are prepared first: parse, bind, describe, execute, close.

use std::sync::Arc;

use pgwire::api::portal::{Format, Portal, PortalExecutionState};
use pgwire::api::results::{FieldInfo, QueryResponse};
use pgwire::api::stmt::StoredStatement;
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientPortalStore, DEFAULT_NAME, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended,
    TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::EmptyQueryResponse;

use super::{Begun, Connection, row_description, tag_of};
use crate::serve::failure::{code, error};
use crate::serve::query;
use crate::serve::statement::{self, Command, Parameter, Prepared};

/// Most prepared statements and portals with names, together.
const MOST_NAMES: usize = 4096;

impl Connection {
    pub(super) async fn parse(&mut self, parse: Parse) -> PgWireResult<()> {
        let name = named(parse.name.as_deref());
        let types: Vec<_> = parse.type_oids.iter().map(|oid| Type::from_oid(*oid)).collect();
        let mut pieces = statement::pieces(&self.session.ctx, &parse.query)?;
        match (pieces.pop(), pieces.is_empty()) {
            (None, _) => self.client.portal_store().put_empty_statement(name),
            (Some(piece), true) => {
                let guard = self.guard(false).await;
                let prepared = guard.run(&piece.text, self.prepare(&piece, &types)).await?;
                self.take_name(TARGET_TYPE_BYTE_STATEMENT, name)?;
                let stored = StoredStatement::new(name.to_string(), prepared, types);
                self.client.portal_store().put_statement(Arc::new(stored));
            }
            (Some(_), false) => {
                return Err(error(
                    "42601",
                    "cannot insert multiple commands into a prepared statement",
                ));
            }
        }
        self.feed(PgWireBackendMessage::ParseComplete(ParseComplete::new()))
            .await?;
        Ok(())
    }

    /// Counts a name of a statement or a portal.
    fn take_name(&mut self, kind: u8, name: &str) -> PgWireResult<()> {
        if name == DEFAULT_NAME {
            return Ok(());
        }
        self.names.insert((kind, name.to_string()));
        if self.names.len() > MOST_NAMES {
            self.names.remove(&(kind, name.to_string()));
            return Err(error(
                code::TOO_MANY_OBJECTS,
                format!("a connection can have {MOST_NAMES} prepared statements and portals: close some"),
            ));
        }
        Ok(())
    }

    pub(super) async fn bind(&mut self, bind: Bind) -> PgWireResult<()> {
        let (name, portal) = (
            named(bind.statement_name.as_deref()),
            named(bind.portal_name.as_deref()),
        );
        match self.client.portal_store().get_statement(name) {
            None => return Err(no_statement(name)),
            Some(Entry::Empty) => {
                check_count("values", bind.parameters.len(), &[0])?;
                self.client.portal_store().put_empty_portal(portal);
            }
            Some(Entry::Value(statement)) => {
                let parameters = parameters_of(&statement.statement).len();
                check_count("values", bind.parameters.len(), &[parameters])?;
                check_count(
                    "formats of values",
                    bind.parameter_format_codes.len(),
                    &[0, 1, parameters],
                )?;
                self.take_name(TARGET_TYPE_BYTE_PORTAL, portal)?;
                let portal = Portal::try_new(&bind, statement)?;
                self.client.portal_store().put_portal(Arc::new(portal));
            }
        }
        self.feed(PgWireBackendMessage::BindComplete(BindComplete::new()))
            .await?;
        Ok(())
    }

    pub(super) async fn describe(&mut self, describe: &Describe) -> PgWireResult<()> {
        let name = named(describe.name.as_deref());
        let nothing = PgWireBackendMessage::NoData(NoData::new());
        let columns = if describe.target_type == TARGET_TYPE_BYTE_STATEMENT {
            let found = self.client.portal_store().get_statement(name);
            let statement = found.ok_or_else(|| no_statement(name))?;
            let types = statement
                .value()
                .map(|statement| parameters_of(&statement.statement));
            let types = types
                .unwrap_or_default()
                .iter()
                .map(|parameter| parameter.wire.oid());
            let types = ParameterDescription::new(types.collect());
            self.feed(PgWireBackendMessage::ParameterDescription(types))
                .await?;
            match statement.value() {
                Some(statement) => self.described(&statement.statement, &Format::UnifiedText).await?,
                None => Arc::default(),
            }
        } else {
            let found = self.client.portal_store().get_portal(name);
            let portal = found.ok_or_else(|| no_portal(name))?;
            match portal.value() {
                Some(portal) => {
                    let prepared = &portal.statement.statement;
                    self.described(prepared, &portal.result_column_format).await?
                }
                None => Arc::default(),
            }
        };
        let message = if columns.is_empty() {
            nothing
        } else {
            row_description(&columns)
        };
        self.feed(message).await?;
        Ok(())
    }

    async fn described(&self, prepared: &Prepared, format: &Format) -> PgWireResult<Arc<Vec<FieldInfo>>> {
        let guard = self.guard(false).await;
        guard.run(&prepared.text, self.columns(prepared, format)).await
    }

    async fn columns(&self, prepared: &Prepared, format: &Format) -> PgWireResult<Arc<Vec<FieldInfo>>> {
        let (session, prepared, format) = (self.session.clone(), prepared.clone(), format.clone());
        let columns = self.planning.run(async move {
            let described =
                |format: &Format| query::described(&session, &prepared.command, format, &prepared.text);
            if let Format::Individual(formats) = &format {
                let text = described(&Format::UnifiedText)?;
                check_count("formats of columns", formats.len(), &[text.len()])?;
            }
            described(&format)
        });
        columns.await
    }

    pub(super) async fn execute(&mut self, execute: &Execute) -> PgWireResult<()> {
        let name = named(execute.name.as_deref());
        let portal = match self.client.portal_store().get_portal(name) {
            Some(Entry::Value(portal)) => portal,
            Some(Entry::Empty) => {
                return Ok(self
                    .feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()))
                    .await?);
            }
            None => return Err(no_portal(name)),
        };
        let most = u64::try_from(execute.max_rows).unwrap_or(0);
        let guard = self.guard(true).await;
        let text = Arc::clone(&portal.statement.statement.text);
        guard.run(&text, self.fetch(&portal, most)).await
    }

    /// Sends rows of a portal, at most so many if `most` is not 0. What is left waits in it for the next time.
    async fn fetch(&mut self, portal: &Portal<Prepared>, most: u64) -> PgWireResult<()> {
        let prepared = &portal.statement.statement;
        let turn = self.turn(&prepared.command).await?;
        let state = std::mem::replace(&mut *portal.state.lock().await, PortalExecutionState::Finished);
        let tag = prepared.command.tag();
        let mut rows = match state {
            PortalExecutionState::Initial => {
                let format = &portal.result_column_format;
                self.columns(prepared, format).await?;
                let values = Parameter::values(parameters_of(prepared), portal)?;
                match self.begin(prepared, Some(&values), format, &turn).await? {
                    Begun::Rows(rows, _) => rows,
                    Begun::Done(tag) => {
                        return Ok(self
                            .feed(PgWireBackendMessage::CommandComplete(tag.into()))
                            .await?);
                    }
                }
            }
            PortalExecutionState::Suspended(rows) => rows,
            PortalExecutionState::Finished => QueryResponse::new(Arc::default(), futures::stream::empty()),
        };
        let (count, is_whole) = self.send(&mut rows, most).await?;
        let message = if is_whole {
            PgWireBackendMessage::CommandComplete(tag_of(tag, count).into())
        } else {
            *portal.state.lock().await = PortalExecutionState::Suspended(rows);
            PgWireBackendMessage::PortalSuspended(PortalSuspended::new())
        };
        self.feed(message).await?;
        Ok(())
    }

    pub(super) async fn close(&mut self, close: &Close) -> PgWireResult<()> {
        let name = named(close.name.as_deref());
        if close.target_type == TARGET_TYPE_BYTE_STATEMENT {
            self.client.portal_store().rm_statement(name);
        } else {
            self.client.portal_store().rm_portal(name);
        }
        self.names.remove(&(close.target_type, name.to_string()));
        self.feed(PgWireBackendMessage::CloseComplete(CloseComplete::new()))
            .await?;
        Ok(())
    }
}

fn parameters_of(prepared: &Prepared) -> &[Parameter] {
    match prepared.command.as_ref() {
        Command::Plan(planned) => &planned.parameters,
        _ => &[],
    }
}

fn named(name: Option<&str>) -> &str {
    name.unwrap_or(DEFAULT_NAME)
}

/// Checks that a client sent as many things as one of `allowed`.
fn check_count(what: &str, count: usize, allowed: &[usize]) -> PgWireResult<()> {
    if allowed.contains(&count) {
        return Ok(());
    }
    let expected = allowed.last().copied().unwrap_or_default();
    Err(error(
        code::PROTOCOL,
        format!("the message has {count} {what}, and the statement takes {expected}"),
    ))
}

fn no_statement(name: &str) -> PgWireError {
    error(
        code::NO_SUCH_STATEMENT,
        format!("prepared statement \"{}\" does not exist", shown_name(name)),
    )
}

fn no_portal(name: &str) -> PgWireError {
    error(
        code::NO_SUCH_PORTAL,
        format!("portal \"{}\" does not exist", shown_name(name)),
    )
}

fn shown_name(name: &str) -> &str {
    if name == DEFAULT_NAME { "" } else { name }
}
