//! NVRTC: the compiler of kernels, loaded at run time.
//!
//! It is loaded from the file that `QUANTILES_NVRTC` names, or else by its name with the major version (`libnvrtc.so.13`): a machine
//! with the run-time packages has only that name, and the name without a version comes with the toolkit.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use libloading::Library;

use super::source::Program;

/// Environment variable that names the library's file.
pub const NVRTC_VARIABLE: &str = "QUANTILES_NVRTC";

/// First version that is asked to compile with all processors, which takes 60% of the time.
const PARALLEL: (i32, i32) = (13, 0);

/// First version that is asked to compile without optimizing, where that is wanted.
const QUICK: (i32, i32) = (13, 0);

type Handle = *mut c_void;
type Code = c_int;

/// The loaded library: its version, and the functions that are used.
pub struct Nvrtc {
    version: (i32, i32),
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Code,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> Code,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> Code,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
    destroy: unsafe extern "C" fn(*mut Handle) -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
}

/// A program of NVRTC that is destroyed when the guard is dropped.
struct Guard<'a>(&'a Nvrtc, Handle);

impl Drop for Guard<'_> {
    #[allow(unsafe_code, reason = "a call into NVRTC")]
    fn drop(&mut self) {
        // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once, here.
        unsafe { (self.0.destroy)(&mut self.1) };
    }
}

impl Nvrtc {
    /// The library, loaded once for the process.
    ///
    /// # Errors
    /// An execution error that names the files that were looked for. Later calls give the same error.
    pub fn get() -> Result<&'static Nvrtc> {
        static LOADED: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Self::load().map_err(|error| error.strip_backtrace()));
        loaded
            .as_ref()
            .map_err(|error| exec_datafusion_err!("no compiler for CUDA kernels: {error}"))
    }

    /// Major and minor version of the library.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    fn load() -> Result<Self> {
        if let Some(path) = std::env::var_os(NVRTC_VARIABLE).filter(|path| !path.is_empty()) {
            return Self::open(Path::new(&path));
        }
        let candidates = candidates();
        for path in &candidates {
            if let Ok(found) = Self::open(path) {
                return Ok(found);
            }
        }
        let shown: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        exec_err!(
            "NVRTC is not installed: looked for {}; {NVRTC_VARIABLE} can name its file",
            shown.join(", ")
        )
    }

    #[allow(unsafe_code, reason = "loading a library and its functions")]
    fn open(path: &Path) -> Result<Self> {
        let missing =
            |error: libloading::Error| exec_datafusion_err!("cannot load {}: {error}", path.display());
        for builtins in builtins_beside(path) {
            // SAFETY: NVRTC's own second library, which has no initialisers of consequence; it stays loaded, so that NVRTC
            // finds it by name when it compiles.
            let library = unsafe { Library::new(builtins) }.map_err(missing)?;
            std::mem::forget(library);
        }
        // SAFETY: NVRTC's initialisers ask nothing of the program that loads it.
        let library = unsafe { Library::new(path) }.map_err(missing)?;
        // For good: functions of it are in use until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type is that of nvrtc.h for this name, unchanged since CUDA 11.1.
                *unsafe { library.get($name.to_bytes_with_nul()) }.map_err(missing)?
            };
        }
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code = function!(c"nvrtcVersion");
        let mut loaded = Self {
            version: (0, 0),
            create: function!(c"nvrtcCreateProgram"),
            compile: function!(c"nvrtcCompileProgram"),
            log_size: function!(c"nvrtcGetProgramLogSize"),
            log: function!(c"nvrtcGetProgramLog"),
            cubin_size: function!(c"nvrtcGetCUBINSize"),
            cubin: function!(c"nvrtcGetCUBIN"),
            destroy: function!(c"nvrtcDestroyProgram"),
            error_string: function!(c"nvrtcGetErrorString"),
        };
        // SAFETY: two integers to write to.
        let code = unsafe { version(&mut loaded.version.0, &mut loaded.version.1) };
        loaded.check(code, "nvrtcVersion")?;
        Ok(loaded)
    }

    #[allow(unsafe_code, reason = "a call into NVRTC")]
    fn check(&self, code: Code, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: any number is allowed; the answer is a constant string.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        exec_err!("{what} failed: {}", text.to_string_lossy())
    }

    /// Compiles `program` to machine code for `architecture`, such as `sm_90`.
    ///
    /// # Errors
    /// An execution error with the compiler's messages.
    pub fn cubin(&self, program: &Program, architecture: &str) -> Result<Vec<u8>> {
        self.compiled(program, architecture, None)
    }

    /// Compiles `program` as [`Self::cubin`] does, to slow code in a fifth of the time: to see whether it compiles.
    ///
    /// # Errors
    /// Those of [`Self::cubin`].
    pub fn unoptimized_cubin(&self, program: &Program, architecture: &str) -> Result<Vec<u8>> {
        let quick = (self.version >= QUICK).then_some("--Ofast-compile=max");
        self.compiled(program, architecture, quick)
    }

    /// Compiles `program` with one more option.
    #[allow(unsafe_code, reason = "calls into NVRTC")]
    fn compiled(&self, program: &Program, architecture: &str, option: Option<&str>) -> Result<Vec<u8>> {
        let file = program.file;
        let bad = |_| exec_datafusion_err!("a zero byte in {}", file.name());
        let source = CString::new(file.source()).map_err(bad)?;
        let name = CString::new(file.name()).map_err(bad)?;
        let mut all = program.options();
        all.push(format!("-arch={architecture}"));
        if self.version >= PARALLEL {
            all.push("--split-compile=0".to_owned());
        }
        all.extend(option.map(str::to_owned));
        let options = all.into_iter();
        let options = options
            .map(CString::new)
            .collect::<Result<Vec<_>, _>>()
            .map_err(bad)?;
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: both strings end with a zero byte and outlive the program; there are no headers.
        let code = unsafe {
            let none = std::ptr::null();
            (self.create)(&mut handle, source.as_ptr(), name.as_ptr(), 0, none, none)
        };
        self.check(code, "nvrtcCreateProgram")?;
        let guard = Guard(self, handle);
        // SAFETY: a live program and as many strings as are announced.
        let code = unsafe { (self.compile)(guard.1, pointers.len() as c_int, pointers.as_ptr()) };
        if code != 0 {
            let log = self.output(guard.1, self.log_size, self.log)?;
            let log = String::from_utf8_lossy(&log);
            return exec_err!(
                "kernels of {} do not compile for {architecture}: {}",
                file.name(),
                log.trim_end_matches('\0').trim()
            );
        }
        self.output(guard.1, self.cubin_size, self.cubin)
    }

    /// An output of a program: `size_of` gives its size in bytes, and `bytes_of` writes it.
    #[allow(unsafe_code, reason = "calls into NVRTC")]
    fn output(
        &self,
        program: Handle,
        size_of: unsafe extern "C" fn(Handle, *mut usize) -> Code,
        bytes_of: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
    ) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: a live program, and an integer to write to.
        let code = unsafe { size_of(program, &mut size) };
        self.check(code, "asking NVRTC for a size")?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: as many bytes to write to as NVRTC said.
        let code = unsafe { bytes_of(program, bytes.as_mut_ptr().cast()) };
        self.check(code, "asking NVRTC for its output")?;
        Ok(bytes)
    }
}

/// Files in which the library may be, the most recent version first in each folder.
fn candidates() -> Vec<PathBuf> {
    const NAMES: [&str; 3] = if cfg!(windows) {
        ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64.dll"]
    } else {
        ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    };
    let mut folders = vec![PathBuf::new()];
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        let home = std::env::var_os(variable).map(PathBuf::from);
        folders.extend(
            home.into_iter()
                .flat_map(|home| [home.join("lib64"), home.join("bin")]),
        );
    }
    folders.push("/usr/local/cuda/lib64".into());
    let joined = |folder: &PathBuf| NAMES.map(|name| folder.join(name));
    folders.iter().flat_map(joined).collect()
}

/// The files of `libnvrtc-builtins` in the folder of `path`. NVRTC itself finds them only in folders that the system searches.
fn builtins_beside(path: &Path) -> Vec<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let is_builtins = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("libnvrtc-builtins.so") && !name.contains(".alt."))
    };
    paths.filter(is_builtins).collect()
}
