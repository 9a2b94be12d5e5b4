"""``HYBRID_BLOCKS_RECORD=FILE``: an engine records its own traffic, without prompts.

The engine's thread puts a finished request into a queue, and `Recorder` writes it in a thread of
its own. The engine never waits for the file: a full queue drops the request and counts it.
"""

from functools import wraps
from pathlib import Path
from time import monotonic, time
from typing import Any, Final

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus

from hybrid_blocks import variables
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.recording.content import BLOCK_TOKENS, Content
from hybrid_blocks.recording.record_file import of_engine, split
from hybrid_blocks.recording.recorder import OF_PROCESS, Finished, Recorder
from hybrid_blocks.units import human, parse_memory
from hybrid_blocks.vllm.log import logger

VARIABLE: Final = variables.RECORD.name
LARGEST_FILE: Final = variables.RECORD_BYTES.name

_FIRST_TOKEN: Final = "_hybrid_blocks_first_token"

_vllm_free_request = Scheduler._free_request
_vllm_take_prefill_stats = Request.take_prefill_stats


def install() -> None:
    """Record every scheduler of this process, if the environment asks for it.

    Raises ``InvalidArgumentError`` for a name or a size that is none.
    """
    if not variables.RECORD.value() or Scheduler._free_request is _free_request:
        return
    try:
        split(_path())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{VARIABLE}={error}") from None
    _largest_file()
    Scheduler._free_request = _free_request  # type: ignore[method-assign]
    Request.take_prefill_stats = _take_prefill_stats  # type: ignore[method-assign]


def uninstall() -> None:
    """Take `install` back and close the file."""
    Scheduler._free_request = _vllm_free_request  # type: ignore[method-assign]
    Request.take_prefill_stats = _vllm_take_prefill_stats  # type: ignore[method-assign]
    while OF_PROCESS:
        if recorder := OF_PROCESS.pop():
            recorder.close()


def _path() -> Path:
    return Path(variables.RECORD.value())


def _largest_file() -> int:
    value = variables.RECORD_BYTES.value()
    try:
        return parse_memory(value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{LARGEST_FILE}={value!r}: {error}") from None


def _recorder(scheduler: Any) -> Recorder | None:
    # Only the process that schedules has finished requests, so that it alone makes a file.
    if not OF_PROCESS:
        try:
            engine = getattr(scheduler.parallel_config, "data_parallel_index", 0)
            path = of_engine(_path(), engine)
            recorder = Recorder(path, _largest_file())
        except OSError as error:
            logger.warning("hybrid_blocks records no traffic: %s", error)
            OF_PROCESS.append(None)
            return None
        OF_PROCESS.append(recorder)
        logger.info(
            "hybrid_blocks records finished requests, without prompts, to %s; at most %s a file",
            path,
            human(_largest_file()),
        )
    return OF_PROCESS[0]


# A second comparison of versions finds vLLM's parameters below the wrappers.
@wraps(_vllm_take_prefill_stats)
def _take_prefill_stats(self: Any) -> Any:
    # Asked for in every step of every request, and there with the first token alone.
    if self.prefill_stats is None or (stats := _vllm_take_prefill_stats(self)) is None:
        return None
    try:
        # The engine hands the events out right after.
        setattr(self, _FIRST_TOKEN, (stats.num_cached_tokens, _scheduled(self), time()))
    except Exception as error:  # noqa: BLE001 - as in `_record`
        _stop(error)
    return stats


def _scheduled(request: Any) -> float | None:
    """When the request first ran; None in an engine that keeps no statistics."""
    for event in request.events:
        if event.type == EngineCoreEventType.SCHEDULED:
            return time() - monotonic() + float(event.timestamp)
    return None


@wraps(_vllm_free_request)
def _free_request(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
    _record(self, request)
    return _vllm_free_request(self, request, *arguments, **options)


def _record(scheduler: Any, request: Any) -> None:
    """Note a finished request. No error here stops the engine."""
    try:
        if recorder := _recorder(scheduler):
            recorder.put(_noted(scheduler, request))
    except Exception as error:  # noqa: BLE001
        _stop(error)


def _stop(error: Exception) -> None:
    if OF_PROCESS == [None]:
        return
    # The file ends with the process: to wait for it here would hold up the engine.
    OF_PROCESS[:] = [None]
    logger.warning(
        "hybrid_blocks stops recording traffic: %s: %s; serving goes on",
        type(error).__name__,
        error,
    )


def _noted(scheduler: Any, request: Any) -> Finished:
    lora = request.lora_request
    stats = request.prefill_stats
    found, scheduled, first_token = getattr(
        request, _FIRST_TOKEN, (stats.num_cached_tokens if stats else None, None, None)
    )
    return Finished(
        arrival=request.arrival_time,
        block_tokens=scheduler.hash_block_size,
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        found_tokens=found,
        hashes=request.block_hashes,
        session=getattr(request, "session_id", None),
        adapter=lora.name if lora else None,
        priority=request.priority,
        aborted=request.status == RequestStatus.FINISHED_ABORTED,
        scheduled=scheduled,
        first_token=first_token,
        finished=time(),
        content=_content(request) if scheduler.hash_block_size > BLOCK_TOKENS else None,
    )


def _content(request: Any) -> Content | None:
    """Return what smaller blocks than the engine's hold; None where embeddings make a prompt."""
    if request.prompt_embeds is not None:
        return None
    lora, salt = request.lora_request, request.cache_salt
    places = ((it.identifier, it.mm_position) for it in request.mm_features)
    # The list is not copied: a finished request's tokens never change.
    return Content(
        tokens=request._all_token_ids,
        num_tokens=request.num_tokens,
        owner=(lora and lora.name, lora and lora.lora_path, salt) if lora or salt else (),
        images=[(name, place.offset, place.length) for name, place in places],
    )
