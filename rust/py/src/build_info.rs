//! The build of this extension.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Version, profile, target and the CPU features found at run time.
#[pyfunction]
pub(crate) fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = PyDict::new(py);
    info.set_item("version", env!("CARGO_PKG_VERSION"))?;
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    info.set_item("profile", profile)?;
    info.set_item("arch", std::env::consts::ARCH)?;
    info.set_item("os", std::env::consts::OS)?;
    info.set_item("cpu_features", cpu_features())?;
    Ok(info)
}

#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    [
        ("sha", std::arch::is_x86_feature_detected!("sha")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}
