//! Keys for `ORDER BY`: one unsigned integer a row; larger ones come earlier.
//!
//! ```text
//! ORDER BY day DESC, price    |n|ddd|n|ppppppp|     n: whether there is a value, or none, whichever comes first
//! ```
//! Columns of fixed width are packed, the first one highest, if they fit in 128 bits: then equal keys are equal rows.
//! Otherwise the integer is the beginning of Arrow's row format, and rows with equal keys are told apart by
//! [`RowOrder`].

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::Result;

use super::{Encoding, Key, KeyBits, KeySpec, Width, with_key, words};

/// One column to order by.
#[derive(Debug, Clone)]
pub(crate) struct SortColumn {
    pub(crate) data_type: DataType,
    /// Whether the column may have NULLs.
    pub(crate) nullable: bool,
    pub(crate) options: SortOptions,
    /// Whether floating point is ordered as `ORDER BY` orders it. Otherwise all NaNs are one value, the greatest.
    pub(crate) total_order: bool,
}

/// A conversion of rows to keys, where larger keys come first.
#[derive(Debug)]
pub(crate) struct SortKeys {
    contents: KeyContents,
    width: Width,
}

#[derive(Debug)]
enum KeyContents {
    /// All columns, packed into the key.
    Packed(Vec<Field>),
    /// The first bytes of Arrow's row format.
    Prefix(RowConverter),
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) spec: KeySpec,
    pub(super) descending: bool,
    /// Position of the lowest bit of the value in the key.
    pub(super) shift: u32,
    /// Position of the bit that puts NULLs first or last; `None` if the column has no NULLs.
    pub(super) null_bit: Option<u32>,
    pub(super) nulls_first: bool,
}

impl SortKeys {
    /// The conversion for rows ordered by `columns`, the first column first.
    ///
    /// # Errors
    /// An error of Arrow for a type that has no order.
    pub(crate) fn try_new(columns: &[SortColumn]) -> Result<Self> {
        if let Some(packed) = Self::try_packed(columns) {
            return Ok(packed);
        }
        let fields = columns
            .iter()
            .map(|column| SortField::new_with_options(column.data_type.clone(), column.options));
        Ok(Self {
            contents: KeyContents::Prefix(RowConverter::new(fields.collect())?),
            width: Width::W128,
        })
    }

    /// The conversion for rows ordered by `columns`, if 128 bits hold all columns.
    pub(crate) fn try_packed(columns: &[SortColumn]) -> Option<Self> {
        packed(columns).map(|(fields, width)| Self {
            contents: KeyContents::Packed(fields),
            width,
        })
    }

    /// Width of the keys.
    pub(crate) fn width(&self) -> Width {
        self.width
    }

    /// Positions of the columns in a key, if it holds all of them.
    pub(super) fn fields(&self) -> Option<&[Field]> {
        match &self.contents {
            KeyContents::Packed(fields) => Some(fields),
            KeyContents::Prefix(_) => None,
        }
    }

    /// Whether rows with equal keys are equal.
    pub(crate) fn is_exact(&self) -> bool {
        matches!(self.contents, KeyContents::Packed(_))
    }

    /// The keys of rows. `K` has the width of [`Self::width`].
    ///
    /// # Errors
    /// If the columns do not have the types that the conversion was made for.
    pub(crate) fn keys<K: Key>(&self, columns: &[ArrayRef]) -> Result<Vec<K>> {
        match &self.contents {
            KeyContents::Packed(fields) => {
                let rows = columns.first().map_or(0, |column| column.len());
                let mut keys = vec![K::default(); rows];
                for (field, column) in fields.iter().zip(columns) {
                    field.add(column.as_ref(), &mut keys)?;
                }
                Ok(keys)
            }
            KeyContents::Prefix(converter) => {
                let rows = converter.convert_columns(columns)?;
                let first = |row: &[u8]| {
                    let mut bytes = [0; 16];
                    let len = row.len().min(16);
                    bytes[..len].copy_from_slice(&row[..len]);
                    // Rows that come first have smaller bytes.
                    K::from_bits(!u128::from_be_bytes(bytes))
                };
                Ok(rows.iter().map(|row| first(row.data())).collect())
            }
        }
    }
}

/// Positions of the columns in an integer, and its width; `None` if 128 bits do not hold them.
fn packed(columns: &[SortColumn]) -> Option<(Vec<Field>, Width)> {
    let mut fields = Vec::with_capacity(columns.len());
    let mut shift = 0;
    for column in columns.iter().rev() {
        let spec = if column.total_order {
            KeySpec::for_order_by(&column.data_type)
        } else {
            KeySpec::try_new(&column.data_type)
        };
        let spec = spec.ok()?;
        let bits = 8 * spec.width().bytes() as u32;
        let null_bit = column.nullable.then_some(shift + bits);
        fields.push(Field {
            spec,
            descending: column.options.descending,
            shift,
            null_bit,
            nulls_first: column.options.nulls_first,
        });
        shift += bits + u32::from(null_bit.is_some());
    }
    fields.reverse();
    let width = match shift {
        0..=32 => Width::W32,
        33..=64 => Width::W64,
        65..=128 => Width::W128,
        _ => return None,
    };
    Some((fields, width))
}

impl Field {
    fn add<K: Key>(&self, column: &dyn Array, keys: &mut [K]) -> Result<()> {
        let raw = self.spec.raw(column)?;
        with_key!(self.spec.width(), W => self.add_words::<W, K>(words(&raw), column, keys));
        Ok(())
    }

    fn add_words<W: Key, K: Key>(&self, raw: &[W], column: &dyn Array, keys: &mut [K]) {
        let mut values = vec![W::default(); raw.len()];
        let encoding: Encoding = self.spec.encoding();
        encoding.encode(raw, &mut values);
        if !self.descending {
            values.iter_mut().for_each(|value| *value = W::MAX.minus(*value));
        }
        let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let place = |value: KeyBits| K::from_bits(value << self.shift);
        let flag = |set: bool| match (set, self.null_bit) {
            (true, Some(bit)) => K::from_bits(1 << bit),
            _ => K::default(),
        };
        let (valid, null) = (flag(!self.nulls_first), flag(self.nulls_first));
        let pairs = keys.iter_mut().zip(values);
        match nulls {
            None => pairs.for_each(|(key, value)| *key = *key | place(value.to_bits()) | valid),
            // The word of a NULL can be anything.
            Some(nulls) => pairs.zip(nulls.iter()).for_each(|((key, value), is_valid)| {
                *key = *key
                    | if is_valid {
                        place(value.to_bits()) | valid
                    } else {
                        null
                    };
            }),
        }
    }
}

/// A column that tells rows with equal keys apart.
#[derive(Debug)]
pub(crate) struct OrderBy {
    column: usize,
    data_type: DataType,
    options: SortOptions,
    /// Whether NaNs are the greatest numbers, but still distinct by their bits.
    rotates: bool,
}

impl OrderBy {
    /// Orders by this column as `ORDER BY` does.
    pub(crate) fn rows(column: usize, data_type: DataType, options: SortOptions) -> Self {
        Self {
            column,
            data_type,
            options,
            rotates: false,
        }
    }

    /// Orders by this column as functions order values: smaller ones first, then NaNs, which stay distinct by their
    /// bits, then NULL.
    pub(crate) fn values(column: usize, data_type: DataType) -> Self {
        Self {
            column,
            data_type,
            options: SortOptions {
                descending: false,
                nulls_first: false,
            },
            rotates: true,
        }
    }
}

/// The order among rows whose keys are equal, as Arrow's row format has it.
#[derive(Debug)]
pub(crate) struct RowOrder {
    /// The indices of a row's columns, and whether their floats are [`rotated`].
    columns: Vec<(usize, bool)>,
    converter: RowConverter,
}

impl RowOrder {
    /// An order by some of the columns of rows.
    ///
    /// # Errors
    /// An error of Arrow for a type that has no order.
    pub(crate) fn try_new(columns: Vec<OrderBy>) -> Result<Self> {
        let field = |by: &OrderBy| {
            let data_type = if by.rotates {
                rotated_type(&by.data_type)
            } else {
                by.data_type.clone()
            };
            SortField::new_with_options(data_type, by.options)
        };
        Ok(Self {
            converter: RowConverter::new(columns.iter().map(field).collect())?,
            columns: columns.into_iter().map(|by| (by.column, by.rotates)).collect(),
        })
    }

    /// The indices of the columns that are compared.
    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.columns.iter().map(|(column, _)| *column)
    }

    /// Rows that compare in this order. `columns` are the ones that [`Self::columns`] names.
    ///
    /// # Errors
    /// An error of Arrow if the columns have other types.
    pub(crate) fn rows(&self, columns: &[ArrayRef]) -> Result<Rows> {
        let rotate = |(column, (_, rotates)): (&ArrayRef, &(usize, bool))| {
            if *rotates {
                rotated(column)
            } else {
                Arc::clone(column)
            }
        };
        let columns: Vec<ArrayRef> = columns.iter().zip(&self.columns).map(rotate).collect();
        Ok(self.converter.convert_columns(&columns)?)
    }
}

/// The type of [`rotated`] values.
fn rotated_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Float16 => DataType::UInt16,
        DataType::Float32 => DataType::UInt32,
        DataType::Float64 => DataType::UInt64,
        other => other.clone(),
    }
}

/// The floats of an array as integers in `totalOrder`, rotated so that it starts at `-inf`: the NaNs that come before
/// `-inf` are then above all other NaNs. Values of other types stay as they are.
fn rotated(values: &ArrayRef) -> ArrayRef {
    macro_rules! rotate {
        ($float:ty, $word:ty, $values:expr) => {{
            let word = |bits: <$word as ArrowPrimitiveType>::Native| {
                let sign = !(<$word as ArrowPrimitiveType>::Native::MAX >> 1);
                if bits & sign == 0 { bits | sign } else { !bits }
            };
            let least = word(<$float as ArrowPrimitiveType>::Native::NEG_INFINITY.to_bits());
            let rotated = $values
                .as_primitive::<$float>()
                .unary::<_, $word>(|value| word(value.to_bits()).wrapping_sub(least));
            Arc::new(rotated) as ArrayRef
        }};
    }
    match values.data_type() {
        DataType::Float16 => rotate!(Float16Type, UInt16Type, values),
        DataType::Float32 => rotate!(Float32Type, UInt32Type, values),
        DataType::Float64 => rotate!(Float64Type, UInt64Type, values),
        _ => Arc::clone(values),
    }
}

/// An array of the same values, where each NaN of a floating-point column is the positive quiet one.
pub(crate) fn with_one_nan(values: &ArrayRef) -> ArrayRef {
    macro_rules! one_nan {
        ($float:ty) => {{
            const NAN: <$float as ArrowPrimitiveType>::Native = <$float as ArrowPrimitiveType>::Native::NAN;
            let floats = values.as_primitive::<$float>();
            let kept = floats.unary::<_, $float>(|value| if value.is_nan() { NAN } else { value });
            Arc::new(kept) as ArrayRef
        }};
    }
    match values.data_type() {
        DataType::Float16 => one_nan!(Float16Type),
        DataType::Float32 => one_nan!(Float32Type),
        DataType::Float64 => one_nan!(Float64Type),
        _ => Arc::clone(values),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Float64Array, Int32Array, StringArray};
    use datafusion::arrow::compute::{SortColumn as By, lexsort_to_indices};

    use super::*;
    use crate::key::fixed::tests::samples;

    fn all_options() -> Vec<SortOptions> {
        let option = |i: u32| SortOptions {
            descending: i & 1 == 1,
            nulls_first: i & 2 == 2,
        };
        (0..4).map(option).collect()
    }

    /// Checks that rows in the order of Arrow's sort have keys that never rise, and that are equal where the rows are.
    fn check(columns: &[(ArrayRef, SortOptions)]) {
        let by: Vec<By> = columns
            .iter()
            .map(|(values, options)| By {
                values: Arc::clone(values),
                options: Some(*options),
            })
            .collect();
        let sorted = lexsort_to_indices(&by, None).unwrap();
        let spec: Vec<SortColumn> = columns
            .iter()
            .map(|(values, options)| SortColumn {
                data_type: values.data_type().clone(),
                nullable: values.null_count() > 0,
                options: *options,
                total_order: true,
            })
            .collect();
        let keys = SortKeys::try_new(&spec).unwrap();
        let arrays: Vec<ArrayRef> = columns.iter().map(|(values, _)| Arc::clone(values)).collect();
        let bits: Vec<KeyBits> = match keys.width() {
            Width::W32 => keys
                .keys::<u32>(&arrays)
                .unwrap()
                .into_iter()
                .map(Key::to_bits)
                .collect(),
            Width::W64 => keys
                .keys::<u64>(&arrays)
                .unwrap()
                .into_iter()
                .map(Key::to_bits)
                .collect(),
            Width::W128 => keys.keys::<u128>(&arrays).unwrap(),
        };
        let sort = |i: usize| SortField::new_with_options(arrays[i].data_type().clone(), columns[i].1);
        let converter = RowConverter::new((0..arrays.len()).map(sort).collect()).unwrap();
        let rows = converter.convert_columns(&arrays).unwrap();
        for pair in sorted.values().windows(2) {
            let (a, b) = (pair[0] as usize, pair[1] as usize);
            assert!(bits[a] >= bits[b], "{columns:?}: {a} {b}");
            if keys.is_exact() {
                assert_eq!(
                    bits[a] == bits[b],
                    rows.row(a) == rows.row(b),
                    "{columns:?}: {a} {b}"
                );
            }
        }
    }

    #[test]
    fn keys_are_in_the_order_of_a_sort() {
        for array in samples() {
            for options in all_options() {
                check(&[(Arc::clone(&array), options)]);
            }
        }
        let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(3), None, Some(-1), Some(3), None]));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![
            Some(f64::NAN),
            Some(-0.0),
            None,
            Some(0.0),
            None,
        ]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![
            Some("a long beginning 1"),
            Some(""),
            None,
            Some("a long beginning 2"),
            Some("b"),
        ]));
        for a in all_options() {
            for b in all_options() {
                check(&[(Arc::clone(&ints), a), (Arc::clone(&floats), b)]);
                check(&[(Arc::clone(&texts), a), (Arc::clone(&ints), b)]);
                check(&[(Arc::clone(&ints), a), (Arc::clone(&texts), b)]);
            }
        }
    }

    #[test]
    fn nans_are_the_greatest_and_stay_apart() {
        let values: ArrayRef = Arc::new(Float64Array::from(vec![
            Some(f64::NEG_INFINITY),
            Some(-0.0),
            Some(0.0),
            Some(f64::INFINITY),
            Some(f64::NAN),
            Some(-f64::NAN),
            None,
        ]));
        let order = RowOrder::try_new(vec![OrderBy::values(0, DataType::Float64)]).unwrap();
        let rows = order.rows(&[values]).unwrap();
        for row in 1..rows.num_rows() {
            assert!(rows.row(row - 1) < rows.row(row), "{row}");
        }
    }
}
