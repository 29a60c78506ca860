//! PostgreSQL's catalog for its clients: `pg_catalog`, functions such as `version()`, and statements rewritten to what DataFusion
//! plans.

mod format_type;
mod functions;
mod listings;
mod relations;
mod rewrites;
mod settings_view;
mod tables;
mod texts;

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

pub(in crate::serve) use self::functions::{OBJECTS, VERSION};
use self::rewrites::{CatalogRules, with_backslashes, with_names};
use super::parameters::Parameter;
use crate::serve::policy::Writes;

/// The function that gives the value of a variable of PostgreSQL, which each connection has its own of.
pub(in crate::serve) const CURRENT_SETTING: &str = "current_setting";

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
    rules: CatalogRules,
    /// For those of them that the rules do not help.
    library: PostgresCompatibilityParser,
    /// For others that DataFusion refuses: none of these changes an answer.
    plain: Vec<Box<dyn SqlStatementRewriteRule>>,
}

impl Catalog {
    /// Adds the catalog and its functions to a session.
    ///
    /// # Errors
    /// Those of the tables that are made.
    pub(in crate::serve) fn install(ctx: &SessionContext, writes: Writes) -> Result<Self> {
        let config = ctx.copied_config();
        let name = &config.options().catalog.default_catalog;
        setup_pg_catalog(ctx, name, EmptyContextProvider).map_err(|error| *error)?;
        let mut state = ctx.state_ref().read().clone();
        datafusion_postgres::datafusion_pg_functions::register_all(&mut state);
        *ctx.state_ref().write() = state;
        functions::register(ctx, writes);
        let types = tables::install(ctx)?;
        Ok(Self {
            rules: CatalogRules::new(types),
            library: PostgresCompatibilityParser::new(),
            plain: vec![
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
            return self.plan_of_catalog(ctx, sql, text).await;
        }
        let plan = |sql: SqlStatement| state.statement_to_plan(DataFusionStatement::Statement(Box::new(sql)));
        let refused = match plan(sql.clone()).await {
            Ok(plan) => return Ok(plan),
            Err(refused) => refused,
        };
        let mut rewritten = self.plain.iter().fold(sql, |sql, rule| rule.rewrite(sql));
        with_names(&mut rewritten);
        plan(rewritten).await.map_err(|_| refused)
    }

    /// Plans a statement about the catalog in the first form that can run.
    async fn plan_of_catalog(
        &self,
        ctx: &SessionContext,
        sql: SqlStatement,
        text: &str,
    ) -> Result<LogicalPlan> {
        let refused = match planned(ctx, self.rules.rewrite(&sql)).await {
            Ok(plan) => return Ok(plan),
            Err(refused) => refused,
        };
        if let Ok(plan) = planned(ctx, self.by_library(&sql, text)).await {
            return Ok(plan);
        }
        planned(ctx, sql).await.map_err(|_| refused)
    }

    fn by_library(&self, sql: &SqlStatement, text: &str) -> SqlStatement {
        let statements = self.library.parse(text).unwrap_or_default();
        match <[SqlStatement; 1]>::try_from(statements) {
            Ok([mut statement]) => {
                with_backslashes(&mut statement);
                statement
            }
            Err(_) => self.library.rewrite(sql.clone()),
        }
    }
}

/// A plan that can run. Whether subqueries can is only known when they are joined to what is around them.
async fn planned(ctx: &SessionContext, sql: SqlStatement) -> Result<LogicalPlan> {
    let state = ctx.state();
    let is_query = matches!(sql, SqlStatement::Query(_));
    let plan = state
        .statement_to_plan(DataFusionStatement::Statement(Box::new(sql)))
        .await?;
    if is_query {
        let nulls = Parameter::nulls(&Parameter::of(&plan, &[], &[])?)?;
        let bound = plan.clone().replace_params_with_values(&nulls)?;
        state.create_physical_plan(&bound).await?;
    }
    Ok(plan)
}
