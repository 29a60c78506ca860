//! A device: its context and stream, the modules loaded on it, and the memory that this crate holds there.
//!
//! All work of a device goes through one stream, in the order of the calls, so that the host waits only at the end of a query. No
//! function of CUDA is called before [`Device::get`].

use std::collections::HashMap;
use std::fmt::{self, Debug, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DriverError};
use datafusion::common::{DataFusionError, Result, exec_err, resources_datafusion_err};

use super::driver::{allow_to_read, check_driver, give_up_freed_memory, keep_freed_memory};
use super::fault::{ends_the_context, fault};
use super::idle::{GivesBack, IdleCopyBuffer, IdleMemory, IdleWatch, IdleWorkspace};
use super::modules::Modules;
use crate::failpoint::may_fail;
use crate::threads::locked;

/// Bytes that a buffer has beyond those asked for: kernels read bitmaps in words of 8 bytes.
const SLACK: usize = 16;

/// Freed device memory that is kept for the next query is at most one part in so many of the device's memory.
const IDLE_FRACTION: u64 = 8;

/// Most buffers, of 2 MiB of page-locked memory each, that are kept for the next upload.
const MOST_COPY_BUFFERS: usize = 32;

/// How long unused memory is kept for the next query.
const PATIENCE: Duration = Duration::from_secs(10);

/// An NVIDIA device of this machine.
///
/// It keeps the memory of a query that has ended, and the page-locked memory of copies, for the next query. If no query comes for
/// 10 seconds, that memory goes back to the system.
pub struct Device {
    ordinal: usize,
    name: String,
    architecture: String,
    overlaps_kernels: bool,
    has_tensor_cores: bool,
    multiprocessors: u32,
    /// Most shared memory that a block may have, in bytes.
    shared_memory: usize,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    /// Bytes of device memory that this crate holds.
    held: AtomicU64,
    pub(super) modules: Modules,
    /// Locked by the query that works in the workspace; filled between queries.
    workspace: Mutex<Option<IdleWorkspace>>,
    /// Copy buffers of uploads that have ended.
    upload_buffers: Mutex<Vec<IdleCopyBuffer>>,
    /// The copy buffers of all other copies; locked by the copy that uses them.
    transfer_buffers: Mutex<Vec<IdleCopyBuffer>>,
    idle: Mutex<IdleMemory>,
    /// Most bytes of `idle`.
    most_idle: u64,
    watch: IdleWatch,
    /// Whether the devices with these ordinals can read this one's memory.
    readers: Mutex<HashMap<usize, bool>>,
    /// Why nothing runs on the device any more.
    lost: OnceLock<String>,
}

impl Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.ordinal)
            .field("name", &self.name)
            .field("architecture", &self.architecture)
            .finish_non_exhaustive()
    }
}

impl Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal, self.name)
    }
}

impl Device {
    /// The device with this number, counted from 0, shared by the whole process.
    ///
    /// # Errors
    /// An execution error that says why it cannot be used: no driver, one that is too old, no such device, a device that does not
    /// answer.
    pub fn get(ordinal: usize) -> Result<Arc<Device>> {
        static DEVICES: LazyLock<Mutex<HashMap<usize, Arc<Device>>>> = LazyLock::new(Mutex::default);
        let mut devices = locked(&DEVICES);
        if let Some(device) = devices.get(&ordinal) {
            return Ok(Arc::clone(device));
        }
        let device = Arc::new(Device::open(ordinal, None)?);
        devices.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    /// Number of devices of this machine.
    ///
    /// # Errors
    /// An execution error that says why the number is unknown: no driver, or one that is too old.
    pub fn count() -> Result<usize> {
        check_driver()?;
        let count = CudaContext::device_count().map_err(|error| fault("counting devices", error))?;
        Ok(count as usize)
    }

    /// Opens the device with this number for the caller alone. If `shared_memory` is less than the bytes of shared memory that a
    /// block can have, the device is used as if a block could have no more than that.
    ///
    /// # Errors
    /// As [`Device::get`].
    #[allow(unsafe_code, reason = "events of cudarc are switched off")]
    pub fn open(ordinal: usize, shared_memory: Option<usize>) -> Result<Device> {
        may_fail!("cuda_open");
        check_driver()?;
        let what = format!("opening cuda:{ordinal}");
        let failed = |error| fault(&what, error);
        let count = CudaContext::device_count().map_err(failed)?;
        if ordinal >= count as usize {
            return exec_err!("there is no device cuda:{ordinal}: this machine has {count}, counted from 0");
        }
        let context = CudaContext::new(ordinal).map_err(failed)?;
        // SAFETY: one stream does all work of this context, and memory is freed on it, so that order needs no events.
        unsafe { context.disable_event_tracking() };
        let attribute = |attribute| context.attribute(attribute).map_err(failed);
        if attribute(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? == 0 {
            return exec_err!("cuda:{ordinal} cannot launch cooperative kernels");
        }
        let (_, memory) = context.mem_get_info().map_err(failed)?;
        keep_freed_memory(&context).map_err(failed)?;
        let (major, minor) = context.compute_capability().map_err(failed)?;
        let offered = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        Ok(Device {
            ordinal,
            name: context.name().map_err(failed)?,
            architecture: format!("sm_{major}{minor}"),
            overlaps_kernels: major >= 9,
            has_tensor_cores: major >= 8,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            shared_memory: shared_memory.map_or(offered, |most| most.min(offered)),
            stream: context.new_stream().map_err(failed)?,
            context,
            held: AtomicU64::new(0),
            modules: Modules::default(),
            workspace: Mutex::default(),
            upload_buffers: Mutex::default(),
            transfer_buffers: Mutex::default(),
            idle: Mutex::default(),
            most_idle: memory as u64 / IDLE_FRACTION,
            watch: IdleWatch::new(PATIENCE),
            readers: Mutex::default(),
            lost: OnceLock::new(),
        })
    }

    /// Number of the device on this machine, counted from 0.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Name of the device, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Architecture of the machine code that the device runs, such as `sm_90`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Whether blocks of a kernel can start before the previous kernel has ended.
    pub(super) fn overlaps_kernels(&self) -> bool {
        self.overlaps_kernels
    }

    /// Whether tensor cores multiply numbers of 16 bits that are copied to shared memory in the background.
    pub(super) fn has_tensor_cores(&self) -> bool {
        self.has_tensor_cores
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    pub(crate) fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    /// Bytes of device memory that this crate uses. Freed memory that is kept for the next query does not count: it is given up
    /// when there is too little memory beside it.
    pub fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Free and total bytes of the device's memory, as the driver counts them.
    ///
    /// # Errors
    /// An execution error if the device does not answer.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let asked = self.context.mem_get_info();
        asked.map_err(|error| self.failed("asking for the device's memory", error))
    }

    /// Checks that no fault has ended all work on the device.
    ///
    /// # Errors
    /// An execution error with the first such fault.
    pub fn check(&self) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(why) => exec_err!("{self} is not used any more: {why}"),
        }
    }

    /// Turns an error of the driver into that of `what` was called for. If it ends all work of the context, the device counts as
    /// lost from now on.
    pub(super) fn failed(&self, what: &str, error: DriverError) -> DataFusionError {
        let shown = fault(what, error);
        if ends_the_context(error.0) {
            // The first fault is the reason of all others.
            self.lost.get_or_init(|| shown.strip_backtrace());
        }
        shown
    }

    /// Device memory for `bytes` bytes, and [`SLACK`] more, with undefined content. The caller counts as holding `bytes` bytes until
    /// [`Self::give_back`]. Fails if this crate would then hold more than `limit` bytes. If memory is short, the workspace and other
    /// idle memory is given up first.
    ///
    /// # Errors
    /// `ResourcesExhausted` that names the bytes wanted, held and allowed; an execution error if the device does not answer.
    pub(super) fn take_memory(self: &Arc<Self>, bytes: usize, limit: Option<u64>) -> Result<CudaSlice<u8>> {
        self.check()?;
        IdleWatch::used(self);
        let refused = match self.try_take_memory(bytes, limit) {
            Err(error @ DataFusionError::ResourcesExhausted(_)) => error,
            other => return other,
        };
        // Not the workspace that the caller, or another query, works in: that one is locked.
        let workspace = self.idle_workspace().flatten();
        let is_some_idle = workspace.is_some() || locked(&self.idle).bytes() > 0;
        if !is_some_idle {
            return Err(refused);
        }
        self.free_workspace(workspace);
        locked(&self.idle).shrink(0);
        // The driver has the memory once the stream has reached this point.
        self.synchronize("freeing device memory")?;
        self.try_take_memory(bytes, limit)
    }

    fn try_take_memory(&self, bytes: usize, limit: Option<u64>) -> Result<CudaSlice<u8>> {
        let wanted = bytes as u64;
        let grown = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                let sum = held.checked_add(wanted)?;
                limit.is_none_or(|limit| sum <= limit).then_some(sum)
            });
        if let Err(held) = grown {
            return Err(resources_datafusion_err!(
                "{wanted} bytes on {self} would pass the limit, quantiles.cuda_memory_limit or the executor's \
                 --cuda-memory-limit: {held} of {} bytes are held, by all sessions of the process",
                limit.unwrap_or(u64::MAX)
            ));
        }
        let (reused, is_freed) = {
            let mut idle = locked(&self.idle);
            let reused = idle.take(bytes + SLACK);
            // Used and idle memory together keep within the limit.
            let free = limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.held_bytes()));
            let before = idle.bytes();
            idle.shrink(free);
            (reused, idle.bytes() < before)
        };
        if let Some(slice) = reused {
            return Ok(slice);
        }
        if is_freed {
            // The driver has the memory once the stream has reached this point.
            self.synchronize("freeing device memory")?;
        }
        self.new_memory(bytes + SLACK)
            .inspect_err(|_| self.give_back(bytes))
    }

    #[allow(unsafe_code, reason = "memory that nothing was written to")]
    fn new_memory(&self, bytes: usize) -> Result<CudaSlice<u8>> {
        // SAFETY: bytes have no invalid value; what reads them writes them first, or is a kernel that drops what it reads
        // beyond the end.
        let slice = unsafe { self.stream.alloc::<u8>(bytes) };
        slice.map_err(|error| self.failed("allocating device memory", error))
    }

    /// Keeps freed memory of the device's stream for the next query.
    pub(super) fn keep_memory(self: &Arc<Self>, slice: CudaSlice<u8>) {
        locked(&self.idle).keep(slice, self.most_idle);
        IdleWatch::used(self);
    }

    /// Counts `bytes` bytes of device memory as no longer held.
    pub(super) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// The lock of the workspace, for one query at a time, and the workspace that the query before has left.
    pub(super) fn lock_workspace(&self) -> MutexGuard<'_, Option<IdleWorkspace>> {
        locked(&self.workspace)
    }

    fn free_workspace(&self, workspace: Option<IdleWorkspace>) {
        if let Some(workspace) = workspace {
            self.give_back(workspace.bytes);
        }
    }

    /// Waits for the query that works in the workspace, and frees the workspace and all other idle memory. The next query allocates
    /// its own.
    pub fn release_workspace(&self) {
        let workspace = self.lock_workspace().take();
        self.free_workspace(workspace);
        self.free_idle();
    }

    /// Frees all idle memory without waiting for queries. Returns whether no query works in the workspace now.
    pub(crate) fn release_idle(&self) -> bool {
        let workspace = self.idle_workspace();
        let is_free = workspace.is_some();
        self.free_workspace(workspace.flatten());
        self.free_idle();
        is_free
    }

    /// Takes the workspace that is kept between queries, if there is one; `None` while a query works in it.
    fn idle_workspace(&self) -> Option<Option<IdleWorkspace>> {
        match self.workspace.try_lock() {
            Ok(mut workspace) => Some(workspace.take()),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner().take()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn free_idle(&self) {
        locked(&self.upload_buffers).clear();
        locked(&self.transfer_buffers).clear();
        locked(&self.idle).shrink(0);
    }

    /// A buffer of an upload that has ended.
    pub(super) fn idle_copy_buffer(&self) -> Option<IdleCopyBuffer> {
        locked(&self.upload_buffers).pop()
    }

    /// The lock of the buffers of copies that are no uploads of columns, for one copy at a time, and the buffers that the one before has left.
    pub(super) fn lock_transfer_buffers(&self) -> MutexGuard<'_, Vec<IdleCopyBuffer>> {
        locked(&self.transfer_buffers)
    }

    /// Keeps buffers for the next upload: clearing new pages takes longer than filling them.
    pub(super) fn keep_copy_buffers(self: &Arc<Self>, buffers: impl Iterator<Item = IdleCopyBuffer>) {
        let mut kept = locked(&self.upload_buffers);
        kept.extend(buffers);
        kept.truncate(MOST_COPY_BUFFERS);
        drop(kept);
        IdleWatch::used(self);
    }

    /// An event that other devices can wait for. It occurs once all work is done that was put on the stream so far.
    pub(super) fn signal(&self) -> Result<CudaEvent> {
        let event = self.stream.record_event(None);
        event.map_err(|error| self.failed("signalling to other devices", error))
    }

    /// Has all later work of this device wait for an event of another device.
    pub(super) fn wait_for(&self, signal: &CudaEvent) -> Result<()> {
        let waits = self.stream.wait(signal);
        waits.map_err(|error| self.failed("waiting for another device", error))
    }

    /// Lets kernels of this device read the memory that [`Device::allocate`] gives on another device. Returns whether they can.
    pub(super) fn reads(&self, other: &Device) -> bool {
        if self.ordinal == other.ordinal {
            return true;
        }
        let mut readers = locked(&other.readers);
        *readers.entry(self.ordinal).or_insert_with(|| {
            let allowed = allow_to_read(&self.context, &other.context);
            allowed.unwrap_or_else(|error| {
                log::warn!("{self} does not read memory of {other}: {error}");
                false
            })
        })
    }

    /// Waits until all work on the stream is done. An error says that it occurred while `what` was done.
    pub(super) fn synchronize(&self, what: &str) -> Result<()> {
        self.stream
            .synchronize()
            .map_err(|error| self.failed(what, error))
    }
}

impl GivesBack for Device {
    fn watch(&self) -> &IdleWatch {
        &self.watch
    }

    fn give_idle_back(&self) -> bool {
        let is_free = self.release_idle();
        // The driver has the memory once the stream has reached this point.
        let given = self.synchronize("freeing device memory").and_then(|()| {
            let given = give_up_freed_memory(&self.context);
            given.map_err(|error| self.failed("freeing device memory", error))
        });
        if let Err(error) = given {
            log::warn!("{self} keeps idle memory: {error}");
        }
        is_free
    }
}
