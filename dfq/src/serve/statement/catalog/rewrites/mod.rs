//! Statements that DataFusion cannot plan, or plans and cannot run, in a form that it can, with the same answer.
//!
//! ```text
//! patterns       LIKE .. ESCAPE '/'
//! information    tables of information_schema that DataFusion does not have
//! members        IN (SELECT ..) within CASE
//! names          'name'::regproc, number::regtype::text: numbers of types and tables, and their names
//! constants      branches of CASE that no row of the catalog takes
//! calls          functions where PostgreSQL has tables
//! empty          queries of tables that have no rows
//! lists          ARRAY(SELECT ..)
//! single         subqueries that give one value for each row of the query around them
//! repeated       columns of an answer with the same name
//! ```

mod calls;
mod constants;
mod empty;
mod information;
mod lists;
mod members;
mod names;
mod patterns;
mod repeated;
mod single;
mod types;

use datafusion::sql::sqlparser::ast::Statement;
use datafusion_postgres::datafusion_pg_catalog::sql::rules::{
    AliasDuplicatedProjectionRewrite, CurrentUserVariableToSessionUserFunctionCall, FixArrayLiteral,
    FixVersionColumnName, PrependUnqualifiedPgTableName, ResolveUnqualifiedIdentifier,
    RewriteArrayAnyAllOperation, RewritePgCatalogOperator, RewriteRegCastToSubquery, SqlStatementRewriteRule,
    StripCallableQualifier, StripCollate,
};

pub(super) use self::patterns::with_backslashes;
pub(super) use self::repeated::with_names;
use super::tables::ColumnTypes;

/// Rules for statements about the catalog.
#[derive(Debug)]
pub(super) struct CatalogRules {
    before: Vec<Box<dyn SqlStatementRewriteRule>>,
    casts: RewriteRegCastToSubquery,
    types: ColumnTypes,
}

impl CatalogRules {
    pub(super) fn new(types: ColumnTypes) -> Self {
        Self {
            before: vec![
                Box::new(AliasDuplicatedProjectionRewrite),
                Box::new(ResolveUnqualifiedIdentifier),
                Box::new(RewriteArrayAnyAllOperation),
                Box::new(PrependUnqualifiedPgTableName),
                Box::new(StripCallableQualifier),
                Box::new(FixArrayLiteral),
                Box::new(CurrentUserVariableToSessionUserFunctionCall),
                Box::new(StripCollate),
                Box::new(RewritePgCatalogOperator),
            ],
            casts: RewriteRegCastToSubquery::new(),
            types,
        }
    }

    /// The statement in a form that can be planned.
    pub(super) fn rewrite(&self, statement: &Statement) -> Statement {
        let statement = statement.clone();
        let mut statement = self
            .before
            .iter()
            .fold(statement, |statement, rule| rule.rewrite(statement));
        information::redirect(&mut statement);
        names::resolve(&mut statement, &self.types);
        constants::fold(&mut statement, &self.types);
        empty::fold(&mut statement, &self.types);
        calls::as_tables(&mut statement);
        members::as_lists(&mut statement);
        lists::aggregate(&mut statement);
        statement = FixVersionColumnName.rewrite(self.casts.rewrite(statement));
        single::aggregate(&mut statement);
        with_names(&mut statement);
        statement
    }
}
