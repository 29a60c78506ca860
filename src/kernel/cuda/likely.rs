//! The kernels that queries over a table on a device are likely to need, so that they can be compiled before the first query comes.

use datafusion::arrow::datatypes::DataType;

use super::select::FILES;
use super::shape::Shape;
use super::source::{ColumnFormat, KernelFile, Program};

/// The programs that queries over columns of these types are likely to need on a device whose blocks have `shared` bytes of shared
/// memory, the likeliest first: exact ranks of columns without NULLs, groups, best rows, filters, then the same where rows can be missing.
/// Types that cannot be on a device need none.
pub(crate) fn likely_programs(types: &[DataType], shared: usize) -> Vec<Program> {
    let mut formats: Vec<ColumnFormat> = types.iter().filter_map(ColumnFormat::of).collect();
    let mut seen = Vec::new();
    formats.retain(|format| !seen.contains(format) && (seen.push(*format), true).1);
    if formats.is_empty() {
        return Vec::new();
    }
    let each = |program: &dyn Fn(ColumnFormat) -> Program| {
        formats.iter().map(|format| program(*format)).collect::<Vec<_>>()
    };
    let mut programs = Vec::new();
    for masked in [false, true] {
        for format in &formats {
            programs.extend(selection(*format, masked, shared));
        }
        let of = |file, batch| {
            move |format| Program {
                masked,
                batch,
                ..Program::of(file, format)
            }
        };
        programs.extend(each(&of(KernelFile::Group, 1)));
        programs.extend(each(&of(KernelFile::GroupBrackets, 8)));
        if !masked {
            programs
                .extend([8, 16].map(|bytes| Program::of(KernelFile::Sort, ColumnFormat::unsigned(bytes))));
            programs
                .extend([4, 8].map(|bytes| Program::of(KernelFile::GroupTop, ColumnFormat::unsigned(bytes))));
            programs.push(Program::of(KernelFile::Gather, ColumnFormat::ALL[0]));
            programs.extend(each(&of(KernelFile::Filter, 1)));
        }
        programs.extend(each(&|format| Program {
            masked,
            ..top_program(format)
        }));
    }
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
        // Dates have the format of integers.
        assert_eq!(programs.len(), 2 * 2 * 5 + 5 + 2);
        assert!(likely_programs(&[DataType::Utf8], 227 << 10).is_empty());
    }
}
