//! The rows of a column of vectors on a device that are nearest to a point: the launches of `kernels/nearest.cu`.
//!
//! It is brute force in one read. Each warp computes distances and keeps its nearest rows in registers by WarpSelect (Johnson, Douze
//! and Jegou 2017, section IV; `kernels/warp_select.cuh`), so that no distance is written to memory. Then one block selects among the
//! rows of all warps.
//!
//! Cost: one read of the matrix for k up to a few 100. With larger k the queues take longer than the read.

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::{DataType, Float32Type};
use datafusion::common::{Result, exec_err, plan_err};

use super::column::DeviceColumn;
use super::device::Device;
use super::launch::{Kernels, kernel_argument};
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program, vector_of};
use super::timeline::Timeline;
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

/// A request for the rows of a column of vectors that are nearest to a point.
#[derive(Debug, Clone, Copy)]
pub struct NearestSelection<'a> {
    /// Vectors of `Float32`. A row that is NULL is never found.
    pub vectors: &'a DeviceColumn,
    /// Number of rows that are wanted.
    pub k: usize,
    /// Most bytes of device memory that this crate may hold.
    pub limit: Option<u64>,
    /// Whether to measure the time of each kernel.
    pub timed: bool,
}

impl NearestSelection<'_> {
    /// Most rows that can be asked for at once, which is what the queue of a warp holds.
    pub const MOST: usize = 1024;

    /// The `k` rows nearest to `point`, the nearest first, and with equal distances the lower row first; all rows if there are fewer.
    /// Waits for the device.
    ///
    /// # Errors
    /// A planning error for a column of another type, a point of another width, or a `k` that is not from 1 to [`Self::MOST`]; an
    /// execution error for 2^32 - 1 rows or more, or if the device fails; `ResourcesExhausted` if its memory ends.
    pub fn rows(&self, point: &[f32], report: &mut Report) -> Result<Vec<Neighbour>> {
        let rows = self.vectors.rows();
        match vector_of(self.vectors.data_type()) {
            Some((DataType::Float32, width)) if width == point.len() => {}
            Some((DataType::Float32, width)) => {
                return plan_err!("a point of {} components among vectors of {width}", point.len());
            }
            _ => {
                return plan_err!(
                    "vectors are of type FixedSizeList<Float32>, got {}",
                    self.vectors.data_type()
                );
            }
        }
        let kernel = KERNELS.iter().find(|(most, _)| (1..=*most).contains(&self.k));
        let Some((_, kernel)) = kernel else {
            return plan_err!("{} nearest rows: allowed are 1 to {}", self.k, Self::MOST);
        };
        if rows >= u64::from(u32::MAX) {
            return exec_err!("{rows} vectors: a device ranks fewer than {}", u32::MAX);
        }
        if rows == 0 {
            return Ok(Vec::new());
        }
        may_fail!("cuda_nearest");
        self.run(kernel, point, report)
    }

    fn run(&self, kernel: &'static str, point: &[f32], report: &mut Report) -> Result<Vec<Neighbour>> {
        let (vectors, device, k) = (self.vectors, self.vectors.device(), self.k);
        device.check()?;
        let kernels = self.kernels()?;
        let blocks = self.blocks();
        let shared = point_bytes(point.len(), device)?;
        let launches = [
            kernels.launch(kernel, [blocks, 32 * WARPS], shared)?,
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
            values: vectors.values_address(),
            validity: vectors.validity_address(),
            point: base + answer as u64,
            found: base + found as u64,
            out_count: base,
            out_keys: base + ITEM as u64,
            out_rows: base + (ITEM + 4 * k) as u64,
            rows: vectors.rows(),
            width: point.len() as u32,
            k: k as u32,
            warps: warps as u32,
            unused: 0,
        };
        let mut timeline = Timeline::start(device, self.timed)?;
        for launch in &launches {
            timeline.launch(launch, &argument)?;
        }
        timeline.end()?;
        let host = buffer.to_host(0..answer)?;
        timeline.report(report)?;
        report.bytes_read += vectors.bytes() as u64;
        report.bytes_to_device += 4 * point.len() as u64;
        report.bytes_from_device += answer as u64;
        self.neighbours(&host)
    }

    fn kernels(&self) -> Result<Kernels> {
        let spec = KeySpec::try_new(&DataType::Float32)?;
        let program = Program {
            descending: true,
            ..Program::of(
                KernelFile::Nearest,
                ColumnFormat::stored(size_of::<f32>(), spec.encoding()),
            )
        };
        Kernels::load(self.vectors.device(), &program, [0, ITEM, 4, WARPS as usize])
    }

    /// Number of blocks: as many as run at the same time, but none without rows. With large queues fewer blocks have enough registers.
    fn blocks(&self) -> u32 {
        let share = if self.k > 256 { 2 } else { 4 };
        let needed = self.vectors.rows().div_ceil(u64::from(32 * WARPS));
        needed.min(u64::from(share * self.vectors.device().multiprocessors())) as u32
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

/// Bytes of shared memory that a point of `width` components takes in a block.
///
/// # Errors
/// An execution error for a point that the device has no room for.
pub(super) fn point_bytes(width: usize, device: &Device) -> Result<usize> {
    let bytes = width.next_multiple_of(8) * size_of::<f32>();
    if bytes > device.shared_memory() {
        return exec_err!(
            "vectors of {width} components do not fit in shared memory of {} bytes",
            device.shared_memory()
        );
    }
    Ok(bytes)
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
