//! Sequences of kernels on the stream of a device: their launches, how long they took, and the memory that they work in.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUevent_flags};
use cudarc::driver::{CudaEvent, CudaFunction, DeviceRepr, DriverError, LaunchConfig, PushKernelArg};
use datafusion::common::{Result, internal_err};

use super::buffer::{DeviceBuffer, PageLocked};
use super::column::DeviceColumn;
use super::device::{Device, Module};

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
    /// Rows without values, of which those of the bitmap at `mask` count; all, if that is 0.
    pub(super) fn rows(rows: u64, mask: u64) -> Self {
        Self {
            values: 0,
            rows,
            validity: 0,
            mask,
        }
    }

    /// `rows` values at an address, none of them missing.
    pub(super) fn dense(values: u64, rows: u64) -> Self {
        Self {
            values,
            rows,
            ..Self::default()
        }
    }

    /// Its rows, missing ones among them.
    pub(super) fn row_count(&self) -> u64 {
        self.rows
    }

    /// `mask` is the address of a bitmap, or 0.
    pub(super) fn of(column: &DeviceColumn, mask: u64) -> Self {
        Self {
            values: column.values_address(),
            rows: column.rows(),
            validity: column.validity_address(),
            mask,
        }
    }
}

/// What queries did on the device.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Kernels launched.
    pub kernels: usize,
    /// Bytes of columns and bitmaps, each once for each read.
    pub bytes_read: u64,
    /// Bytes copied to the device: ranks, or rows.
    pub bytes_to_device: u64,
    /// Bytes copied back: keys or values, and how it went.
    pub bytes_from_device: u64,
    /// Time between the first and the last event on the device.
    pub device_time: Duration,
    /// Sequences of launches in which the first read missed what was asked.
    pub second_reads: usize,
    /// Those that counted narrower intervals.
    pub deepened: usize,
    /// Time of each kernel, if it was asked for; with about 5 microseconds of measuring in each.
    pub kernel_times: Vec<(&'static str, Duration)>,
}

impl Report {
    /// What others did, too.
    pub(crate) fn add(&mut self, other: &Report) {
        self.kernels += other.kernels;
        self.bytes_read += other.bytes_read;
        self.bytes_to_device += other.bytes_to_device;
        self.bytes_from_device += other.bytes_from_device;
        self.device_time += other.device_time;
        self.second_reads += other.second_reads;
        self.deepened += other.deepened;
        self.kernel_times.extend_from_slice(&other.kernel_times);
    }
}

/// Memory that queries of a device work in, kept from one to the next.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) device: DeviceBuffer,
    /// Questions on their way there, answers on their way back.
    pub(super) host: PageLocked,
}

/// Places in a workspace, one after the other, each aligned to 256 bytes.
#[derive(Debug, Default)]
pub(super) struct Places(usize);

impl Places {
    /// Where the next `bytes` start.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let start = self.0;
        self.0 = (start + bytes).next_multiple_of(256);
        start
    }

    /// The end of all.
    pub(super) fn end(&self) -> usize {
        self.0
    }
}

impl Workspace {
    /// Makes what is held at least so large; what was there goes first, as it need not fit beside.
    pub(super) fn reserve(
        held: &mut Option<Workspace>,
        device: &Arc<Device>,
        bytes: usize,
        host_bytes: usize,
        limit: Option<u64>,
    ) -> Result<()> {
        match held {
            Some(held) if held.device.len() >= bytes => held.host.grow(host_bytes),
            _ => {
                held.take();
                let buffer = device.allocate(bytes, limit)?;
                let host = PageLocked::try_new(device, host_bytes)?;
                *held = Some(Workspace { device: buffer, host });
                Ok(())
            }
        }
    }

    /// What is held.
    ///
    /// # Errors
    /// An internal error if that is nothing.
    pub(super) fn of(held: &mut Option<Workspace>) -> Result<&mut Workspace> {
        match held {
            Some(workspace) => Ok(workspace),
            None => internal_err!("no workspace on the device"),
        }
    }
}

/// A kernel of a sequence.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) name: &'static str,
    function: CudaFunction,
    config: LaunchConfig,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// When what is on the stream before it has ended.
    Alone,
    /// The same, and its blocks wait for each other.
    Cooperative,
    /// Its blocks may come as the kernel before it ends, and wait for that themselves.
    Following,
}

impl Launch {
    /// `blocks` of `threads` with `shared` bytes of dynamic shared memory each.
    pub(super) fn try_new(
        device: &Device,
        module: &Module,
        name: &'static str,
        [blocks, threads]: [u32; 2],
        shared: usize,
    ) -> Result<Self> {
        Ok(Self {
            name,
            function: module.function(device, name, shared)?,
            config: LaunchConfig {
                grid_dim: (blocks, 1, 1),
                block_dim: (threads, 1, 1),
                shared_mem_bytes: shared as u32,
            },
            how: How::Alone,
        })
    }

    /// The same, whose blocks wait for each other.
    pub(super) fn cooperative(self) -> Self {
        Self {
            how: How::Cooperative,
            ..self
        }
    }

    /// The same of kernels that all start with `after_kernels_before` of `kernels/common.cuh`, to be put on the stream one
    /// right after the other: the next is made ready while the one before it runs.
    pub(super) fn in_a_row(device: &Device, mut sequence: Vec<Self>) -> Vec<Self> {
        if device.overlaps_kernels() {
            for launch in sequence.iter_mut().skip(1) {
                if launch.how == How::Alone {
                    launch.how = How::Following;
                }
            }
        }
        sequence
    }

    /// Puts it on the device's stream.
    ///
    /// # Safety
    /// `argument` is the kernel's one parameter: its size was compared with the kernel's own. Memory that it names has the
    /// room that the kernel takes it for, and lives until the stream was waited for or is freed on that stream.
    #[allow(unsafe_code, reason = "kernels are launched")]
    pub(super) unsafe fn run<A: DeviceRepr>(&self, device: &Device, argument: &A) -> Result<()> {
        let mut builder = device.stream.launch_builder(&self.function);
        builder.arg(argument);
        // SAFETY: the caller's.
        let launched = unsafe {
            match self.how {
                How::Alone => builder.launch(self.config).map(drop),
                How::Cooperative => builder.launch_cooperative(self.config).map(drop),
                How::Following => self.follow(device, argument),
            }
        };
        launched.map_err(|error| device.failed(self.name, error))
    }

    #[allow(unsafe_code, reason = "the safe interface has no attributes of launches")]
    unsafe fn follow<A: DeviceRepr>(
        &self,
        device: &Device,
        argument: &A,
    ) -> std::result::Result<(), DriverError> {
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

/// Events on the stream: before and after all of a sequence, or after each kernel too.
pub(super) struct Timeline<'a> {
    device: &'a Device,
    each: bool,
    kernels: Vec<&'static str>,
    events: Vec<CudaEvent>,
}

impl<'a> Timeline<'a> {
    /// Starts now, as the stream has it.
    pub(super) fn start(device: &'a Device, each: bool) -> Result<Self> {
        let mut timeline = Self {
            device,
            each,
            kernels: Vec::new(),
            events: Vec::new(),
        };
        timeline.record()?;
        Ok(timeline)
    }

    /// Starts anew if no kernel was launched: what came before was the host's.
    pub(super) fn restart(&mut self) -> Result<()> {
        match self.kernels.is_empty() {
            true => {
                self.events.clear();
                self.record()
            }
            false => Ok(()),
        }
    }

    fn record(&mut self) -> Result<()> {
        let event = self
            .device
            .stream
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let event = event.map_err(|error| self.device.failed("timing kernels", error))?;
        self.events.push(event);
        Ok(())
    }

    /// A kernel was launched.
    pub(super) fn passed(&mut self, kernel: &'static str) -> Result<()> {
        self.kernels.push(kernel);
        match self.each {
            true => self.record(),
            false => Ok(()),
        }
    }

    /// The last one was.
    pub(super) fn end(&mut self) -> Result<()> {
        match self.each {
            true => Ok(()),
            false => self.record(),
        }
    }

    /// Adds kernels and times, once the stream was waited for.
    pub(super) fn report(&self, report: &mut Report) -> Result<()> {
        let between = |from: &CudaEvent, to: &CudaEvent| {
            let time = from.elapsed_ms(to);
            let time = time.map_err(|error| self.device.failed("timing kernels", error))?;
            Ok::<_, datafusion::common::DataFusionError>(Duration::from_secs_f64(
                f64::from(time.max(0.0)) / 1e3,
            ))
        };
        report.kernels += self.kernels.len();
        if let [first, .., last] = self.events.as_slice() {
            report.device_time += between(first, last)?;
        }
        if self.each {
            for (kernel, pair) in self.kernels.iter().zip(self.events.windows(2)) {
                report.kernel_times.push((kernel, between(&pair[0], &pair[1])?));
            }
        }
        Ok(())
    }
}
