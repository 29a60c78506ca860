//! The aggregate function that counts how often each value of a column occurs, in bounded memory.
//!
//! Values are counted in a table. Once that holds too many distinct values it is thinned as by Misra and Gries (1982): the count of a value
//! that is not rare is taken from all, and what has none left goes. From then on counts are lower bounds, short of the truth by what was
//! taken at most, and the number of distinct values is estimated by HyperLogLog, whose answer does not depend on the order of rows.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, StructArray, UInt64Array, new_empty_array,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::{filter, is_not_null};
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, FieldRef, Fields, Float16Type, Float32Type, Float64Type, Schema,
    SchemaRef, UInt64Type,
};
use datafusion::common::hash_utils::{HLL_RANDOM_STATE, create_hashes};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::functions_aggregate::approx_distinct::approx_distinct_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, Signature, TypeSignature, Volatility,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use crate::functions::PeakSize;

/// Distinct values that a thinned table keeps: few enough for a processor's cache.
const THINNED: usize = 8192;

/// The aggregate function `value_frequencies(x)`: a struct of the number of distinct values, whether it is exact, by how much a count may be
/// short, and the values with their counts. Without NULLs.
pub(super) fn frequencies(distinct: usize, bytes: usize) -> AggregateUDF {
    AggregateUDF::new_from_impl(FrequenciesFunction {
        distinct,
        bytes,
        signature: Signature::new(TypeSignature::Any(1), Volatility::Immutable),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FrequenciesFunction {
    /// Most distinct values that are counted exactly.
    distinct: usize,
    /// Most bytes of a table.
    bytes: usize,
    signature: Signature,
}

impl AggregateUDFImpl for FrequenciesFunction {
    fn name(&self) -> &'static str {
        "value_frequencies"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [values] => Ok(DataType::Struct(answer_fields(values))),
            _ => internal_err!("value_frequencies takes one argument"),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let values = args.input_fields.iter().map(|field| field.data_type().clone());
        let fields = values.chain([DataType::UInt64]).map(list_of);
        let fields = fields.chain([DataType::UInt64, DataType::Binary]);
        let names = ["values", "counts", "taken", "estimate"];
        Ok(names
            .into_iter()
            .zip(fields)
            .map(|(name, data_type)| {
                Arc::new(Field::new(format_state_name(args.name, name), data_type, true))
            })
            .collect())
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let [field] = args.expr_fields else {
            return internal_err!("value_frequencies takes one argument");
        };
        let values = field.data_type().clone();
        let table = Table::new(&values)?;
        Ok(PeakSize::of(Box::new(Frequencies {
            most_distinct: self.distinct,
            most_bytes: self.bytes,
            values,
            table,
            taken: 0,
            estimate: None,
        })))
    }
}

/// The fields of an answer over values of this type.
fn answer_fields(values: &DataType) -> Fields {
    Fields::from(vec![
        Field::new("distinct", DataType::UInt64, true),
        Field::new("is_exact", DataType::Boolean, true),
        Field::new("short_by", DataType::UInt64, true),
        Field::new("values", list_of(values.clone()), true),
        Field::new("counts", list_of(DataType::UInt64), true),
    ])
}

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}

/// A list of these items, as a constant.
fn list(items: ArrayRef) -> Result<ScalarValue> {
    let field = Arc::new(Field::new_list_field(items.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths([items.len()]);
    Ok(ScalarValue::List(Arc::new(ListArray::try_new(
        field, offsets, items, None,
    )?)))
}

/// Distinct values and how often each occurs.
struct Table {
    schema: SchemaRef,
    /// Numbers of the values. Accumulators are shared between threads, tables of DataFusion's are not.
    numbers: Mutex<Box<dyn GroupValues>>,
    /// How often the value of each number occurs.
    counts: Vec<u64>,
    /// Buffer for the numbers of a batch.
    batch: Vec<usize>,
    /// Bytes of all that.
    bytes: usize,
}

impl Table {
    fn new(values: &DataType) -> Result<Self> {
        let schema = Arc::new(Schema::new(vec![Field::new("value", values.clone(), true)]));
        Ok(Self {
            numbers: Mutex::new(empty(&schema)?),
            schema,
            counts: Vec::new(),
            batch: Vec::new(),
            bytes: 0,
        })
    }

    /// Adds values, each as often as its count says, or once.
    fn add(&mut self, values: &ArrayRef, counts: Option<&[u64]>) -> Result<()> {
        let numbers = self.numbers.get_mut().unwrap_or_else(PoisonError::into_inner);
        numbers.intern(std::slice::from_ref(values), &mut self.batch)?;
        self.counts.resize(numbers.len(), 0);
        match counts {
            None => self.batch.iter().for_each(|&number| self.counts[number] += 1),
            Some(counts) => {
                for (&number, count) in self.batch.iter().zip(counts) {
                    self.counts[number] += count;
                }
            }
        }
        let buffers = self.counts.capacity() * size_of::<u64>() + self.batch.capacity() * size_of::<usize>();
        self.bytes = numbers.size() + buffers;
        Ok(())
    }

    /// Takes all values and their counts; the table is empty from then on.
    fn take(&mut self) -> Result<(ArrayRef, Vec<u64>)> {
        let numbers = self.numbers.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut full = mem::replace(numbers, empty(&self.schema)?);
        self.bytes = 0;
        let values = match full.is_empty() {
            true => None,
            false => full.emit(EmitTo::All)?.pop(),
        };
        let values = values.unwrap_or_else(|| new_empty_array(self.schema.field(0).data_type()));
        Ok((values, mem::take(&mut self.counts)))
    }
}

/// An empty table of DataFusion's.
fn empty(schema: &SchemaRef) -> Result<Box<dyn GroupValues>> {
    new_group_values(Arc::clone(schema), &GroupOrdering::None)
}

/// Counts how often each value occurs.
struct Frequencies {
    most_distinct: usize,
    most_bytes: usize,
    values: DataType,
    table: Table,
    /// What was taken from the count of each value.
    taken: u64,
    /// Estimates the number of distinct values, once the table was thinned.
    estimate: Option<Box<dyn Accumulator>>,
}

impl std::fmt::Debug for Frequencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frequencies")
            .field("values", &self.values)
            .field("distinct", &self.table.counts.len())
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl Frequencies {
    /// Thins the table if it is too large.
    fn thin(&mut self) -> Result<()> {
        let most = if self.estimate.is_some() {
            THINNED.min(self.most_distinct)
        } else {
            self.most_distinct
        };
        // A table holds up to twice as much, so that one that was thinned is not thinned again at once.
        let is_large = self.table.counts.len() > 2 * most || self.table.bytes > self.most_bytes;
        if !is_large || self.table.counts.len() <= 1 {
            return Ok(());
        }
        let (values, counts) = self.table.take()?;
        if self.estimate.is_none() {
            let mut estimate = estimator()?;
            estimate.update_batch(&[hashes(&values)?])?;
            self.estimate = Some(estimate);
        }
        let kept = THINNED.min(self.most_distinct).min(counts.len() / 2);
        let mut ranked = counts.clone();
        let (_, &mut taken, _) = ranked.select_nth_unstable_by(kept, |a, b| b.cmp(a));
        self.taken += taken;
        let stays: BooleanArray = counts.iter().map(|&count| Some(count > taken)).collect();
        let counts: Vec<u64> = counts
            .iter()
            .filter_map(|count| count.checked_sub(taken))
            .filter(|&count| count > 0)
            .collect();
        self.table.add(&filter(&values, &stays)?, Some(&counts))
    }

    /// Adds values to the estimate of the number of distinct values, if there is one.
    fn estimate(&mut self, values: &ArrayRef) -> Result<()> {
        match &mut self.estimate {
            Some(estimate) => estimate.update_batch(&[hashes(values)?]),
            None => Ok(()),
        }
    }
}

/// An empty estimate of the number of distinct hashes.
fn estimator() -> Result<Box<dyn Accumulator>> {
    let field: FieldRef = Arc::new(Field::new("hash", DataType::UInt64, false));
    let schema = Schema::new(vec![Arc::clone(&field)]);
    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("hash", 0));
    approx_distinct_udaf().accumulator(AccumulatorArgs {
        return_field: Arc::new(Field::new("distinct", DataType::UInt64, false)),
        schema: &schema,
        ignore_nulls: false,
        order_bys: &[],
        name: "distinct",
        is_distinct: false,
        is_reversed: false,
        exprs: &[column],
        expr_fields: &[field],
    })
}

/// The hash of each value.
fn hashes(values: &ArrayRef) -> Result<ArrayRef> {
    let mut hashes = vec![0; values.len()];
    create_hashes([values], &HLL_RANDOM_STATE, &mut hashes)?;
    Ok(Arc::new(UInt64Array::from(hashes)))
}

/// Values in which all NaNs are one value, and the two zeros are one, as in a `GROUP BY`: always the same of them, whatever the order of rows.
fn with_one_form(values: ArrayRef) -> ArrayRef {
    macro_rules! replaced {
        ($type:ty, $zero:expr) => {{
            let one_form = |float: <$type as ArrowPrimitiveType>::Native| match float {
                nan if nan.is_nan() => <$type as ArrowPrimitiveType>::Native::NAN,
                zero if zero == $zero => $zero,
                other => other,
            };
            Arc::new(values.as_primitive::<$type>().unary::<_, $type>(one_form))
        }};
    }
    match values.data_type() {
        DataType::Float16 => replaced!(Float16Type, Default::default()),
        DataType::Float32 => replaced!(Float32Type, 0.0),
        DataType::Float64 => replaced!(Float64Type, 0.0),
        _ => values,
    }
}

fn damaged() -> DataFusionError {
    internal_datafusion_err!("states of value_frequencies are damaged")
}

impl Accumulator for Frequencies {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [values] = values else {
            return internal_err!("value_frequencies takes one argument");
        };
        let present = match values.logical_null_count() {
            0 => Arc::clone(values),
            _ => filter(values, &is_not_null(values)?)?,
        };
        if present.is_empty() {
            return Ok(());
        }
        let present = with_one_form(present);
        self.estimate(&present)?;
        self.table.add(&present, None)?;
        self.thin()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let (values, counts) = self.table.take()?;
        let estimate = match &mut self.estimate {
            Some(estimate) => estimate.state()?.pop().ok_or_else(damaged)?,
            None => ScalarValue::Binary(None),
        };
        let counts = Arc::new(UInt64Array::from(counts));
        let taken = ScalarValue::from(self.taken);
        Ok(vec![list(values)?, list(counts)?, taken, estimate])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, counts, taken, estimates] = states else {
            return Err(damaged());
        };
        let (values, counts) = (values.as_list::<i32>(), counts.as_list::<i32>());
        let taken = taken.as_primitive::<UInt64Type>();
        for row in 0..values.len() {
            if values.is_null(row) {
                continue;
            }
            let (items, counts) = (values.value(row), counts.value(row));
            if estimates.is_valid(row) {
                if self.estimate.is_none() {
                    let mut estimate = estimator()?;
                    let (values, counts) = self.table.take()?;
                    estimate.update_batch(&[hashes(&values)?])?;
                    self.table.add(&values, Some(&counts))?;
                    self.estimate = Some(estimate);
                }
                if let Some(estimate) = &mut self.estimate {
                    estimate.merge_batch(&[estimates.slice(row, 1)])?;
                }
            }
            self.estimate(&items)?;
            self.taken += taken.value(row);
            self.table
                .add(&items, Some(counts.as_primitive::<UInt64Type>().values()))?;
            self.thin()?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (values, counts) = self.table.take()?;
        let is_exact = self.estimate.is_none() && values.len() <= self.most_distinct;
        let distinct = if is_exact {
            values.len() as u64
        } else {
            let estimate = match &mut self.estimate {
                Some(estimate) => estimate,
                none => {
                    let estimate = none.insert(estimator()?);
                    estimate.update_batch(&[hashes(&values)?])?;
                    estimate
                }
            };
            match estimate.evaluate()? {
                ScalarValue::UInt64(Some(distinct)) => distinct,
                other => return internal_err!("approx_distinct gave {other}"),
            }
        };
        let answer: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(vec![distinct])),
            Arc::new(BooleanArray::from(vec![is_exact])),
            Arc::new(UInt64Array::from(vec![self.taken])),
            list(values)?.to_array()?,
            list(Arc::new(UInt64Array::from(counts)))?.to_array()?,
        ];
        let answer = StructArray::try_new(answer_fields(&self.values), answer, None)?;
        Ok(ScalarValue::Struct(Arc::new(answer)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.table.bytes + self.estimate.as_ref().map_or(0, |estimate| estimate.size())
    }
}
