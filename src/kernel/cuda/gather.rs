//! Arrays of the values of some rows of columns on a device: the launches of `kernels/gather.cu`.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayData, ArrayRef, BooleanArray, make_array};
use datafusion::arrow::buffer::{BooleanBuffer, MutableBuffer, NullBuffer};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::device::Device;
use super::launch::{Kernels, Launch, kernel_argument};
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program, fixed_bytes, vector_of};
use super::timeline::Timeline;

const THREADS: u32 = 1024;

kernel_argument! {
    /// `struct Gather` of `kernels/gather.cu`.
    struct GatherArgument = ga_sizes[0] {
        values: u64,
        validity: u64,
        rows: u64,
        out: u64,
        out_valid: u64,
        count: u64,
        stride: u32,
        width: u32,
    }
}

/// Rows of a table on a device, whose values can be fetched column by column.
#[derive(Debug)]
pub struct Gather {
    device: Arc<Device>,
    rows: DeviceBuffer,
    count: usize,
    /// The greatest row number plus 1.
    end: u64,
    limit: Option<u64>,
    timed: bool,
}

impl Gather {
    /// The given rows, counted from 0; values come in their order. Fails if this crate would then hold more than `limit` bytes of
    /// device memory. `timed`: whether to measure the time of the kernel.
    ///
    /// # Errors
    /// `ResourcesExhausted` if there is no device memory for 8 bytes for each row; an execution error if the device fails.
    pub fn try_new(
        device: &Arc<Device>,
        rows: &[u64],
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Self> {
        let end = rows.iter().max().map_or(0, |row| row + 1);
        let sent = DeviceBuffer::from_numbers(device, rows, limit, report)?;
        Ok(Self::over(sent, (rows.len(), end), limit, timed))
    }

    /// The first `count` rows whose numbers are in `rows`, which are less than `end`.
    pub(super) fn over(
        rows: DeviceBuffer,
        (count, end): (usize, u64),
        limit: Option<u64>,
        timed: bool,
    ) -> Self {
        Self {
            device: Arc::clone(rows.device()),
            rows,
            count,
            end,
            limit,
            timed,
        }
    }

    /// The values of the rows in `column`, with exactly the bits that were uploaded. Waits for the device.
    ///
    /// # Errors
    /// As [`Self::try_new`]; an internal error for rows that the column does not have, or for a column on another device.
    pub fn values(&self, column: &DeviceColumn, report: &mut Report) -> Result<ArrayRef> {
        self.some_values(0..self.count, column, report)
    }

    /// As [`Self::values`], for some of the rows: those at these indices.
    ///
    /// # Errors
    /// As [`Self::values`]; an internal error for indices beyond the last row.
    pub(crate) fn some_values(
        &self,
        indices: Range<usize>,
        column: &DeviceColumn,
        report: &mut Report,
    ) -> Result<ArrayRef> {
        let (data_type, device) = (column.data_type(), &self.device);
        let Some(width) = fixed_bytes(data_type) else {
            return internal_err!("values of type {data_type} on a device");
        };
        if self.end > column.rows() || !Arc::ptr_eq(device, column.device()) {
            return internal_err!("row {} of a column of {}", self.end, column.rows());
        }
        if indices.end > self.count {
            return internal_err!("{indices:?} of {} rows", self.count);
        }
        let count = indices.len();
        if count == 0 {
            return Ok(datafusion::arrow::array::new_empty_array(data_type));
        }
        let launch = self.launch(count, vector_of(data_type).is_some())?;
        // The values come first, because the buffer is aligned for them.
        let bytes = count * width;
        let validity = if column.has_nulls() { count } else { 0 };
        let out = device.allocate(bytes + validity, self.limit)?;
        let argument = GatherArgument {
            values: column.values_address(),
            validity: column.validity_address(),
            rows: self.rows.address() + (indices.start * size_of::<u64>()) as u64,
            out: out.address(),
            out_valid: match validity {
                0 => 0,
                _ => out.address() + bytes as u64,
            },
            count: count as u64,
            stride: column.value_bytes() as u32,
            width: width as u32,
        };
        let mut timeline = Timeline::start(device, self.timed)?;
        timeline.launch(&launch, &argument)?;
        timeline.end()?;
        let values = array(data_type, count, &out)?;
        timeline.report(report)?;
        report.bytes_from_device += out.len() as u64;
        Ok(values)
    }

    /// The launch, for values of a thread each or for vectors, which a warp copies.
    fn launch(&self, count: usize, vectors: bool) -> Result<Launch> {
        let program = Program::of(KernelFile::Gather, ColumnFormat::ALL[0]);
        let kernels = Kernels::load(&self.device, &program, [0; 4])?;
        let (name, together) = if vectors {
            ("ga_wide_values", THREADS / 32)
        } else {
            ("ga_values", THREADS)
        };
        let blocks = (count as u32).div_ceil(together);
        let grid = [blocks.min(2 * self.device.multiprocessors()), THREADS];
        kernels.launch(name, grid, 0)
    }
}

/// An array of the first `count` values of a buffer. Behind them it has a byte for each value, 0 for NULL, or nothing if no value is
/// NULL. Waits for the device.
pub(super) fn array(data_type: &DataType, count: usize, buffer: &DeviceBuffer) -> Result<ArrayRef> {
    let Some(width) = fixed_bytes(data_type) else {
        return internal_err!("values of type {data_type} on a device");
    };
    // Aligned for any type.
    let mut values = MutableBuffer::from_len_zeroed(count * width);
    buffer.read(0, values.as_slice_mut())?;
    array_of(
        data_type,
        count,
        values,
        &buffer.to_host(count * width..buffer.len())?,
    )
}

/// An array of `count` values from their bytes. `valid` has a byte for each value, 0 for NULL, or is empty if no value is NULL.
fn array_of(data_type: &DataType, count: usize, values: MutableBuffer, valid: &[u8]) -> Result<ArrayRef> {
    let nulls = valid.contains(&0).then(|| {
        let bits = BooleanBuffer::collect_bool(valid.len(), |row| valid[row] != 0);
        NullBuffer::new(bits)
    });
    if *data_type == DataType::Boolean {
        let bits = BooleanBuffer::collect_bool(values.len(), |row| values[row] != 0);
        return Ok(Arc::new(BooleanArray::new(bits, nulls)));
    }
    let builder = ArrayData::builder(data_type.clone()).len(count).nulls(nulls);
    let builder = match vector_of(data_type) {
        Some((item, width)) => {
            let components = ArrayData::builder(item.clone()).len(count * width);
            builder.add_child_data(components.add_buffer(values.into()).build()?)
        }
        None => builder.add_buffer(values.into()),
    };
    Ok(make_array(builder.build()?))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Array, AsArray, Decimal128Array, Int16Array};

    use super::*;

    #[test]
    fn bytes_become_arrays() {
        let of = |data_type: &DataType, count, bytes: &[u8], valid: &[u8]| {
            let mut values = MutableBuffer::new(bytes.len());
            values.extend_from_slice(bytes);
            array_of(data_type, count, values, valid)
        };
        let values: Vec<u8> = [5_i16, -7, 300]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let found = of(&DataType::Int16, 3, &values, &[1, 0, 1]).unwrap();
        assert_eq!(
            found.as_ref(),
            &Int16Array::from(vec![Some(5), None, Some(300)]) as &dyn Array
        );
        let found = of(&DataType::Boolean, 3, &[1, 0, 1], &[1, 1, 0]).unwrap();
        assert_eq!(
            found.as_boolean(),
            &BooleanArray::from(vec![Some(true), Some(false), None])
        );
        let values: Vec<u8> = [1_i128 << 100, -3]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let found = of(&DataType::Decimal128(38, 3), 2, &values, &[1, 1]).unwrap();
        let expected = Decimal128Array::from(vec![1_i128 << 100, -3]).with_precision_and_scale(38, 3);
        assert_eq!(found.as_ref(), &expected.unwrap() as &dyn Array);
    }
}
