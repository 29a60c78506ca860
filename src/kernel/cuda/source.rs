//! The sources of the kernels as text, and the description of one compilation.
//!
//! The sources lie in `kernels/` and are embedded in the binary. Their quoted includes are pasted in, so that NVRTC needs no header
//! files. One compilation serves one kind of column, which macros describe (see `kernels/keys.cuh`).

use datafusion::arrow::datatypes::DataType;

use crate::key::Encoding;

/// Names and texts of the files that others include.
const INCLUDES: [(&str, &str); 13] = [
    ("common.cuh", include_str!("../../../kernels/common.cuh")),
    ("keys.cuh", include_str!("../../../kernels/keys.cuh")),
    (
        "bucket_cells.cuh",
        include_str!("../../../kernels/bucket_cells.cuh"),
    ),
    ("distances.cuh", include_str!("../../../kernels/distances.cuh")),
    (
        "group_records.cuh",
        include_str!("../../../kernels/group_records.cuh"),
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

/// A file of kernels, compiled on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelFile {
    /// Exact ranks of a column: the kernels of the sample and of the read.
    SampleSelect,
    /// Exact ranks of a column: the kernels that find the keys of the ranks.
    SampleFinish,
    /// The requests of a coordinator: count, extract, sample.
    Bucket,
    /// The k greatest keys with their rows.
    TopK,
    /// The rows with the k greatest keys of each run of rows.
    WarpSelect,
    /// Bitmaps of the rows where a comparison is true.
    Filter,
    /// The values of some rows.
    Gather,
    /// Records of group and key.
    Group,
    /// Records or rows inside the brackets of groups.
    GroupBrackets,
    /// The best rows of groups.
    GroupTop,
    /// The sort of records.
    Sort,
    /// The sort of short groups of records, and the keys at ranks of groups.
    SortGroups,
    /// The rows of a matrix that are nearest to a point.
    Nearest,
    /// The distance of every vector of a matrix from a point.
    Distances,
    /// Pairs of many points and the vectors of a matrix that are near to them.
    Pairs,
}

impl KernelFile {
    /// All files.
    pub const ALL: [KernelFile; 15] = [
        KernelFile::SampleSelect,
        KernelFile::SampleFinish,
        KernelFile::Bucket,
        KernelFile::TopK,
        KernelFile::WarpSelect,
        KernelFile::Filter,
        KernelFile::Gather,
        KernelFile::Group,
        KernelFile::GroupBrackets,
        KernelFile::GroupTop,
        KernelFile::Sort,
        KernelFile::SortGroups,
        KernelFile::Nearest,
        KernelFile::Distances,
        KernelFile::Pairs,
    ];

    /// Name of the file in `kernels/`, which NVRTC shows in its messages.
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
            KernelFile::GroupBrackets => "group_brackets.cu",
            KernelFile::GroupTop => "group_top.cu",
            KernelFile::Sort => "sort.cu",
            KernelFile::SortGroups => "sort_groups.cu",
            KernelFile::Nearest => "nearest.cu",
            KernelFile::Distances => "distances.cu",
            KernelFile::Pairs => "pairs.cu",
        }
    }

    /// Name of the constant of four numbers, mostly sizes of structures in bytes, that the host compares with its own.
    pub(super) fn sizes(self) -> &'static str {
        match self {
            KernelFile::SampleSelect | KernelFile::SampleFinish => "ss_sizes",
            KernelFile::Bucket => "bk_sizes",
            KernelFile::TopK => "tk_sizes",
            KernelFile::WarpSelect => "ws_sizes",
            KernelFile::Filter => "fl_sizes",
            KernelFile::Gather => "ga_sizes",
            KernelFile::Group => "gr_sizes",
            KernelFile::GroupBrackets => "gb_sizes",
            KernelFile::GroupTop => "gt_sizes",
            KernelFile::Sort => "so_sizes",
            KernelFile::SortGroups => "sg_sizes",
            KernelFile::Nearest => "nr_sizes",
            KernelFile::Distances => "vd_sizes",
            KernelFile::Pairs => "vp_sizes",
        }
    }

    /// The whole source, with includes pasted in.
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
            KernelFile::GroupBrackets => include_str!("../../../kernels/group_brackets.cu"),
            KernelFile::GroupTop => include_str!("../../../kernels/group_top.cu"),
            KernelFile::Sort => include_str!("../../../kernels/sort.cu"),
            KernelFile::SortGroups => include_str!("../../../kernels/sort_groups.cu"),
            KernelFile::Nearest => include_str!("../../../kernels/nearest.cu"),
            KernelFile::Distances => include_str!("../../../kernels/distances.cu"),
            KernelFile::Pairs => include_str!("../../../kernels/pairs.cu"),
        })
    }
}

/// The source with each `#include "name"` replaced by that file. A file is pasted once, as `#pragma once` says.
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

/// How values lie in device memory, and how they become keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnFormat {
    /// Bits of a value in its buffer: 8, 16, 32, 64 or 128.
    storage_bits: u32,
    /// `ENCODING` in `kernels/keys.cuh`.
    encoding: u32,
}

impl ColumnFormat {
    /// All formats of columns whose order is that of SQL.
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

    /// The formats of floats whose values break ties: the order starts at `-inf`, and NaNs come last, ordered by their bits.
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

    /// Values of `bytes` bytes each, which `encoding` turns into keys.
    pub(crate) fn stored(bytes: usize, encoding: Encoding) -> Self {
        let encoding = match encoding {
            Encoding::Unsigned(_) => 0,
            Encoding::Signed(_) => 1,
            Encoding::Float(_) => 2,
            Encoding::FloatTotal(_) => 3,
        };
        Self::new(8 * bytes as u32, encoding)
    }

    /// The format of the values of a type whose order is that of SQL. `None` if they have no key of fixed width.
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        let encoding = Encoding::of(data_type)?;
        Some(Self::stored(storage_bytes(data_type)?, encoding))
    }

    /// Unsigned integers of `bytes` bytes each.
    pub(crate) fn unsigned(bytes: usize) -> Self {
        Self::new(8 * bytes as u32, 0)
    }

    /// The format of the same values where they are compared, as `totalOrder` has it for floats.
    pub(super) fn in_total_order(self) -> Self {
        match self.encoding {
            2 => Self::new(self.storage_bits, 3),
            _ => self,
        }
    }

    /// The format of the same values where they break ties: floats as in [`Self::TURNED`].
    pub(crate) fn turned(self) -> Self {
        match self.encoding {
            2 | 3 => Self::new(self.storage_bits, 4),
            _ => self,
        }
    }

    /// `ENCODING` in `kernels/keys.cuh`.
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

/// Bytes of a value in device memory; a Boolean takes one. `None` if the type has no key of fixed width.
pub(crate) fn storage_bytes(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        other => Encoding::of(other).and_then(|_| other.primitive_width()),
    }
}

/// The type of the components of vectors that can be on a device, and their number; `None` for other types.
pub(crate) fn vector_of(data_type: &DataType) -> Option<(&DataType, usize)> {
    match data_type {
        DataType::FixedSizeList(item, width)
            if matches!(item.data_type(), DataType::Float16 | DataType::Float32) && *width > 0 =>
        {
            Some((item.data_type(), *width as usize))
        }
        _ => None,
    }
}

/// Bytes of a value in device memory: a number with a key of fixed width, or a vector. `None` for other types.
pub(crate) fn fixed_bytes(data_type: &DataType) -> Option<usize> {
    match vector_of(data_type) {
        Some((item, width)) => item.primitive_width()?.checked_mul(width),
        None => storage_bytes(data_type),
    }
}

/// One compilation of a file of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Program {
    /// The file.
    pub file: KernelFile,
    /// The values that the kernels read.
    pub format: ColumnFormat,
    /// Whether rows can be missing, as NULLs or by a filter.
    pub masked: bool,
    /// Vectors of 16 bytes that a thread holds at once. For some files the choice of a kernel: see `kernels/README.md`.
    pub batch: u32,
    /// Whether keys are complemented, so that the least values rank highest.
    pub descending: bool,
}

impl Program {
    /// A compilation for values of `format` of which none is missing, with one vector at a time, where the greatest key ranks highest.
    pub(super) fn of(file: KernelFile, format: ColumnFormat) -> Self {
        Self {
            file,
            format,
            masked: false,
            batch: 1,
            descending: false,
        }
    }

    /// The options for NVRTC, except the architecture. Products and sums are not contracted (`-fmad=false`), so that results are those of
    /// the CPU.
    pub fn options(&self) -> Vec<String> {
        vec![
            "-std=c++17".to_owned(),
            "-fmad=false".to_owned(),
            "-device-int128".to_owned(),
            format!("-DSTORAGE_BITS={}", self.format.storage_bits),
            format!("-DENCODING={}", self.format.encoding),
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
    fn every_type_with_a_key_has_a_format() {
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
                let format = ColumnFormat::stored(storage_bytes(&data_type).unwrap(), encoding);
                assert!(ColumnFormat::ALL.contains(&format), "{data_type}");
            }
        }
        assert!(storage_bytes(&DataType::Utf8).is_none());
        assert!(storage_bytes(&DataType::Null).is_none());
    }
}
