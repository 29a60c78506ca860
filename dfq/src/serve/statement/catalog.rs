//! PostgreSQL's catalog for its clients: `pg_catalog`, functions such as `version()`, and statements rewritten to what DataFusion
//! plans.

use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::setup_pg_catalog;
use datafusion_postgres::datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use datafusion_postgres::datafusion_pg_catalog::sql::rules::{
    AliasDuplicatedProjectionRewrite, CurrentUserVariableToSessionUserFunctionCall, FixArrayLiteral,
    RewriteArrayAnyAllOperation, RewritePgCatalogOperator, SqlStatementRewriteRule, StripCallableQualifier,
    StripCollate,
};

use super::functions;
use super::rewrites::{with_backslashes, without_keys};

/// Words that only statements about the catalog hold.
const CATALOG: [&str; 5] = [
    "pg_",
    "information_schema",
    "::reg",
    "current_setting",
    "current_catalog",
];

/// How statements are planned whose tables or syntax are PostgreSQL's own.
#[derive(Debug)]
pub(in crate::serve) struct Catalog {
    /// For statements about the catalog.
    parser: PostgresCompatibilityParser,
    /// For others that DataFusion refuses: none of these changes an answer.
    rules: Vec<Box<dyn SqlStatementRewriteRule>>,
}

impl Catalog {
    /// Adds the catalog and its functions to a session.
    ///
    /// # Errors
    /// Those of the tables that are made.
    pub(in crate::serve) fn install(ctx: &SessionContext) -> Result<Self> {
        let config = ctx.copied_config();
        let name = &config.options().catalog.default_catalog;
        setup_pg_catalog(ctx, name, EmptyContextProvider).map_err(|error| *error)?;
        let mut state = ctx.state_ref().read().clone();
        datafusion_postgres::datafusion_pg_functions::register_all(&mut state);
        *ctx.state_ref().write() = state;
        functions::register(ctx);
        Ok(Self {
            parser: PostgresCompatibilityParser::new(),
            rules: vec![
                Box::new(AliasDuplicatedProjectionRewrite),
                Box::new(RewriteArrayAnyAllOperation),
                Box::new(StripCallableQualifier),
                Box::new(FixArrayLiteral),
                Box::new(CurrentUserVariableToSessionUserFunctionCall),
                Box::new(StripCollate),
                Box::new(RewritePgCatalogOperator),
            ],
        })
    }

    /// Plans a statement with this text. One about the catalog is rewritten first; every other is planned as it is, and
    /// rewritten only if DataFusion refuses it.
    ///
    /// # Errors
    /// DataFusion's, about the statement as it is, or as it was rewritten if it is about the catalog.
    pub(in crate::serve) async fn plan(
        &self,
        ctx: &SessionContext,
        statement: DataFusionStatement,
        text: &str,
    ) -> Result<LogicalPlan> {
        let state = ctx.state();
        let DataFusionStatement::Statement(sql) = statement else {
            return state.statement_to_plan(statement).await;
        };
        let mut sql = *sql;
        with_backslashes(&mut sql);
        let lower = text.to_ascii_lowercase();
        if CATALOG.iter().any(|word| lower.contains(word)) {
            let rewritten = without_keys(&sql, &lower).unwrap_or_else(|| self.of_catalog(&sql, text));
            let planned = state.statement_to_plan(DataFusionStatement::Statement(Box::new(rewritten)));
            let refused = match planned.await {
                Ok(plan) => return Ok(plan),
                Err(refused) => refused,
            };
            let plain = state.statement_to_plan(DataFusionStatement::Statement(Box::new(sql)));
            return plain.await.map_err(|_| refused);
        }
        let statement = DataFusionStatement::Statement(Box::new(sql.clone()));
        let refused = match state.statement_to_plan(statement).await {
            Ok(plan) => return Ok(plan),
            Err(refused) => refused,
        };
        let rewritten = self.rules.iter().fold(sql, |sql, rule| rule.rewrite(sql));
        let again = state.statement_to_plan(DataFusionStatement::Statement(Box::new(rewritten)));
        again.await.map_err(|_| refused)
    }

    fn of_catalog(&self, sql: &SqlStatement, text: &str) -> SqlStatement {
        let statements = self.parser.parse(text).unwrap_or_default();
        match <[SqlStatement; 1]>::try_from(statements) {
            Ok([mut statement]) => {
                with_backslashes(&mut statement);
                statement
            }
            Err(_) => self.parser.rewrite(sql.clone()),
        }
    }
}
