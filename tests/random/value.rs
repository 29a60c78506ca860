//! The tester's own values, their orders, and how they are read from and written to Arrow.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::*;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::*;
use datafusion::arrow::util::display::array_value_to_string;

/// A value that is not NULL.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// Integers, Booleans, dates, times, and decimals without their point.
    Int(i128),
    /// Floating point of any width, as the `f64` of its value.
    Float(f64),
    /// Strings and binary, by their bytes.
    Text(Vec<u8>),
    /// Lists and structs.
    Many(Vec<Cell>),
}

pub(crate) type Cell = Option<Value>;

/// How NaNs and zeros are ordered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Order {
    /// That of the functions: all NaNs are one value above infinity.
    Functions,
    /// That of `ORDER BY`: IEEE 754 totalOrder.
    Total,
}

/// In the order of the functions, or ascending with NULLs last inside of lists and structs.
pub(crate) fn compare(a: &Value, b: &Value, order: Order) -> Ordering {
    compare_within(a, b, false, order)
}

fn compare_within(a: &Value, b: &Value, nulls_first: bool, order: Order) -> Ordering {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Float(a), Value::Float(b)) => match order {
            Order::Functions => plain(*a).total_cmp(&plain(*b)),
            Order::Total => a.total_cmp(b),
        },
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Many(a), Value::Many(b)) => {
            // Inside of lists and structs floats have the order of ORDER BY, whoever asks.
            let mut items = a
                .iter()
                .zip(b)
                .map(|(a, b)| compare_cells(a, b, nulls_first, Order::Total));
            let differs = items.find(|ordering| ordering.is_ne());
            differs.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => panic!("values of two types: {a:?}, {b:?}"),
    }
}

/// Ascending, NULL before or behind all values; those inside of lists and structs too.
pub(crate) fn compare_cells(a: &Cell, b: &Cell, nulls_first: bool, order: Order) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => compare_within(a, b, nulls_first, order),
        (None, None) => Ordering::Equal,
        (None, Some(_)) if nulls_first => Ordering::Less,
        (Some(_), None) if !nulls_first => Ordering::Less,
        _ => Ordering::Greater,
    }
}

/// One NaN for all.
fn plain(value: f64) -> f64 {
    if value.is_nan() { f64::NAN.abs() } else { value }
}

/// A text that is equal for equal cells, all NaNs being one, and for no others.
pub(crate) fn text(cell: &Cell) -> String {
    match cell {
        None => "NULL".into(),
        Some(Value::Int(v)) => v.to_string(),
        Some(Value::Float(v)) if v.is_nan() => "NaN".into(),
        Some(Value::Float(v)) => format!("{v:?}"),
        Some(Value::Text(v)) => format!("{:?}", String::from_utf8_lossy(v)),
        Some(Value::Many(v)) => format!("[{}]", v.iter().map(text).collect::<Vec<_>>().join(", ")),
    }
}

pub(crate) fn texts(cells: &[Cell]) -> String {
    cells.iter().map(text).collect::<Vec<_>>().join(" | ")
}

/// The value of one place of an array.
///
/// # Panics
/// At types that the tester never draws.
pub(crate) fn read(array: &dyn Array, row: usize) -> Cell {
    use DataType::*;
    if array.is_null(row) || *array.data_type() == Null {
        return None;
    }
    let to = |data_type: DataType| cast(&array.slice(row, 1), &data_type).unwrap();
    Some(match array.data_type() {
        Float16 | Float32 | Float64 => Value::Float(to(Float64).as_primitive::<Float64Type>().value(0)),
        Boolean => Value::Int(array.as_boolean().value(row).into()),
        UInt64 => Value::Int(array.as_primitive::<UInt64Type>().value(row).into()),
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | Date32 | Date64 | Time32(_) | Time64(_)
        | Timestamp(..) | Duration(_) => Value::Int(integer(array, row).into()),
        Decimal32(..) => Value::Int(array.as_primitive::<Decimal32Type>().value(row).into()),
        Decimal64(..) => Value::Int(array.as_primitive::<Decimal64Type>().value(row).into()),
        Decimal128(..) => Value::Int(array.as_primitive::<Decimal128Type>().value(row)),
        Decimal256(..) => Value::Int(
            array
                .as_primitive::<Decimal256Type>()
                .value(row)
                .to_i128()
                .unwrap(),
        ),
        Interval(IntervalUnit::YearMonth) => {
            Value::Int(array.as_primitive::<IntervalYearMonthType>().value(row).into())
        }
        Utf8 | LargeUtf8 | Utf8View => Value::Text(array_value_to_string(array, row).unwrap().into_bytes()),
        Binary => Value::Text(array.as_binary::<i32>().value(row).to_vec()),
        BinaryView => Value::Text(array.as_binary_view().value(row).to_vec()),
        LargeBinary => Value::Text(array.as_binary::<i64>().value(row).to_vec()),
        Dictionary(_, values) => return read(&to(values.as_ref().clone()), 0),
        List(_) => many(&array.as_list::<i32>().value(row)),
        LargeList(_) => many(&array.as_list::<i64>().value(row)),
        FixedSizeList(..) => many(&array.as_fixed_size_list().value(row)),
        Struct(_) => {
            let columns = array.as_struct().columns();
            Value::Many(columns.iter().map(|column| read(column, row)).collect())
        }
        other => panic!("type {other} is not read"),
    })
}

fn many(values: &ArrayRef) -> Value {
    Value::Many((0..values.len()).map(|row| read(values, row)).collect())
}

/// The integer below a number, date or time.
fn integer(array: &dyn Array, row: usize) -> i64 {
    let data = array.to_data();
    match array.data_type().primitive_width().unwrap() {
        1 if *array.data_type() == DataType::UInt8 => data.buffer::<u8>(0)[row].into(),
        1 => data.buffer::<i8>(0)[row].into(),
        2 if *array.data_type() == DataType::UInt16 => data.buffer::<u16>(0)[row].into(),
        2 => data.buffer::<i16>(0)[row].into(),
        4 if *array.data_type() == DataType::UInt32 => data.buffer::<u32>(0)[row].into(),
        4 => data.buffer::<i32>(0)[row].into(),
        _ => data.buffer::<i64>(0)[row],
    }
}

/// Values as an array of a type.
pub(crate) fn write(data_type: &DataType, cells: &[Cell]) -> ArrayRef {
    use DataType::*;
    match data_type {
        Float16 | Float32 | Float64 => {
            let floats = cells.iter().map(|cell| match cell {
                Some(Value::Float(v)) => Some(*v),
                _ => None,
            });
            cast(&Float64Array::from_iter(floats), data_type).unwrap()
        }
        Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView => {
            let bytes = cells.iter().map(|cell| match cell {
                Some(Value::Text(v)) => Some(v.as_slice()),
                _ => None,
            });
            cast(&BinaryArray::from_iter(bytes), data_type).unwrap()
        }
        Dictionary(_, values) => cast(&write(values, cells), data_type).unwrap(),
        List(item) => Arc::new(write_list(item, cells)),
        LargeList(item) => cast(&write_list(item, cells), &LargeList(item.clone())).unwrap(),
        FixedSizeList(item, length) => write_fixed(item, *length, cells),
        Struct(fields) => write_struct(fields, cells),
        _ => write_integers(data_type, cells),
    }
}

fn inner(cell: &Cell) -> Option<&Vec<Cell>> {
    match cell {
        Some(Value::Many(items)) => Some(items),
        _ => None,
    }
}

fn write_fixed(item: &FieldRef, length: i32, cells: &[Cell]) -> ArrayRef {
    let none = vec![None; length as usize];
    let items: Vec<Cell> = cells
        .iter()
        .flat_map(|cell| inner(cell).unwrap_or(&none))
        .cloned()
        .collect();
    let nulls = datafusion::arrow::buffer::NullBuffer::from_iter(cells.iter().map(Option::is_some));
    let values = write(item.data_type(), &items);
    Arc::new(FixedSizeListArray::new(item.clone(), length, values, Some(nulls)))
}

fn write_list(item: &FieldRef, cells: &[Cell]) -> ListArray {
    use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
    let items: Vec<Cell> = cells.iter().filter_map(inner).flatten().cloned().collect();
    let lengths = cells.iter().map(|cell| inner(cell).map_or(0, Vec::len));
    let nulls = NullBuffer::from_iter(cells.iter().map(Option::is_some));
    let values = write(item.data_type(), &items);
    let offsets = OffsetBuffer::from_lengths(lengths);
    ListArray::new(item.clone(), offsets, values, Some(nulls))
}

fn write_struct(fields: &Fields, cells: &[Cell]) -> ArrayRef {
    let nulls = datafusion::arrow::buffer::NullBuffer::from_iter(cells.iter().map(Option::is_some));
    let columns = fields.iter().enumerate().map(|(i, field)| {
        let column: Vec<Cell> = cells
            .iter()
            .map(|cell| inner(cell).and_then(|items| items[i].clone()))
            .collect();
        write(field.data_type(), &column)
    });
    let columns = columns.collect();
    Arc::new(StructArray::new(fields.clone(), columns, Some(nulls)))
}

fn write_integers(data_type: &DataType, cells: &[Cell]) -> ArrayRef {
    use DataType::*;
    let ints = cells.iter().map(|cell| match cell {
        Some(Value::Int(v)) => Some(*v),
        _ => None,
    });
    match data_type {
        Boolean => Arc::new(BooleanArray::from_iter(ints.map(|v| v.map(|v| v != 0)))),
        UInt64 => Arc::new(UInt64Array::from_iter(ints.map(|v| v.map(|v| v as u64)))),
        Decimal32(p, s) => {
            let array = Decimal32Array::from_iter(ints.map(|v| v.map(|v| v as i32)));
            Arc::new(array.with_precision_and_scale(*p, *s).unwrap())
        }
        Decimal64(p, s) => {
            let array = Decimal64Array::from_iter(ints.map(|v| v.map(|v| v as i64)));
            Arc::new(array.with_precision_and_scale(*p, *s).unwrap())
        }
        Decimal128(p, s) => Arc::new(
            Decimal128Array::from_iter(ints)
                .with_precision_and_scale(*p, *s)
                .unwrap(),
        ),
        Decimal256(p, s) => {
            let array = Decimal256Array::from_iter(ints.map(|v| v.map(i256::from_i128)));
            Arc::new(array.with_precision_and_scale(*p, *s).unwrap())
        }
        Interval(IntervalUnit::YearMonth) => Arc::new(IntervalYearMonthArray::from_iter(
            ints.map(|v| v.map(|v| v as i32)),
        )),
        _ => {
            let longs = Int64Array::from_iter(ints.map(|v| v.map(|v| v as i64)));
            if data_type.primitive_width() == Some(4) && !data_type.is_integer() {
                return cast(&cast(&longs, &Int32).unwrap(), data_type).unwrap();
            }
            cast(&longs, data_type).unwrap()
        }
    }
}

/// The value in SQL, of exactly this type.
pub(crate) fn sql(data_type: &DataType, cell: &Cell) -> String {
    let typed = |text: String| format!("arrow_cast({text}, '{data_type}')");
    match (cell, data_type) {
        (None, _) => typed("NULL".into()),
        (Some(_), DataType::Dictionary(_, values)) => typed(sql(values, cell)),
        (Some(Value::Float(v)), _) => match (v.is_nan(), v.is_sign_negative()) {
            (true, true) => format!("-{}", typed("'NaN'".into())),
            (true, false) => typed("'NaN'".into()),
            _ => typed(format!("'{v:?}'")),
        },
        (Some(Value::Int(v)), DataType::Boolean) => (*v != 0).to_string(),
        (
            Some(Value::Int(v)),
            DataType::Decimal32(_, s)
            | DataType::Decimal64(_, s)
            | DataType::Decimal128(_, s)
            | DataType::Decimal256(_, s),
        ) => typed(format!("'{}e-{s}'", v)),
        (Some(Value::Int(v)), _) => typed(v.to_string()),
        (Some(Value::Text(v)), DataType::Binary | DataType::LargeBinary | DataType::BinaryView) => typed(
            format!("X'{}'", v.iter().map(|b| format!("{b:02x}")).collect::<String>()),
        ),
        (Some(Value::Text(v)), _) => typed(format!("'{}'", String::from_utf8_lossy(v).replace('\'', "''"))),
        (
            Some(Value::Many(items)),
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _),
        ) => {
            let items: Vec<_> = items.iter().map(|cell| sql(item.data_type(), cell)).collect();
            typed(format!("make_array({})", items.join(", ")))
        }
        (Some(Value::Many(items)), DataType::Struct(fields)) => {
            let fields = fields.iter().zip(items);
            let parts: Vec<_> = fields
                .map(|(f, cell)| format!("'{}', {}", f.name(), sql(f.data_type(), cell)))
                .collect();
            format!("named_struct({})", parts.join(", "))
        }
        other => panic!("no SQL for {other:?}"),
    }
}
