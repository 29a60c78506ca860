//! Tests of `gk_quantile`, `gk_rank` and `gk_merge` over stored sketches whose bytes were damaged.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, BinaryArray, Date32Array, Decimal128Array, Float64Array, Int64Array,
};
use datafusion::arrow::datatypes::Field;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::{Accumulator, ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use rand::Rng;
use rand::rngs::SmallRng;

use super::gk_scalars;
use super::merge::MergeAccumulator;
use crate::key::KeySpec;
use crate::mutated::{Decoder, SLACK};
use crate::sketch::{AnySketch, Epsilon, Header, Variant, sealed};

/// A stored sketch of values of one of several types.
fn stored(random: &mut SmallRng) -> Vec<u8> {
    let n = random.random_range(1..60_i64);
    let number = |_| random.random_range(-1000..1000_i64);
    let numbers: Vec<i64> = (0..n).map(number).collect();
    let values: ArrayRef = match n % 4 {
        0 => Arc::new(Int64Array::from(numbers)),
        1 => Arc::new(Float64Array::from_iter_values(
            numbers.iter().map(|n| *n as f64 / 7.0),
        )),
        2 => Arc::new(Date32Array::from_iter_values(numbers.iter().map(|n| *n as i32))),
        _ => Arc::new(Decimal128Array::from_iter_values(
            numbers.into_iter().map(i128::from),
        )),
    };
    let spec = KeySpec::try_new(values.data_type()).unwrap();
    let mut sketch = AnySketch::new(spec.width(), Epsilon::try_new(10.0).unwrap(), Variant::Modified);
    sketch.extend(&spec, values.as_ref()).unwrap();
    sketch
        .partial()
        .unwrap()
        .write(values.data_type().to_string().as_bytes())
}

/// Calls a function of a sketch and a constant as a query does.
fn called(function: &ScalarUDF, bytes: &[u8], asked: ScalarValue) -> Result<()> {
    let arguments = [
        ColumnarValue::Array(Arc::new(BinaryArray::from_iter_values([bytes]))),
        ColumnarValue::Scalar(asked),
    ];
    let field = |argument: &ColumnarValue| Arc::new(Field::new("a", argument.data_type(), true));
    let arg_fields: Vec<_> = arguments.iter().map(field).collect();
    let return_field = function.return_field_from_args(ReturnFieldArgs {
        arg_fields: &arg_fields,
        scalar_arguments: &[None, None],
    })?;
    let answer = function.invoke_with_args(ScalarFunctionArgs {
        args: arguments.to_vec(),
        arg_fields,
        number_rows: 1,
        return_field,
        config_options: Arc::new(ConfigOptions::default()),
    })?;
    match answer.to_array(1)?.len() {
        1 => Ok(()),
        rows => exec_err!("{rows} rows"),
    }
}

#[test]
fn mutated_stored_sketches_do_no_harm() {
    Decoder {
        slack: SLACK,
        name: "stored sketches",
        test: (module_path!(), "mutated_stored_sketches_do_no_harm"),
        valid: &|random| (0..80).map(|_| stored(random)).collect(),
        seal: &|bytes| *bytes = sealed(std::mem::take(bytes)),
        decode: &|bytes| {
            Header::read(bytes)?;
            let mut merging = MergeAccumulator::default();
            let column: ArrayRef = Arc::new(BinaryArray::from_iter_values([bytes]));
            merging.merge_batch(&[column])?;
            Ok((merging, bytes.to_vec()))
        },
        apply: &|(mut merging, bytes)| {
            let other: ArrayRef = Arc::new(BinaryArray::from_iter_values([&bytes]));
            let merged = merging.update_batch(&[other]).and_then(|()| merging.evaluate());
            let asked = [
                0.5.into(),
                7_i64.into(),
                ScalarValue::Date32(Some(5)),
                "12".into(),
                ScalarValue::Null,
            ];
            let mut last = merged.map(drop);
            for function in gk_scalars() {
                for asked in &asked {
                    last = called(function, &bytes, asked.clone()).or(last);
                }
            }
            last
        },
    }
    .check();
}
