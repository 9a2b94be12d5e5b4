"""`HybridMultiConnector` beside connectors that answer, fail, stall and lie."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload import multi
from hybrid_blocks.offload.multi import connector as module
from hybrid_blocks.offload.multi import stats
from hybrid_blocks.offload.tiers.rates import RETRY_AFTER
from hybrid_blocks.tools.profile.engine import Groups, NothingToLoad, scheduler_over
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.outputs import KVConnectorOutput

FAR = 1_000


@dataclass
class Script:
    """Answers of a connector, and the calls that it got."""

    answer: Any = (0, False)
    loads: list[tuple[str, int]] = field(default_factory=list)
    asked: int = 0
    finished: list[str] = field(default_factory=list)


class Scripted(NothingToLoad):
    """Answers as its script says; the number of the script is an option."""

    scripts: dict[int, Script] = {}  # noqa: RUF012 - each test has its own
    _cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(self, config: VllmConfig, role: Any, kv_cache_config: Any) -> None:
        super().__init__(config, role, kv_cache_config)
        assert config.kv_transfer_config is not None
        self.script = self.scripts[config.kv_transfer_config.kv_connector_extra_config["script"]]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        self.script.asked += 1
        answer = self.script.answer
        if isinstance(answer, Exception):
            raise answer
        return answer(request, num_computed_tokens) if callable(answer) else answer

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:  # noqa: ARG002
        self.script.loads.append((request.request_id, num_external_tokens))

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        self.script.finished.append(request.request_id)
        return super().request_finished_all_groups(request, block_ids)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return ScriptedStats({"asked": self.script.asked})

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> KVConnectorStats:
        return ScriptedStats(data or {})


class ScriptedStats(KVConnectorStats):
    """Figures of a child."""

    def is_empty(self) -> bool:
        return False


class NotHybrid(KVConnectorBase_V1):
    """Serves one group of blocks alone."""


@dataclass
class Clock:
    """A clock that the test turns."""

    now: float = 10_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


@pytest.fixture
def scripts() -> Iterator[dict[int, Script]]:
    Scripted.scripts.clear()
    yield Scripted.scripts
    Scripted.scripts.clear()


def child(script: int, name: str = "Scripted") -> dict[str, Any]:
    return {
        "kv_connector": name,
        "kv_connector_module_path": __name__,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"script": script},
    }


def attach(config: VllmConfig, children: list[dict[str, Any]], **options: Any) -> None:
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="HybridMultiConnector",
        kv_connector_module_path="hybrid_blocks.offload.multi",
        kv_role="kv_both",
        kv_connector_extra_config={"connectors": children, **options},
    )


def several_of(scripts: dict[int, Script], **options: Any) -> Any:
    """A connector over one child a script, in a scheduler of vLLM's."""
    children = [child(number) for number in scripts]
    groups = Groups("full")
    scheduler = scheduler_over(
        groups.config(512),
        num_requests=8,
        max_model_len=2 * FAR,
        max_num_batched_tokens=4 * FAR,
        hash_block_size=groups.block_size,
        configure=lambda config: attach(config, children, **options),
    )
    return scheduler.connector


def request(name: str = "a", num_tokens: int = FAR) -> Any:
    return SimpleNamespace(request_id=name, num_tokens=num_tokens)


def blocks(*numbers: int) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (list(numbers),))


def measure(connector: Any, clock: Clock, place: int, seconds: float) -> None:
    """Let a child's load of 640 tokens take so long."""
    others = {it: script.answer for it, script in Scripted.scripts.items()}
    for it, script in Scripted.scripts.items():
        script.answer = (640, True) if it == place else (0, False)
    name = f"measured {place} {clock.now}"
    asked = request(name)
    connector.on_new_request(asked)
    assert connector.get_num_new_matched_tokens(asked, 0) == (640, True)
    connector.update_state_after_alloc(asked, blocks(1), 640)
    clock.now += seconds
    connector.update_connector_output(KVConnectorOutput(finished_recving={name}))
    connector.request_finished_all_groups(asked, ([1],))
    for it, script in Scripted.scripts.items():
        script.answer = others[it]


def test_at_first_the_most_tokens_win_and_others_do_not_load(scripts: dict[int, Script]) -> None:
    scripts |= {0: Script((160, True)), 1: Script((480, True)), 2: Script((480, False))}
    connector = several_of(scripts)
    asked = request()
    assert connector.get_num_new_matched_tokens(asked, 0) == (480, True)
    assert connector.get_loaded_kv_cache_group_ids(asked) == (0,)
    connector.update_state_after_alloc(asked, blocks(1), 480)
    assert [it.loads for it in scripts.values()] == [[("a", 0)], [("a", 480)], [("a", 0)]]
    assert connector.get_external_cache_hit_sources(asked, 480) == {
        CacheHitSource.EXTERNAL_UNSPECIFIED: 480
    }
    # The second call of an asynchronous load is for blocks beyond it.
    connector.update_state_after_alloc(asked, blocks(1), 0)
    connector.request_finished_all_groups(asked, ([1],))
    assert all(it.finished == ["a"] for it in scripts.values())


def test_the_choice_is_that_of_a_naive_model(scripts: dict[int, Script], clock: Clock) -> None:
    """Over measured rates, weights, and a known rate of computing."""
    draw = Random(7)
    for _ in range(12):
        scripts.clear()
        scripts |= {number: Script() for number in range(3)}
        weights = [draw.choice([0, 0.5, 1, 4]) for _ in scripts]
        connector = several_of(scripts, weights=weights)
        seconds = [draw.choice([0.01, 0.4, 2.0, 9.0]) for _ in scripts]
        for place, weight in enumerate(weights):
            if weight:
                measure(connector, clock, place, seconds[place])
        per_token = draw.choice([1e-5, 1e-3, 0.1])
        connector._computes._given = 1 / per_token
        for number in range(25):
            for script in scripts.values():
                script.answer = (16 * draw.randrange(0, 60), True)
            asked = request(f"r{number}")
            told, is_async = connector.get_num_new_matched_tokens(asked, 0)
            times = {-1: FAR * per_token}
            for place, script in scripts.items():
                tokens = script.answer[0]
                if tokens and weights[place]:
                    load = connector._children[place].rate.cost(clock.now)
                    assert load[0] <= seconds[place] * 1.001
                    took = (load[0] + load[1] * connector._bytes.of(tokens)) / weights[place]
                    times[place] = took + (FAR - tokens) * per_token
            best = min(times.values())
            chosen = connector._requests_to_connector.get(asked.request_id, -1)
            assert times[chosen] == pytest.approx(best)
            assert told == (0 if chosen < 0 else scripts[chosen].answer[0])
            assert is_async is (chosen >= 0)


@pytest.mark.parametrize("error", [RuntimeError("away"), (-5, True), (FAR + 1, True)])
def test_an_answer_that_no_request_can_load_leaves_the_others(
    scripts: dict[int, Script], clock: Clock, error: Any
) -> None:
    scripts |= {0: Script(error), 1: Script((64, True))}
    connector = several_of(scripts)
    for number in range(10):
        assert connector.get_num_new_matched_tokens(request(f"r{number}"), 0) == (64, True)
        clock.now += 1
    failed = connector._children[0].counts
    if isinstance(error, Exception):
        assert failed["errors"] == scripts[0].asked == 3
        clock.now += RETRY_AFTER
        scripts[0].answer = (640, True)
        assert connector.get_num_new_matched_tokens(request("later"), 0) == (640, True)
    else:
        assert failed["wrong_answers"] == 10


def test_a_connector_that_stalls_holds_a_request_that_others_load_for_the_stated_time(
    scripts: dict[int, Script], clock: Clock
) -> None:
    scripts |= {0: Script((None, False)), 1: Script((64, True))}
    connector = several_of(scripts, wait=0.5)
    asked = request()
    began = clock.now
    while connector.get_num_new_matched_tokens(asked, 0) == (None, False):
        clock.now += 0.125
    assert clock.now - began == 0.5
    assert connector._requests_to_connector == {"a": 1}
    assert connector._children[0].counts["not_awaited"] == 1
    # Another request has its own time, and an answer ends it.
    other = request("b")
    assert connector.get_num_new_matched_tokens(other, 0) == (None, False)
    scripts[0].answer = (128, True)
    assert connector.get_num_new_matched_tokens(other, 0) == (128, True)
    # A preempted request begins again.
    connector.update_state_after_alloc(asked, blocks(1), 64)
    scripts[0].answer = (None, False)
    assert connector.get_num_new_matched_tokens(asked, 0) == (None, False)


def test_no_request_waits_longer_than_computing(scripts: dict[int, Script], clock: Clock) -> None:
    scripts |= {0: Script((None, False)), 1: Script((0, False))}
    connector = several_of(scripts, patience=5)
    for given, longest in ((None, 5.0), (FAR / 2, 2.0)):
        connector._computes._given = given
        asked = request(f"at {given}")
        began = clock.now
        while connector.get_num_new_matched_tokens(asked, 0) == (None, False):
            clock.now += 0.25
        assert clock.now - began == longest
        assert connector.get_num_new_matched_tokens(asked, 0) == (0, False)


def test_a_connector_whose_loads_fail_loses_against_one_that_keeps_its_word(
    scripts: dict[int, Script], clock: Clock
) -> None:
    scripts |= {0: Script((640, True)), 1: Script((320, True))}
    connector = several_of(scripts)
    chosen = []
    for number in range(4):
        asked = request(f"r{number}")
        connector.get_num_new_matched_tokens(asked, 0)
        place = connector._requests_to_connector[asked.request_id]
        connector.update_state_after_alloc(asked, blocks(number + 1), scripts[place].answer[0])
        chosen.append(place)
        is_bad = place == 0
        ended = {asked.request_id}
        output: Any = {"failed_recving" if is_bad else "finished_recving": ended}
        connector.update_connector_output(KVConnectorOutput(**output))
        clock.now += 1
    assert chosen == [0, 0, 1, 1]
    assert connector._children[0].counts["failed_loads"] == chosen.count(0)
    assert not connector._loads


def test_blocks_that_could_not_be_loaded_count_as_a_failed_load(scripts: dict[int, Script]) -> None:
    scripts |= {0: Script((640, False)), 1: Script((16, False))}
    connector = several_of(scripts)
    for name, number in (("a", 3), ("b", 4)):
        asked = request(name)
        assert connector.get_num_new_matched_tokens(asked, 0) == (640, False)
        connector.update_state_after_alloc(asked, blocks(number), 640)
    connector.update_connector_output(KVConnectorOutput(invalid_block_ids={4}))
    assert connector._children[0].counts["failed_loads"] == 1
    assert set(connector._loads) == {"a"}
    connector.request_finished_all_groups(request("a"), ([3],))
    assert not connector._loads


def test_figures_survive_the_way_to_another_process_and_have_a_label_a_connector(
    scripts: dict[int, Script], clock: Clock
) -> None:
    scripts |= {0: Script((160, True)), 1: Script((480, True))}
    connector = several_of(scripts)
    measure(connector, clock, 1, 2.0)
    assert connector.get_num_new_matched_tokens(request(), 0) == (480, True)
    sent = json.loads(json.dumps(connector.get_kv_connector_stats().to_dict()))
    read = multi.HybridMultiConnector.build_kv_connector_stats(sent)
    assert {type(it) for it in read.data.values()} == {ScriptedStats, stats.ChoiceStats}
    assert connector.get_kv_connector_stats().data.keys() == {
        f"{place}:{__name__}:Scripted" for place in (0, 1)
    }, "counts are reported once"
    again = multi.HybridMultiConnector.build_kv_connector_stats(sent)
    told = read.data[stats.CHOICE].aggregate(again.data[stats.CHOICE]).reduce()
    assert told["1 Scripted"]["loaded_tokens"] == 2 * 640
    registry = CollectorRegistry()
    kinds: Any = {
        it: lambda _it=it, **options: _it(registry=registry, **options)
        for it in (Counter, Gauge, Histogram)
    }
    config = VllmConfig()
    attach(config, [child(0), child(1)])
    prom = multi.HybridMultiConnector.build_prom_metrics(config, kinds, ["engine"], {0: ["0"]})
    prom.observe(sent, 0)
    labels = {"engine": "0", "connector": "1 Scripted"}
    name = "hybrid_blocks_connector_loaded_tokens_total"
    assert registry.get_sample_value(name, labels) == 640
    labels["connector"] = "0 Scripted"
    assert registry.get_sample_value("hybrid_blocks_connector_passed_by_total", labels) == 1


def test_connectors_of_one_class_have_ids_of_their_own(scripts: dict[int, Script]) -> None:
    """An id names a connector's region of memory, which another connector must not open."""
    scripts |= {0: Script(), 1: Script(), 2: Script()}
    children = several_of(scripts)._connectors
    ids = [it._vllm_config.kv_transfer_config.engine_id for it in children]
    assert len(set(ids)) == len(ids)


def test_a_connector_that_serves_no_hybrids_is_named(scripts: dict[int, Script]) -> None:
    scripts |= {0: Script()}
    groups = Groups("full")
    with pytest.raises(InvalidArgumentError, match="NotHybrid serves no hybrid models"):
        scheduler_over(
            groups.config(64),
            num_requests=2,
            max_model_len=64,
            max_num_batched_tokens=64,
            hash_block_size=groups.block_size,
            configure=lambda it: attach(it, [child(0), child(0, "NotHybrid")]),
        )


def test_vllms_name_stands_for_it_too() -> None:
    config = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_connector_module_path="hybrid_blocks.offload.multi",
        kv_role="kv_both",
        kv_connector_extra_config={"connectors": [{"kv_connector": "NixlConnector"}]},
    )
    assert multi.MultiConnector is multi.HybridMultiConnector
    assert config.has_connector("NixlConnector")
