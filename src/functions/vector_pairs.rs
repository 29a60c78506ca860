//! Distances between the vectors of two columns, for pairs of their rows.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, UInt32Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;

use super::distance::{
    Components, VectorColumn, VectorDistance, call_of, is_vectors, vectors, with_components, with_nans,
    with_nulls,
};
use crate::kernel::cpu::distance::{Pair, QueryTiles, Ranking, VectorTiles, from_queries};

/// Number of components of the vectors of a column, which all have so many; `None` if it has other values, or none at all.
pub(crate) fn dimension_of(column: &ArrayRef) -> Option<usize> {
    match column.data_type() {
        DataType::FixedSizeList(_, size) if is_vectors(column.data_type()) => usize::try_from(*size).ok(),
        DataType::List(_) if is_vectors(column.data_type()) => {
            let list = column.as_list::<i32>();
            let row = (0..list.len()).find(|row| list.is_valid(*row))?;
            usize::try_from(list.value_length(row)).ok()
        }
        _ => None,
    }
}

/// The components of all vectors of a column, one behind the other; `None` if one is NULL or has another length.
#[cfg(feature = "cuda")]
pub(crate) fn vectors_of(column: &ArrayRef, dimension: usize) -> Option<Vec<f64>> {
    let column = VectorColumn::try_new(column, dimension)?;
    if column.has_nulls() {
        return None;
    }
    column.widened()
}

impl VectorDistance {
    /// The vectors that a query wants by this function.
    pub(crate) fn ranking(&self, ascending: bool) -> Ranking {
        Ranking {
            measure: self.measure(),
            ascending,
        }
    }

    /// The vectors of a column as the queries of a product; `None` if they have other lengths.
    pub(crate) fn query_tiles(
        &self,
        ranking: Ranking,
        column: &ArrayRef,
        dimension: usize,
    ) -> Option<QueryTiles> {
        let column = VectorColumn::try_new(column, dimension)?;
        let starts = column.starts();
        with_components!(&column, starts, of => QueryTiles::new(ranking, &of, |row| column.is_null(row)))
    }

    /// The vectors of a column as those of a table in a product; `None` if they have other lengths.
    pub(crate) fn vector_tiles(
        &self,
        ranking: Ranking,
        column: &ArrayRef,
        dimension: usize,
    ) -> Option<VectorTiles> {
        let column = VectorColumn::try_new(column, dimension)?;
        let starts = column.starts();
        with_components!(&column, starts, of => VectorTiles::new(ranking, &of, |row| column.is_null(row)))
    }

    /// The distance of each pair, which are ordered by query. `query_first`: whether the query is the first argument.
    ///
    /// # Errors
    /// Those of DataFusion's function.
    pub(crate) fn between(
        &self,
        queries: &ArrayRef,
        vectors: &ArrayRef,
        pairs: &[Pair],
        query_first: bool,
    ) -> Result<Float64Array> {
        let by_builtin = |pairs: &mut dyn Iterator<Item = &Pair>| {
            let (of_query, of_row): (Vec<u32>, Vec<u32>) = pairs.map(|pair| (pair.query, pair.row)).unzip();
            let (count, taken) = (of_query.len(), |column: &ArrayRef, rows| {
                take(column.as_ref(), &UInt32Array::from(rows), None)
            });
            let mut args = [taken(queries, of_query)?, taken(vectors, of_row)?];
            if !query_first {
                args.reverse();
            }
            let args = args.map(ColumnarValue::Array).into();
            self.by_builtin(call_of(args, count))?.into_array(count)
        };
        match self.in_order(queries, vectors, pairs) {
            Some(found) => with_nans(found, |places| {
                by_builtin(&mut places.iter().map(|at| &pairs[*at as usize]))
            }),
            None => Ok(by_builtin(&mut pairs.iter())?
                .as_primitive::<Float64Type>()
                .clone()),
        }
    }

    /// The distance of each pair, but for the bits of NaNs; `None` if only DataFusion's function can say what that is.
    fn in_order(&self, queries: &ArrayRef, vectors: &ArrayRef, pairs: &[Pair]) -> Option<Float64Array> {
        let (Some(first), Some(last)) = (pairs.first(), pairs.last()) else {
            return Some(Float64Array::from(Vec::<f64>::new()));
        };
        let dimension = dimension_of(queries)?;
        let (first, count) = (first.query as usize, (last.query - first.query) as usize + 1);
        let queries = queries.slice(first, count);
        let (of_queries, of_vectors) = (
            VectorColumn::try_new(&queries, dimension)?,
            VectorColumn::try_new(vectors, dimension)?,
        );
        let widened = of_queries.widened()?;
        let query_of = |at: usize| {
            let start = (pairs[at].query as usize - first) * dimension;
            &widened[start..start + dimension]
        };
        let rows: Vec<u32> = pairs.iter().map(|pair| pair.row).collect();
        let (starts, measure) = (of_vectors.starts_of(&rows), self.measure());
        let found = with_components!(&of_vectors, Some(&starts), of => from_queries(measure, &of, query_of))?;
        let is_valid = |pair: &Pair| {
            !of_queries.is_null(pair.query as usize - first) && !of_vectors.is_null(pair.row as usize)
        };
        let nulls =
            (of_queries.has_nulls() || of_vectors.has_nulls()).then(|| pairs.iter().map(is_valid).collect());
        Some(with_nulls(found, nulls))
    }
}
