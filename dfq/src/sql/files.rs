//! `SELECT ... FROM 'trips.parquet'`: a file, a folder, a glob or a URL as a table.

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
#[cfg(feature = "ballista")]
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use datafusion::catalog::{DynamicFileCatalog, TableProvider, UrlTableFactory};
use datafusion::common::{TableReference, internal_datafusion_err, plan_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
#[cfg(feature = "ballista")]
use datafusion::sql::parser::{CopyToSource, Statement};
#[cfg(feature = "ballista")]
use datafusion::sql::sqlparser::ast::{ObjectName, ObjectNamePart, VisitMut, visit_relations_mut};
use futures::TryStreamExt;
use parking_lot::RwLock;

use super::stores;

/// File extensions whose format is known without `CREATE EXTERNAL TABLE`.
#[cfg(not(feature = "cloud"))]
const EXTENSIONS: [&str; 4] = ["parquet", "csv", "json", "arrow"];
#[cfg(feature = "cloud")]
const EXTENSIONS: [&str; 5] = ["parquet", "csv", "json", "arrow", "avro"];

/// Makes quoted paths and URLs usable as table names.
pub(crate) fn enable(ctx: &SessionContext) {
    let factory = Arc::new(FileTables {
        state: ctx.state_weak_ref(),
    });
    let catalogs = Arc::clone(ctx.state().catalog_list());
    ctx.register_catalog_list(Arc::new(DynamicFileCatalog::new(catalogs, factory)));
}

/// Names a file, a folder, a glob or a URL as a table: `trips.parquet` as `trips`, `rides=trips.parquet` as `rides`.
///
/// # Errors
/// A file that is no table, and a name without characters.
pub(crate) async fn add_table(ctx: &SessionContext, text: &str) -> Result<()> {
    let (name, path) = match text.split_once('=') {
        // Folders such as `year=2023` have the sign too.
        Some((name, path)) if !name.contains(['/', std::path::MAIN_SEPARATOR]) => (name, path),
        _ => (stem(text), text),
    };
    if name.is_empty() || path.is_empty() {
        return plan_err!("'{text}' has no name for a table: give it as NAME=FILE");
    }
    let table = ctx.table_provider(file_table(path)).await?;
    ctx.register_table(TableReference::bare(name), table)?;
    Ok(())
}

/// Whether the name of a table is meant as a path. A plain word is not, although a folder may have that name: a table that is created under
/// the name does not exist before.
fn is_path(name: &str) -> bool {
    name.starts_with('~') || name.contains(['/', '.', '*', '?', '[', std::path::MAIN_SEPARATOR])
}

/// The name of the table that a file or a folder is, also where its name is a plain word.
pub(crate) fn file_table(path: &str) -> TableReference {
    TableReference::bare(match is_path(path) {
        true => path.to_owned(),
        false => format!("./{path}"),
    })
}

/// The name of a file without its folder and its ending.
fn stem(path: &str) -> &str {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default()
}

/// Tables of the files at a path, all of one format, with errors that say what is wrong with the path.
#[derive(Debug)]
struct FileTables {
    state: Weak<RwLock<SessionState>>,
}

#[async_trait]
impl UrlTableFactory for FileTables {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if !is_path(name) {
            return Ok(None);
        }
        let path = with_home(name);
        let state = self.state.upgrade();
        let state = state.ok_or_else(|| internal_datafusion_err!("the session of '{path}' is closed"))?;
        let state = state.read().clone();
        stores::reach(state.runtime_env(), state.default_table_options(), &path).await?;
        match listing(&path, &state).await {
            Ok(Some(table)) => Ok(Some(Arc::new(table))),
            Ok(None) => {
                explain(&path)?;
                Ok(None)
            }
            Err(error) => Err(DataFusionError::Context(
                format!("cannot read '{path}'"),
                Box::new(error),
            )),
        }
    }
}

/// The table of the files at a path; `None` if there is none whose ending tells a format.
///
/// # Errors
/// Files in several formats, of which a table would read one; errors of the store, and of reading the schema.
async fn listing(path: &str, state: &SessionState) -> Result<Option<ListingTable>> {
    let Ok(url) = ListingTableUrl::parse(path) else {
        return Ok(None);
    };
    let formats = match formats(&url, state).await {
        // Web servers answer a request for a list of files as they like.
        Err(_) if matches!(url.scheme(), "http" | "https") => return Ok(None),
        formats => formats?,
    };
    let mut formats = formats.into_iter();
    let Some((ending, found)) = formats.next() else {
        return Ok(None);
    };
    if let Some((other, file)) = formats.next() {
        return plan_err!(
            "files of several formats, for example {} ('{ending}') and {} ('{other}'): a table has files of one, choose them by a pattern such \
             as '*.{ending}'",
            found.example,
            file.example
        );
    }
    let options = ListingOptions::new(found.format).with_file_extension(ending);
    let config = ListingTableConfig::new(url).with_listing_options(options);
    let config = config.infer_partitions_from_path(state).await?;
    Ok(Some(ListingTable::try_new(config.infer_schema(state).await?)?))
}

/// Files with one ending.
struct FilesFound {
    format: Arc<dyn FileFormat>,
    /// Name of one of them, without its folder.
    example: String,
}

/// The endings of all files at `url` that tell a format, each with that of its compression: `csv`, `csv.gz`.
///
/// # Errors
/// Errors of the store.
async fn formats(url: &ListingTableUrl, state: &SessionState) -> Result<BTreeMap<String, FilesFound>> {
    let store = state.runtime_env().object_store(url)?;
    let mut files = url.list_all_files(state, store.as_ref(), "").await?;
    let mut found = BTreeMap::new();
    while let Some(file) = files.try_next().await? {
        let name = file.location.filename().unwrap_or_default();
        let (extension, compression) = ListingTableConfig::infer_file_extension_and_compression_type(name)?;
        let Some(factory) = state.get_file_format_factory(&extension) else {
            continue;
        };
        let mut options = HashMap::new();
        let mut ending = extension;
        if let Some(compression) = compression {
            ending = format!("{ending}.{compression}");
            options.insert("format.compression".to_owned(), compression);
        }
        if let Entry::Vacant(place) = found.entry(ending) {
            let (format, example) = (factory.create(state, &options)?, name.to_owned());
            place.insert(FilesFound { format, example });
        }
    }
    Ok(found)
}

/// A path with the user's folder in place of a leading `~`.
fn with_home(path: &str) -> String {
    match (path.strip_prefix('~'), dirs::home_dir()) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            format!("{}{rest}", home.display())
        }
        _ => path.to_owned(),
    }
}

/// The error for a name that is meant as a local path but gives no table; nothing for other names.
fn explain(name: &str) -> Result<()> {
    let path = Path::new(name);
    let extension = path
        .extension()
        .and_then(|e| e.to_str())
        .map(str::to_ascii_lowercase);
    let known = extension.as_deref().is_some_and(|e| EXTENSIONS.contains(&e));
    let is_glob = name.contains(['*', '?', '[']);
    if name.contains("://") {
        return plan_err!("no table file found at '{name}'");
    }
    if path.exists() {
        return plan_err!(
            "cannot tell the format of '{name}' by its name; files ending in {} can be read directly, others \
             with CREATE EXTERNAL TABLE t STORED AS <format> LOCATION '{name}'",
            EXTENSIONS.join(", ")
        );
    }
    match (is_glob, known || name.contains(std::path::MAIN_SEPARATOR)) {
        (true, _) if has_folder_patterns(name) => plan_err!(
            "no file matches '{name}': patterns stand in the last part of a path, or with SET \
             datafusion.execution.listing_table_ignore_subdirectory = false anywhere, where * stands for / too"
        ),
        (true, _) => plan_err!("no file matches '{name}'"),
        (false, true) => match ListingTableUrl::parse(name) {
            Ok(url) => plan_err!("file '{name}' not found (looked for {url})"),
            Err(error) => plan_err!("file '{name}' not found: {error}"),
        },
        (false, false) => Ok(()),
    }
}

/// Whether a part of a path other than the last has a pattern.
fn has_folder_patterns(path: &str) -> bool {
    let folders = path.rsplit_once(['/', std::path::MAIN_SEPARATOR]);
    folders.is_some_and(|(folders, _)| folders.contains(['*', '?', '[']))
}

/// A statement whose files are named by paths with a folder: `'trips.parquet'` as `'./trips.parquet'`. A name such as the first would be
/// read as a schema and a table where a plan is sent as text.
#[cfg(feature = "ballista")]
pub(crate) fn with_folders(mut statement: Statement) -> Statement {
    let mut inner = &mut statement;
    while let Statement::Explain(explain) = inner {
        inner = &mut explain.statement;
    }
    match inner {
        Statement::Statement(sql) => put_folders(sql.as_mut()),
        Statement::CopyTo(copy) => {
            if let CopyToSource::Query(query) = &mut copy.source {
                put_folders(query.as_mut());
            }
        }
        _ => {}
    }
    statement
}

#[cfg(feature = "ballista")]
fn put_folders(parsed: &mut impl VisitMut) {
    let _ = visit_relations_mut(parsed, |name: &mut ObjectName| {
        if let [ObjectNamePart::Identifier(file)] = name.0.as_mut_slice()
            && file.quote_style == Some('\'')
            && is_path(&file.value)
            && !file.value.starts_with('~')
            && !file.value.contains(['/', std::path::MAIN_SEPARATOR])
        {
            file.value.insert_str(0, "./");
        }
        ControlFlow::<()>::Continue(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "ballista")]
    #[test]
    fn files_of_a_cluster_s_statements_have_a_folder() {
        use datafusion::sql::parser::DFParser;

        for (sql, expected) in [
            ("SELECT x FROM 'a.csv'", "SELECT x FROM './a.csv'"),
            (
                "EXPLAIN SELECT x FROM 'a.csv' AS t WHERE x IN (SELECT y FROM '*.json')",
                "EXPLAIN SELECT x FROM './a.csv' AS t WHERE x IN (SELECT y FROM './*.json')",
            ),
            (
                "SELECT 'a.csv' FROM 'b/a.csv', \"a.csv\", s.t, '~'",
                "SELECT 'a.csv' FROM 'b/a.csv', \"a.csv\", s.t, '~'",
            ),
        ] {
            let statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
            assert_eq!(with_folders(statement).to_string(), expected);
        }
    }

    #[test]
    fn parts_of_a_path_with_patterns() {
        for (path, expected) in [
            ("*.csv", false),
            ("a/*.csv", false),
            ("*/a.csv", true),
            ("a/[bc]/*.csv", true),
        ] {
            assert_eq!(has_folder_patterns(path), expected, "{path}");
        }
    }

    #[test]
    fn tables_are_named_by_their_files() {
        for (path, name) in [
            ("trips.parquet", "trips"),
            ("data/trips.csv.gz", "trips"),
            ("s3://bucket/trips/", "trips"),
            ("/data/*.parquet", "*"),
            ("", ""),
        ] {
            assert_eq!(stem(path), name, "{path}");
        }
    }
}
