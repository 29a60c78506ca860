//! The names of a session that the prompt completes: keywords, functions, tables, columns and options.

use std::time::Duration;

use datafusion::common::TableReference;
use datafusion::prelude::SessionContext;

use super::context::Source;

/// How long a prompt looks for the columns of one table while its user waits for them.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Most tables whose columns are listed before a statement names any.
const MOST_TABLES: usize = 50;

/// Ends of the names of functions that stand for one way to call another, such as `exact_rank_desc`.
const WAYS: [&str; 5] = ["_asc", "_desc", "_equi_width", "_nulls_first", "_nulls_last"];

/// Keywords with which statements begin.
pub(super) const STATEMENTS: &[&str] = &[
    "ANALYZE",
    "COPY",
    "CREATE",
    "DELETE",
    "DESCRIBE",
    "DROP",
    "EXECUTE",
    "EXPLAIN",
    "INSERT",
    "PIN",
    "PREPARE",
    "RESET",
    "SELECT",
    "SET",
    "SHOW",
    "SUMMARIZE",
    "TRUNCATE",
    "UNPIN",
    "UPDATE",
    "VALUES",
    "WITH",
];

/// Keywords within statements.
const KEYWORDS: &[&str] = &[
    "ALL",
    "AND",
    "ANTI",
    "ANY",
    "ARRAY",
    "AS",
    "ASC",
    "BETWEEN",
    "BIGINT",
    "BOOLEAN",
    "BY",
    "CASE",
    "CAST",
    "COPY",
    "CREATE",
    "CROSS",
    "CUBE",
    "CURRENT ROW",
    "DATE",
    "DECIMAL",
    "DESC",
    "DISTINCT",
    "DOUBLE",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN",
    "EXTERNAL",
    "EXTRACT",
    "FALSE",
    "FETCH",
    "FILTER",
    "FIRST",
    "FLOAT",
    "FOLLOWING",
    "FROM",
    "FULL",
    "GROUP BY",
    "GROUPING SETS",
    "GROUPS",
    "HAVING",
    "IGNORE NULLS",
    "ILIKE",
    "IN",
    "INNER",
    "INSERT",
    "INT",
    "INTERSECT",
    "INTERVAL",
    "INTO",
    "IS",
    "JOIN",
    "LAST",
    "LATERAL",
    "LEFT",
    "LIKE",
    "LIMIT",
    "LOCATION",
    "NATURAL",
    "NOT",
    "NULL",
    "NULLS FIRST",
    "NULLS LAST",
    "OFFSET",
    "ON",
    "OPTIONS",
    "OR",
    "ORDER BY",
    "OUTER",
    "OVER",
    "OVERWRITE",
    "PARTITION BY",
    "PARTITIONED BY",
    "PRECEDING",
    "QUALIFY",
    "RANGE",
    "RECURSIVE",
    "REPLACE",
    "RESPECT NULLS",
    "RIGHT",
    "ROLLUP",
    "ROWS",
    "SELECT",
    "SEMI",
    "SIMILAR TO",
    "SMALLINT",
    "STORED AS",
    "TABLE",
    "THEN",
    "TIMESTAMP",
    "TINYINT",
    "TO",
    "TRUE",
    "UNBOUNDED",
    "UNION",
    "UNNEST",
    "USING",
    "VALUES",
    "VARCHAR",
    "VIEW",
    "WHEN",
    "WHERE",
    "WINDOW",
    "WITH",
    "WITHIN GROUP",
    "WITH ORDINALITY",
];

/// The keywords within statements that begin with `word`, in the case that it is typed in.
pub(super) fn keywords(word: &str) -> Vec<String> {
    in_case_of(word, KEYWORDS)
}

/// The keywords with which statements begin, in the case that `word` is typed in.
pub(super) fn statements(word: &str) -> Vec<String> {
    in_case_of(word, STATEMENTS)
}

fn in_case_of(word: &str, keywords: &[&str]) -> Vec<String> {
    let is_small = word.starts_with(|first: char| first.is_lowercase());
    let written = keywords.iter().map(|keyword| match is_small {
        true => keyword.to_lowercase(),
        false => (*keyword).to_owned(),
    });
    written.collect()
}

/// The names of a session.
pub(super) struct Names<'a> {
    pub(super) ctx: &'a SessionContext,
    /// How long the columns of one table are looked for, which may have to be read from a file.
    pub(super) patience: Duration,
}

impl Names<'_> {
    /// The functions that statements call, without those that stand for one way to call another.
    pub(super) fn functions(&self) -> Vec<String> {
        let state = self.ctx.state();
        let all: Vec<_> = state
            .scalar_functions()
            .keys()
            .chain(state.aggregate_functions().keys())
            .chain(state.window_functions().keys())
            .cloned()
            .collect();
        let is_way = |name: &str| {
            let is_directed = WAYS.iter().any(|way| {
                let start = name.strip_suffix(way);
                start.is_some_and(|start| all.iter().any(|other| other == start))
            });
            let is_method = name.starts_with("exact_quantiles_") || name.starts_with("vector_");
            is_directed || is_method || ["exact_median", "exact_percentile_cont"].contains(&name)
        };
        let is_word = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        all.iter()
            .filter(|name| is_word(name) && !is_way(name))
            .cloned()
            .collect()
    }

    /// The functions that give rows.
    pub(super) fn table_functions(&self) -> Vec<String> {
        self.ctx.state().table_functions().keys().cloned().collect()
    }

    /// The options of the session.
    pub(super) fn settings(&self) -> Vec<String> {
        let entries = self.ctx.copied_config().options().entries();
        entries.into_iter().map(|entry| entry.key).collect()
    }

    /// Values of an option: the one that it has, and those of a switch.
    pub(super) fn values(&self, setting: &str) -> Vec<String> {
        let entries = self.ctx.copied_config().options().entries();
        let entry = entries
            .into_iter()
            .find(|entry| entry.key.eq_ignore_ascii_case(setting));
        match entry.and_then(|entry| entry.value) {
            Some(value) if value == "true" || value == "false" => {
                vec!["true".to_owned(), "false".to_owned()]
            }
            Some(value) if value.parse::<f64>().is_ok() => vec![value],
            Some(value) => vec![format!("'{}'", value.replace('\'', "''"))],
            None => Vec::new(),
        }
    }

    /// The tables by the names that reach them: alone in the default schema, with the schema's elsewhere.
    pub(super) fn tables(&self) -> Vec<String> {
        let options = self.ctx.copied_config();
        let default = &options.options().catalog;
        let Some(catalog) = self.ctx.catalog(&default.default_catalog) else {
            return Vec::new();
        };
        let mut tables = Vec::new();
        for name in catalog.schema_names() {
            let Some(schema) = catalog.schema(&name) else {
                continue;
            };
            let names = schema.table_names().into_iter().map(|table| quoted(&table));
            match name == default.default_schema {
                true => tables.extend(names),
                false => tables.extend(names.map(|table| format!("{}.{table}", quoted(&name)))),
            }
        }
        tables
    }

    /// The columns of these sources; of all tables of the default schema if there is none.
    pub(super) async fn columns(&self, sources: &[Source], qualifier: &[String]) -> Vec<String> {
        let mut columns = Vec::new();
        if sources.is_empty() && qualifier.is_empty() {
            for table in self.tables().iter().take(MOST_TABLES) {
                columns.extend(self.columns_of(TableReference::parse_str(table)).await);
            }
            return columns;
        }
        let is_meant = |source: &Source| match qualifier {
            [] => true,
            [name] if source.alias.is_some() => {
                source.alias.as_ref().is_some_and(|alias| is_same(alias, name))
            }
            names => {
                source.name.len() >= names.len() && {
                    let rest = &source.name[source.name.len() - names.len()..];
                    rest.iter().zip(names).all(|(part, name)| is_same(part, name))
                }
            }
        };
        for source in sources.iter().filter(|source| is_meant(source)) {
            columns.extend(self.columns_of(reference(&source.name)).await);
        }
        columns
    }

    async fn columns_of(&self, table: TableReference) -> Vec<String> {
        if table.table().contains("://") {
            return Vec::new();
        }
        let found = tokio::time::timeout(self.patience, self.ctx.table_provider(table)).await;
        let Ok(Ok(table)) = found else { return Vec::new() };
        table
            .schema()
            .fields()
            .iter()
            .map(|field| quoted(field.name()))
            .collect()
    }
}

fn is_same(name: &str, typed: &str) -> bool {
    name.eq_ignore_ascii_case(typed)
}

/// The table of a name's parts. A path is one part.
fn reference(name: &[String]) -> TableReference {
    match name {
        [schema, table] => TableReference::partial(schema.as_str(), table.as_str()),
        [catalog, schema, table] => TableReference::full(catalog.as_str(), schema.as_str(), table.as_str()),
        name => TableReference::bare(name.join(".")),
    }
}

/// A name as a statement writes it: in quotes where it has other characters than small letters, digits and underscores.
fn quoted(name: &str) -> String {
    datafusion::common::utils::quote_identifier(name).into_owned()
}
