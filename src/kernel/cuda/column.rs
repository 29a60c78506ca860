//! A column in the memory of a device: its values as Arrow stores them, and a bitmap of those that are not NULL. The values are numbers,
//! or vectors of one length.

use std::sync::{Arc, Mutex, OnceLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, internal_err, plan_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryPool, MemoryReservation, UnboundedMemoryPool,
};

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::shape::Shape;
use super::source::{ColumnFormat, fixed_bytes, storage_bytes, vector_of};
use super::upload::{SharedStaging, Staging, Upload, joined};
use crate::key::{KeyBits, KeySpec};
use crate::threads::locked;

/// The least and the greatest key of a column; `None`: it has no values.
pub(super) type KeyRange = Option<(KeyBits, KeyBits)>;

/// Values of one type in device memory, with a bitmap where some are NULL.
#[derive(Debug)]
pub struct DeviceColumn {
    device: Arc<Device>,
    data_type: DataType,
    /// Bytes of a value on the device, which may be more than in Arrow.
    value_bytes: usize,
    rows: u64,
    nulls: u64,
    values: Option<DeviceBuffer>,
    validity: Option<DeviceBuffer>,
    /// The ranges of keys that were found so far.
    ranges: Mutex<Vec<(ColumnFormat, KeyRange)>>,
    /// First rows of runs of equal values, and the number of rows at the end, once they were looked for. `None` in it: runs are short.
    run_starts: OnceLock<Option<Arc<Vec<u64>>>>,
}

impl DeviceColumn {
    /// Whether a column of this type can be on a device and be ranked there. Types with keys of fixed width can.
    pub fn supports(data_type: &DataType) -> bool {
        storage_bytes(data_type).is_some()
    }

    /// Whether a column of this type can be on a device: one that can be ranked there, or vectors of one length (`FixedSizeList`) of
    /// `Float16` or `Float32`.
    pub fn holds(data_type: &DataType) -> bool {
        fixed_bytes(data_type).is_some()
    }

    /// Uploads the rows of `arrays`, one array after the other.
    ///
    /// # Errors
    /// A planning error for a type that [`Self::holds`] does not allow; an internal error if the arrays are not all of that type;
    /// `ResourcesExhausted` if device memory ends; an execution error if a vector has a NULL component, or if the device fails.
    pub fn upload(device: &Arc<Device>, data_type: &DataType, arrays: &[ArrayRef]) -> Result<Self> {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let reservation = MemoryConsumer::new("column for a device").register(&pool);
        let staging = Staging::new(device, reservation.new_empty());
        let mut upload = ColumnUpload::try_new(device, data_type, None, reservation, &staging)?;
        for array in arrays {
            upload.append(array)?;
        }
        upload.finish()
    }

    /// The device that the column is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Type of the values.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// A column of `rows` values of type `Float32`, none of them NULL, that the device has written to `values`.
    pub(super) fn of_floats(device: &Arc<Device>, values: DeviceBuffer, rows: u64) -> Self {
        Self {
            device: Arc::clone(device),
            data_type: DataType::Float32,
            value_bytes: size_of::<f32>(),
            rows,
            nulls: 0,
            values: Some(values),
            validity: None,
            ranges: Mutex::default(),
            run_starts: OnceLock::new(),
        }
    }

    /// Number of rows, NULLs included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Number of values that are not NULL.
    pub fn valid(&self) -> u64 {
        self.rows - self.nulls
    }

    /// Bytes of device memory that the column takes.
    pub fn bytes(&self) -> usize {
        let buffers = self.values.iter().chain(&self.validity);
        buffers.map(DeviceBuffer::len).sum()
    }

    /// How its values lie in device memory, and how they become keys of `spec`.
    pub fn format(&self, spec: &KeySpec) -> ColumnFormat {
        ColumnFormat::stored(self.value_bytes, spec.encoding())
    }

    /// Bytes of a value on the device, which may be more than in Arrow.
    pub(crate) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    pub(crate) fn has_nulls(&self) -> bool {
        self.nulls > 0
    }

    /// The range of its keys in this format, if it was found before.
    pub(super) fn known_range(&self, format: ColumnFormat) -> Option<KeyRange> {
        let ranges = locked(&self.ranges);
        let known = ranges.iter().find(|(other, _)| *other == format);
        known.map(|(_, range)| *range)
    }

    pub(super) fn remember_range(&self, format: ColumnFormat, range: KeyRange) {
        locked(&self.ranges).push((format, range));
    }

    /// First rows of its runs of equal values, once they were looked for: see [`run_starts`](super::run_starts::run_starts).
    pub(super) fn run_starts(&self) -> &OnceLock<Option<Arc<Vec<u64>>>> {
        &self.run_starts
    }

    pub(super) fn values_address(&self) -> u64 {
        self.values.as_ref().map_or(0, DeviceBuffer::address)
    }

    /// Copies its values to the byte `at` of a buffer on the same device. Returns the number of bytes.
    pub(super) fn copy_values(&self, to: &mut DeviceBuffer, at: usize) -> Result<usize> {
        match &self.values {
            Some(values) => to.copy_from(at, values, self.rows as usize * self.value_bytes),
            None => Ok(0),
        }
    }

    pub(super) fn validity_address(&self) -> u64 {
        self.validity.as_ref().map_or(0, DeviceBuffer::address)
    }
}

/// A column on its way to the device.
pub(crate) struct ColumnUpload {
    device: Arc<Device>,
    data_type: DataType,
    /// The keys of the values; `None` for vectors, which have none.
    spec: Option<KeySpec>,
    value_bytes: usize,
    rows: u64,
    nulls: u64,
    values: Upload,
    /// Why the column cannot be on a device, once a value has shown it: nothing more is sent then.
    refusal: Option<String>,
    /// A bitmap of the rows that are not NULL; `None` before the first NULL.
    validity: Option<BooleanBufferBuilder>,
    /// Host memory of the bitmap.
    reservation: MemoryReservation,
    limit: Option<u64>,
}

impl ColumnUpload {
    /// An upload of values of `data_type`, which go through `staging` of the same device. It fails if this crate would hold more than
    /// `limit` bytes of device memory.
    ///
    /// # Errors
    /// A planning error for a type that [`DeviceColumn::holds`] does not allow; errors of the device.
    pub(crate) fn try_new(
        device: &Arc<Device>,
        data_type: &DataType,
        limit: Option<u64>,
        reservation: MemoryReservation,
        staging: &SharedStaging,
    ) -> Result<Self> {
        let Some(mut value_bytes) = fixed_bytes(data_type) else {
            return plan_err!(
                "a column of type {data_type} cannot be pinned: its values have no fixed-width key, and are no vectors"
            );
        };
        let spec = match vector_of(data_type) {
            Some(_) => None,
            None => Some(KeySpec::try_new(data_type)?),
        };
        // A block with little shared memory cannot hold as many values of one byte as it loads at once, so they are widened.
        if let (1, Some(spec)) = (value_bytes, &spec) {
            let narrow = ColumnFormat::stored(value_bytes, spec.encoding());
            if Shape::try_new(narrow, device.shared_memory()).is_err() {
                value_bytes = spec.width().bytes();
            }
        }
        Ok(Self {
            device: Arc::clone(device),
            data_type: data_type.clone(),
            spec,
            value_bytes,
            rows: 0,
            nulls: 0,
            values: Upload::new(device, limit, staging),
            refusal: None,
            validity: None,
            reservation,
            limit,
        })
    }

    /// Appends the rows of `array`. A vector with a NULL component gives no error before [`Self::joined`]: see [`Self::refusal`].
    ///
    /// # Errors
    /// `ResourcesExhausted` if memory of the device or of the pool ends; an execution error if the device fails.
    pub(crate) fn append(&mut self, array: &dyn Array) -> Result<()> {
        if array.data_type() != &self.data_type {
            return internal_err!(
                "a column of {} got values of {}",
                self.data_type,
                array.data_type()
            );
        }
        if self.spec.is_none() && self.refusal.is_none() {
            self.refusal = refusal_of(array);
        }
        if self.refusal.is_some() {
            return Ok(());
        }
        match &self.spec {
            None => self.push_numbers(array.as_fixed_size_list().values().as_ref())?,
            Some(spec) if Some(self.value_bytes) != storage_bytes(&self.data_type) => {
                self.values.push(spec.raw(array)?.as_slice())?;
            }
            Some(_) if self.data_type == DataType::Boolean => {
                let bytes: Vec<u8> = array.as_boolean().values().iter().map(u8::from).collect();
                self.values.push(&bytes)?;
            }
            Some(_) => self.push_numbers(array)?,
        }
        self.append_validity(array)?;
        self.rows += array.len() as u64;
        self.nulls += array.null_count() as u64;
        Ok(())
    }

    /// Pushes the bytes of numbers.
    fn push_numbers(&mut self, numbers: &dyn Array) -> Result<()> {
        let Some(width) = numbers.data_type().primitive_width() else {
            return internal_err!("values of type {} on a device", numbers.data_type());
        };
        let data = numbers.to_data();
        let bytes = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
        self.values.push(bytes.as_slice())
    }

    fn append_validity(&mut self, array: &dyn Array) -> Result<()> {
        if self.validity.is_none() && array.null_count() == 0 {
            return Ok(());
        }
        let rows = self.rows as usize;
        // Twice the bytes of the bitmap, because a buffer that grows exists twice.
        self.reservation.try_resize((rows + array.len()) / 4)?;
        let validity = self.validity.get_or_insert_with(|| {
            let mut bits = BooleanBufferBuilder::new(rows + array.len());
            bits.append_n(rows, true);
            bits
        });
        match array.nulls() {
            Some(nulls) => validity.append_buffer(nulls.inner()),
            None => validity.append_n(array.len(), true),
        }
        Ok(())
    }

    /// Why the column cannot be on a device; `None` if it can, as far as is known from the values so far.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The device that the column goes to.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Type of the values.
    pub(crate) fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Number of values that are not NULL so far.
    pub(crate) fn valid(&self) -> u64 {
        self.rows - self.nulls
    }

    /// Ends the upload, and returns the column.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(crate) fn finish(self) -> Result<DeviceColumn> {
        Self::joined(vec![self])
    }

    /// Ends several uploads of one type and device, and returns their rows as one column.
    ///
    /// # Errors
    /// As [`Self::append`]; an execution error for a [refusal](Self::refusal); an internal error if there is no upload.
    pub(crate) fn joined(parts: Vec<Self>) -> Result<DeviceColumn> {
        if let Some(refusal) = parts.iter().find_map(Self::refusal) {
            return exec_err!("a column cannot be pinned: {refusal}");
        }
        let Some(first) = parts.first() else {
            return internal_err!("a column of no parts");
        };
        let (device, data_type) = (Arc::clone(&first.device), first.data_type.clone());
        let (value_bytes, limit) = (first.value_bytes, first.limit);
        let rows: u64 = parts.iter().map(|part| part.rows).sum();
        let nulls: u64 = parts.iter().map(|part| part.nulls).sum();
        let reservation = first.reservation.new_empty();
        let mut validity = None;
        if nulls > 0 {
            reservation.try_resize(rows as usize / 8)?;
            validity = Some(BooleanBufferBuilder::new(rows as usize));
        }
        let mut pieces = Vec::new();
        for part in parts {
            if let Some(bits) = &mut validity {
                match part.validity {
                    Some(mut own) => bits.append_buffer(&own.finish()),
                    None => bits.append_n(part.rows as usize, true),
                }
            }
            pieces.extend(part.values.finish()?);
        }
        let values = joined(&device, limit, pieces)?;
        let validity = match validity {
            None => None,
            Some(mut bits) => {
                let bits = bits.finish();
                let mut buffer = device.allocate(bits.inner().len(), limit)?;
                buffer.fill(bits.inner().as_slice())?;
                Some(buffer)
            }
        };
        Ok(DeviceColumn {
            device,
            data_type,
            value_bytes,
            rows,
            nulls,
            values,
            validity,
            ranges: Mutex::default(),
            run_starts: OnceLock::new(),
        })
    }
}

/// Why vectors cannot be on a device: one has a NULL component. `None` if they can.
fn refusal_of(vectors: &dyn Array) -> Option<String> {
    let vectors = vectors.as_fixed_size_list();
    let (components, width) = (vectors.values(), vectors.value_length() as usize);
    if components.null_count() == 0 {
        return None;
    }
    // Those under a NULL vector are undefined.
    let has_null =
        |row: &usize| vectors.is_valid(*row) && components.slice(row * width, width).null_count() > 0;
    let row = (0..vectors.len()).find(has_null)?;
    Some(format!(
        "vector {row} of a batch has a component that is NULL, and a device holds whole vectors, and NULLs"
    ))
}
