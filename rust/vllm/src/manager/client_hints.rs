//! The hints of a request's client on its session.

use hybrid_blocks::{Error, Hint};
use hybrid_blocks_interop::optional_hint;
use pyo3::prelude::*;

use super::core::RustKVCacheManager;
use crate::engine::Manager;
use crate::hooks::ManagerHooks;
use crate::request::RequestView;

/// The session of a request, and how it continues after the request.
pub(super) struct ClientHint {
    session_id: Option<String>,
    hint: Hint,
}

impl ClientHint {
    /// Session and hint of a request; `None` if it has neither.
    pub(super) fn read(
        slf: &Bound<'_, RustKVCacheManager>,
        request: &RequestView<'_, '_>,
    ) -> PyResult<Option<Self>> {
        if !RustKVCacheManager::core(slf)?.1.heeds_sessions || !request.has_client_hints()? {
            return Ok(None);
        }
        let (session_id, hint) = ManagerHooks(slf).client_hints(request.object)?;
        let hint = optional_hint(&hint)?.unwrap_or_default();
        let is_something = session_id.is_some() || hint != Hint::None;
        Ok(is_something.then_some(Self { session_id, hint }))
    }

    pub(super) fn tell(&self, manager: &mut Manager, handle: u64) -> Result<(), Error> {
        manager.set_session(handle, self.session_id.as_deref(), self.hint)
    }
}
