"""The lives that are recorded: one line for an engine, then one a call."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from hybrid_blocks._core import GroupKind
from hybrid_blocks.vllm.manager.geometry import geometry
from oracle.engines import Engine
from oracle.life import Life
from oracle.twin import RefusedError
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.request import Request

from .recorder import Recorder, Step

NUM_LIVES = 2
_NUM_ACTIONS = 40
_ACTIONS = (
    ("arrive",) * 4
    + ("step",) * 12
    + ("abort", "preempt", "evict", "reset", "look", "recede", "pin")
)


@dataclass
class RecordedLife(Life):
    """A life over the recorder, which now and then does what schedulers seldom do."""

    pinned: list[Any] = field(default_factory=list)

    def arrive(self) -> None:
        """A request arrives. What it reports of hits is not the core's business."""
        super().arrive()
        self.waiting[-1].kv_cache_report_mode = "incremental"

    def _external(self, request: Request, num_local: int) -> int:
        """Tokens that a connector has, recurrent states included."""
        return self._external_blocks(request, num_local) if self.random.random() < 0.15 else 0

    def pin(self) -> None:
        """A connector reads blocks of a request, at its end seldom, until it has stored them."""
        self.unpin()
        if self.running:
            request = self.random.choice(self.running)
            table = self.random.choice(self.twin.managers[0].get_blocks(request.request_id).blocks)
            read = table if self.random.random() < 0.3 else table[: len(table) // 2]
            if pinned := [block for block in read if not block.is_null]:
                self.twin.call("touch", pinned)
                self.pinned = pinned

    def unpin(self) -> None:
        pinned, self.pinned = self.pinned, []
        if pinned:
            pool = self.twin.managers[0].block_pool
            self.twin.run("free_blocks", lambda *_: pool.free_blocks(pinned))

    def recede(self) -> None:
        """Give back blocks as an out-of-order call of a scheduler does."""
        if self.running:
            request = self.random.choice(self.running)
            processed = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
            self.twin.call("remove_skipped_blocks", request.request_id, processed)

    def rest(self) -> None:
        """All requests end; the prefix cache stays, or is dropped."""
        for request in [*self.running, *self.waiting]:
            self._finish(request)
        self.unpin()
        self.in_flight.clear()
        while self.deferred:
            self._hand_over()


def record(name: str, engine: Engine, seed: int) -> list[Step]:
    """Return a life's lines. The same arguments give the same lines under one vLLM."""
    init_none_hash(sha256)
    draw = Random(f"{name} {seed}")
    arguments = engine.arguments()
    arguments["enable_kv_cache_events"] = seed % 4 != 3
    manager = KVCacheManager(**arguments)
    recorder = Recorder(manager, draw)
    life = RecordedLife(engine, recorder, draw, is_async=draw.random() < 0.5)  # type: ignore[arg-type]
    with suppress(RefusedError):
        for action in [
            "arrive",
            "arrive",
            *draw.choices(_ACTIONS, k=_NUM_ACTIONS),
            "rest",
            "reset",
        ]:
            if action == "step":
                life.step(draw.choice((4, 16, 24, 64, 64)))
            else:
                getattr(life, action)()
            recorder.look()
    return [_header(name, engine, seed, manager), *recorder.steps]


def _header(name: str, engine: Engine, seed: int, manager: KVCacheManager) -> dict[str, Any]:
    config = asdict(geometry(manager, use_eagle=engine.use_eagle))
    # Level `natural` alone sets these fields, or all recorded lives but those of rings share them.
    for field_of_slabs in ("checkpoints", "prefill_checkpoint_alignment", "zeroes_blocks"):
        del config[field_of_slabs]
    for group in config["groups"]:
        del group["pool"], group["kept_pool"], group["is_cached"]
        # Recorded lives have a field for each number.
        kind = GroupKind(group["kind"])
        numbers: dict[str, Any] = dict.fromkeys(("window", "extra_retained"), 0)
        numbers |= {"num_speculative": 0, "checkpoint_alignment": 0, "has_checkpoint_blocks": 0}
        group.update(numbers | kind.parameters | {"kind": kind.name})
        group["checkpoint_alignment"] = group["checkpoint_alignment"] or None
        group["has_checkpoint_blocks"] = bool(group["has_checkpoint_blocks"])
    return {"life": name, "seed": seed, "num_blocks": engine.num_blocks, "config": config}
