//! Kernels, their parameters, and their launches on the stream of a device.
//!
//! Each kernel has one parameter, a structure that is passed by value. The host has its own declaration of that structure
//! ([`kernel_argument`]). Each file of kernels has a constant of four numbers, mostly sizes of its structures in bytes, which the host
//! reads when it loads the file. [`Kernels::load`] compares the numbers that say what the file was compiled for, and [`Launch::run`]
//! the size of the parameter.
//!
//! The code that fills a structure is responsible for the memory whose addresses it puts there: it must be as large as the kernel
//! expects, and must live until the host has waited for the stream, or be freed on that stream, as every
//! [`DeviceBuffer`](super::DeviceBuffer) is.

use std::sync::Arc;

use cudarc::driver::sys;
use cudarc::driver::{CudaFunction, DeviceRepr, DriverError, LaunchConfig, PushKernelArg};
use datafusion::common::{Result, internal_err};

use super::column::DeviceColumn;
use super::device::Device;
use super::modules::Module;
use super::source::Program;
use crate::key::KeyBits;

/// Declares the host's version of a structure that kernels have as their parameter, and says which number of the constant in their
/// file is its size: `struct FilterArgument = fl_sizes[0] { .. }`. The fields are numbers, or arrays and structures of numbers, in the
/// same order as in the kernels.
macro_rules! kernel_argument {
    (
        $(#[$doc:meta])*
        $vis:vis struct $name:ident = $constant:ident[$at:literal] { $($fields:tt)* }
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default)]
        $vis struct $name { $($fields)* }

        // SAFETY: numbers in the layout of C, as the kernels' own structure, whose size is compared before each launch.
        #[allow(unsafe_code, reason = "a structure for kernels")]
        unsafe impl cudarc::driver::DeviceRepr for $name {}

        impl super::launch::KernelArgument for $name {
            const SIZE: (&'static str, usize) = (stringify!($constant), $at);
        }
    };
}
pub(super) use kernel_argument;

/// The host's version of a structure that is the parameter of kernels: see [`kernel_argument`].
pub(super) trait KernelArgument: DeviceRepr {
    /// The constant with the size of the kernels' structure, and the index of that size in the constant.
    const SIZE: (&'static str, usize);
}

/// `struct Column` of `kernels/common.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ColumnArgument {
    values: u64,
    rows: u64,
    validity: u64,
    mask: u64,
}

impl ColumnArgument {
    /// Rows without values. Those of the bitmap at the address `mask` count, or all if it is 0.
    pub(super) fn rows(rows: u64, mask: u64) -> Self {
        Self {
            rows,
            mask,
            ..Self::default()
        }
    }

    /// `rows` values at the address `values`, none of them missing.
    pub(super) fn dense(values: u64, rows: u64) -> Self {
        Self {
            values,
            rows,
            ..Self::default()
        }
    }

    /// Number of rows, missing ones included.
    pub(super) fn row_count(&self) -> u64 {
        self.rows
    }

    /// The rows of a column. Those of the bitmap at the address `mask` count, or all if it is 0.
    pub(super) fn of(column: &DeviceColumn, mask: u64) -> Self {
        Self {
            values: column.values_address(),
            rows: column.rows(),
            validity: column.validity_address(),
            mask,
        }
    }
}

/// A key as two numbers of 64 bits, the low half first, as kernels take it.
pub(super) fn halves(key: KeyBits) -> [u64; 2] {
    [key as u64, (key >> 64) as u64]
}

/// The key that [`halves`] made these two numbers of.
pub(super) fn whole([low, high]: [u64; 2]) -> KeyBits {
    KeyBits::from(low) | KeyBits::from(high) << 64
}

/// The key with these bytes, at most 16, the lowest first.
pub(super) fn key_of(bytes: &[u8]) -> KeyBits {
    // Most keys have one of these widths. A copy of any number of bytes takes several times as long.
    if let Ok(bytes) = bytes.try_into() {
        return u32::from_le_bytes(bytes).into();
    }
    if let Ok(bytes) = bytes.try_into() {
        return u64::from_le_bytes(bytes).into();
    }
    let mut bits = [0; 16];
    bits[..bytes.len()].copy_from_slice(bytes);
    KeyBits::from_le_bytes(bits)
}

/// The kernels of one compilation, loaded on a device.
#[derive(Debug, Clone)]
pub(super) struct Kernels {
    device: Arc<Device>,
    module: Arc<Module>,
    /// Name of the constant of sizes of the file, and its numbers.
    constant: &'static str,
    sizes: [usize; 4],
}

impl Kernels {
    /// Loads the kernels of `program`, and compares their constant of sizes with the numbers `expected`, except those that are 0.
    ///
    /// # Errors
    /// Errors of the device and of the compiler; an internal error if numbers differ.
    pub(super) fn load(device: &Arc<Device>, program: &Program, expected: [usize; 4]) -> Result<Self> {
        let module = device.module(program)?;
        Self::compared(device, program, module, expected)
    }

    /// Loads the kernels of two files with the same constant of sizes. They are compiled at the same time.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(super) fn load_two(
        device: &Arc<Device>,
        programs: &[Program; 2],
        expected: [usize; 4],
    ) -> Result<[Self; 2]> {
        let [first, second] = device.two_modules(programs)?;
        Ok([
            Self::compared(device, &programs[0], first, expected)?,
            Self::compared(device, &programs[1], second, expected)?,
        ])
    }

    fn compared(
        device: &Arc<Device>,
        program: &Program,
        module: Arc<Module>,
        expected: [usize; 4],
    ) -> Result<Self> {
        let constant = program.file.sizes();
        let sizes = module.sizes(device, constant)?.map(|size| size as usize);
        let mut both = sizes.iter().zip(&expected);
        if both.any(|(size, expected)| *expected != 0 && size != expected) {
            return internal_err!(
                "{constant} of {} is {sizes:?}, the host has {expected:?}",
                program.file.name()
            );
        }
        Ok(Self {
            device: Arc::clone(device),
            module,
            constant,
            sizes,
        })
    }

    /// The number of the constant of sizes at this index.
    pub(super) fn size(&self, at: usize) -> usize {
        self.sizes[at]
    }

    /// A launch of the kernel of this name with `blocks` blocks, each of `threads` threads and `shared` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// An execution error if the device does not allow that.
    pub(super) fn launch(
        &self,
        name: &'static str,
        [blocks, threads]: [u32; 2],
        shared: usize,
    ) -> Result<Launch> {
        Ok(Launch {
            name,
            function: self.module.function(&self.device, name, shared)?,
            config: LaunchConfig {
                grid_dim: (blocks, 1, 1),
                block_dim: (threads, 1, 1),
                shared_mem_bytes: shared as u32,
            },
            start: Start::Alone,
            constant: self.constant,
            sizes: self.sizes,
        })
    }
}

/// A kernel with its grid, ready to be launched.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) name: &'static str,
    function: CudaFunction,
    config: LaunchConfig,
    start: Start,
    constant: &'static str,
    sizes: [usize; 4],
}

/// When the blocks of a kernel start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// When all work before it on the stream has ended.
    Alone,
    /// When all work before it on the stream has ended, all blocks at once, so that they can wait for each other.
    Cooperative,
    /// When the kernel before it begins to end. Its blocks wait themselves for the end of that kernel.
    Following,
}

impl Launch {
    /// The launch as a cooperative one, whose blocks can wait for each other.
    pub(super) fn cooperative(self) -> Self {
        Self {
            start: Start::Cooperative,
            ..self
        }
    }

    /// The launches as a sequence that is put on the stream without other work in between, where the device prepares each kernel while
    /// the one before it runs. All kernels start with `after_kernels_before` of `kernels/common.cuh`.
    pub(super) fn in_a_row(device: &Device, mut sequence: Vec<Self>) -> Vec<Self> {
        if device.overlaps_kernels() {
            for launch in sequence.iter_mut().skip(1) {
                if launch.start == Start::Alone {
                    launch.start = Start::Following;
                }
            }
        }
        sequence
    }

    /// Puts the launch on the stream of the device.
    ///
    /// # Errors
    /// An internal error if the structure of the kernels has another size; an execution error if the device fails.
    #[allow(unsafe_code, reason = "kernels are launched")]
    pub(super) fn run<A: KernelArgument>(&self, device: &Device, argument: &A) -> Result<()> {
        let (constant, at) = A::SIZE;
        if constant != self.constant || self.sizes[at] != size_of::<A>() {
            return internal_err!(
                "{} takes a structure of {} bytes ({}), the host has {} ({constant})",
                self.name,
                self.sizes[at],
                self.constant,
                size_of::<A>()
            );
        }
        let mut builder = device.stream.launch_builder(&self.function);
        builder.arg(argument);
        // SAFETY: `argument` is the host's copy of the one parameter that kernels of this file take, whose size was compared just
        // now. Such structures are made in this module's folder alone, of addresses of columns, bitmaps, buffers, workspaces and
        // page-locked memory, with the room that the kernel takes them for, as the top of this file has it. Buffers and
        // columns are freed on the stream, after this kernel; workspaces are locked until the stream was waited for.
        let launched = unsafe {
            match self.start {
                Start::Alone => builder.launch(self.config).map(drop),
                Start::Cooperative => builder.launch_cooperative(self.config).map(drop),
                Start::Following => self.follow(device, argument),
            }
        };
        launched.map_err(|error| device.failed(self.name, error))
    }

    #[allow(unsafe_code, reason = "the safe interface has no attributes of launches")]
    unsafe fn follow<A: KernelArgument>(&self, device: &Device, argument: &A) -> Result<(), DriverError> {
        device.context.bind_to_thread()?;
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value,
        };
        let (grid, block) = (self.config.grid_dim, self.config.block_dim);
        let config = sys::CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: grid.2,
            blockDimX: block.0,
            blockDimY: block.1,
            blockDimZ: block.2,
            sharedMemBytes: self.config.shared_mem_bytes,
            hStream: device.stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let mut arguments = [(&raw const *argument).cast_mut().cast()];
        // SAFETY: drivers of devices that overlap kernels have this function, which reads the configuration, its one attribute
        // and the argument before it returns; the rest is the caller's.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.function.cu_function(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
    }
}
