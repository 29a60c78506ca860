//! The kernels that are loaded on a device, each program once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::{CudaFunction, CudaModule};

use super::source::Program;
use crate::threads::locked;

/// Kernels of one compilation, loaded on a device.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) module: Arc<CudaModule>,
    pub(super) functions: Mutex<HashMap<&'static str, Function>>,
    pub(super) sizes: OnceLock<[u32; 4]>,
}

/// A kernel, and the bytes of dynamic shared memory that it may use.
#[derive(Debug, Clone)]
pub(super) struct Function {
    pub(super) function: CudaFunction,
    pub(super) shared: usize,
}

/// The place of one compilation, locked while it is made.
pub(super) type Slot = Arc<Mutex<Option<Arc<Module>>>>;

/// The kernels that are loaded on a device. Different programs can be compiled at the same time, each by the first caller that needs it.
#[derive(Debug, Default)]
pub(super) struct Modules(Mutex<HashMap<Program, Slot>>);

impl Modules {
    pub(super) fn slot(&self, program: &Program) -> Slot {
        Arc::clone(locked(&self.0).entry(*program).or_default())
    }

    /// Number of programs that are loaded.
    pub(super) fn loaded(&self) -> usize {
        let slots: Vec<_> = locked(&self.0).values().cloned().collect();
        slots.iter().filter(|slot| locked(slot).is_some()).count()
    }
}
