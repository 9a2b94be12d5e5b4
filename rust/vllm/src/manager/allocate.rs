//! Room for tokens, by Rust types.

use hybrid_blocks::BlockId;
use hybrid_blocks::vllm::{AllocateArgs, RequestProgress};
use pyo3::prelude::*;

use super::core::{Core, Look, RustKVCacheManager};
use crate::engine::Manager;
use crate::request::RequestView;

/// The outcome of an allocation.
pub(crate) enum Room {
    /// There was room, and nothing else to do.
    Unchanged,
    /// New blocks by group.
    New(Vec<Vec<BlockId>>),
    /// There are not enough blocks.
    None,
}

impl RustKVCacheManager {
    /// Room for `num_new` tokens of a running request, which may have had the handle `hint`, and for
    /// what a drafter writes after them.
    #[inline]
    pub(crate) fn extend(
        slf: &Bound<'_, Self>,
        request: &RequestView<'_, '_>,
        hint: Option<u64>,
        progress: RequestProgress,
        num_new: u32,
        num_lookahead: u32,
    ) -> PyResult<Room> {
        let args =
            AllocateArgs { num_new, num_lookahead, has_scheduled: true, ..AllocateArgs::default() };
        Self::allocate(slf, request, hint, progress, &args)
    }

    /// Room for what `args` ask for.
    #[inline]
    pub(super) fn allocate(
        slf: &Bound<'_, Self>,
        request: &RequestView<'_, '_>,
        hint: Option<u64>,
        progress: RequestProgress,
        args: &AllocateArgs<'_>,
    ) -> PyResult<Room> {
        let py = slf.py();
        let (core, configured) = Self::core(slf)?;
        let is_waiting = configured.watermark_blocks > 0 && request.is_waiting(&core.waiting)?;
        let mut taken = None;
        if asks_for_new_only(args)
            && !(is_waiting && args.has_scheduled)
            && !(configured.repeats_commits && awaits_first_output(&progress))
            && let Some(handle) = Core::handle_of(configured, request, hint)?
        {
            let (num_new, num_lookahead) = (args.num_new, args.num_lookahead);
            let is_noop = |it: &Manager| it.is_noop(handle, &progress, num_new, num_lookahead);
            match core.look(py, handle, is_noop)? {
                Look::Unchanged => return Ok(Room::Unchanged),
                Look::Open(opened) => taken = Some(opened),
                Look::Unknown => {}
            }
        }
        let progress = RequestProgress { is_waiting, ..progress };
        let progress = request.complete(progress, configured.heeds_boundary)?;
        let args = AllocateArgs { withheld_blocks: core.blocks.get().shortage(), ..*args };
        let (new, keeps_inside) = Core::change(slf, request, taken, |manager, handle| {
            let new = manager.allocate(handle, &progress, &args)?;
            Ok((new, manager.keeps_inside(handle).then_some(handle)))
        })?;
        if let Some(handle) = keeps_inside.filter(|_| configured.enable_events) {
            core.note_keeping(handle, request);
        }
        Ok(new.map_or(Room::None, Room::New))
    }
}

impl RustKVCacheManager {
    /// The handle that a request was last known by.
    pub(crate) fn handle_of(
        slf: &Bound<'_, Self>,
        request: &RequestView<'_, '_>,
    ) -> PyResult<Option<u64>> {
        Core::handle_of(Self::core(slf)?.1, request, None)
    }
}

/// Whether a step that computes tokens of the prompt has not ended.
fn awaits_first_output(progress: &RequestProgress) -> bool {
    i64::from(progress.num_computed) - i64::from(progress.num_in_flight)
        < i64::from(progress.num_prompt)
}

fn asks_for_new_only(args: &AllocateArgs<'_>) -> bool {
    args.computed.is_none()
        && args.num_new_computed == 0
        && args.num_external == 0
        && args.num_encoder == 0
        && !args.delay_commit
        && !args.full_sequence_must_fit
        && args.reserved_blocks == 0
}
