//! The distance of every vector of a column from a point, in `f32`: the launch of `kernels/distances.cu`.
//!
//! Cost: one read of the column, and 4 bytes written for each row.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};

use super::buffer::DeviceBuffer;
use super::column::DeviceColumn;
use super::launch::{Kernels, Launch, kernel_argument};
use super::nearest::point_bytes;
use super::report::Report;
use super::source::{ColumnFormat, KernelFile, Program, vector_of};
use super::timeline::Timeline;
use crate::failpoint::may_fail;
use crate::kernel::cpu::distance::Measure;

/// Warps of a block.
pub(super) const WARPS: u32 = 4;

kernel_argument! {
    /// `struct Distances` of `kernels/distances.cu`.
    pub(super) struct DistancesArgument = vd_sizes[0] {
        vectors: u64,
        validity: u64,
        mask: u64,
        point: u64,
        out: u64,
        unknown: u64,
        greatest: u64,
        rows: u64,
        size: f32,
        sign: f32,
        null_value: f32,
        width: u32,
    }
}

/// A point, and what its distance from a vector means.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point<'a> {
    pub(super) measure: Measure,
    /// The components of the point, as many as those of a vector.
    pub(super) components: &'a [f32],
    /// The root of the sum of squares of the components.
    pub(super) size: f32,
    /// Whether the negatives of the distances are wanted.
    pub(super) negative: bool,
    /// The distance of a row that has none: it has no vector, or one of zeros, which has no cosine.
    pub(super) null_value: f32,
    /// A bitmap of the rows that count. `None`: all do.
    pub(super) mask: Option<&'a DeviceBuffer>,
}

impl Point<'_> {
    /// The parameter of the kernels. The point and two counters, of which the first is of rows that `f32` cannot tell and the second of
    /// bits of the greatest sum of squares, are at these addresses.
    pub(super) fn argument(&self, vectors: &DeviceColumn, point: u64, counters: u64) -> DistancesArgument {
        DistancesArgument {
            vectors: vectors.values_address(),
            validity: vectors.validity_address(),
            mask: self.mask.map_or(0, DeviceBuffer::address),
            point,
            out: 0,
            unknown: counters,
            greatest: counters + size_of::<u32>() as u64,
            rows: vectors.rows(),
            size: self.size,
            sign: if self.negative { -1.0 } else { 1.0 },
            null_value: self.null_value,
            width: self.components.len() as u32,
        }
    }
}

/// The kernels over the vectors of a column, for points of its width.
pub(super) struct DistanceKernels {
    pub(super) kernels: Kernels,
    measure: Measure,
    /// Whether components have 16 bits.
    half: bool,
    /// Bytes of shared memory of a block.
    shared: usize,
    /// Most blocks that run at the same time.
    blocks: u32,
}

impl DistanceKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// A planning error for a column of other vectors; an execution error if the device fails, or has no room for the point.
    pub(super) fn load(vectors: &DeviceColumn, point: Point<'_>) -> Result<Self> {
        let (width, device) = (point.components.len(), vectors.device());
        let item = match vector_of(vectors.data_type()) {
            Some((item, own)) if own == width => item,
            _ => {
                return plan_err!(
                    "a point of {width} components among values of type {}",
                    vectors.data_type()
                );
            }
        };
        device.check()?;
        let program = distance_program();
        Ok(Self {
            kernels: Kernels::load(device, &program, [0, 0, WARPS as usize, size_of::<u32>()])?,
            measure: point.measure,
            half: *item == DataType::Float16,
            shared: point_bytes(width, device)?,
            blocks: 4 * device.multiprocessors(),
        })
    }

    /// A launch of one of the kernels of a step, for so many parts of 32 rows or more that a warp each takes.
    ///
    /// # Errors
    /// An execution error if the device does not allow it.
    pub(super) fn launch(&self, step: Step, parts: u64) -> Result<Launch> {
        let blocks = parts.div_ceil(WARPS.into()).clamp(1, self.blocks.into()) as u32;
        self.kernels.launch(
            kernel(step, self.measure, self.half),
            [blocks, 32 * WARPS],
            self.shared,
        )
    }
}

/// What a kernel does with distances.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// It writes them.
    Write,
    /// It writes the least of each chunk.
    Least,
    /// It lists the rows within a bound.
    Near,
}

/// What a device found of the distances of all rows that count.
#[derive(Debug)]
pub(super) struct DistanceColumn {
    /// A value for each row that counts: the squared Euclidean distance, the cosine distance or the inner product, or its negative; `inf` where `f32`
    /// cannot tell.
    pub(super) values: DeviceColumn,
    /// Number of rows whose value is `inf` for that reason.
    pub(super) unknown: u32,
    /// The greatest sum of squares of a vector of the other rows; 0 for Euclidean distances.
    pub(super) greatest_square: f32,
}

impl DistanceColumn {
    /// Computes the distances of the vectors of a column with at least one row. Waits for the device.
    ///
    /// # Errors
    /// A planning error for a column of other vectors; `ResourcesExhausted` if there is no device memory for 4 bytes for each row within
    /// `limit`; an execution error if the device fails, or has no room for the point.
    pub(super) fn compute(
        vectors: &DeviceColumn,
        point: Point<'_>,
        limit: Option<u64>,
        timed: bool,
        report: &mut Report,
    ) -> Result<Self> {
        may_fail!("cuda_distances");
        let (device, rows) = (vectors.device(), vectors.rows());
        let kernels = DistanceKernels::load(vectors, point)?;
        let launch = kernels.launch(Step::Write, rows.div_ceil(32))?;
        let values = device.allocate(size_of::<f32>() * rows as usize, limit)?;
        // Two counters, and the point.
        const FRONT: usize = 16;
        let mut beside = device.allocate(FRONT + size_of_val(point.components), limit)?;
        let mut sent = vec![0; FRONT];
        sent.extend_from_slice(bytemuck::cast_slice(point.components));
        beside.fill(&sent)?;
        let argument = DistancesArgument {
            out: values.address(),
            ..point.argument(vectors, beside.address() + FRONT as u64, beside.address())
        };
        let mut timeline = Timeline::start(device, timed)?;
        timeline.launch(&launch, &argument)?;
        timeline.end()?;
        let counters = beside.to_numbers::<u32>(0..2 * size_of::<u32>())?;
        timeline.report(report)?;
        report.bytes_read += vectors.bytes() as u64;
        report.bytes_to_device += sent.len() as u64;
        report.bytes_from_device += 2 * size_of::<u32>() as u64;
        Ok(Self {
            values: DeviceColumn::of_floats(device, values, rows),
            unknown: counters[0],
            greatest_square: f32::from_bits(counters[1]),
        })
    }
}

/// The compilation of the kernels: that of `Float32` in total order.
pub(super) fn distance_program() -> Program {
    let format = ColumnFormat::of(&DataType::Float32).unwrap_or(ColumnFormat::ALL[0]);
    Program::of(KernelFile::Distances, format.in_total_order())
}

/// The kernel of a step for a measure and the size of components.
fn kernel(step: Step, measure: Measure, half: bool) -> &'static str {
    let [write, least, near] = match (measure, half) {
        (Measure::Euclidean, true) => ["vd_euclidean_16", "vd_least_euclidean_16", "vd_near_euclidean_16"],
        (Measure::Euclidean, false) => ["vd_euclidean_32", "vd_least_euclidean_32", "vd_near_euclidean_32"],
        (Measure::Cosine, true) => ["vd_cosine_16", "vd_least_cosine_16", "vd_near_cosine_16"],
        (Measure::Cosine, false) => ["vd_cosine_32", "vd_least_cosine_32", "vd_near_cosine_32"],
        (Measure::InnerProduct, true) => ["vd_product_16", "vd_least_product_16", "vd_near_product_16"],
        (Measure::InnerProduct, false) => ["vd_product_32", "vd_least_product_32", "vd_near_product_32"],
    };
    match step {
        Step::Write => write,
        Step::Least => least,
        Step::Near => near,
    }
}
