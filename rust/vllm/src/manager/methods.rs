//! [`RustKVCacheManager`]: what vLLM's scheduler calls for every request of every step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use hybrid_blocks::vllm::{AllocateArgs, RequestProgress, TokenCounts};
use hybrid_blocks::{BlockId, ByteSizes, GroupId, HitLimit, Store};
use hybrid_blocks_interop::{core_error, integrity_error};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use super::allocate::Room;
use super::client_hints::ClientHint;
use super::core::{Core, Look, Opened, RustKVCacheManager, found_or_added};
use super::result::{AllocatedBlocks, GroupPools, id_lists, ids_of, ids_of_groups};
use crate::blocks::Blocks;
use crate::engine::Manager;
use crate::hooks::ManagerHooks;
use crate::request::{RequestView, at_least_none};

/// A copy inside a pool: source and destination.
type Plain = (u32, u32);
/// A request's id, a group, the tokens up to a state, and its source and destination.
type Checkpoint = (String, u32, u32, u32, u32);
/// A copy between the two pools of a group: source, destination, the group, and whether it leaves a checkpoint.
type Converting = (u32, u32, u32, bool);
/// Copies of both kinds, and the blocks that are owned for their sake.
type Copies<'py> = (Vec<Plain>, Vec<Converting>, Vec<Bound<'py, PyList>>);

#[pymethods]
impl RustKVCacheManager {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self(OnceLock::new())
    }

    fn _start<'py>(
        &self,
        blocks: &Bound<'py, Blocks>,
        pools: Vec<Py<Blocks>>,
        kept_pools: Vec<Py<Blocks>>,
        waiting: Vec<Py<PyAny>>,
        class: &Bound<'py, PyType>,
    ) -> PyResult<Bound<'py, AllocatedBlocks>> {
        let py = blocks.py();
        let pools: GroupPools = pools.into();
        let empty = AllocatedBlocks {
            ids: vec![Vec::new(); pools.len()],
            pools: Arc::clone(&pools),
            class: class.clone().unbind(),
        };
        let empty = Bound::new(py, empty)?;
        let core = Core {
            blocks: blocks.clone().unbind(),
            pools,
            kept_pools: kept_pools.into(),
            empty: empty.clone().unbind(),
            class: class.clone().unbind(),
            waiting,
            configured: OnceLock::new(),
            keeping: Mutex::default(),
        };
        match self.0.set(core) {
            Ok(()) => Ok(empty),
            Err(_) => Err(integrity_error("the manager is started already".to_owned())),
        }
    }

    #[pyo3(signature = (
        request, num_new_tokens, num_new_computed_tokens = 0, new_computed_blocks = None,
        num_lookahead_tokens = 0, num_external_computed_tokens = 0, delay_cache_blocks = false,
        num_encoder_tokens = 0, full_sequence_must_fit = false, reserved_blocks = 0,
        has_scheduled_reqs = true, skip_zeroing_group_ids = Vec::new()
    ))]
    #[expect(clippy::too_many_arguments, reason = "those of vLLM's allocate_slots")]
    fn allocate_slots<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
        num_new_tokens: u32,
        num_new_computed_tokens: u32,
        new_computed_blocks: Option<&Bound<'py, PyAny>>,
        num_lookahead_tokens: u32,
        num_external_computed_tokens: u32,
        delay_cache_blocks: bool,
        num_encoder_tokens: u32,
        full_sequence_must_fit: bool,
        reserved_blocks: u64,
        has_scheduled_reqs: bool,
        skip_zeroing_group_ids: Vec<u32>,
    ) -> PyResult<Option<Bound<'py, AllocatedBlocks>>> {
        let (py, (core, _)) = (slf.py(), Self::core(slf)?);
        if num_new_tokens == 0 && num_external_computed_tokens == 0 && num_new_computed_tokens == 0
        {
            return Err(PyValueError::new_err(
                "num_new_tokens must be greater than 0 when there are no computed tokens to adopt",
            ));
        }
        let computed = match new_computed_blocks {
            Some(blocks) if !blocks.is(&core.empty) => Some(ids_of(blocks)?),
            _ => None,
        };
        let args = AllocateArgs {
            num_new: num_new_tokens,
            num_new_computed: num_new_computed_tokens,
            computed: computed.as_deref(),
            num_lookahead: num_lookahead_tokens,
            num_external: num_external_computed_tokens,
            num_encoder: num_encoder_tokens,
            delay_commit: delay_cache_blocks,
            full_sequence_must_fit,
            reserved_blocks,
            withheld_blocks: 0,
            has_scheduled: has_scheduled_reqs,
            unzeroed_groups: &skip_zeroing_group_ids,
        };
        let request = RequestView::new(request)?;
        match Self::allocate(slf, &request, None, request.progress()?, &args)? {
            Room::Unchanged => Ok(Some(core.empty.bind(py).clone())),
            Room::New(ids) => core.result(py, &core.pools, ids).map(Some),
            Room::None => Ok(None),
        }
    }

    #[pyo3(signature = (request, max_cache_hit_length = None))]
    fn get_computed_blocks<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
        max_cache_hit_length: Option<u32>,
    ) -> PyResult<(Bound<'py, AllocatedBlocks>, u32, u32)> {
        let py = slf.py();
        let (core, configured) = Self::core(slf)?;
        let view = RequestView::new(request)?;
        if !configured.enable_caching {
            return Ok((core.empty.bind(py).clone(), 0, 0));
        }
        if let Some(hint) = ClientHint::read(slf, &view)? {
            Core::change(slf, &view, None, |manager, handle| hint.tell(manager, handle))?;
        }
        if view.skips_prefix_cache()? {
            return Ok((core.empty.bind(py).clone(), 0, 0));
        }
        let num_tokens = view.num_tokens()?;
        let progress = if configured.places_checkpoints {
            RequestProgress {
                num_tokens,
                num_prompt: view.num_prompt()?,
                was_preempted: view.num_preemptions()? > 0,
                ..RequestProgress::default()
            }
        } else {
            RequestProgress { num_tokens, ..RequestProgress::default() }
        };
        // The last token is always computed, for its logits.
        let limit = max_cache_hit_length.unwrap_or(num_tokens.saturating_sub(1));
        let id = view.id()?;
        let id = id.to_str()?;
        let Opened { handle, digests } = core.open(configured, &view, id, None)?;
        let hit = core.engine().request(py, id, |manager| {
            *manager.digests_mut(handle)? = digests;
            if manager.store().is_slabbed() {
                manager.longest_usable_hit(handle, limit, &progress)
            } else {
                Ok(manager.longest_hit(handle, limit))
            }
        })?;
        let hit = hit.map_err(core_error)?;
        let junction = if hit.num_uncached > 0 { hit.num_tokens + hit.num_uncached } else { 0 };
        let blocks = core.result(py, &core.kept_pools, hit.blocks)?;
        if configured.enable_events && hit.num_tokens > 0 {
            ManagerHooks(slf).report_hit(request, &blocks, hit.num_tokens)?;
        }
        Ok((blocks, hit.num_tokens, junction))
    }

    fn free(slf: &Bound<'_, Self>, request: &Bound<'_, PyAny>) -> PyResult<()> {
        let (_, configured) = Self::core(slf)?;
        let request = RequestView::new(request)?;
        let id = request.id()?;
        Self::settle(slf, &request)?;
        if configured.heeds_sessions && request.is_finished()? {
            return Self::finish(slf, &request);
        }
        Self::free_by_id(slf, &id)
    }

    /// A request waits for its client: no other request needs to wait for it.
    fn _pause(slf: &Bound<'_, Self>, request_id: &Bound<'_, PyString>) -> PyResult<()> {
        Self::on_known(slf, request_id, Manager::pause).map(drop)
    }

    #[pyo3(name = "_free")]
    fn free_by_id(slf: &Bound<'_, Self>, request_id: &Bound<'_, PyString>) -> PyResult<()> {
        Self::change_known(slf, request_id, Manager::free)
    }

    fn pop_blocks_for_free<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let request = RequestView::new(request)?;
        Self::settle(slf, &request)?;
        Self::pop(slf, &request.id()?, request.is_finished()?)
    }

    #[pyo3(name = "_pop")]
    fn pop_by_id<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyList>> {
        Self::pop(slf, request_id, true)
    }

    fn cache_blocks(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, PyAny>,
        num_computed_tokens: i64,
    ) -> PyResult<()> {
        let num_computed = at_least_none(num_computed_tokens)?;
        Self::commit(slf, &RequestView::new(request)?, None, num_computed)
    }

    #[pyo3(signature = (request_id, processed_computed_tokens, num_prompt_tokens = None))]
    fn remove_skipped_blocks(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        processed_computed_tokens: i64,
        num_prompt_tokens: Option<u32>,
    ) -> PyResult<()> {
        let _ = num_prompt_tokens;
        let processed = at_least_none(processed_computed_tokens)?;
        Self::change_known(slf, request_id, |it, handle| it.release_skipped(handle, processed))
    }

    fn get_blocks<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, AllocatedBlocks>> {
        let (core, _) = Self::core(slf)?;
        core.result(slf.py(), &core.pools, Self::tables(slf, request_id)?)
    }

    fn get_block_ids<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        id_lists(slf.py(), Self::tables(slf, request_id)?.iter().map(Vec::as_slice))
    }

    pub(crate) fn estimate_cached_tokens(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, PyAny>,
    ) -> PyResult<u32> {
        let id = RequestView::new(request)?.id()?;
        let tokens = Self::on_known(slf, &id, |it, handle| it.num_cached_tokens(handle))?;
        Ok(tokens.unwrap_or(0))
    }

    fn take_new_block_ids(slf: &Bound<'_, Self>) -> PyResult<Vec<u32>> {
        let (_, configured) = Self::core(slf)?;
        Self::on_manager(slf, |manager| {
            if manager.store().is_slabbed() {
                manager.take_started_slabs(configured.zeroes_blocks)
            } else {
                manager.take_new_blocks().into_iter().map(|block| block.0).collect()
            }
        })
    }

    fn record_blocks_for_zeroing(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        start_token: u32,
    ) -> PyResult<()> {
        Self::change_known(slf, request_id, |it, handle| it.zero_again(handle, start_token))
    }

    fn take_boundary_state_offloads<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let py = slf.py();
        let states = Self::on_manager(slf, |manager| {
            let states = manager.take_boundary_states().into_iter();
            let named = states.map(|state| (manager.id(state.handle).map(str::to_owned), state));
            named.collect::<Vec<_>>()
        })?;
        let offloads = PyDict::new(py);
        for (request_id, state) in states {
            let entry = (state.group.0, state.block.0, state.num_tokens);
            let entries = offloads
                .call_method1(intern!(py, "setdefault"), (request_id, PyList::empty(py)))?;
            entries.cast::<PyList>()?.append(entry)?;
        }
        Ok(offloads)
    }

    fn finalize_partial_tail_offloads(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(u32, u32, u32)>> {
        let request = RequestView::new(request)?;
        let progress = request.progress()?;
        let states = Self::on_known(slf, &request.id()?, |manager, handle| {
            manager.take_final_states(handle, progress.num_computed, progress.num_in_flight)
        })?;
        let states = states.into_iter().flatten();
        Ok(states.map(|(group, block, tokens)| (group.0, block.0, tokens)).collect())
    }

    fn new_step_starts(slf: &Bound<'_, Self>) -> PyResult<()> {
        Core::start_step(slf)
    }

    /// Pairs of blocks, source and destination, that the worker must copy.
    fn _take_copies<'py>(slf: &Bound<'py, Self>) -> PyResult<Vec<Bound<'py, PyList>>> {
        let pairs = Self::on_manager(slf, Manager::take_copies)?;
        let blocks = Self::core(slf)?.0.blocks.bind(slf.py());
        pairs.into_iter().map(|(from, to)| Blocks::views(blocks, &[from, to])).collect()
    }

    /// Ids to copy from and to, and the blocks that are owned for their sake until the caller frees them. Copies that
    /// convert are apart.
    fn _take_disjoint_copies<'py>(slf: &Bound<'py, Self>) -> PyResult<Copies<'py>> {
        let (py, (core, _)) = (slf.py(), Self::core(slf)?);
        let (mut plain, mut converting) = (Vec::new(), Vec::new());
        let copies = Self::on_manager(slf, Manager::take_owned_copies)?;
        let (copies, asked) = copies.map_err(core_error)?;
        for copy in copies {
            let (src, dst) = (copy.src.0, copy.dst.0);
            if copy.src_pool == copy.dst_pool {
                plain.push((src, dst));
            } else {
                let kept = core.kept_pools[copy.group.index()].get().pool();
                converting.push((src, dst, copy.group.0, copy.dst_pool == kept));
            }
        }
        let owned = asked.iter().flat_map(|copy| {
            let pools = [&core.pools[copy.group.index()], &core.kept_pools[copy.group.index()]];
            [(copy.src_pool, copy.src), (copy.dst_pool, copy.dst)].map(|(pool, block)| {
                let blocks = pools[usize::from(pools[0].get().pool() != pool)].bind(py);
                Blocks::views(blocks, &[block])
            })
        });
        Ok((plain, converting, owned.collect::<PyResult<_>>()?))
    }

    /// States that workers keep from inside the next forward pass: request, group, tokens, source and destination.
    /// The blocks are owned once more, until the caller frees them.
    fn _take_prefill_checkpoints<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Vec<Checkpoint>, Vec<Bound<'py, PyList>>)> {
        let (py, (core, _)) = (slf.py(), Self::core(slf)?);
        let taken = core.engine().manager(py, |manager| {
            let mut named = Vec::new();
            for it in manager.take_prefill_checkpoints() {
                let pool = core.kept_pools[it.group.index()].get().pool();
                manager.store_mut().touch(pool, it.dst)?;
                named.push((manager.id(it.handle).unwrap_or_default().to_owned(), it));
            }
            Ok(named)
        })?;
        let taken = taken.map_err(core_error)?;
        let owned = taken
            .iter()
            .map(|(_, it)| Blocks::views(core.kept_pools[it.group.index()].bind(py), &[it.dst]));
        let owned = owned.collect::<PyResult<_>>()?;
        let rows =
            taken.into_iter().map(|(id, it)| (id, it.group.0, it.position, it.src.0, it.dst.0));
        Ok((rows.collect(), owned))
    }

    fn _give_up_copies(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::on_manager(slf, Manager::give_up_copies_before_reset)?.map_err(core_error)
    }

    fn next_boundary(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, PyAny>,
        start: u32,
        end: u32,
    ) -> PyResult<u32> {
        let (core, configured) = Self::core(slf)?;
        let request = RequestView::new(request)?;
        let progress = request.complete(request.progress()?, configured.heeds_boundary)?;
        let hint = Core::handle_of(configured, &request, None)?;
        let id = request.id()?;
        let id = id.to_str()?;
        let end = core.engine().request(slf.py(), id, |manager| {
            let handle = found_or_added(manager, hint, id);
            manager.next_boundary(handle, &progress, start, end)
        })?;
        end.map_err(core_error)
    }

    fn waits_for_checkpoint(slf: &Bound<'_, Self>, request: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (_, configured) = Self::core(slf)?;
        let request = RequestView::new(request)?;
        if Self::on_manager(slf, |manager| !manager.expects_checkpoints())?
            || request.skips_prefix_cache()?
        {
            return Ok(false);
        }
        let progress = request.complete(request.progress()?, configured.heeds_boundary)?;
        Core::change(slf, &request, None, |manager, handle| {
            Ok(manager.hits_more_later(handle, &progress))
        })
    }

    fn num_uncached(slf: &Bound<'_, Self>, request: &Bound<'_, PyAny>) -> PyResult<u32> {
        let (_, configured) = Self::core(slf)?;
        let request = RequestView::new(request)?;
        if !configured.enable_caching || request.skips_prefix_cache()? {
            return request.num_tokens();
        }
        let progress = request.complete(request.progress()?, configured.heeds_boundary)?;
        Core::change(slf, &request, None, |manager, handle| {
            Ok(manager.num_uncached(handle, &progress))
        })
    }

    fn is_stuck(slf: &Bound<'_, Self>, request: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = RequestView::new(request)?.id()?;
        Ok(Self::on_known(slf, &id, |it, handle| it.is_stuck(handle))?.unwrap_or(false))
    }

    /// Counts since the start, by name.
    fn _counts(slf: &Bound<'_, Self>) -> PyResult<Vec<(&'static str, u64)>> {
        let stats = Self::on_manager(slf, |manager| manager.stats())?;
        Ok(vec![
            ("forks", stats.forks),
            ("prompt", stats.prompt),
            ("followed", stats.followed),
            ("loaded", stats.loaded),
            ("kept", stats.kept),
            ("superseded", stats.superseded),
            ("evicted", stats.evicted),
            ("given_up", stats.given_up),
            ("no_room", stats.no_room),
            ("shortened", stats.shortened),
        ])
    }

    /// Uses of the slabs in which a block has an owner, in bytes by part. All blocks of a request are needed
    /// if `num_computed` does not tell how many of its tokens are computed.
    fn _reserved_bytes(
        slf: &Bound<'_, Self>,
        slab_bytes: u64,
        block_bytes: Vec<u64>,
        num_computed: HashMap<String, u32>,
    ) -> PyResult<Vec<(&'static str, u64)>> {
        let sizes = ByteSizes { slab: slab_bytes, blocks: &block_bytes };
        let reserved = Self::on_manager(slf, |manager| {
            let computed = |handle| num_computed.get(manager.id(handle)?).copied();
            manager.reserved_bytes(sizes, computed)
        })?;
        Ok(reserved.map_err(core_error)?.parts().to_vec())
    }

    /// Look-ups since the start, by what ended them.
    fn _hit_limits(slf: &Bound<'_, Self>) -> PyResult<Vec<(&'static str, u64)>> {
        let limits = Self::on_manager(slf, |manager| manager.stats().limits)?;
        Ok(HitLimit::ALL.iter().map(|limit| limit.name()).zip(limits).collect())
    }

    /// Leading tokens whose full attention a request's last look-up found.
    fn _attention_found(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
    ) -> PyResult<Option<u32>> {
        let found = Self::on_known(slf, request_id, |it, handle| it.attention_found(handle))?;
        Ok(found.flatten())
    }

    #[expect(clippy::too_many_arguments, reason = "those of vLLM's coordinator")]
    fn _demand(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        num_tokens: u32,
        new_computed_blocks: &Bound<'_, PyAny>,
        total_computed_tokens: u32,
        num_local_computed_tokens: u32,
        num_tokens_main_model: u32,
        apply_admission_cap: bool,
        prefill_end: u32,
        num_encoder_tokens: u32,
    ) -> PyResult<i64> {
        let (core, _) = Self::core(slf)?;
        let computed = ids_of_groups(new_computed_blocks)?;
        let counts = TokenCounts {
            num_tokens,
            num_main: num_tokens_main_model,
            num_computed: total_computed_tokens,
            num_local: num_local_computed_tokens,
            num_encoder: num_encoder_tokens,
            prefill_end,
            is_admission: apply_admission_cap,
        };
        let id = request_id.to_str()?;
        let demand = core.engine().request(slf.py(), id, |manager| {
            let handle = manager.add(id);
            manager.demand(handle, Some(&computed), counts)
        })?;
        demand.map_err(core_error)
    }

    /// A group's blocks of a request; `None` for a request without any.
    fn _blocks_of<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
        group: u32,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (core, _) = Self::core(slf)?;
        let blocks = |it: &mut Manager, handle| it.blocks(handle, GroupId(group)).to_vec();
        let ids = Self::on_known(slf, request_id, blocks)?.filter(|ids| !ids.is_empty());
        let Some(pool) = core.pools.get(group as usize) else { return Ok(None) };
        ids.map(|ids| Blocks::views(pool.bind(slf.py()), &ids)).transpose()
    }

    fn _num_cached_blocks(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        group: u32,
    ) -> PyResult<Option<u32>> {
        let cached = |it: &mut Manager, handle| it.num_cached_blocks(handle, GroupId(group));
        Ok(Self::on_known(slf, request_id, cached)?.flatten())
    }

    fn _holders(slf: &Bound<'_, Self>, group: u32) -> PyResult<Vec<String>> {
        Self::on_manager(slf, |it| it.holders(GroupId(group)).map(str::to_owned).collect())
    }

    /// Tokens and position of the checkpoint that a request's chunk writes.
    fn _checkpoint(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        group: u32,
    ) -> PyResult<Option<(u32, u32)>> {
        let checkpoint = |it: &mut Manager, handle| it.checkpoint(handle, GroupId(group));
        Ok(Self::on_known(slf, request_id, checkpoint)?.flatten())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(core) = self.0.get() else { return Ok(()) };
        visit.call(&core.blocks)?;
        core.pools.iter().chain(&*core.kept_pools).try_for_each(|pool| visit.call(pool))?;
        visit.call(&core.empty)?;
        core.waiting.iter().try_for_each(|state| visit.call(state))
    }
}

impl RustKVCacheManager {
    /// Keeps the states of a request that is about to give its blocks back, over slabs.
    fn settle(slf: &Bound<'_, Self>, request: &RequestView<'_, '_>) -> PyResult<()> {
        let (_, configured) = Self::core(slf)?;
        let is_slabbed = |manager: &mut Manager, _| manager.store().is_slabbed();
        if Self::on_known(slf, &request.id()?, is_slabbed)? == Some(true) {
            let progress = request.complete(request.progress()?, configured.heeds_boundary)?;
            Core::change(slf, request, None, |manager, handle| manager.settle(handle, &progress))?;
        }
        Ok(())
    }

    /// Forgets a request, and hands over its blocks of all pools, to be freed later.
    fn pop<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
        is_over: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let (core, _) = Self::core(slf)?;
        let held = Self::on_known(slf, request_id, |it, handle| it.pop(handle, is_over))?;
        let views = PyList::empty(slf.py());
        for run in held.unwrap_or_default().chunk_by(|one, other| one.0 == other.0) {
            let pool = core.pools.iter().find(|pool| pool.get().pool() == run[0].0);
            let pool = pool.unwrap_or(&core.blocks).bind(slf.py());
            let ids: Vec<BlockId> = run.iter().map(|&(_, id)| id).collect();
            views.call_method1(intern!(slf.py(), "extend"), (Blocks::views(pool, &ids)?,))?;
        }
        Ok(views)
    }

    /// Frees a request that is over. Without a look-up before, its hint still applies to its
    /// session.
    fn finish(slf: &Bound<'_, Self>, request: &RequestView<'_, '_>) -> PyResult<()> {
        let id = request.id()?;
        if Self::on_known(slf, &id, |_, _| ())?.is_none() {
            let Some(hint) = ClientHint::read(slf, request)? else { return Ok(()) };
            Core::change(slf, request, None, |manager, handle| hint.tell(manager, handle))?;
        }
        Self::change_known(slf, &id, Manager::finish)
    }

    /// Enters the blocks that the computed tokens complete into the prefix cache. `hint` is as for
    /// an allocation.
    #[inline]
    pub(crate) fn commit(
        slf: &Bound<'_, Self>,
        request: &RequestView<'_, '_>,
        hint: Option<u64>,
        num_computed: u32,
    ) -> PyResult<()> {
        let (core, configured) = Self::core(slf)?;
        if !configured.enable_caching {
            return Ok(());
        }
        let mut taken = None;
        if let Some(handle) = Core::handle_of(configured, request, hint)? {
            match core.look(slf.py(), handle, |it| it.is_commit_noop(handle, num_computed))? {
                Look::Unchanged => return Ok(()),
                Look::Open(opened) => taken = Some(opened),
                Look::Unknown => {}
            }
        }
        let progress = request.complete(request.progress()?, configured.heeds_boundary)?;
        Core::change(slf, request, taken, |manager, handle| {
            manager.commit(handle, &progress, num_computed)
        })
    }

    /// A request's block tables, by group.
    fn tables(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
    ) -> PyResult<Vec<Vec<BlockId>>> {
        let (_, configured) = Self::core(slf)?;
        let groups = 0..configured.num_groups;
        let tables = Self::on_known(slf, request_id, |manager, handle| {
            groups.map(|group| manager.blocks(handle, GroupId(group)).to_vec()).collect()
        })?;
        Ok(tables.unwrap_or_else(|| vec![Vec::new(); configured.num_groups as usize]))
    }
}
