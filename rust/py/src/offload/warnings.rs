//! [`WarningLog`]: warnings of a tier until Python takes them.

use std::sync::{Arc, Mutex, PoisonError};

use hybrid_blocks_offload::disk::Warning;

/// Not passed on as they come: they come under the tier's lock, which must not wait for Python.
#[derive(Clone, Default)]
pub(super) struct WarningLog(Arc<Mutex<Vec<String>>>);

impl WarningLog {
    /// The callback of a tier.
    pub(super) fn callback(&self) -> impl Fn(&Warning) + Send + 'static {
        let log = self.clone();
        move |warning| {
            let message = match warning.num_left_out {
                0 => warning.message.clone(),
                n => format!("{} ({n} more of the kind left out)", warning.message),
            };
            log.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        }
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
