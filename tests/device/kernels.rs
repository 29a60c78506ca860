//! Kernels compile for several architectures, here without optimization, which takes most of the time. Only NVRTC is needed, not a device.

use std::collections::BTreeSet;

use datafusion_quantiles::kernel::cuda::source::{ColumnFormat, KernelFile, Program};
use datafusion_quantiles::kernel::cuda::{CudaBackend, Nvrtc, Shape};

use crate::support::tests;

tests! {
    plain every_kernel_compiles_for_the_h200,
    plain selections_compile_for_other_devices,
    plain the_compiler_says_what_is_wrong,
}

/// Architectures, with the bytes of shared memory that a block may have.
const OTHERS: [(&str, usize); 6] = [
    ("sm_75", 64 << 10),
    ("sm_80", 163 << 10),
    ("sm_86", 99 << 10),
    ("sm_89", 99 << 10),
    ("sm_100", 227 << 10),
    ("sm_120", 99 << 10),
];
const H200: (&str, usize) = ("sm_90", 227 << 10);

fn nvrtc() -> &'static Nvrtc {
    Nvrtc::get().unwrap_or_else(|error| panic!("{error}"))
}

/// The programs of selections over values of `format` on a device whose blocks have `shared` bytes of shared memory.
fn selections(format: ColumnFormat, shared: usize) -> [Program; 4] {
    let shape = Shape::try_new(format, shared).unwrap();
    let (first, second) = (KernelFile::SampleSelect, KernelFile::SampleFinish);
    [(first, false), (second, false), (first, true), (second, true)].map(|(file, masked)| Program {
        file,
        format,
        masked,
        batch: shape.batch,
        descending: false,
    })
}

/// The program that compares values of `format`.
fn filter(format: ColumnFormat) -> Program {
    simple(KernelFile::Filter, format)
}

/// A program whose threads hold one value at a time.
fn simple(file: KernelFile, format: ColumnFormat) -> Program {
    Program {
        file,
        format,
        masked: false,
        batch: 1,
        descending: false,
    }
}

fn compile(nvrtc: &Nvrtc, programs: &BTreeSet<(String, String)>, all: &[(Program, &str)]) {
    assert_eq!(programs.len(), all.len(), "each once");
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((program, architecture)) =
                    all.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let cubin = nvrtc
                        .unoptimized_cubin(program, architecture)
                        .unwrap_or_else(|error| panic!("{program:?}: {error}"));
                    assert_eq!(&cubin[..4], b"\x7fELF", "{program:?} for {architecture}");
                }
            });
        }
    });
}

fn distinct(all: &[(Program, &str)]) -> BTreeSet<(String, String)> {
    let named =
        |(program, architecture): &(Program, &str)| (format!("{program:?}"), (*architecture).to_owned());
    all.iter().map(named).collect()
}

fn every_kernel_compiles_for_the_h200() {
    let nvrtc = nvrtc();
    let (architecture, shared) = H200;
    let mut all: Vec<_> = ColumnFormat::ALL
        .iter()
        .flat_map(|format| selections(*format, shared))
        .map(|program| (program, architecture))
        .collect();
    all.extend(ColumnFormat::ALL.map(|format| (filter(format), architecture)));
    // Int8, Float16, Float32, Float64, Decimal128.
    for kind in [1, 4, 8, 12, 14] {
        all.push((buckets(ColumnFormat::ALL[kind], false), architecture));
    }
    // Float32 and Int64.
    for format in [ColumnFormat::ALL[8], ColumnFormat::ALL[11]] {
        all.push((buckets(format, true), architecture));
        all.push((top(format), architecture));
        for (queue, descending) in [
            (1, false),
            (1, true),
            (32, true),
            (128, false),
            (256, true),
            (1024, true),
        ] {
            all.push((runs(format, queue, descending), architecture));
        }
    }
    all.push((runs(ColumnFormat::ALL[14], 1, true), architecture));
    // Bitmaps for floats with NaNs and for decimals, values of rows, points.
    for format in [ColumnFormat::TURNED[2], ColumnFormat::ALL[14]] {
        all.push((top(format), architecture));
    }
    all.push((simple(KernelFile::Gather, ColumnFormat::ALL[0]), architecture));
    // Records of 64 and 128 bits, and records made of columns of any type.
    for format in [ColumnFormat::ALL[10], ColumnFormat::ALL[14]] {
        all.push((simple(KernelFile::Sort, format), architecture));
    }
    for format in [ColumnFormat::ALL[6], ColumnFormat::ALL[10]] {
        all.extend([1, 32, 128, 256, 1024].map(|queue| (best_rows(format, queue), architecture)));
    }
    for (format, masked) in ColumnFormat::ALL
        .into_iter()
        .chain(ColumnFormat::TURNED)
        .flat_map(|format| [(format, false), (format, true)])
    {
        let program = Program {
            masked,
            ..simple(KernelFile::Group, format)
        };
        all.push((program, architecture));
    }
    for (format, masked, record) in ColumnFormat::ALL
        .into_iter()
        .map(|format| (format, false, 8))
        .chain([8, 11, 14].map(|kind| (ColumnFormat::ALL[kind], true, 16)))
    {
        let program = Program {
            masked,
            batch: record,
            ..simple(KernelFile::GroupBrackets, format)
        };
        all.push((program, architecture));
    }
    for (kind, key_bytes) in [(10, 4), (10, 8), (14, 4), (14, 8), (14, 16)] {
        let program = Program {
            batch: key_bytes,
            ..simple(KernelFile::SortGroups, ColumnFormat::ALL[kind])
        };
        all.push((program, architecture));
    }
    all.extend(vectors().map(|program| (program, architecture)));
    for file in KernelFile::ALL {
        let is_there = all.iter().any(|(program, _)| program.file == file);
        assert!(is_there, "{} is not compiled", file.name());
    }
    compile(nvrtc, &distinct(&all), &all);
}

/// The program that answers requests of rounds over values of `format`.
fn buckets(format: ColumnFormat, masked: bool) -> Program {
    Program {
        masked,
        ..CudaBackend::program(format)
    }
}

/// The program that finds the best rows of runs: by blocks for 1, or else by warps with queues of this length.
fn runs(format: ColumnFormat, queue: u32, descending: bool) -> Program {
    Program {
        masked: true,
        batch: queue,
        descending,
        ..simple(KernelFile::WarpSelect, format)
    }
}

/// The program that finds the rows with the greatest values of `format`.
fn top(format: ColumnFormat) -> Program {
    Program {
        file: KernelFile::TopK,
        format,
        masked: true,
        batch: 4,
        descending: true,
    }
}

/// The program that makes records and answers of groups, or that selects by queues of this length.
fn best_rows(format: ColumnFormat, queue: u32) -> Program {
    Program {
        batch: queue,
        ..simple(KernelFile::GroupTop, format)
    }
}

/// The programs over vectors: those that find the nearest points, distances, and pairs.
fn vectors() -> [Program; 3] {
    let nearest = Program {
        descending: true,
        ..simple(KernelFile::Nearest, ColumnFormat::ALL[8])
    };
    let distances = simple(KernelFile::Distances, ColumnFormat::ALL[9]);
    [
        nearest,
        distances,
        simple(KernelFile::Pairs, ColumnFormat::ALL[10]),
    ]
}

fn selections_compile_for_other_devices() {
    let nvrtc = nvrtc();
    let all: Vec<_> = OTHERS
        .iter()
        .flat_map(|(architecture, shared)| {
            let [_, _, first, second] = selections(ColumnFormat::ALL[8], *shared);
            let [third, fourth, ..] = selections(ColumnFormat::ALL[11], *shared);
            let [nearest, distances, pairs] = vectors();
            [
                (first, *architecture),
                (second, *architecture),
                (third, *architecture),
                (fourth, *architecture),
                (filter(ColumnFormat::ALL[11]), *architecture),
                (top(ColumnFormat::TURNED[1]), *architecture),
                (buckets(ColumnFormat::ALL[8], false), *architecture),
                (nearest, *architecture),
                (distances, *architecture),
                (pairs, *architecture),
                (simple(KernelFile::Sort, ColumnFormat::ALL[14]), *architecture),
                (simple(KernelFile::Group, ColumnFormat::ALL[8]), *architecture),
                (best_rows(ColumnFormat::ALL[6], 1), *architecture),
                (best_rows(ColumnFormat::ALL[10], 128), *architecture),
            ]
        })
        .collect();
    compile(nvrtc, &distinct(&all), &all);
}

fn the_compiler_says_what_is_wrong() {
    let nvrtc = nvrtc();
    let program = selections(ColumnFormat::ALL[8], H200.1)[0];
    let error = nvrtc.cubin(&program, "sm_1").unwrap_err().to_string();
    assert!(error.contains("do not compile for sm_1"), "{error}");
    assert!(error.contains("gpu-architecture"), "{error}");
}
