//! NVIDIA cards: the only place that knows CUDA.
//!
//! The driver and the compiler of kernels (NVRTC) are loaded at run time, so that one binary runs with and without them:
//! [`Card::get`] is the gate, and says why there is no card. Kernels are text ([`source`]), compiled for the card at hand and
//! kept on disk ([`cache`]). A [`DeviceColumn`] holds values, a [`RowMask`] the rows where a [`Predicate`] is true, and a
//! [`Selection`] finds exact ranks of a column, or of those rows of it.

mod buffer;
pub mod cache;
mod column;
mod device;
mod filter;
mod nvrtc;
mod select;
pub mod source;

pub use buffer::DeviceBuffer;
pub(crate) use column::ColumnUpload;
pub use column::DeviceColumn;
pub use device::Card;
pub use filter::{Predicate, RowMask};
pub use nvrtc::{NVRTC_VARIABLE, Nvrtc};
pub use select::{Report, Selection, Shape};
