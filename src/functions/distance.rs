//! Distances of a column of vectors from one query vector, read where they lie.
//!
//! DataFusion's `array_distance`, `cosine_distance` and `inner_product` take lists of `Float64`: every vector is copied, and widened,
//! before a loop over one vector after the other. These functions give the same bits and read `Float16`, `Float32` and `Float64` from
//! the column's own memory. Nobody need call them by name: the planner puts them in the place of DataFusion's, and machines of a cluster look
//! them up by it.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, PrimitiveArray, UInt32Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Float16Type, Float32Type, Float64Type,
};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::functions_nested::cosine_distance::{CosineDistance, cosine_distance_udf};
use datafusion::functions_nested::distance::{ArrayDistance, array_distance_udf};
use datafusion::functions_nested::inner_product::{InnerProduct, inner_product_udf};
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use crate::kernel::cpu::distance::{Bound, Component, Distances, Measure, Vectors, distances, within};

/// The distance between a vector and a query by one measure: a function of two arguments, which gives DataFusion's answer.
///
/// Either argument may be the column: lists, of fixed size or not, of `Float16`, `Float32` or `Float64`. The other one is a list of
/// `Float64`. DataFusion's function computes what is left: a query that differs from row to row, and vectors of another length, which are
/// its error.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct VectorDistance {
    measure: Measure,
    signature: Signature,
}

static FUNCTIONS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
    let function = |measure| VectorDistance {
        measure,
        signature: Signature::any(2, Volatility::Immutable),
    };
    let functions = Measure::ALL.map(|measure| Arc::new(ScalarUDF::from(function(measure))));
    functions.to_vec()
});

/// The functions of all measures.
pub(crate) fn vector_distances() -> &'static [Arc<ScalarUDF>] {
    &FUNCTIONS
}

/// The function that reads vectors where they lie, in the place of one of DataFusion's; `None` for any other function.
pub(crate) fn vector_distance(function: &ScalarUDF) -> Option<Arc<ScalarUDF>> {
    let inner = function.inner();
    let measure = if inner.is::<ArrayDistance>() {
        Measure::Euclidean
    } else if inner.is::<CosineDistance>() {
        Measure::Cosine
    } else if inner.is::<InnerProduct>() {
        Measure::InnerProduct
    } else {
        return None;
    };
    let same = |function: &&Arc<ScalarUDF>| {
        VectorDistance::of(function).is_some_and(|function| function.measure == measure)
    };
    FUNCTIONS.iter().find(same).cloned()
}

/// Whether values of a type are vectors that are read where they lie.
pub(crate) fn is_vectors(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::FixedSizeList(item, _) => matches!(
            item.data_type(),
            DataType::Float16 | DataType::Float32 | DataType::Float64
        ),
        _ => false,
    }
}

/// Whether a type is that of the lists which DataFusion's functions take.
pub(crate) fn is_list_of_float64(data_type: &DataType) -> bool {
    matches!(data_type, DataType::List(item) if item.data_type() == &DataType::Float64)
}

/// DataFusion's function of a measure.
pub(crate) fn builtin_distance(measure: Measure) -> Arc<ScalarUDF> {
    match measure {
        Measure::Euclidean => array_distance_udf(),
        Measure::Cosine => cosine_distance_udf(),
        Measure::InnerProduct => inner_product_udf(),
    }
}

impl VectorDistance {
    /// The function behind a registered one, if it is one of these.
    pub(crate) fn of(function: &ScalarUDF) -> Option<&Self> {
        function.inner().downcast_ref()
    }

    /// The two arguments of a call as a column and a query; `None` if they are something else.
    pub(crate) fn arguments<'a>([first, second]: [&'a ColumnarValue; 2]) -> Option<Arguments<'a>> {
        let (column, query, query_first) = match (first, second) {
            (ColumnarValue::Array(column), ColumnarValue::Scalar(query)) => (column, query, false),
            (ColumnarValue::Scalar(query), ColumnarValue::Array(column)) => (column, query, true),
            _ => return None,
        };
        Some(Arguments {
            column,
            query,
            query_first,
        })
    }

    /// The vectors of a column and the query that they are compared with; `None` if only DataFusion's function can say what that means.
    pub(crate) fn over<'a>(&'a self, arguments: Arguments<'a>) -> Option<Measured<'a>> {
        let query = components_of(arguments.query)?;
        let column = VectorColumn::try_new(arguments.column, query.len())?;
        Some(Measured {
            function: self,
            arguments,
            column,
            query,
        })
    }

    /// The measure of distance.
    pub(crate) fn measure(&self) -> Measure {
        self.measure
    }

    /// The answer of DataFusion's function to the same arguments.
    pub(super) fn by_builtin(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let list = DataType::List(Arc::new(Field::new_list_field(DataType::Float64, true)));
        for (arg, field) in args.args.iter_mut().zip(&mut args.arg_fields) {
            if !is_list_of_float64(&arg.data_type()) {
                *arg = arg.cast_to(&list, None)?;
                *field = Arc::new(field.as_ref().clone().with_data_type(list.clone()));
            }
        }
        builtin_distance(self.measure).invoke_with_args(args)
    }
}

impl ScalarUDFImpl for VectorDistance {
    fn name(&self) -> &str {
        match self.measure {
            Measure::Euclidean => "vector_array_distance",
            Measure::Cosine => "vector_cosine_distance",
            Measure::InnerProduct => "vector_inner_product",
        }
    }

    /// The name of a result column is that of the call in the query.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        builtin_distance(self.measure).schema_name(args)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    /// Any number. DataFusion does not find an order by the negative of a function whose bounds have no type.
    fn evaluate_bounds(&self, _inputs: &[&Interval]) -> Result<Interval> {
        Interval::make_unbounded(&DataType::Float64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [first, second] = args.args.as_slice() else {
            return exec_err!("{} takes two arguments, got {}", self.name(), args.args.len());
        };
        let vectors = Self::arguments([first, second]).and_then(|arguments| self.over(arguments));
        if let Some(vectors) = vectors
            && let Some(distances) = vectors.all()?
        {
            return Ok(ColumnarValue::Array(Arc::new(distances)));
        }
        self.by_builtin(args)
    }
}

/// The arguments of a call: a column, and one value for all of its rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    column: &'a ArrayRef,
    query: &'a ScalarValue,
    /// Whether the query is the first argument.
    query_first: bool,
}

/// The components of a query; `None` if it is NULL, or has NULLs, or is no list of `Float64`.
pub(crate) fn components_of(query: &ScalarValue) -> Option<Vec<f64>> {
    let ScalarValue::List(list) = query else {
        return None;
    };
    if list.is_empty() || list.is_null(0) {
        return None;
    }
    let query = list.value(0);
    let components = query.as_primitive_opt::<Float64Type>()?;
    (components.null_count() == 0).then(|| components.values().to_vec())
}

/// The components of all vectors of a column.
#[derive(Debug, Clone, Copy)]
pub(super) enum Components<'a> {
    /// The bits of half-precision numbers.
    Half(&'a [u16]),
    Single(&'a [f32]),
    Double(&'a [f64]),
}

/// Runs `$run` over the components, whatever their type is; `None` if a vector ends behind the last component.
macro_rules! with_components {
    ($column:expr, $starts:expr, $vectors:ident => $run:expr) => {{
        let column = $column;
        match column.components() {
            Components::Half(components) => vectors(components, column, $starts).map(|$vectors| $run),
            Components::Single(components) => vectors(components, column, $starts).map(|$vectors| $run),
            Components::Double(components) => vectors(components, column, $starts).map(|$vectors| $run),
        }
    }};
}
pub(super) use with_components;

/// A column of vectors that all have the length of the query, and of NULLs.
#[derive(Debug)]
pub(super) struct VectorColumn<'a> {
    components: Components<'a>,
    /// Number of components of a vector.
    dimension: usize,
    /// The first component of each row; `None` if vectors lie one behind the other.
    starts: Option<Vec<usize>>,
    /// The rows whose distance is NULL, because the vector is or has one.
    nulls: Option<NullBuffer>,
    rows: usize,
}

impl<'a> VectorColumn<'a> {
    /// The vectors of an array; `None` if one has another length, or if the array has another type.
    pub(super) fn try_new(column: &'a ArrayRef, dimension: usize) -> Option<Self> {
        let (rows, nulls) = (
            column.len(),
            column.nulls().filter(|nulls| nulls.null_count() > 0),
        );
        let (values, starts) = match column.data_type() {
            DataType::FixedSizeList(_, size) => {
                let list = column.as_fixed_size_list();
                (usize::try_from(*size).ok()? == dimension).then_some((list.values(), None))?
            }
            DataType::List(_) => {
                let list = column.as_list::<i32>();
                (
                    list.values(),
                    Some(starts(list.value_offsets(), nulls, dimension)?),
                )
            }
            _ => return None,
        };
        let nulls = match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            Some(inside) => {
                let start = |row: usize| starts.as_ref().map_or(row * dimension, |starts| starts[row]);
                let has_all = |row| inside.slice(start(row), dimension).null_count() == 0;
                let is_valid = |row| nulls.is_none_or(|nulls| nulls.is_valid(row)) && has_all(row);
                Some((0..rows).map(is_valid).collect())
            }
            None => nulls.cloned(),
        };
        Some(Self {
            components: components(values)?,
            dimension,
            starts,
            nulls,
            rows,
        })
    }

    pub(super) fn components(&self) -> Components<'a> {
        self.components
    }

    /// The first component of each row; `None` if vectors lie one behind the other.
    pub(super) fn starts(&self) -> Option<&[usize]> {
        self.starts.as_deref()
    }

    /// Whether the distance of a row is NULL whatever the query is.
    pub(super) fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    pub(super) fn has_nulls(&self) -> bool {
        self.nulls.is_some()
    }

    /// The components of all vectors, one behind the other; those of a NULL may be any. `None` if a vector ends behind the last component.
    pub(super) fn widened(&self) -> Option<Vec<f64>> {
        with_components!(self, self.starts(), vectors => vectors.widened())
    }

    /// Where the vectors of some rows start.
    pub(super) fn starts_of(&self, rows: &[u32]) -> Vec<usize> {
        let start = |row: usize| match &self.starts {
            Some(starts) => starts[row],
            None => row * self.dimension,
        };
        rows.iter().map(|row| start(*row as usize)).collect()
    }
}

/// The first component of each list; that of a NULL is 0. `None` if a list has another length.
fn starts(offsets: &[i32], nulls: Option<&NullBuffer>, dimension: usize) -> Option<Vec<usize>> {
    let lists = offsets.windows(2).enumerate();
    let start = |(row, ends): (usize, &[i32])| {
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return Some(0);
        }
        let (start, end) = (usize::try_from(ends[0]).ok()?, usize::try_from(ends[1]).ok()?);
        (end.checked_sub(start)? == dimension).then_some(start)
    };
    lists.map(start).collect()
}

/// The components of an array of numbers.
fn components(values: &ArrayRef) -> Option<Components<'_>> {
    fn numbers<T: ArrowPrimitiveType>(values: &ArrayRef) -> &PrimitiveArray<T> {
        values.as_primitive()
    }
    Some(match values.data_type() {
        DataType::Float16 => Components::Half(numbers::<Float16Type>(values).values().inner().typed_data()),
        DataType::Float32 => Components::Single(numbers::<Float32Type>(values).values()),
        DataType::Float64 => Components::Double(numbers::<Float64Type>(values).values()),
        _ => return None,
    })
}

/// Vectors of a column and a query of the same length.
#[derive(Debug)]
pub(crate) struct Measured<'a> {
    function: &'a VectorDistance,
    arguments: Arguments<'a>,
    column: VectorColumn<'a>,
    query: Vec<f64>,
}

/// The vectors that start at `starts`, or all vectors one behind the other.
pub(super) fn vectors<'a, T: Component>(
    components: &'a [T],
    column: &VectorColumn<'_>,
    starts: Option<&'a [usize]>,
) -> Option<Vectors<'a, T>> {
    match starts {
        Some(starts) => Vectors::at(components, column.dimension, starts),
        None => Vectors::dense(components, column.dimension, column.rows),
    }
}

impl Measured<'_> {
    /// The distance of every row; `None` as for [`VectorDistance::over`].
    ///
    /// # Errors
    /// Those of DataFusion's function.
    pub(crate) fn all(&self) -> Result<Option<Float64Array>> {
        let column = &self.column;
        let (starts, measure) = (column.starts.as_deref(), self.function.measure);
        let found = with_components!(column, starts, vectors => distances(measure, &vectors, &self.query));
        let found = found.map(|found| with_nulls(found, column.nulls.clone()));
        found.map(|found| self.with_nans(found, |row| row)).transpose()
    }

    /// The distances of some rows; `None` as for [`VectorDistance::over`].
    ///
    /// # Errors
    /// Those of DataFusion's function.
    pub(crate) fn of(&self, rows: &[u32]) -> Result<Option<Float64Array>> {
        let (column, measure) = (&self.column, self.function.measure);
        let starts = column.starts_of(rows);
        let found =
            with_components!(column, Some(&starts), vectors => distances(measure, &vectors, &self.query));
        let nulls = column.nulls.as_ref();
        let nulls = nulls.map(|nulls| rows.iter().map(|row| nulls.is_valid(*row as usize)).collect());
        let found = found.map(|found| with_nulls(found, nulls));
        found
            .map(|found| self.with_nans(found, |row| rows[row as usize]))
            .transpose()
    }

    /// The rows whose distance may be within a bound, or is NULL, ascending: all that are, and few others. `None` as for
    /// [`VectorDistance::over`].
    pub(crate) fn within(&self, bound: Bound) -> Option<Vec<u32>> {
        let (column, measure) = (&self.column, self.function.measure);
        let mut rows = Vec::new();
        let starts = column.starts.as_deref();
        with_components!(column, starts, vectors => within(measure, &vectors, &self.query, bound, &mut rows))?;
        if let Some(nulls) = &column.nulls {
            rows.retain(|row| nulls.is_valid(*row as usize));
            rows.extend((0..column.rows as u32).filter(|row| nulls.is_null(*row as usize)));
            rows.sort_unstable();
        }
        Some(rows)
    }

    /// The distances with the NaNs of DataFusion's function. `row_of`: the row of a distance.
    fn with_nans(&self, found: Float64Array, row_of: impl Fn(u32) -> u32) -> Result<Float64Array> {
        with_nans(found, |places| {
            let rows = UInt32Array::from_iter_values(places.iter().map(|at| row_of(*at)));
            let theirs = self.function.by_builtin(self.call(&rows)?)?;
            theirs.into_array(rows.len())
        })
    }

    /// A call over some rows.
    fn call(&self, rows: &UInt32Array) -> Result<ScalarFunctionArgs> {
        let Arguments {
            column,
            query,
            query_first,
        } = self.arguments;
        let vectors = ColumnarValue::Array(take(column.as_ref(), rows, None)?);
        let mut args = vec![vectors, ColumnarValue::Scalar(query.clone())];
        if query_first {
            args.reverse();
        }
        Ok(call_of(args, rows.len()))
    }
}

/// A call with these arguments over `rows` rows.
pub(super) fn call_of(args: Vec<ColumnarValue>, rows: usize) -> ScalarFunctionArgs {
    let field = |data_type| Arc::new(Field::new("", data_type, true));
    ScalarFunctionArgs {
        arg_fields: args.iter().map(|arg| field(arg.data_type())).collect(),
        args,
        number_rows: rows,
        return_field: field(DataType::Float64),
        config_options: Arc::default(),
    }
}

/// Distances with the NaNs of DataFusion's function, which `theirs` gives for the places of NaNs: which of two NaNs a sum ends in depends on
/// its instructions.
pub(super) fn with_nans(
    found: Float64Array,
    theirs: impl FnOnce(&[u32]) -> Result<ArrayRef>,
) -> Result<Float64Array> {
    let is_nan = |at: &u32| found.is_valid(*at as usize) && found.value(*at as usize).is_nan();
    let places: Vec<u32> = (0..found.len() as u32).filter(is_nan).collect();
    if places.is_empty() {
        return Ok(found);
    }
    let theirs = theirs(&places)?;
    let theirs = theirs.as_primitive::<Float64Type>();
    let (_, values, nulls) = found.into_parts();
    let mut values = values.to_vec();
    for (at, value) in places.iter().zip(theirs.values()) {
        values[*at as usize] = *value;
    }
    Ok(Float64Array::new(values.into(), nulls))
}

/// Distances as an array. `nulls`: the rows that have none by themselves.
pub(super) fn with_nulls(found: Distances, nulls: Option<NullBuffer>) -> Float64Array {
    let Distances { values, missing } = found;
    let nulls = if missing.is_empty() {
        nulls
    } else {
        let mut valid = vec![true; values.len()];
        missing.iter().for_each(|row| valid[*row] = false);
        NullBuffer::union(nulls.as_ref(), Some(&valid.into()))
    };
    Float64Array::new(values.into(), nulls)
}
