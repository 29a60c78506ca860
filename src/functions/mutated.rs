//! Tests of partial states and of functions of plans whose bytes were damaged between machines.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, Float64Builder, Int64Array, Int64Builder, LargeListArray,
    NullArray, StringBuilder, UInt64Builder,
};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, SchemaRef, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::{AggregateUDF, EmitTo};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion::physical_expr::expressions::{Column, Literal};
use rand::Rng;
use rand::rngs::SmallRng;

use super::all_aggregates;
use super::gk::gk_aggregates;
use super::guarded::Guarded;
use super::ranks::rank_aggregates;
use super::shape::shape_aggregates;
use super::topk::topk_aggregates;
use crate::mutated::{Decoder, Loose, SLACK, put_piece, uncounted};
use crate::wire::put;

/// Greatest number of rows of a state.
const ROWS: u64 = 64;

fn table() -> SchemaRef {
    let field = |name, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![
        field("f", DataType::Float64),
        field("i", DataType::Int64),
        field("s", DataType::Utf8),
        field("b", DataType::Binary),
    ]))
}

fn column(name: &str) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new_with_schema(name, &table()).unwrap())
}

fn constant(value: impl Into<ScalarValue>) -> Arc<dyn PhysicalExpr> {
    Arc::new(Literal::new(value.into()))
}

fn call(
    function: &Arc<AggregateUDF>,
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    distinct: bool,
) -> Result<AggregateFunctionExpr> {
    AggregateExprBuilder::new(Arc::clone(function), arguments)
        .schema(table())
        .alias("a")
        .with_distinct(distinct)
        .build()
}

/// Calls whose states have every form that those of this crate can have.
fn calls() -> Vec<AggregateFunctionExpr> {
    let named = |list: &[Arc<AggregateUDF>], name: &str| {
        let found = list.iter().find(|function| function.name() == name);
        Arc::clone(found.unwrap_or_else(|| panic!("no {name}")))
    };
    let exact = named(all_aggregates(), "exact_quantiles");
    let guarded = |function: &Arc<AggregateUDF>| Arc::new(Guarded::new(Arc::clone(function)).into());
    let half = || constant(0.5);
    let mut calls = Vec::new();
    for (values, distinct) in [("f", false), ("f", true), ("i", false), ("s", false), ("s", true)] {
        calls.push(call(&exact, vec![column(values), half()], distinct).unwrap());
    }
    for values in ["f", "i", "s"] {
        for function in [Arc::clone(&exact), guarded(&exact)] {
            calls.push(call(&function, vec![column(values), half(), column("i")], false).unwrap());
        }
    }
    calls.push(call(&guarded(&exact), vec![column("i"), half()], false).unwrap());
    calls.push(call(&guarded(&count_udaf()), vec![column("i")], false).unwrap());
    for name in [
        "approx_percentile_gk",
        "approx_percentile_gk_bounds",
        "approx_percentile_sample",
        "gk_sketch",
    ] {
        for arguments in [vec![column("f")], vec![column("i"), half()]] {
            calls.extend(call(&named(gk_aggregates(), name), arguments, false));
        }
    }
    calls.push(call(&named(gk_aggregates(), "gk_merge"), vec![column("b")], false).unwrap());
    for name in ["exact_rank", "cume_dist", "dense_rank"] {
        let function = named(rank_aggregates(), name);
        for (values, v) in [("f", ScalarValue::from(0.5)), ("s", ScalarValue::from("text"))] {
            for function in [Arc::clone(&function), guarded(&function)] {
                let arguments = || vec![column(values), constant(v.clone())];
                calls.push(call(&function, arguments(), false).unwrap());
                calls.extend((name == "exact_rank").then(|| call(&function, arguments(), true).unwrap()));
            }
        }
    }
    for function in shape_aggregates() {
        for values in ["f", "s"] {
            for function in [Arc::clone(function), guarded(function)] {
                for arguments in [vec![column(values)], vec![column(values), constant(3_i64)]] {
                    let call = call(&function, arguments, false);
                    calls.extend(call.ok().filter(|call| call.create_accumulator().is_ok()));
                }
            }
        }
    }
    for function in topk_aggregates() {
        for values in ["f", "s"] {
            for arguments in [
                vec![column(values), column("i")],
                vec![column(values), column("i"), constant(3_i64)],
            ] {
                let with = |function: &Arc<AggregateUDF>| {
                    let call = call(function, arguments.clone(), false);
                    call.ok().filter(|call| call.create_accumulator().is_ok())
                };
                calls.extend(with(function));
                calls.extend(with(&guarded(function)));
            }
        }
    }
    calls
}

/// Values for the columns of a call.
fn arguments(call: &AggregateFunctionExpr, random: &mut SmallRng) -> Vec<ArrayRef> {
    let rows = random.random_range(0..20);
    let array = |expr: Arc<dyn PhysicalExpr>| -> ArrayRef {
        let Some(literal) = expr.downcast_ref::<Literal>() else {
            let (mut f, mut i) = (Float64Builder::new(), Int64Builder::new());
            let (mut s, mut b) = (StringBuilder::new(), BinaryBuilder::new());
            for _ in 0..rows {
                let value = random.random_range(0..9_i64);
                let is_there = value > 0;
                f.append_option(is_there.then_some(value as f64 / 3.0));
                i.append_option(is_there.then_some(value));
                s.append_option(is_there.then(|| "text".repeat(value as usize)));
                b.append_option(is_there.then(|| sketch(value)));
            }
            let arrays: [ArrayRef; 4] = [
                Arc::new(f.finish()),
                Arc::new(i.finish()),
                Arc::new(s.finish()),
                Arc::new(b.finish()),
            ];
            let index = expr.downcast_ref::<Column>().unwrap().index();
            return Arc::clone(&arrays[index]);
        };
        literal.value().to_array_of_size(rows).unwrap()
    };
    call.expressions().into_iter().map(array).collect()
}

/// A stored sketch of few values.
fn sketch(values: i64) -> Vec<u8> {
    use crate::sketch::{AnySketch, Epsilon, Variant};
    let eps = Epsilon::try_new(10.0).unwrap();
    let mut sketch = AnySketch::new(crate::key::Width::W64, eps, Variant::Modified);
    sketch
        .extend_keys((0..values as u128).map(|key| key * 7919))
        .unwrap();
    sketch.partial().unwrap().write(b"Int64")
}

fn put_values(array: &dyn Array, row: usize, out: &mut Vec<u8>) {
    match array.data_type() {
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>().value(row);
            put(out, list.len() as u64);
            (0..list.len()).for_each(|item| put_value(list.as_ref(), item, out));
        }
        _ => put_value(array, row, out),
    }
}

fn put_value(array: &dyn Array, row: usize, out: &mut Vec<u8>) {
    match array.data_type() {
        DataType::Float64 => out.extend(array.as_primitive::<Float64Type>().value(row).to_le_bytes()),
        DataType::Int64 => out.extend(array.as_primitive::<Int64Type>().value(row).to_le_bytes()),
        DataType::UInt64 => out.extend(array.as_primitive::<UInt64Type>().value(row).to_le_bytes()),
        DataType::Utf8 => put_piece(out, array.as_string::<i32>().value(row).as_bytes()),
        DataType::Binary => put_piece(out, array.as_binary::<i32>().value(row)),
        other => panic!("a state of type {other}"),
    }
}

/// Writes states as bytes: the number of the call, the number of rows, the group of each, then the columns, with a flag before each value.
fn written(number: usize, states: &[ArrayRef]) -> Vec<u8> {
    let rows = states[0].len();
    let mut out = vec![number as u8, rows as u8];
    out.extend((0..rows).map(|row| (row % 3) as u8));
    for state in states {
        out.push(0);
        for row in 0..rows {
            out.push(u8::from(state.is_null(row)));
            if state.is_valid(row) || state.as_list_opt::<i64>().is_some() {
                put_values(state.as_ref(), row, &mut out);
            }
        }
    }
    out
}

/// Reads values of a type, NULL where the flag before a value says so.
fn values(data_type: &DataType, count: usize, loose: &mut Loose<'_>, within: bool) -> ArrayRef {
    if let DataType::LargeList(item) = data_type {
        let mut all: Vec<ArrayRef> = Vec::new();
        let (mut counts, mut valid) = (Vec::new(), Vec::new());
        for _ in 0..count {
            valid.push(loose.byte() & 1 == 0);
            let items = loose.number().min(loose.left() as u64 / 8 + 1) as usize;
            all.push(values(item.data_type(), items, loose, true));
            counts.push(items);
        }
        let all: Vec<&dyn Array> = all.iter().map(AsRef::as_ref).collect();
        let flat = if all.is_empty() {
            datafusion::arrow::array::new_empty_array(item.data_type())
        } else {
            datafusion::arrow::compute::concat(&all).unwrap()
        };
        let nulls = NullBuffer::from(valid);
        let offsets = OffsetBuffer::from_lengths(counts);
        return Arc::new(LargeListArray::new(Arc::clone(item), offsets, flat, Some(nulls)));
    }
    let (mut f, mut i, mut u) = (Float64Builder::new(), Int64Builder::new(), UInt64Builder::new());
    let (mut s, mut b) = (StringBuilder::new(), BinaryBuilder::new());
    for _ in 0..count {
        let is_there = within || loose.byte() & 1 == 0;
        match data_type {
            DataType::Float64 => f.append_option(is_there.then(|| f64::from_bits(loose.word()))),
            DataType::Int64 => i.append_option(is_there.then(|| loose.word().cast_signed())),
            DataType::UInt64 => u.append_option(is_there.then(|| loose.word())),
            DataType::Utf8 => s.append_option(is_there.then(|| String::from_utf8_lossy(loose.piece()))),
            _ => b.append_option(is_there.then(|| loose.piece())),
        }
    }
    match data_type {
        DataType::Float64 => Arc::new(f.finish()),
        DataType::Int64 => Arc::new(i.finish()),
        DataType::UInt64 => Arc::new(u.finish()),
        DataType::Utf8 => Arc::new(s.finish()),
        _ => Arc::new(b.finish()),
    }
}

/// Reads the groups of the rows, and the columns of their states.
fn states(call: &AggregateFunctionExpr, mut loose: Loose<'_>) -> (Vec<usize>, Vec<ArrayRef>) {
    let rows = u64::from(loose.byte()).min(ROWS) as usize;
    let groups: Vec<usize> = (0..rows).map(|_| usize::from(loose.byte() % 3)).collect();
    let fields = call.state_fields().unwrap();
    let column = |field: &Arc<Field>| -> ArrayRef {
        match loose.byte() {
            // A column of another type.
            0xfd => Arc::new(NullArray::new(rows)),
            0xfe => Arc::new(Int64Array::from_iter_values(0..rows as i64)),
            _ => values(field.data_type(), rows, &mut loose, false),
        }
    };
    let columns = fields.iter().map(column).collect();
    (groups, columns)
}

fn merged(call: &AggregateFunctionExpr, groups: &[usize], columns: &[ArrayRef]) -> Result<Merged> {
    let mut one = call.create_accumulator()?;
    one.merge_batch(columns)?;
    let mut many = None;
    if call.groups_accumulator_supported() {
        let mut accumulator = call.create_groups_accumulator()?;
        accumulator.merge_batch(columns, groups, 3)?;
        many = Some(accumulator);
    }
    Ok((one, many))
}

type Merged = (
    Box<dyn datafusion::logical_expr::Accumulator>,
    Option<Box<dyn datafusion::logical_expr::GroupsAccumulator>>,
);

#[test]
fn mutated_states_do_no_harm() {
    let calls = calls();
    assert!(calls.len() > 12, "{}", calls.len());
    Decoder {
        slack: SLACK,
        name: "states",
        test: (module_path!(), "mutated_states_do_no_harm"),
        valid: &|random| {
            let one = |number: usize| {
                let call = &calls[number % calls.len()];
                if call.groups_accumulator_supported() && random.random() {
                    let mut partial = call.create_groups_accumulator().unwrap();
                    let arguments = arguments(call, random);
                    let groups: Vec<usize> = (0..arguments[0].len())
                        .map(|_| random.random_range(0..3))
                        .collect();
                    partial.update_batch(&arguments, &groups, None, 3).unwrap();
                    return written(number % calls.len(), &partial.state(EmitTo::All).unwrap());
                }
                let mut partial = call.create_accumulator().unwrap();
                partial.update_batch(&arguments(call, random)).unwrap();
                let states = partial.state().unwrap();
                let states = states.iter().map(|state| state.to_array().unwrap());
                written(number % calls.len(), &states.collect::<Vec<_>>())
            };
            (0..8 * calls.len()).map(one).collect()
        },
        seal: &|_| {},
        decode: &|bytes| {
            let Some((number, rest)) = bytes.split_first() else {
                return exec_err!("nothing");
            };
            let call = &calls[usize::from(*number) % calls.len()];
            let (groups, columns) = uncounted(|| states(call, Loose(rest)));
            merged(call, &groups, &columns)
        },
        apply: &|(mut one, many)| {
            one.size();
            let mut answer = one.state().and_then(|_| one.evaluate()).map(drop);
            if let Some(mut many) = many {
                many.size();
                let first = many.evaluate(EmitTo::First(1)).map(drop);
                answer = answer.and(first).and(many.state(EmitTo::All).map(drop));
            }
            answer
        },
    }
    .check();
}
