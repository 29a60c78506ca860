//! How kernels come onto a device: from the cache on disk, or from the compiler, when a query needs them or ahead of it.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use cudarc::driver::{CudaContext, CudaFunction, DriverError};
use cudarc::nvrtc::Ptx;
use datafusion::common::{Result, exec_datafusion_err, internal_err};

use super::cache::{CubinCache, CubinKey};
use super::device::Device;
use super::modules::{Function, Module};
use super::nvrtc::Nvrtc;
use super::source::Program;
use crate::failpoint::may_fail;
use crate::threads::locked;

impl Module {
    /// The kernel of this name, allowed to use `shared` bytes of dynamic shared memory.
    pub(super) fn function(
        &self,
        device: &Device,
        name: &'static str,
        shared: usize,
    ) -> Result<CudaFunction> {
        let failed = |error| device.failed(name, error);
        let mut functions = locked(&self.functions);
        let known = match functions.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(Function {
                function: self.module.load_function(name).map_err(failed)?,
                shared: 0,
            }),
        };
        if known.shared < shared {
            let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            known
                .function
                .set_attribute(most, shared as i32)
                .map_err(failed)?;
            known.shared = shared;
        }
        Ok(known.function.clone())
    }

    /// The four numbers of the constant `name`, mostly the sizes of the kernels' structures in bytes.
    pub(super) fn sizes(&self, device: &Device, name: &str) -> Result<[u32; 4]> {
        if let Some(sizes) = self.sizes.get() {
            return Ok(*sizes);
        }
        let failed = |error| device.failed("reading a constant of the kernels", error);
        let global = self.module.get_global(name, &device.stream).map_err(failed)?;
        let bytes = device.stream.clone_dtoh(&global).map_err(failed)?;
        device.synchronize("reading a constant of the kernels")?;
        let mut sizes = [0; 4];
        for (size, bytes) in sizes.iter_mut().zip(bytes.as_chunks().0) {
            *size = u32::from_le_bytes(*bytes);
        }
        Ok(*self.sizes.get_or_init(|| sizes))
    }
}

impl Device {
    /// The kernels of `program`, from the modules that are loaded, from the cache on disk, or from the compiler.
    ///
    /// # Errors
    /// An execution error if there is no compiler, if the compiler refuses the source, or if the device refuses the code.
    pub(super) fn module(&self, program: &Program) -> Result<Arc<Module>> {
        let slot = self.modules.slot(program);
        let mut loaded = locked(&slot);
        if let Some(module) = &*loaded {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(load(&self.context, self.architecture(), program)?);
        *loaded = Some(Arc::clone(&module));
        Ok(module)
    }

    /// The kernels of two programs, compiled at the same time if the second one is not loaded.
    ///
    /// # Errors
    /// As [`Self::module`].
    pub(super) fn two_modules(&self, [one, other]: &[Program; 2]) -> Result<[Arc<Module>; 2]> {
        if let Some(second) = locked(&self.modules.slot(other)).clone() {
            return Ok([self.module(one)?, second]);
        }
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| self.module(other));
            (self.module(one), second.join())
        });
        let Ok(second) = second else {
            return internal_err!("compiling {} panicked", other.file.name());
        };
        Ok([first?, second?])
    }

    /// Number of programs that are loaded.
    pub fn loaded_programs(&self) -> usize {
        self.modules.loaded()
    }

    /// Loads the kernels of `program` ahead of the first query that needs them, unless the process is about to end. Must not run on a
    /// thread of an async runtime, as compiling takes up to some seconds.
    ///
    /// # Errors
    /// As [`Self::module`].
    pub(crate) fn prepare(&self, program: &Program) -> Result<()> {
        Nvrtc::get()?;
        if !PREPARING.begin() {
            return Ok(());
        }
        STOPS_AT_EXIT.call_once(stop_at_exit);
        let loaded = self.module(program);
        PREPARING.end();
        loaded.map(drop)
    }
}

fn load(context: &Arc<CudaContext>, architecture: &str, program: &Program) -> Result<Module> {
    may_fail!("cuda_compile");
    let nvrtc = Nvrtc::get()?;
    let key = CubinKey::new(program, architecture, nvrtc.version());
    let cache = CubinCache::of_user();
    if let Some(cubin) = cache.as_ref().and_then(|cache| cache.get(&key)) {
        match loaded(context, cubin) {
            Ok(module) => return Ok(module),
            Err(error) => log::warn!("kernels from the cache are compiled anew: {error}"),
        }
    }
    let cubin = nvrtc.cubin(program, architecture)?;
    let module = loaded(context, cubin.clone()).map_err(|error| {
        exec_datafusion_err!("the driver refuses kernels of {}: {error}", program.file.name())
    })?;
    if let Some(cache) = cache {
        cache.put(&key, &cubin);
    }
    Ok(module)
}

fn loaded(context: &Arc<CudaContext>, cubin: Vec<u8>) -> Result<Module, DriverError> {
    Ok(Module {
        module: context.load_module(Ptx::from_binary(cubin))?,
        functions: Mutex::default(),
        sizes: OnceLock::new(),
    })
}

/// Compilations ahead of queries, which must not run while the process ends: the compiler's library would be torn down below them.
struct Preparing {
    /// Compilations that run. `None`: none may begin any more.
    running: Mutex<Option<usize>>,
    ended: Condvar,
}

static PREPARING: Preparing = Preparing {
    running: Mutex::new(Some(0)),
    ended: Condvar::new(),
};

/// How long the end of the process waits for compilations at most. One takes a second or two.
const PATIENCE: Duration = Duration::from_secs(20);

impl Preparing {
    fn begin(&self) -> bool {
        let mut running = locked(&self.running);
        match &mut *running {
            Some(count) => {
                *count += 1;
                true
            }
            None => false,
        }
    }

    fn end(&self) {
        if let Some(count) = &mut *locked(&self.running) {
            *count -= 1;
        }
        self.ended.notify_all();
    }

    /// Lets no compilation begin any more, and waits for those that run.
    fn stop(&self) {
        let runs = |running: &mut Option<usize>| running.is_some_and(|count| count > 0);
        let waited = self
            .ended
            .wait_timeout_while(locked(&self.running), PATIENCE, runs);
        let (mut running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *running = None;
    }
}

static STOPS_AT_EXIT: Once = Once::new();

/// Has the process wait, before libraries are torn down, for compilations that run.
#[allow(
    unsafe_code,
    reason = "the C library calls a function at the end of the process"
)]
fn stop_at_exit() {
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
    }

    /// The process that compiles: one that is forked from it has none of its threads.
    static PROCESS: OnceLock<u32> = OnceLock::new();

    extern "C" fn stop() {
        if PROCESS.get() == Some(&std::process::id()) {
            PREPARING.stop();
        }
    }

    PROCESS.get_or_init(std::process::id);
    // SAFETY: the declaration is that of the C library, and the function, which lives as long as the process, does not unwind. Functions
    // are called in the reverse order of registration, and the compiler's library, which was loaded before, registered its own then.
    let refused = unsafe { atexit(stop) };
    if refused != 0 {
        PREPARING.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_compiled_ahead_after_the_end() {
        let preparing = Preparing {
            running: Mutex::new(Some(0)),
            ended: Condvar::new(),
        };
        assert!(preparing.begin() && preparing.begin());
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| preparing.stop());
            preparing.end();
            preparing.end();
            stopped.join().unwrap();
        });
        assert!(!preparing.begin());
        preparing.stop();
    }
}
