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

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    fn rewritten(text: &str) -> String {
        let types = ColumnTypes::from([("indrelid".to_string(), "OID"), ("atttypid".to_string(), "OID")]);
        let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, text).unwrap();
        CatalogRules::new(types)
            .rewrite(&statements.pop().unwrap())
            .to_string()
    }

    #[test]
    fn what_reads_tables_without_rows_has_none() {
        for (text, expected) in [
            (
                "SELECT i.indrelid, i.indkey AS k FROM pg_index i, pg_class c ORDER BY 1",
                "SELECT CAST(NULL AS OID) AS indrelid, CAST(NULL AS TEXT) AS k WHERE false",
            ),
            (
                "SELECT k FROM (SELECT indkey AS k FROM pg_index) x JOIN pg_class c ON true",
                "SELECT CAST(NULL AS TEXT) AS k WHERE false",
            ),
            (
                "SELECT 1 FROM pg_class c LEFT JOIN pg_index i ON true",
                "SELECT 1 FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_index i ON true",
            ),
            (
                "SELECT 1 FROM pg_index i RIGHT JOIN pg_class c ON true",
                "SELECT 1 FROM pg_catalog.pg_index i RIGHT JOIN pg_catalog.pg_class c ON true",
            ),
            (
                "SELECT count(*) FROM pg_index",
                "SELECT count(*) FROM pg_catalog.pg_index",
            ),
            ("SELECT 1 FROM pg_index_of_mine", "SELECT 1 FROM pg_index_of_mine"),
        ] {
            assert_eq!(rewritten(text), expected, "{text}");
        }
    }

    #[test]
    fn branches_that_no_row_takes_are_left_out() {
        for (text, expected) in [
            (
                "SELECT CASE WHEN a.atthasdef AND a.attnum > 0 THEN 'd' ELSE 'n' END AS c FROM pg_attribute a",
                "SELECT 'n' AS c FROM pg_catalog.pg_attribute a",
            ),
            (
                "SELECT CASE WHEN t.typtype = 'd' THEN 1 WHEN t.typtype = 'b' THEN 2 END AS c FROM pg_type t",
                "SELECT CASE WHEN t.typtype = 'b' THEN 2 END AS c FROM pg_catalog.pg_type t",
            ),
            // A column of another table.
            (
                "SELECT CASE WHEN u.atthasdef THEN 'd' END AS c FROM u, pg_attribute a",
                "SELECT CASE WHEN u.atthasdef THEN 'd' END AS c FROM u, pg_catalog.pg_attribute a",
            ),
        ] {
            assert_eq!(rewritten(text), expected, "{text}");
        }
    }

    #[test]
    fn lookups_in_the_catalog_are_aggregates() {
        for (text, expected) in [
            (
                "SELECT (SELECT t.typname FROM pg_type t WHERE t.oid = a.atttypid) AS n FROM pg_attribute a",
                "SELECT (SELECT first_value(t.typname) FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid) AS n \
                 FROM pg_catalog.pg_attribute a",
            ),
            (
                "SELECT a.atttypid::regtype::text AS n, 'array_in'::regproc AS f FROM pg_attribute a",
                "SELECT format_type(a.atttypid, NULL) AS n, 'array_in' AS f FROM pg_catalog.pg_attribute a",
            ),
            // Of a table of the session's it may be more than one row.
            (
                "SELECT (SELECT u.x FROM u WHERE u.y = c.oid) AS x FROM pg_class c",
                "SELECT (SELECT u.x FROM u WHERE u.y = c.oid) AS x FROM pg_catalog.pg_class c",
            ),
        ] {
            assert_eq!(rewritten(text), expected, "{text}");
        }
    }

    #[test]
    fn names_and_functions_are_where_datafusion_has_them() {
        for (text, expected) in [
            ("SELECT NULL, NULL", "SELECT NULL, NULL AS \"?column?:1\""),
            (
                "SELECT c.column_name FROM information_schema.columns c",
                "SELECT c.column_name FROM pg_catalog.\"information_schema.columns\" c",
            ),
            (
                "SELECT s[1] FROM string_to_array('a,b', ',') s",
                "SELECT s[1] FROM (SELECT string_to_array('a,b', ',') AS s) AS s",
            ),
            (
                "SELECT CASE WHEN x IN (SELECT y FROM u) THEN 1 END AS c FROM t",
                "SELECT CASE WHEN array_contains((SELECT array_agg(y) FROM u), x) THEN 1 END AS c FROM t",
            ),
            // What is not in a list with NULLs is not known.
            (
                "SELECT CASE WHEN NOT x IN (SELECT y FROM u) THEN 1 END AS c FROM t",
                "SELECT CASE WHEN NOT x IN (SELECT y FROM u) THEN 1 END AS c FROM t",
            ),
        ] {
            assert_eq!(rewritten(text), expected, "{text}");
        }
    }
}
