//! The kernels that queries over a table on a device are likely to need, so that they can be compiled before the first query comes.

use std::collections::HashSet;

use datafusion::arrow::datatypes::DataType;

use super::distances::distance_program;
use super::pair_kernels::pairs_program;
use super::select::FILES;
use super::shape::Shape;
use super::sort_groups;
use super::source::{ColumnFormat, KernelFile, Program, vector_of};

/// The programs that queries over columns of these types are likely to need on a device whose blocks have `shared` bytes of shared
/// memory, the likeliest first: distances of vectors, exact ranks of columns without NULLs, groups, best rows, filters, then the same where rows can be missing.
/// Types that cannot be on a device need none.
pub(crate) fn likely_programs(types: &[DataType], shared: usize) -> Vec<Program> {
    let formats: Vec<ColumnFormat> = types.iter().filter_map(ColumnFormat::of).collect();
    let has_vectors = types.iter().any(|data_type| vector_of(data_type).is_some());
    // Rows without values are read by the kernels of this one.
    let rows = ColumnFormat::ALL[0];
    let (mut programs, mut masked_ones) = (Vec::new(), Vec::new());
    if has_vectors {
        let gather = Program::of(KernelFile::Gather, rows);
        programs.extend([distance_program(), gather, pairs_program()]);
    }
    if formats.is_empty() {
        return programs;
    }
    for (masked, programs) in [(false, &mut programs), (true, &mut masked_ones)] {
        let of = |file, format, batch| Program {
            masked,
            batch,
            ..Program::of(file, format)
        };
        programs.extend(
            formats
                .iter()
                .flat_map(|format| selection(*format, masked, shared)),
        );
        programs.extend(formats.iter().flat_map(|format| {
            let record_bytes = 8;
            [
                of(KernelFile::Group, *format, 1),
                of(KernelFile::GroupBrackets, *format, record_bytes),
            ]
        }));
        programs.push(of(KernelFile::Group, rows, 1));
        programs.extend(formats.iter().map(|format| Program {
            masked,
            ..top_program(*format)
        }));
    }
    let records = [8, 16].map(|bytes| Program::of(KernelFile::Sort, ColumnFormat::unsigned(bytes)));
    programs.extend(records);
    programs.extend(sort_groups::programs());
    programs.push(Program::of(KernelFile::Gather, rows));
    let filtered = formats.iter().map(|format| format.in_total_order()).chain([rows]);
    programs.extend(filtered.map(|format| Program::of(KernelFile::Filter, format)));
    for bytes in [8, 16] {
        // The kernels of records, and those whose warps select up to 32 rows.
        programs.extend([1, 32].map(|batch| Program {
            batch,
            ..Program::of(KernelFile::GroupTop, ColumnFormat::unsigned(bytes / 2))
        }));
    }
    programs.extend(masked_ones);
    let mut seen = HashSet::new();
    programs.retain(|program| seen.insert(*program));
    programs
}

/// The compilations that find exact ranks of a column: none if blocks have too little shared memory.
fn selection(format: ColumnFormat, masked: bool, shared: usize) -> Vec<Program> {
    let Ok(shape) = Shape::try_new(format, shared) else {
        return Vec::new();
    };
    let of = |file| Program {
        masked,
        batch: shape.batch,
        ..Program::of(file, format)
    };
    FILES.map(of).to_vec()
}

/// The compilation that finds the greatest keys of a column. The batch is the number of vectors that a thread holds at once: with narrow
/// values more of them would not fit in registers.
pub(super) fn top_program(format: ColumnFormat) -> Program {
    Program {
        batch: (format.value_bytes() as u32).min(4),
        ..Program::of(KernelFile::TopK, format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_there_once_and_ranks_come_first() {
        let types = [
            DataType::Float32,
            DataType::Int32,
            DataType::Date32,
            DataType::Utf8,
        ];
        let programs = likely_programs(&types, 227 << 10);
        assert_eq!(programs[0].file, KernelFile::SampleSelect);
        assert_eq!(programs[0].format, ColumnFormat::of(&DataType::Float32).unwrap());
        for (at, program) in programs.iter().enumerate() {
            assert!(!programs[..at].contains(program), "{program:?}");
        }
        // Dates have the format of integers. Each of two formats has 5 programs, and as many for rows that can be missing, and a filter.
        assert_eq!(programs.len(), 2 * (2 * 5 + 1) + 12);
        assert!(likely_programs(&[DataType::Utf8], 227 << 10).is_empty());
    }
}
