//! Group keys: group columns of fixed width, packed into one unsigned integer for each row.
//!
//! ```text
//! one column, 33 to 64 bits     |vvvvvvvv|            u64; NULL has no key, and a hash partition of its own
//! Int32, UInt16 NULL, Boolean   ..|b|n|uuuu|iiiiiiii|  u64; a column that may be NULL has a bit `n` that says whether it is
//! ```

use datafusion::arrow::array::{Array, ArrayRef, make_array};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, internal_err};

use crate::kernel::cpu::groups::group_key::{GroupKey, NULL_PARTITION, hash_partition_of};
use crate::key::with_key;
use crate::key::{Key, KeyBits, KeySpec, Width, words};

/// How group columns are packed into group keys.
#[derive(Debug, Clone)]
pub(in crate::exec) struct Packing {
    fields: Vec<Field>,
    width: Width,
}

/// Position of one group column in the key.
#[derive(Debug, Clone)]
struct Field {
    spec: KeySpec,
    /// Number of bits that a value takes.
    bits: u32,
    /// Position of the value's lowest bit in the key.
    shift: u32,
    /// Position of the bit that marks NULL; `None` if the column has none.
    null_bit: Option<u32>,
}

/// Number of bits that tell values of a type apart; `None` if equal values may have different bits, or if the type is too wide.
fn bits_of(data_type: &DataType) -> Option<u32> {
    use DataType::*;
    match data_type {
        Boolean => Some(1),
        UInt8 => Some(8),
        UInt16 => Some(16),
        // Zeros of either sign are one group, NaNs are not: DataFusion's tables take care of that. A column of type Null has no bits.
        Float16 | Float32 | Float64 | Null => None,
        other => {
            let width = KeySpec::try_new(other).ok()?.width();
            Some(8 * width.bytes() as u32)
        }
    }
}

impl Packing {
    /// The packing of group columns with these fields; `None` if their keys would not fit in 128 bits.
    pub(in crate::exec) fn try_new(columns: &[FieldRef]) -> Option<Self> {
        let single = columns.len() == 1;
        let (mut fields, mut shift) = (Vec::with_capacity(columns.len()), 0);
        for column in columns {
            let bits = bits_of(column.data_type())?;
            let null_bit = (column.is_nullable() && !single).then_some(shift + bits);
            fields.push(Field {
                spec: KeySpec::try_new(column.data_type()).ok()?,
                bits,
                shift,
                null_bit,
            });
            shift += bits + u32::from(null_bit.is_some());
        }
        let width = match shift {
            0 | 129.. => return None,
            1..=32 => Width::W32,
            33..=64 => Width::W64,
            65..=128 => Width::W128,
        };
        Some(Self { fields, width })
    }

    /// Width of the keys.
    pub(in crate::exec) fn width(&self) -> Width {
        self.width
    }

    /// The group key of each row, and which rows have none: those where the only group column is NULL.
    ///
    /// # Errors
    /// An internal error if the columns have other types than the packing was made for.
    pub(super) fn keys<W: Key>(&self, columns: &[ArrayRef]) -> Result<(Vec<W>, Option<NullBuffer>)> {
        let rows = columns.first().map_or(0, |column| column.len());
        let mut packed = vec![W::default(); rows];
        let single = columns.len() == 1;
        for (field, column) in self.fields.iter().zip(columns) {
            let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
            if nulls.is_some() && field.null_bit.is_none() && !single {
                return internal_err!("a NULL in a group column that has none by its schema");
            }
            with_key!(field.spec.width(), K => {
                field.add::<K, W>(words(&field.spec.raw(column.as_ref())?), nulls, &mut packed)
            });
        }
        let nulls = if single { columns[0].nulls().cloned() } else { None };
        Ok((packed, nulls.filter(|nulls| nulls.null_count() > 0)))
    }

    /// The group key of each row. Appends to `parts` the hash partition of each row: that of the key's hash, or that of NULL.
    ///
    /// # Errors
    /// As for [`Self::keys`].
    pub(in crate::exec) fn place<W: GroupKey>(
        &self,
        columns: &[ArrayRef],
        parts: &mut Vec<u16>,
    ) -> Result<Vec<W>> {
        let (keys, nulls) = self.keys::<W>(columns)?;
        let from = parts.len();
        parts.extend(keys.iter().map(|key| hash_partition_of(key.hash_key())));
        for (row, is_valid) in nulls.iter().flat_map(NullBuffer::iter).enumerate() {
            if !is_valid {
                parts[from + row] = NULL_PARTITION;
            }
        }
        Ok(keys)
    }

    /// The group columns that keys were packed from. `null` is the index of the group without a key.
    ///
    /// # Errors
    /// Internal errors only.
    pub(in crate::exec) fn columns<W: Key>(&self, keys: &[W], null: Option<usize>) -> Result<Vec<ArrayRef>> {
        let fields = self.fields.iter().map(|field| field.array(keys, null));
        fields.collect()
    }
}

impl Field {
    /// Mask of a value's bits, before they are shifted.
    fn mask(&self) -> KeyBits {
        KeyBits::MAX >> (KeyBits::BITS - self.bits)
    }

    /// Adds the values of the column to the keys of their rows.
    fn add<K: Key, W: Key>(&self, values: &[K], nulls: Option<&NullBuffer>, packed: &mut [W]) {
        let mask = W::from_bits(self.mask());
        if self.shift == 0 && self.bits == K::BITS {
            // The first column fills its bits, and finds none set.
            for (value, key) in values.iter().zip(&mut *packed) {
                *key = W::from_bits(value.to_bits());
            }
        } else {
            for (value, key) in values.iter().zip(&mut *packed) {
                *key = *key | ((W::from_bits(value.to_bits()) & mask) << self.shift);
            }
        }
        let Some(nulls) = nulls else { return };
        // The value bits of a NULL may be anything: they must not tell groups apart.
        let clear = W::MAX ^ (mask << self.shift);
        let set = match self.null_bit {
            Some(bit) => W::from_bits(1 << bit),
            None => W::default(),
        };
        for (row, key) in packed.iter_mut().enumerate() {
            if nulls.is_null(row) {
                *key = (*key & clear) | set;
            }
        }
    }

    /// The column that keys were packed from. `null` is the index of the group without a key.
    fn array<W: Key>(&self, keys: &[W], null: Option<usize>) -> Result<ArrayRef> {
        let values = keys.iter().map(|key| (key.to_bits() >> self.shift) & self.mask());
        let values = with_key!(self.spec.width(), K => {
            let raw: Vec<K> = values.map(K::from_bits).collect();
            let mut encoded = vec![K::default(); raw.len()];
            self.spec.encoding().encode(&raw, &mut encoded);
            encoded.into_iter().map(Key::to_bits).collect::<Vec<_>>()
        });
        let array = self.spec.to_array(&values)?;
        let is_valid = |(at, key): (usize, &W)| {
            let marked = self.null_bit.is_some_and(|bit| key.to_bits() >> bit & 1 == 1);
            !marked && null != Some(at)
        };
        let valid = BooleanBuffer::from_iter(keys.iter().enumerate().map(is_valid));
        let nulls = NullBuffer::new(valid);
        if nulls.null_count() == 0 {
            return Ok(array);
        }
        let data = array.to_data().into_builder().nulls(Some(nulls)).build()?;
        Ok(make_array(data))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::*;
    use datafusion::arrow::datatypes::Field as ArrowField;

    use super::*;

    fn field(array: &ArrayRef) -> FieldRef {
        Arc::new(ArrowField::new(
            "g",
            array.data_type().clone(),
            array.null_count() > 0,
        ))
    }

    fn come_back(columns: &[ArrayRef], width: Width) {
        let fields: Vec<_> = columns.iter().map(field).collect();
        let packing = Packing::try_new(&fields).unwrap();
        assert_eq!(packing.width(), width);
        with_key!(width, W => {
            let (keys, nulls) = packing.keys::<W>(columns).unwrap();
            let null = nulls.as_ref().and_then(|nulls| (0..nulls.len()).find(|row| nulls.is_null(*row)));
            let back = packing.columns(&keys, null).unwrap();
            for (column, back) in columns.iter().zip(&back) {
                assert_eq!(column, back);
            }
            for i in 0..keys.len() {
                for j in 0..keys.len() {
                    let same = columns.iter().all(|column| column.slice(i, 1) == column.slice(j, 1));
                    let marked = nulls.as_ref().is_some_and(|nulls| nulls.is_null(i) != nulls.is_null(j));
                    assert_eq!(keys[i] == keys[j] && !marked, same, "{i} {j}");
                }
            }
        });
    }

    #[test]
    fn columns_come_back_from_keys() {
        let ints: ArrayRef = Arc::new(Int32Array::from(vec![1, -1, i32::MIN, 1]));
        let nullable: ArrayRef = Arc::new(UInt16Array::from(vec![Some(1), None, Some(0), Some(1)]));
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![
            Some(true),
            None,
            Some(false),
            Some(true),
        ]));
        let tiny: ArrayRef = Arc::new(Int8Array::from(vec![-1, 1, -128, -1]));
        let dates: ArrayRef = Arc::new(Date32Array::from(vec![Some(0), None, Some(-7), Some(0)]));
        let stamps: ArrayRef = Arc::new(
            TimestampMicrosecondArray::from(vec![Some(-5), Some(5), None, Some(-5)]).with_timezone("+01:00"),
        );
        let decimals: ArrayRef = Arc::new(Decimal128Array::from(vec![1, -1, i128::MAX / 3, 1]));
        come_back(&[Arc::clone(&ints)], Width::W32);
        come_back(&[Arc::clone(&nullable)], Width::W32);
        come_back(&[Arc::clone(&tiny)], Width::W32);
        come_back(&[Arc::clone(&flags)], Width::W32);
        come_back(&[Arc::clone(&stamps)], Width::W64);
        come_back(&[decimals], Width::W128);
        come_back(&[ints.clone(), nullable.clone(), flags.clone()], Width::W64);
        come_back(&[stamps, Arc::clone(&ints)], Width::W128);
        come_back(&[flags, dates, tiny, ints, nullable], Width::W128);
    }

    #[test]
    fn what_does_not_fit_is_left_to_others() {
        let wide = |data_type| Arc::new(ArrowField::new("g", data_type, false));
        assert!(Packing::try_new(&[wide(DataType::Float64)]).is_none());
        assert!(Packing::try_new(&[wide(DataType::Utf8)]).is_none());
        assert!(Packing::try_new(&vec![wide(DataType::Int64); 3]).is_none());
        assert!(Packing::try_new(&vec![wide(DataType::Int64); 2]).is_some());
        assert!(Packing::try_new(&[]).is_none());
    }
}
