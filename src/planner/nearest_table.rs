//! The table function `nearest`: the nearest rows of a table for each row of a table of queries.
//!
//! ```sql
//! SELECT query_id, id, distance FROM nearest(items, 'embedding', questions, 'embedding', 10, 'cosine') ORDER BY query_id, rank
//! ```
//! A call is a view over both tables, planned as if it were written out:
//!
//! ```sql
//! SELECT * FROM (
//!     SELECT q.. AS query_.., b.., d AS distance, row_number() OVER (PARTITION BY q.number ORDER BY d, b..) AS rank
//!     FROM (SELECT *, array_distance(b.v, q.v) AS d FROM (SELECT *, row_number() OVER () AS number FROM questions) q CROSS JOIN items b)
//! ) WHERE rank <= 10
//! ```
//! Where both are one table and column, pairs of a row with itself are left out.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{
    Column, Result, ScalarValue, TableReference, exec_datafusion_err, plan_datafusion_err, plan_err,
};
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::execution::session_state::SessionState;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, binary_expr, col, lit,
};
use futures::FutureExt;

use super::grouped_topk::has_one_form;
use super::sort_limit::is_faster;
use crate::functions::{builtin_distance, is_vectors};
use crate::kernel::cpu::distance::Measure;

/// The name of the function.
pub(super) const NEAREST: &str = "nearest";

/// What a call looks like.
const USAGE: &str = "nearest(table, 'vectors', queries, 'vectors', k [, 'l2' | 'cosine' | 'dot'])";

/// The column that numbers queries.
const NUMBER: &str = "__query_number";

/// The columns of distances and ranks while the tables' own are beside them.
const DISTANCE: &str = "__nearest_distance";
const RANK: &str = "__nearest_rank";

/// The table function `nearest(table, 'vectors', queries, 'vectors', k [, measure])`.
///
/// Its rows have the queries' columns but for the vectors, each with the name `query_` and its own; the table's columns but for the
/// vectors; `distance` (Float64) and `rank` (UInt64, from 1). Rows of equal distance are in the order of the table's columns, the first one
/// first.
#[derive(Debug)]
pub(super) struct NearestTable {
    /// Checks that a session runs its queries itself, as what the text names needs.
    pub(super) check: fn(&SessionState, &str) -> Result<()>,
}

impl TableFunctionImpl for NearestTable {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let Some(state) = args.session().as_any().downcast_ref::<SessionState>() else {
            return plan_err!("{NEAREST} looks tables up in a session of DataFusion, which this is not");
        };
        (self.check)(state, "the table function nearest")?;
        let call = Call::parse(args.exprs())?;
        let plan = call.plan(state)?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

/// The measure of a name.
///
/// # Errors
/// A planning error for another name.
fn measure_of(name: &str) -> Result<Measure> {
    match name.to_ascii_lowercase().as_str() {
        "l2" => Ok(Measure::Euclidean),
        "cosine" => Ok(Measure::Cosine),
        "dot" => Ok(Measure::InnerProduct),
        _ => plan_err!("{NEAREST} has no measure {name:?}: allowed are 'l2', 'cosine' and 'dot'"),
    }
}

/// The arguments of a call.
#[derive(Debug)]
struct Call {
    table: Vectors,
    queries: Vectors,
    k: usize,
    measure: Measure,
}

/// A table and its column of vectors.
#[derive(Debug)]
struct Vectors {
    table: TableReference,
    column: String,
}

impl Call {
    /// Reads the arguments.
    ///
    /// # Errors
    /// A planning error that names the argument and what is allowed.
    fn parse(args: &[Expr]) -> Result<Self> {
        let (table, vectors, queries, of_queries, k, measure) = match args {
            [table, vectors, queries, of_queries, k] => (table, vectors, queries, of_queries, k, None),
            [table, vectors, queries, of_queries, k, measure] => {
                (table, vectors, queries, of_queries, k, Some(measure))
            }
            _ => return plan_err!("{NEAREST} takes 5 or 6 arguments, got {}: {USAGE}", args.len()),
        };
        let found = match k {
            Expr::Literal(value, _) if value.data_type().is_integer() => value.cast_to(&DataType::Int64).ok(),
            _ => None,
        };
        let k = match found {
            Some(ScalarValue::Int64(Some(k))) if usize::try_from(k).is_ok_and(is_faster) => k as usize,
            _ => return plan_err!("{NEAREST}: k is a whole number from 1 to {}, got {k}", 1 << 20),
        };
        Ok(Self {
            table: Vectors::parse(table, vectors)?,
            queries: Vectors::parse(queries, of_queries)?,
            k,
            measure: match measure {
                Some(measure) => measure_of(&text(measure, "the measure")?)?,
                None => Measure::Euclidean,
            },
        })
    }

    /// The plan of the answer.
    ///
    /// # Errors
    /// A planning error for tables and columns that do not exist, and for columns that have no vectors or vectors of other lengths.
    fn plan(&self, state: &SessionState) -> Result<LogicalPlan> {
        let (table, queries) = (self.table.open(state)?, self.queries.open(state)?);
        if let (DataType::FixedSizeList(_, a), DataType::FixedSizeList(_, b)) =
            (table.vectors(), queries.vectors())
            && a != b
        {
            return plan_err!(
                "{NEAREST}: vectors of {} have {a} components, those of {} {b}: they must have the same number",
                self.table.table,
                self.queries.table
            );
        }
        let output = self.output(&table, &queries)?;
        let numbers = row_number().alias(NUMBER);
        let numbered = LogicalPlanBuilder::scan("q", provider_as_source(queries.provider.clone()), None)?
            .window(vec![numbers])?
            .alias("q")?;
        let scanned =
            LogicalPlanBuilder::scan("b", provider_as_source(table.provider.clone()), None)?.alias("b")?;
        let pairs = numbered.cross_join(scanned.build()?)?;
        let pairs = if self.table.is(&self.queries, state) {
            pairs.filter(table.are_distinct(&self.table)?)?
        } else {
            pairs
        };
        let mut columns = vec![column("q", NUMBER)];
        columns.extend(queries.others.iter().map(|field| column("q", field.name())));
        columns.extend(table.others.iter().map(|field| column("b", field.name())));
        let vectors = vec![column("b", &self.table.column), column("q", &self.queries.column)];
        let distance = builtin_distance(self.measure).call(vectors);
        columns.push(distance.alias(DISTANCE));
        pairs
            .project(columns)?
            .window(vec![self.rank(&table)?])?
            .filter(col(RANK).lt_eq(lit(self.k as u64)))?
            .project(output)?
            .build()
    }

    /// The rank of a row among those of its query: by distance, then by the table's columns.
    fn rank(&self, table: &OpenTable) -> Result<Expr> {
        let sortable = table.others.iter().filter(|field| !field.data_type().is_nested());
        let order = sortable.map(|field| column("b", field.name()).sort(true, false));
        let nearest_first = col(DISTANCE).sort(self.measure != Measure::InnerProduct, false);
        let order = [nearest_first].into_iter().chain(order);
        let rank = row_number()
            .partition_by(vec![column("q", NUMBER)])
            .order_by(order.collect())
            .build()?;
        Ok(rank.alias(RANK))
    }

    /// The columns of the answer.
    ///
    /// # Errors
    /// A planning error for two columns of one name.
    fn output(&self, table: &OpenTable, queries: &OpenTable) -> Result<Vec<Expr>> {
        let of_query = |field: &FieldRef| column("q", field.name()).alias(format!("query_{}", field.name()));
        let mut output: Vec<Expr> = queries.others.iter().map(of_query).collect();
        output.extend(
            table
                .others
                .iter()
                .map(|field| column("b", field.name()).alias(field.name())),
        );
        output.extend([col(DISTANCE).alias("distance"), col(RANK).alias("rank")]);
        let mut names = HashSet::new();
        for expr in &output {
            let name = expr.schema_name().to_string();
            if !names.insert(name.clone()) {
                return plan_err!(
                    "{NEAREST}: two columns of the answer have the name {name:?}: rename that of {} in a view",
                    self.table.table
                );
            }
        }
        Ok(output)
    }
}

impl Vectors {
    fn parse(table: &Expr, column: &Expr) -> Result<Self> {
        let table = match table {
            Expr::Column(Column { relation, name, .. }) => named(relation.as_ref(), name),
            other => TableReference::parse_str(&text(other, "a table")?),
        };
        Ok(Self {
            table,
            column: text(column, "a column of vectors")?,
        })
    }

    /// Whether another one is the same column of the same table.
    fn is(&self, other: &Self, state: &SessionState) -> bool {
        let catalog = &state.config_options().catalog;
        let full = |table: &TableReference| {
            let table = table.clone();
            table.resolve(&catalog.default_catalog, &catalog.default_schema)
        };
        self.column == other.column && full(&self.table) == full(&other.table)
    }

    /// Looks the table up.
    ///
    /// # Errors
    /// A planning error if there is no such table, or no such column of vectors.
    fn open(&self, state: &SessionState) -> Result<OpenTable> {
        let provider = provider(state, &self.table)?;
        let schema = provider.schema();
        let Some((index, field)) = schema.column_with_name(&self.column) else {
            let names: Vec<_> = schema
                .fields()
                .iter()
                .map(|field| field.name().as_str())
                .collect();
            return plan_err!(
                "{NEAREST}: the table {} has no column {:?}: it has {}",
                self.table,
                self.column,
                names.join(", ")
            );
        };
        if !is_vectors(field.data_type()) {
            return plan_err!(
                "{NEAREST}: the column {:?} of {} has type {}: allowed are FixedSizeList and List of Float16, Float32 or Float64",
                self.column,
                self.table,
                field.data_type()
            );
        }
        let fields = schema.fields().iter().enumerate();
        let others = fields
            .filter(|(at, _)| *at != index)
            .map(|(_, field)| Arc::clone(field));
        Ok(OpenTable {
            others: others.collect(),
            vectors: field.data_type().clone(),
            provider,
        })
    }
}

/// A table of a call, looked up.
struct OpenTable {
    provider: Arc<dyn TableProvider>,
    /// Its columns but for the vectors.
    others: Vec<FieldRef>,
    vectors: DataType,
}

impl OpenTable {
    /// Type of the vectors.
    fn vectors(&self) -> &DataType {
        &self.vectors
    }

    /// That a query and a row of the same table are different rows.
    ///
    /// # Errors
    /// A planning error for a table without a column that tells rows apart.
    fn are_distinct(&self, name: &Vectors) -> Result<Expr> {
        let is_comparable = |field: &&FieldRef| {
            has_one_form(field.data_type()) && !matches!(field.data_type(), DataType::Dictionary(..))
        };
        let comparable = self.others.iter().filter(is_comparable);
        let distinct = comparable.map(|field| {
            let (query, row) = (column("q", field.name()), column("b", field.name()));
            binary_expr(query, datafusion::logical_expr::Operator::IsDistinctFrom, row)
        });
        distinct.reduce(Expr::or).ok_or_else(|| {
            plan_datafusion_err!(
                "{NEAREST}: the nearest rows in {} of its own rows need a column that tells rows apart, besides {:?}: an id, of a type \
                 other than floating point, dictionaries and nested types",
                name.table,
                name.column
            )
        })
    }
}

/// The table that a dotted name stands for, which SQL took for a column of a relation.
fn named(relation: Option<&TableReference>, name: &str) -> TableReference {
    match relation {
        None => TableReference::bare(name),
        Some(schema) => match schema.schema() {
            None => TableReference::partial(schema.table(), name),
            Some(catalog) => TableReference::full(catalog, schema.table(), name),
        },
    }
}

/// A column of one side of the pairs.
fn column(side: &str, name: &str) -> Expr {
    Expr::Column(Column::new(Some(side), name))
}

/// The text of an argument.
fn text(expr: &Expr, what: &str) -> Result<String> {
    match expr {
        Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => {
            Ok(text.clone())
        }
        other => plan_err!("{NEAREST}: {what} is a text, got {other}: {USAGE}"),
    }
}

/// Looks a table up. A catalog that reads files or a network to find it does so on a thread of its own.
///
/// # Errors
/// The catalog's; a planning error if there is no such table.
fn provider(state: &SessionState, table: &TableReference) -> Result<Arc<dyn TableProvider>> {
    let schema = state.schema_for_ref(table.clone())?;
    let name = table.table();
    let found = match schema.table(name).now_or_never() {
        Some(found) => found?,
        None => std::thread::scope(|scope| {
            let look_up = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| exec_datafusion_err!("looking up {table}: {error}"))?;
                runtime.block_on(schema.table(name))
            };
            scope
                .spawn(look_up)
                .join()
                .unwrap_or_else(|_| Err(exec_datafusion_err!("looking up {table} failed with a panic")))
        })?,
    };
    found.ok_or_else(|| plan_datafusion_err!("{NEAREST}: there is no table {table}"))
}
