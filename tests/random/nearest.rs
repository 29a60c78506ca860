//! Rows in the order of their distance from a vector, and the naive distance.

use datafusion::arrow::datatypes::{DataType, Field};

use crate::draw::Draw;
use crate::naive::Row;
use crate::statement::NAMES;
use crate::table::{ID, Table, X, Y};
use crate::value::{Cell, Value, text};

/// Most rows of a table whose rows are all queries.
const GRAPH_ROWS: usize = 300;

/// A distance of a column of vectors from a constant.
#[derive(Debug, Clone)]
pub(crate) struct Distance {
    function: &'static str,
    column: usize,
    query: Vec<f64>,
    /// Whether the constant is the first argument.
    query_first: bool,
}

/// Types of vectors, whose values all have one length.
pub(crate) fn vector_types() -> Vec<DataType> {
    let item = |data_type| std::sync::Arc::new(Field::new("item", data_type, true));
    vec![
        DataType::FixedSizeList(item(DataType::Float32), 3),
        DataType::FixedSizeList(item(DataType::Float16), 9),
        DataType::FixedSizeList(item(DataType::Float64), 2),
        DataType::List(item(DataType::Float32)),
        DataType::List(item(DataType::Float16)),
    ]
}

/// The length of all vectors of a type; `None` for other types.
pub(crate) fn vector_length(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeList(item, length) if item.data_type().is_floating() => Some(*length as usize),
        DataType::List(item) if matches!(item.data_type(), DataType::Float16 | DataType::Float32) => Some(4),
        _ => None,
    }
}

/// Leaves at most one component that is no number, or so large that its square is none: which of several NaNs a sum ends in is open.
pub(crate) fn with_one_special(items: &mut [Cell]) {
    let mut seen = false;
    for item in items {
        if let Some(Value::Float(component)) = item
            && (!component.is_finite() || component.abs() > 1e100)
        {
            if seen {
                *component = 0.5;
            }
            seen = true;
        }
    }
}

impl Distance {
    /// A distance of one of the table's columns of vectors, if it has one.
    pub(crate) fn draw(draw: &mut Draw, table: &Table) -> Option<Self> {
        let length = |column: usize| vector_length(&table.columns[column].data_type);
        let columns: Vec<usize> = [X, Y]
            .into_iter()
            .filter(|column| length(*column).is_some())
            .collect();
        if columns.is_empty() {
            return None;
        }
        let column = draw.pick(&columns);
        let component = |draw: &mut Draw| draw.between(-8, 8) as f64 / draw.pick(&[1.0, 2.0, 10.0]);
        Some(Self {
            function: draw.pick(&[
                "array_distance",
                "array_distance",
                "cosine_distance",
                "inner_product",
                "-inner_product",
            ]),
            column,
            query: (0..length(column)?).map(|_| component(draw)).collect(),
            query_first: draw.chance(20),
        })
    }

    pub(crate) fn sql(&self) -> String {
        let args = [NAMES[self.column].to_owned(), format!("{:?}", self.query)];
        let [first, second] = if self.query_first {
            [&args[1], &args[0]]
        } else {
            [&args[0], &args[1]]
        };
        format!("{}({first}, {second})", self.function)
    }

    /// The distance of a row.
    pub(crate) fn of(&self, row: &[Cell]) -> Cell {
        between(
            self.function,
            &components(&row[self.column])?,
            &self.query,
            self.query_first,
        )
    }
}

/// The components of a vector; `None` if it is NULL or has a NULL.
fn components(cell: &Cell) -> Option<Vec<f64>> {
    let Some(Value::Many(items)) = cell else {
        return None;
    };
    let component = |item: &Cell| match item {
        Some(Value::Float(component)) => Some(*component),
        _ => None,
    };
    items.iter().map(component).collect()
}

/// The distance of two vectors.
fn between(function: &str, a: &[f64], b: &[f64], b_first: bool) -> Cell {
    let (a, b) = if b_first { (b, a) } else { (a, b) };
    let pairs = || a.iter().zip(b);
    let product = || pairs().fold(0.0, |sum, (a, b)| sum + a * b);
    let square = |v: &[f64]| v.iter().fold(0.0, |sum, x| sum + x * x);
    Some(Value::Float(match function {
        "array_distance" => {
            let squares = pairs().map(|(a, b)| (a - b) * (a - b));
            squares.sum::<f64>().sqrt()
        }
        "inner_product" => product(),
        "-inner_product" => -product(),
        _ if square(a) == 0.0 || square(b) == 0.0 => return None,
        _ => 1.0 - product() / (square(a).sqrt() * square(b).sqrt()),
    }))
}

/// How a statement asks for the nearest rows of many vectors.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    /// By a window over all pairs.
    Window,
    /// By the table function `nearest`.
    Function,
    /// By `nearest` of a table and itself: a row is not its own neighbour.
    Graph,
}

/// The nearest rows of each of the first rows of the table.
#[derive(Debug, Clone)]
pub(crate) struct Neighbours {
    asked: Asked,
    function: &'static str,
    column: usize,
    /// Whether the query is the first argument.
    query_first: bool,
    pub(crate) desc: bool,
    pub(crate) nulls_first: Option<bool>,
    /// Rows of a smaller id are queries.
    queries: i64,
    pub(crate) k: usize,
    pub(crate) rank: bool,
    /// Whether ties are in the order of ids.
    pub(crate) by_id: bool,
    /// What a row and a query must not have in common, or nothing.
    condition: &'static str,
}

impl Neighbours {
    /// The neighbours of rows by a distance; `None` if a query has components that are no numbers, as it is open which NaN a distance is.
    pub(crate) fn draw(draw: &mut Draw, table: &Table, distance: &Distance) -> Option<Self> {
        let mut asked = draw.pick(&[Asked::Window, Asked::Window, Asked::Function, Asked::Graph]);
        if asked == Asked::Graph && table.rows.len() > GRAPH_ROWS {
            asked = Asked::Function;
        }
        let queries = match asked {
            Asked::Graph => GRAPH_ROWS as i64,
            _ => draw.pick(&[0, 1, 2, 7, 40]),
        };
        let is_query = |row: &&Vec<Cell>| matches!(&row[ID], Some(Value::Int(id)) if *id < queries.into());
        let is_plain = |row: &Vec<Cell>| {
            let components = components(&row[distance.column]).unwrap_or_default();
            components.iter().all(|component| component.abs() < 1e100)
        };
        let rank = draw.chance(20);
        let mut found = Self {
            asked,
            function: distance.function,
            column: distance.column,
            query_first: distance.query_first,
            desc: draw.chance(35),
            nulls_first: draw.chance(30).then(|| draw.chance(50)),
            queries,
            k: draw.pick(&[1, 1, 2, 5, 20, 300]),
            rank,
            by_id: !rank && draw.chance(50),
            condition: draw.pick(&[
                "",
                "",
                " WHERE t.id <> q.qid",
                " WHERE t.id IS DISTINCT FROM q.qid",
            ]),
        };
        if asked != Asked::Window {
            if found.function == "-inner_product" {
                found.function = "inner_product";
            }
            found.desc = found.function == "inner_product";
            found.nulls_first = Some(false);
            (found.query_first, found.rank, found.by_id) = (false, false, true);
            found.condition = match asked {
                Asked::Graph => " WHERE t.id <> q.qid",
                _ => "",
            };
        }
        table.rows.iter().filter(is_query).all(is_plain).then_some(found)
    }

    /// The same for half of the queries, if their number is chosen and greater than 1.
    pub(crate) fn with_fewer_queries(&self) -> Option<Self> {
        let queries = self.queries / 2;
        let is_chosen = queries > 0 && self.asked != Asked::Graph;
        is_chosen.then(|| Self {
            queries,
            ..self.clone()
        })
    }

    /// Whether it is a call of the table function `nearest`.
    pub(crate) fn is_function(&self) -> bool {
        self.asked != Asked::Window
    }

    /// The views that [`Self::sql`] reads the rows of `from` and the queries by, as statements.
    pub(crate) fn views(&self, from: &str) -> Vec<String> {
        if !self.is_function() {
            return Vec::new();
        }
        vec![
            format!("CREATE OR REPLACE VIEW nb AS SELECT * {from}"),
            format!(
                "CREATE OR REPLACE VIEW nq AS SELECT id AS qid, {} AS qv FROM t WHERE id < {}",
                NAMES[self.column], self.queries
            ),
        ]
    }

    /// The call of `nearest` over the rows of `from`. What is one table as it is, is named itself.
    fn call(&self, from: &str) -> String {
        let table = if from == "FROM t" { "t" } else { "nb" };
        let name = NAMES[self.column];
        let measure = match self.function {
            "array_distance" => "l2",
            "cosine_distance" => "cosine",
            _ => "dot",
        };
        let (queries, qid) = match self.asked {
            Asked::Graph => (format!("{table}, '{name}'"), "query_id"),
            _ => ("nq, 'qv'".to_owned(), "query_qid"),
        };
        format!(
            "SELECT b.*, r.{qid}, r.distance, r.rank FROM nearest({table}, '{name}', {queries}, {}, '{measure}') AS r JOIN {table} AS b ON b.id = r.id",
            self.k
        )
    }

    /// The statement over the rows of `from`.
    pub(crate) fn sql(&self, from: &str) -> String {
        if self.is_function() {
            return self.call(from);
        }
        let name = NAMES[self.column];
        let args = if self.query_first {
            "(q.qv, t.qw)"
        } else {
            "(t.qw, q.qv)"
        };
        let distance = format!("{}{}", self.function, args.replace("qw", name));
        let direction = if self.desc { " DESC" } else { "" };
        let nulls = match self.nulls_first {
            None => "",
            Some(true) => " NULLS FIRST",
            Some(false) => " NULLS LAST",
        };
        let number = if self.rank { "rank" } else { "row_number" };
        let then = if self.by_id { ", t.id" } else { "" };
        format!(
            "SELECT * FROM (SELECT t.*, q.qid, {distance} AS c0, \
             {number}() OVER (PARTITION BY q.qid ORDER BY {distance}{direction}{nulls}{then}) AS n \
             FROM (SELECT * {from}) AS t CROSS JOIN (SELECT id AS qid, {name} AS qv FROM t WHERE id < {}) AS q{}) AS r WHERE n <= {}",
            self.queries, self.condition, self.k
        )
    }

    /// For each query its rows, each with the query's id and the distance behind its columns.
    pub(crate) fn of<'a>(&self, rows: &[Row<'a>], table: &'a Table) -> Vec<Vec<Row<'a>>> {
        let is_query = |row: &&[Cell]| matches!(&row[ID], Some(Value::Int(id)) if *id < self.queries.into());
        let near = |query: &[Cell]| {
            let of_query = components(&query[self.column]);
            let is_wanted = |row: &&Row<'a>| self.condition.is_empty() || text(&row[ID]) != text(&query[ID]);
            let with_distance = |row: &Row<'a>| {
                let of_row = components(&row[self.column]);
                let distance = of_row
                    .zip(of_query.as_ref())
                    .and_then(|(a, b)| between(self.function, &a, b, self.query_first));
                let mut row = row.clone();
                row.to_mut().extend([query[ID].clone(), distance]);
                row
            };
            rows.iter().filter(is_wanted).map(with_distance).collect()
        };
        let all: Vec<&[Cell]> = match self.asked {
            Asked::Graph => rows.iter().map(|row| row.as_slice()).collect(),
            _ => table.rows.iter().map(Vec::as_slice).collect(),
        };
        all.into_iter().filter(is_query).map(near).collect()
    }
}
