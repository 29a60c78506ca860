//! The kernels as text, and what one compilation of them is for.
//!
//! Sources live in `kernels/` and are embedded; their quoted includes are pasted in, so that NVRTC needs no header at
//! all. One compilation serves one kind of column, named by macros (see `kernels/common.cuh`).

use datafusion::arrow::datatypes::DataType;

use crate::key::Encoding;

const INCLUDES: [(&str, &str); 10] = [
    ("common.cuh", include_str!("../../../kernels/common.cuh")),
    (
        "bucket_cells.cuh",
        include_str!("../../../kernels/bucket_cells.cuh"),
    ),
    (
        "sample_answer.cuh",
        include_str!("../../../kernels/sample_answer.cuh"),
    ),
    (
        "sample_devices.cuh",
        include_str!("../../../kernels/sample_devices.cuh"),
    ),
    (
        "sample_cells.cuh",
        include_str!("../../../kernels/sample_cells.cuh"),
    ),
    (
        "sample_deepen.cuh",
        include_str!("../../../kernels/sample_deepen.cuh"),
    ),
    (
        "sample_lists.cuh",
        include_str!("../../../kernels/sample_lists.cuh"),
    ),
    (
        "sample_plan.cuh",
        include_str!("../../../kernels/sample_plan.cuh"),
    ),
    (
        "sample_read.cuh",
        include_str!("../../../kernels/sample_read.cuh"),
    ),
    (
        "warp_select.cuh",
        include_str!("../../../kernels/warp_select.cuh"),
    ),
];

/// A file of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelFile {
    /// Many exact ranks in one read: the sample and the read.
    SampleSelect,
    /// The same: the keys of the ranks.
    SampleFinish,
    /// The rounds of the coordinator: count, extract, sample.
    Bucket,
    /// The k greatest keys with their rows.
    TopK,
    /// The k greatest keys of each of many rows.
    WarpSelect,
    /// Rows where a comparison holds.
    Filter,
    /// Values of some rows.
    Gather,
    /// Rows of groups as records.
    Group,
    /// The best rows of groups.
    GroupTop,
    /// Records in order.
    Sort,
    /// The rows of a matrix that are nearest to a point.
    Nearest,
}

impl KernelFile {
    /// All files.
    pub const ALL: [KernelFile; 11] = [
        KernelFile::SampleSelect,
        KernelFile::SampleFinish,
        KernelFile::Bucket,
        KernelFile::TopK,
        KernelFile::WarpSelect,
        KernelFile::Filter,
        KernelFile::Gather,
        KernelFile::Group,
        KernelFile::GroupTop,
        KernelFile::Sort,
        KernelFile::Nearest,
    ];

    /// Name of the file, which NVRTC shows in its messages.
    pub fn name(self) -> &'static str {
        match self {
            KernelFile::SampleSelect => "sample_select.cu",
            KernelFile::SampleFinish => "sample_finish.cu",
            KernelFile::Bucket => "bucket.cu",
            KernelFile::TopK => "top_k.cu",
            KernelFile::WarpSelect => "warp_select.cu",
            KernelFile::Filter => "filter.cu",
            KernelFile::Gather => "gather.cu",
            KernelFile::Group => "group.cu",
            KernelFile::GroupTop => "group_top.cu",
            KernelFile::Sort => "sort.cu",
            KernelFile::Nearest => "nearest.cu",
        }
    }

    /// The constant of four numbers, mostly sizes of structures, that the host compares with its own.
    pub(super) fn sizes(self) -> &'static str {
        match self {
            KernelFile::SampleSelect | KernelFile::SampleFinish => "ss_sizes",
            KernelFile::Bucket => "bk_sizes",
            KernelFile::TopK => "tk_sizes",
            KernelFile::WarpSelect => "ws_sizes",
            KernelFile::Filter => "fl_sizes",
            KernelFile::Gather => "ga_sizes",
            KernelFile::Group => "gr_sizes",
            KernelFile::GroupTop => "gt_sizes",
            KernelFile::Sort => "so_sizes",
            KernelFile::Nearest => "nr_sizes",
        }
    }

    /// The whole source, includes pasted in.
    pub fn source(self) -> String {
        pasted(match self {
            KernelFile::SampleSelect => include_str!("../../../kernels/sample_select.cu"),
            KernelFile::SampleFinish => include_str!("../../../kernels/sample_finish.cu"),
            KernelFile::Bucket => include_str!("../../../kernels/bucket.cu"),
            KernelFile::TopK => include_str!("../../../kernels/top_k.cu"),
            KernelFile::WarpSelect => include_str!("../../../kernels/warp_select.cu"),
            KernelFile::Filter => include_str!("../../../kernels/filter.cu"),
            KernelFile::Gather => include_str!("../../../kernels/gather.cu"),
            KernelFile::Group => include_str!("../../../kernels/group.cu"),
            KernelFile::GroupTop => include_str!("../../../kernels/group_top.cu"),
            KernelFile::Sort => include_str!("../../../kernels/sort.cu"),
            KernelFile::Nearest => include_str!("../../../kernels/nearest.cu"),
        })
    }
}

/// Each `#include "name"` replaced by that file, once in a source, as `#pragma once` has it.
fn pasted(source: &str) -> String {
    fn paste(source: &str, text: &mut String, seen: &mut Vec<&'static str>) {
        for line in source.lines() {
            let named = line
                .strip_prefix("#include \"")
                .and_then(|rest| rest.strip_suffix('"'));
            let include = named.and_then(|name| INCLUDES.iter().find(|(known, _)| *known == name));
            match include {
                Some((name, _)) if seen.contains(name) => {}
                Some((name, included)) => {
                    seen.push(name);
                    paste(included, text, seen);
                }
                None if line == "#pragma once" => {}
                None => {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    let mut text = String::with_capacity(64 << 10);
    paste(source, &mut text, &mut Vec::new());
    text
}

/// How values lie in device memory, and what order their keys have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnFormat {
    /// Bits of a value in its buffer: 8, 16, 32, 64 or 128.
    storage_bits: u32,
    /// `ENCODING` in `kernels/common.cuh`.
    encoding: u32,
}

impl ColumnFormat {
    /// All kinds that keys of columns have.
    pub const ALL: [ColumnFormat; 15] = [
        ColumnFormat::new(8, 0),
        ColumnFormat::new(8, 1),
        ColumnFormat::new(16, 0),
        ColumnFormat::new(16, 1),
        ColumnFormat::new(16, 2),
        ColumnFormat::new(16, 3),
        ColumnFormat::new(32, 0),
        ColumnFormat::new(32, 1),
        ColumnFormat::new(32, 2),
        ColumnFormat::new(32, 3),
        ColumnFormat::new(64, 0),
        ColumnFormat::new(64, 1),
        ColumnFormat::new(64, 2),
        ColumnFormat::new(64, 3),
        ColumnFormat::new(128, 1),
    ];

    /// Those of floats among which ties are broken: from `-inf` on, NaNs last and apart by their bits.
    pub const TURNED: [ColumnFormat; 3] = [
        ColumnFormat::new(16, 4),
        ColumnFormat::new(32, 4),
        ColumnFormat::new(64, 4),
    ];

    const fn new(storage_bits: u32, encoding: u32) -> Self {
        Self {
            storage_bits,
            encoding,
        }
    }

    /// Values of `bytes` bytes each, ranked by `encoding`.
    pub(crate) fn stored(bytes: usize, encoding: Encoding) -> Self {
        let encoding = match encoding {
            Encoding::Unsigned(_) => 0,
            Encoding::Signed(_) => 1,
            Encoding::Float(_) => 2,
            Encoding::FloatTotal(_) => 3,
        };
        Self::new(8 * bytes as u32, encoding)
    }

    /// Unsigned integers of `bytes` bytes each.
    pub(crate) fn unsigned(bytes: usize) -> Self {
        Self::new(8 * bytes as u32, 0)
    }

    /// The same values as they are ordered where keys tie: floats as in [`Self::TURNED`].
    pub(crate) fn turned(self) -> Self {
        match self.encoding {
            2 | 3 => Self::new(self.storage_bits, 4),
            _ => self,
        }
    }

    /// `ENCODING` in `kernels/common.cuh`.
    pub(super) fn encoding(self) -> u32 {
        self.encoding
    }

    /// Bytes of a value.
    pub(crate) fn value_bytes(self) -> usize {
        self.storage_bits as usize / 8
    }

    /// Bytes of a key.
    pub(crate) fn key_bytes(self) -> usize {
        self.value_bytes().max(4)
    }

    /// Values in the 16 bytes that a thread loads at once.
    pub(crate) fn per_vector(self) -> usize {
        16 / self.value_bytes()
    }
}

/// Bytes of a value in device memory; `None`: the type has no fixed-width key. Booleans take a byte.
pub(crate) fn storage_bytes(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        other => Encoding::of(other).and_then(|_| other.primitive_width()),
    }
}

/// One compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Program {
    /// The kernels.
    pub file: KernelFile,
    /// What they read.
    pub words: ColumnFormat,
    /// Whether rows can be missing: NULLs, or a filter.
    pub masked: bool,
    /// Vectors of 16 bytes that a thread holds at once.
    pub batch: u32,
    /// Whether keys are complemented, so that the least values rank highest.
    pub descending: bool,
}

impl Program {
    /// For values of `words` in rows of which none is missing, a vector at a time, the greatest first.
    pub(super) fn of(file: KernelFile, words: ColumnFormat) -> Self {
        Self {
            file,
            words,
            masked: false,
            batch: 1,
            descending: false,
        }
    }

    /// NVRTC's options, but for the architecture. No contraction of products and sums: buckets must come out as they do on
    /// the processor.
    pub fn options(&self) -> Vec<String> {
        vec![
            "-std=c++17".to_owned(),
            "-fmad=false".to_owned(),
            "-device-int128".to_owned(),
            format!("-DSTORAGE_BITS={}", self.words.storage_bits),
            format!("-DENCODING={}", self.words.encoding),
            format!("-DMASKED={}", u32::from(self.masked)),
            format!("-DBATCH={}", self.batch),
            format!("-DDESCENDING={}", u32::from(self.descending)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_stand_alone() {
        for file in KernelFile::ALL {
            let source = file.source();
            assert!(!source.contains("#include \""), "{}", file.name());
            assert!(!source.contains("#pragma once"), "{}", file.name());
            assert_eq!(
                source.matches("constexpr u32 ALL_LANES").count(),
                1,
                "{}",
                file.name()
            );
        }
    }

    #[test]
    fn every_type_with_a_key_has_words() {
        use datafusion::arrow::datatypes::TimeUnit;
        for data_type in [
            DataType::Boolean,
            DataType::Int8,
            DataType::UInt16,
            DataType::Float16,
            DataType::Float32,
            DataType::Float64,
            DataType::Decimal128(20, 2),
            DataType::Timestamp(TimeUnit::Nanosecond, None),
        ] {
            let encoding = Encoding::of(&data_type).unwrap();
            for encoding in [encoding, encoding.total_order()] {
                let words = ColumnFormat::stored(storage_bytes(&data_type).unwrap(), encoding);
                assert!(ColumnFormat::ALL.contains(&words), "{data_type}");
            }
        }
        assert!(storage_bytes(&DataType::Utf8).is_none());
        assert!(storage_bytes(&DataType::Null).is_none());
    }
}
