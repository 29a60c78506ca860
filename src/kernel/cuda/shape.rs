//! How the kernels of `kernels/sample_select.cu` and `kernels/sample_finish.cu` divide the shared memory of a block.

use datafusion::common::{Result, exec_err};

use super::source::ColumnFormat;

/// Threads of a block.
pub(super) const THREADS: usize = 1024;
/// Entries of the cell table.
const ENTRIES: usize = 2048;
/// Slots for heavy keys, which are counted one by one.
const HEAVY_SLOTS: usize = 1024;
/// Bytes for `struct HeavyScratch` of `kernels/sample_plan.cuh`, which checks that it is not larger.
const HEAVY_SCRATCH: usize = 16656;
/// Most ranks of one sequence of launches.
const MOST_RANKS: usize = 1024;
/// Bytes of shared memory that kernels use beside the dynamic shared memory, at most.
const STATIC_SHARED: usize = 13_000;

/// Sizes that follow from the bytes of shared memory of a block and from the width of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Cells of the table. Each has a counter of 4 bytes.
    pub(super) cells: usize,
    /// Vectors of 16 bytes that a thread holds at once.
    pub batch: u32,
    /// Keys that a thread holds back before they are written to device memory.
    pub(super) depth: usize,
    /// Keys that wait in shared memory on their way to lists.
    pub(super) stage: usize,
    /// Most ranks of one sequence of launches.
    pub(super) ranks: usize,
}

impl Shape {
    /// The sizes for values of `format` where a block may have `bytes` bytes of shared memory.
    ///
    /// # Errors
    /// An execution error if that is too little: less than 64 KiB, or less than about 128 KiB for values of one byte.
    pub fn try_new(format: ColumnFormat, bytes: usize) -> Result<Self> {
        let (key, per_vector) = (format.key_bytes(), format.per_vector());
        let (cells, mut batch) = match bytes >> 10 {
            200.. => (16384, 4),
            96.. => (8192, 2),
            _ if per_vector > 4 => (3072, 1),
            _ => (4096, 1),
        };
        let fixed = HEAVY_SLOTS * (key + 4) + ENTRIES * 4 + cells * 4 + 1024;
        let depth = (bytes.saturating_sub(fixed) / (THREADS * key)).min(96 / key);
        while batch > 1 && depth < batch * per_vector * 5 / 4 {
            batch /= 2;
        }
        let stage = (0..=14).rev().map(|log| 1 << log);
        let stage = stage
            .into_iter()
            .find(|stage| stage * (key + 2) + ENTRIES * 4 + cells * 2 + STATIC_SHARED <= bytes);
        let deep_fixed = ENTRIES * 4 + cells * 8 + STATIC_SHARED;
        let ranks = bytes.saturating_sub(deep_fixed) / (4 * key + 28) / 4 * 4;
        match stage {
            Some(stage) if depth >= batch * per_vector && ranks > 0 => Ok(Self {
                cells,
                batch: batch as u32,
                depth,
                stage,
                ranks: ranks.min(MOST_RANKS),
            }),
            _ => exec_err!("a block has {bytes} bytes of shared memory on this device: wanted are 64 KiB"),
        }
    }

    /// Bytes of dynamic shared memory of a kernel for keys of `key` bytes and `ranks` ranks.
    pub(super) fn shared(&self, kernel: &str, key: usize, ranks: usize) -> usize {
        let (table, counters) = (ENTRIES * 4, self.cells * 4);
        match kernel {
            "ss_sample" => table + counters,
            "ss_brackets" => HEAVY_SCRATCH + (self.cells + 1) * 4 + self.cells * 2,
            "ss_count" | "ss_extract" => {
                HEAVY_SLOTS * (key + 4) + THREADS * self.depth * key + table + counters
            }
            "ss_resolve" => self.cells * 8,
            "ss_refine" => self.stage * (key + 2) + table + self.cells * 2,
            "ss_deepen" => {
                let even = ranks.next_multiple_of(4);
                (even * (4 * key + 16) + table + 8 * self.cells).max(26 << 10)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of shared memory of a block on several architectures.
    const OFFERED: [usize; 4] = [64 << 10, 99 << 10, 163 << 10, 227 << 10];

    #[test]
    fn every_device_has_room_for_every_type() {
        for format in ColumnFormat::ALL {
            for bytes in OFFERED {
                // There values of one byte are widened.
                let Ok(shape) = Shape::try_new(format, bytes) else {
                    assert!(
                        format.value_bytes() == 1 && bytes < 128 << 10,
                        "{format:?} {bytes}"
                    );
                    continue;
                };
                let key = format.key_bytes();
                assert!(
                    shape.depth >= shape.batch as usize * format.per_vector(),
                    "{format:?} {bytes}"
                );
                assert!(
                    shape.shared("ss_count", key, 1) + 1024 <= bytes,
                    "{format:?} {bytes}"
                );
                assert!(shape.ranks >= 100, "{format:?} {bytes}: {shape:?}");
            }
            assert!(Shape::try_new(format, 16 << 10).is_err());
        }
    }
}
