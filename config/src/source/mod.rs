//! Where documents come from. The only part of this crate that knows a clock, a filesystem watch or a runtime.

mod changes;
pub mod cluster;
pub mod files;
#[cfg(feature = "kubernetes")]
pub mod kube;

pub use changes::FileChanges;
pub use files::{FileWatch, WatchSettings, read_set, watch};
