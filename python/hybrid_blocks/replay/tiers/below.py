"""The tiers below the device as a replay runs them, with any manager's books."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingSpec, OffloadKey, ReqContext

from hybrid_blocks.offload.groups import Groups
from hybrid_blocks.replay.tiers.ledger import Ledger


@dataclass(frozen=True)
class Finished:
    """The chunks of an ended request that were stored: keys, and the tokens of each."""

    keys: Sequence[bytes]
    tokens: Sequence[int]


@dataclass(frozen=True)
class Below:
    """A manager of tiers below the device, and what is seen of it.

    ``is_on_host`` says whether host memory holds a chunk, ``on_disk`` which of some the disk holds.
    ``finished`` are the requests that ended, ``scheduler`` makes the connector's scheduler side.
    """

    spec: OffloadingSpec
    manager: OffloadingManager
    groups: Groups
    ledger: Ledger
    finished: list[Finished]
    is_on_host: Callable[[bytes], bool]
    on_disk: Callable[[Sequence[bytes]], Sequence[bool]]
    close: Callable[[], None]
    scheduler: Callable[..., Any] = OffloadingConnectorScheduler


def watch(manager: OffloadingManager, ledger: Ledger) -> list[Finished]:
    """Note in a ledger what a manager stores and loads, and return a list of ended requests.

    Of these it keeps the chunks that were ever stored: others can be in no tier.
    """
    finished: list[Finished] = []
    stored: dict[bytes, bytes] = {}
    prepare_load, prepare_store = manager.prepare_load, manager.prepare_store
    end = manager.on_request_finished

    def load(keys: Collection[OffloadKey], context: ReqContext) -> object:
        ledger.load(keys)
        return prepare_load(keys, context)

    def store(keys: Collection[OffloadKey], context: ReqContext) -> object:
        output = prepare_store(keys, context)
        ledger.store(None if output is None else output.keys_to_store)
        stored.update((key, key) for key in (output.keys_to_store if output else ()))
        return output

    def finish(context: ReqContext) -> None:
        positions = context._offload_key_positions
        # One object for a key of many requests.
        held = [(stored[key], tokens) for key, tokens in positions.items() if key in stored]
        finished.append(Finished([key for key, _ in held], [tokens for _, tokens in held]))
        end(context)

    # Not a class around it: vLLM's scheduler and the tiers call one another's methods.
    manager.prepare_load = load  # type: ignore[method-assign, assignment]
    manager.prepare_store = store  # type: ignore[method-assign, assignment]
    manager.on_request_finished = finish  # type: ignore[method-assign, assignment]
    return finished
