//! The rows of a matrix on a device that are nearest to a point: the launches of `kernels/nearest.cu`.
//!
//! It is brute force in one read. Each warp computes distances and keeps its nearest rows in registers by WarpSelect (Johnson, Douze
//! and Jegou 2017, section IV; `kernels/warp_select.cuh`), so that no distance is written to memory. Then one block selects among the
//! rows of all warps.
//!
//! Cost: one read of the matrix for k up to a few 100. With larger k the queues take longer than the read.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder};
use datafusion::arrow::datatypes::{DataType, Float32Type};
use datafusion::common::{Result, exec_err, internal_datafusion_err, plan_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::buffer::DeviceBuffer;
use super::column::{ColumnUpload, DeviceColumn};
use super::device::Device;
use super::launch::{Kernels, kernel_argument};
use super::report::Report;
use super::source::{KernelFile, Program};
use super::timeline::Timeline;
use super::upload::Staging;
use crate::failpoint::may_fail;
use crate::key::{KeyBits, KeySpec};

/// Threads of the block that ends the selection.
const THREADS: u32 = 1024;
/// Bytes of an item of a queue: key and row.
const ITEM: usize = 8;
/// Warps of a block that reads the matrix.
const WARPS: u32 = 4;
/// Lanes of a warp that share a row.
const SHARE: usize = 8;
/// The kernels that read the matrix, each with the most rows that its queue holds.
const KERNELS: [(usize, &str); 4] = [
    (32, "nr_rows_32"),
    (128, "nr_rows_128"),
    (256, "nr_rows_256"),
    (1024, "nr_rows_1024"),
];

kernel_argument! {
    /// `struct Nearest` of `kernels/nearest.cu`.
    struct NearestArgument = nr_sizes[0] {
        values: u64,
        validity: u64,
        point: u64,
        found: u64,
        out_keys: u64,
        out_rows: u64,
        out_count: u64,
        rows: u64,
        width: u32,
        k: u32,
        warps: u32,
        unused: u32,
    }
}

/// A row and its distance from the point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Neighbour {
    /// The row, counted from 0.
    pub row: u64,
    /// Squared Euclidean distance, as [`squared_distance`] computes it. NaN if a coordinate is NaN; such rows are the farthest.
    pub squared_distance: f32,
}

/// Squared Euclidean distance of two points, added up in the order of the kernels, so that it has the same bits. Element `i` goes to the
/// sum `i / 4 % 8`, in order; then sums at a distance of 4, 2 and 1 are added.
pub fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; SHARE];
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        let apart = x - y;
        sums[i / 4 % SHARE] += apart * apart;
    }
    let mut apart = SHARE / 2;
    while apart > 0 {
        for i in 0..apart {
            sums[i] += sums[i + apart];
        }
        apart /= 2;
    }
    sums[0]
}

/// A matrix in device memory: one point in each row, all with the same number of coordinates.
#[derive(Debug)]
pub struct DeviceMatrix {
    values: DeviceColumn,
    validity: Option<DeviceBuffer>,
    rows: u64,
    width: usize,
}

impl DeviceMatrix {
    /// Most rows that can be asked for at once, which is what the queue of a warp holds.
    pub const MOST: usize = 1024;

    /// Uploads the rows of `arrays`, all of one type `FixedSizeList<Float32>`, one array after the other. `reservation` accounts for one
    /// bit of host memory for each row. Fails if this crate would hold more than `limit` bytes of device memory.
    ///
    /// # Errors
    /// A planning error for another type; an execution error for a NULL inside a point, for 2^32 - 1 rows or more, or if the device
    /// fails; `ResourcesExhausted` if its memory ends. A row that is NULL as a whole is never found.
    pub fn upload(
        device: &Arc<Device>,
        arrays: &[ArrayRef],
        limit: Option<u64>,
        reservation: &MemoryReservation,
    ) -> Result<Self> {
        let width = width_of(arrays)?;
        let rows = arrays.iter().map(|array| array.len()).sum::<usize>();
        if rows >= u32::MAX as usize {
            return exec_err!("{rows} points: a device ranks fewer than {}", u32::MAX);
        }
        let staging = Staging::new(device, reservation.new_empty());
        let bits = reservation.new_empty();
        let mut upload = ColumnUpload::try_new(device, &DataType::Float32, limit, bits, &staging)?;
        let has_nulls = arrays.iter().any(|array| array.null_count() > 0);
        let bits = reservation.new_empty();
        bits.try_grow(if has_nulls { rows / 8 } else { 0 })?;
        let mut valid = has_nulls.then(|| BooleanBufferBuilder::new(rows));
        for array in arrays {
            append(array, &mut upload)?;
            if let Some(valid) = &mut valid {
                match array.nulls() {
                    Some(nulls) => valid.append_buffer(nulls.inner()),
                    None => valid.append_n(array.len(), true),
                }
            }
        }
        let values = upload.finish()?;
        let validity = match valid {
            None => None,
            Some(mut valid) => {
                let bits = valid.finish();
                let mut buffer = device.allocate(bits.inner().len(), limit)?;
                buffer.fill(bits.inner().as_slice())?;
                Some(buffer)
            }
        };
        Ok(Self {
            values,
            validity,
            rows: rows as u64,
            width,
        })
    }

    /// Number of points, NULLs included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Number of coordinates of each point.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The `k` rows nearest to `point`, the nearest first, and with equal distances the lower row first; all rows if there are fewer.
    /// Waits for the device. `timed`: whether to measure the time of each kernel.
    ///
    /// # Errors
    /// A planning error for a point of another width, or a `k` that is not from 1 to [`Self::MOST`]; `ResourcesExhausted`
    /// if device memory ends; an execution error if the device fails.
    pub fn nearest(
        &self,
        point: &[f32],
        k: usize,
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Vec<Neighbour>> {
        if point.len() != self.width {
            return plan_err!(
                "a point of {} coordinates among points of {}",
                point.len(),
                self.width
            );
        }
        let kernel = KERNELS.iter().find(|(most, _)| (1..=*most).contains(&k));
        let Some((_, kernel)) = kernel else {
            return plan_err!("{k} nearest rows: allowed are 1 to {}", Self::MOST);
        };
        if self.rows == 0 {
            return Ok(Vec::new());
        }
        may_fail!("cuda_nearest");
        let query = Query {
            matrix: self,
            device: self.values.device(),
            k,
            kernel,
            limit,
        };
        query.run(point, timed, report)
    }
}

/// A request for the rows nearest to a point.
struct Query<'a> {
    matrix: &'a DeviceMatrix,
    device: &'a Arc<Device>,
    k: usize,
    kernel: &'static str,
    limit: Option<u64>,
}

impl Query<'_> {
    fn run(&self, point: &[f32], timed: bool, report: &mut Report) -> Result<Vec<Neighbour>> {
        let (device, k, matrix) = (self.device, self.k, self.matrix);
        device.check()?;
        let kernels = self.kernels()?;
        let blocks = self.blocks();
        let shared = point.len().next_multiple_of(4) * 4;
        if shared > device.shared_memory() {
            return exec_err!(
                "points of {} coordinates do not fit in shared memory",
                point.len()
            );
        }
        let launches = [
            kernels.launch(self.kernel, [blocks, 32 * WARPS], shared)?,
            kernels.launch("nr_finish", [1, THREADS], 0)?,
        ];
        // The buffer: the count, keys and rows of the answer; the point; and k items of each warp.
        let (warps, answer) = ((blocks * WARPS) as usize, ITEM + ITEM * k);
        let found = (answer + shared).next_multiple_of(256);
        let mut buffer = device.allocate(found + warps * k * ITEM, self.limit)?;
        let mut sent = vec![0; found];
        sent[answer..answer + 4 * point.len()].copy_from_slice(bytemuck::cast_slice(point));
        buffer.fill(&sent)?;
        let base = buffer.address();
        let argument = NearestArgument {
            values: matrix.values.values_address(),
            validity: matrix.validity.as_ref().map_or(0, DeviceBuffer::address),
            point: base + answer as u64,
            found: base + found as u64,
            out_count: base,
            out_keys: base + ITEM as u64,
            out_rows: base + (ITEM + 4 * k) as u64,
            rows: matrix.rows,
            width: matrix.width as u32,
            k: k as u32,
            warps: warps as u32,
            unused: 0,
        };
        let mut timeline = Timeline::start(device, timed)?;
        for launch in &launches {
            timeline.launch(launch, &argument)?;
        }
        timeline.end()?;
        let view = buffer.view(0, answer);
        let view = view.ok_or_else(|| internal_datafusion_err!("an answer of {answer} bytes"))?;
        let host = device.stream.clone_dtoh(&view);
        let host = host.map_err(|error| device.failed("finding neighbours on the device", error))?;
        device.synchronize("finding neighbours on the device")?;
        timeline.report(report)?;
        report.bytes_read += matrix.values.bytes() as u64;
        report.bytes_to_device += 4 * point.len() as u64;
        report.bytes_from_device += answer as u64;
        self.neighbours(&host)
    }

    fn kernels(&self) -> Result<Kernels> {
        let spec = KeySpec::try_new(&DataType::Float32)?;
        let program = Program {
            descending: true,
            ..Program::of(KernelFile::Nearest, self.matrix.values.format(&spec))
        };
        Kernels::load(self.device, &program, [0, ITEM, 4, WARPS as usize])
    }

    /// Number of blocks: as many as run at the same time, but none without rows. With large queues fewer blocks have enough registers.
    fn blocks(&self) -> u32 {
        let share = if self.k > 256 { 2 } else { 4 };
        let needed = self.matrix.rows.div_ceil(u64::from(32 * WARPS));
        needed.min(u64::from(share * self.device.multiprocessors())) as u32
    }

    fn neighbours(&self, answer: &[u8]) -> Result<Vec<Neighbour>> {
        let words: Vec<u32> = answer
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        let count = (words[0] as usize).min(self.k);
        let (keys, rows) = words[2..].split_at(self.k);
        let mut found: Vec<(u32, u32)> = keys
            .iter()
            .copied()
            .zip(rows.iter().copied())
            .take(count)
            .collect();
        found.sort_unstable();
        let keys: Vec<KeyBits> = found.iter().map(|(key, _)| KeyBits::from(*key)).collect();
        let distances = KeySpec::try_new(&DataType::Float32)?.to_array(&keys)?;
        let distances = distances.as_primitive::<Float32Type>().values().iter();
        let pairs = found.iter().zip(distances);
        Ok(pairs
            .map(|((_, row), distance)| Neighbour {
                row: u64::from(*row),
                squared_distance: *distance,
            })
            .collect())
    }
}

/// Number of coordinates of each point.
fn width_of(arrays: &[ArrayRef]) -> Result<usize> {
    let mut width = None;
    for array in arrays {
        match array.data_type() {
            DataType::FixedSizeList(item, length)
                if *item.data_type() == DataType::Float32
                    && *length > 0
                    && width.is_none_or(|width| width == *length) =>
            {
                width = Some(*length);
            }
            other => return plan_err!("points are of one type FixedSizeList<Float32>, got {other}"),
        }
    }
    match width {
        Some(width) => Ok(width as usize),
        None => plan_err!("points are wanted of type FixedSizeList<Float32>, there are none"),
    }
}

fn append(points: &ArrayRef, upload: &mut ColumnUpload) -> Result<()> {
    let points = points.as_fixed_size_list();
    let values = points.values();
    let width = points.value_length() as usize;
    if values.null_count() > 0 {
        let is_whole = |row: usize| points.is_null(row) || values.slice(row * width, width).null_count() == 0;
        if let Some(row) = (0..points.len()).find(|row| !is_whole(*row)) {
            return exec_err!("point {row} has a coordinate that is NULL");
        }
    }
    // The values under a NULL point are undefined.
    let data = values.to_data().into_builder().nulls(None).build()?;
    upload.append(datafusion::arrow::array::make_array(data).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_added_in_a_fixed_order() {
        let a: Vec<f32> = (0..37).map(|i| i as f32 * 0.37 - 3.0).collect();
        let b: Vec<f32> = (0..37).map(|i| (i as f32).sin()).collect();
        let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        assert!((f64::from(squared_distance(&a, &b)) - exact).abs() < 1e-4);
        assert_eq!(squared_distance(&[], &[]), 0.0);
        // 2^24 and seven ones in other sums: pairs first, so that only one of them is lost.
        let mut large = vec![0.0; 32];
        large.iter_mut().step_by(4).for_each(|x| *x = 1.0);
        large[0] = 4096.0;
        assert_eq!(squared_distance(&large, &[0.0; 32]), 16_777_222.0);
    }
}
