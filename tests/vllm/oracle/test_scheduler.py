"""vLLM's own scheduler is the oracle of the one that decodes in one call."""

from random import Random
from typing import Any

import pytest
from examples import SEEDED, examples
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.level import VARIABLE
from hybrid_blocks.vllm.scheduler import batching
from hybrid_blocks.vllm.scheduler import one_call as batched
from hybrid_blocks.vllm.surface.support import ordered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import RequestStatus

from .engines import ENGINES, tight
from .scheduler_pair import Pair, Setup, make_ours, ran

ACTIONS = ["step"] * 40 + ["arrive"] * 12 + ["abort", "reset", "pause"]

PLAIN_ENGINES = [
    name
    for name, engine in ENGINES.items()
    if not (engine.use_eagle or engine.num_spec_tokens or engine.num_prefill_lookahead)
    and not engine.num_hash_lookahead
    # Ranks are given to a manager; a scheduler asks its whole configuration for them.
    and engine.dcp == engine.pcp == 1
]


@pytest.fixture(autouse=True)
def level_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "manager")


def live(setup: Setup, seed: int, num_actions: int = 100) -> Pair:
    pair = Pair(setup, Random(seed))
    pair.run(Random(seed + 1).choices(ACTIONS, k=num_actions))
    return pair


@pytest.mark.parametrize("name", PLAIN_ENGINES)
@settings(max_examples=examples(5), phases=SEEDED, suppress_health_check=list(HealthCheck))
@given(
    policy=st.sampled_from(("fcfs", "priority")),
    seed=st.integers(0, 2**32),
    is_async=st.booleans(),
    is_tight=st.booleans(),
)
def test_every_step_of_a_random_life_is_vllms(
    name: str, policy: str, seed: int, is_async: bool, is_tight: bool
) -> None:
    engine = tight(ENGINES[name]) if is_tight else ENGINES[name]
    threshold = (0, 0, 12)[seed % 3]
    live(Setup(engine, is_async, policy, long_prefill_token_threshold=threshold), seed)


FEATURED_ENGINES = ["full", "full-sliding", "mamba-align-0", "mamba-partial-0"]
DRAFT_ENGINES = [
    name
    for name, engine in ENGINES.items()
    if engine.num_spec_tokens and not engine.use_eagle and engine.dcp == engine.pcp == 1
]
IS_BEFORE_0_32 = ordered(releases.installed.name) < (0, 32)
IS_BEFORE_0_33 = ordered(releases.installed.name) < (0, 33)
EAGLE_ENGINES = ["full-eagle", "full-sliding-eagle", "mamba-partial-eagle", "ring-eagle"]
FEATURES = ["lora", "images", "logprobs", "grammar", "connector", "pipeline", "cadence", "encoder"]
MINOR = ["v2", "masks", "nans", "metrics", "wide", "residency"]


def with_features(*features: str, seed: int) -> frozenset[str]:
    """Return the named features, and half of the time some that are drawn."""
    draw = Random(seed)
    beside = draw.sample(FEATURES, k=draw.randrange(4)) if seed % 2 else []
    minor = [name for name in MINOR if draw.random() < 0.3]
    chosen = {*features, *beside, *minor}
    if "encoder" in chosen:
        chosen.add("images")
    if IS_BEFORE_0_33 and chosen & {"encoder", "pipeline"}:
        # vLLM forgets the LoRA of a running request that sits out a step, and admits too many.
        chosen.discard("lora")
    return frozenset(chosen)


def feature_life(name: str, features: frozenset[str], seed: int, **options: Any) -> None:
    # Beside a connector vLLM's own manager of states may raise where it runs out of blocks.
    is_tight = seed % 3 == 0 and not ("connector" in features and "mamba" in name)
    engine = tight(ENGINES[name]) if is_tight else ENGINES[name]
    if IS_BEFORE_0_32 and options.get("num_drafts", engine.num_spec_tokens):
        # vLLM asserts that masks of sampled tokens come without drafts.
        features -= {"masks"}
    policy = "priority" if seed % 7 == 0 else "fcfs"
    pair = Pair(Setup(engine, policy=policy, features=features, **options), Random(seed))
    assert batching.unsupported_reason(pair.ours) is None
    # Loads in flight keep their blocks, which vLLM does not reset.
    actions = [action for action in ACTIONS if action != "reset" or "connector" not in features]
    pair.run(Random(seed + 1).choices(actions, k=100))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("is_async", [False, True])
@settings(max_examples=examples(5), phases=SEEDED, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(FEATURED_ENGINES), seed=st.integers(0, 2**32))
def test_every_step_with_a_feature_is_vllms(
    feature: str, is_async: bool, name: str, seed: int
) -> None:
    feature_life(name, with_features(feature, seed=seed), seed, is_async=is_async)


@pytest.mark.parametrize(
    ("name", "seed", "num_drafts"),
    [("mamba-align-0", 3772999894, 0), ("mamba-align-3", 1631539427, 3)],
)
def test_a_prompts_end_is_committed_by_each_step_before_its_first_output(
    name: str, seed: int, num_drafts: int
) -> None:
    """As vLLM does before 0.33: a request that resumes from there waits for the step after."""
    features = frozenset({"connector", "pipeline", *["wide"] * (not num_drafts)})
    feature_life(name, features, seed, is_async=True, num_drafts=num_drafts)


@pytest.mark.parametrize("level", ["manager", "pool"])
@settings(max_examples=examples(20), phases=SEEDED, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), num_drafts=st.sampled_from((0, 2)), is_ahead=st.booleans())
def test_every_step_after_loads_that_failed_is_vllms(
    level: str, seed: int, num_drafts: int, *, is_ahead: bool
) -> None:
    """The count of computed tokens goes back while later steps are in flight."""
    features = {"connector", "failed loads"} | ({"pipeline"} if is_ahead else set())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, level)
        pair = Pair(
            Setup(
                ENGINES["full"],
                is_async=seed % 4 > 0,
                num_drafts=num_drafts,
                max_num_batched_tokens=(16, 64)[seed % 2],
                features=frozenset(features),
            ),
            Random(seed),
        )
    pair.run(Random(seed + 1).choices(["step"] * 3 + ["arrive"], k=100))


# The asynchronous scheduler asserted before 0.33 that this never happens.
@pytest.mark.parametrize("is_async", [False, *[True] * (not IS_BEFORE_0_33)])
def test_a_request_id_is_used_again_while_the_step_of_an_aborted_one_is_in_flight(
    is_async: bool,
) -> None:
    """vLLM takes the old step's tokens from the new request: fewer than none are in flight."""
    features = frozenset({"pipeline"})
    pair = Pair(Setup(ENGINES["full-sliding"], is_async, features=features), Random(0))
    for _ in range(4):
        pair.arrive(max_tokens=60)
    for _ in range(4):
        pair.step()
    for scheduler in pair.schedulers:
        scheduler.finish_requests("request1", RequestStatus.FINISHED_ABORTED)
    pair.num_requests = 1
    pair.arrive(max_tokens=60)
    pair.take_in()
    assert pair.ours.requests["request1"].num_in_flight_tokens < 0
    for _ in range(60):
        pair.step()


@pytest.mark.parametrize("name", [*DRAFT_ENGINES, *EAGLE_ENGINES])
@pytest.mark.parametrize("is_async", [False, True])
@settings(max_examples=examples(3), phases=SEEDED, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_every_step_with_drafts_is_vllms(name: str, is_async: bool, seed: int) -> None:
    drafter = ["eagle"] if name in EAGLE_ENGINES else []
    num_drafts = ENGINES[name].num_spec_tokens
    features = with_features(*drafter, seed=seed)
    feature_life(name, features, seed, is_async=is_async, num_drafts=num_drafts)


@pytest.mark.parametrize("method", ["draft model", "parallel drafts"])
@pytest.mark.parametrize("is_async", [False, True])
@settings(max_examples=examples(10), phases=SEEDED, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(DRAFT_ENGINES), seed=st.integers(0, 2**32))
def test_every_step_with_drafts_that_take_slots_is_vllms(
    method: str, is_async: bool, name: str, seed: int
) -> None:
    features = with_features("draft model", method, seed=seed)
    feature_life(
        name,
        features | ({"adaptive"} if seed % 4 == 1 else set()),
        seed,
        is_async=is_async,
        num_drafts=ENGINES[name].num_spec_tokens,
        # Slots run out while requests decode, or with the prompts after them.
        max_num_batched_tokens=(20, 64)[seed % 5 > 1],
        long_prefill_token_threshold=(0, 5)[seed % 2],
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_all_decoding_requests_are_scheduled_in_one_call(is_async: bool) -> None:
    pair = Pair(Setup(ENGINES["mamba-align-0"], is_async), Random(0))
    for _ in range(5):
        pair.arrive(max_tokens=40)
    seen: list[int] = []
    pair.ours._decodes = Spy(pair.ours._decodes, seen)
    for _ in range(20):
        pair.step()
    assert max(seen) == 5
    assert sum(seen) > 50


class Own(batched.Scheduler):
    """A derived scheduler: it makes some steps without this package's, and looks at the others."""

    _steps = 0

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._steps += 1
        if self._steps % 7 in (3, 4):
            return batched.VllmScheduler.schedule(self, throttle_prefills)
        output = super().schedule(throttle_prefills)
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
        return output

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        return super()._preempt_request(*args, **kwargs)


class AsyncOwn(Own, batched.AsyncScheduler):
    """The same, asynchronously."""


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("features", [(), ("pipeline",), ("connector",)], ids="-".join)
@settings(max_examples=examples(5), phases=SEEDED, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(FEATURED_ENGINES), seed=st.integers(0, 2**32))
def test_steps_that_a_derived_scheduler_makes_by_itself_are_vllms_too(
    is_async: bool, features: tuple[str, ...], name: str, seed: int
) -> None:
    setup = Setup(ENGINES[name], is_async, features=frozenset((*features, *["v2"] * (seed % 2))))
    pair = Pair(setup, Random(seed), AsyncOwn if is_async else Own)
    assert batching.unsupported_reason(pair.ours) is None
    actions = [action for action in ACTIONS if action != "reset" or "connector" not in features]
    pair.run(Random(seed + 1).choices(actions, k=100))


class Another:
    """A manager that passes all on."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def test_a_manager_that_a_derived_scheduler_puts_in_later_is_the_one_that_serves() -> None:
    pair = Pair(Setup(ENGINES["full"], is_async=False), Random(0))
    for _ in range(3):
        pair.arrive(max_tokens=20)
    pair.step()
    pair.ours.kv_cache_manager = Another(pair.ours.kv_cache_manager)
    pair.step()
    assert pair.ours._decodes is None


def test_a_state_that_this_very_step_computes_is_hit_in_the_next_one() -> None:
    pair = Pair(Setup(ENGINES["mamba-align-0"], is_async=False), Random(0))
    for _ in range(2):
        pair.arrive(max_tokens=50, prompt=[5] * 14)
    for _ in range(2):
        pair.step()
    first = pair.ours.running[0]
    assert (first.num_computed_tokens, first.num_tokens) == (15, 16)
    pair.arrive(max_tokens=50, prompt=[*first.all_token_ids, 6, 7, 8])
    pair.step()
    assert pair.ours.get_request_counts() == (2, 1)
    pair.step()
    assert pair.ours.get_request_counts() == (3, 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_counts_that_others_write_between_steps_are_obeyed(is_async: bool) -> None:
    pair = Pair(Setup(ENGINES["mamba-align-0"], is_async), Random(0))
    for _ in range(4):
        pair.arrive(max_tokens=40)
    for _ in range(8):
        pair.step()
    for scheduler in pair.schedulers:
        # As if the last token computed had been found to be wrong.
        scheduler.running[1].num_computed_tokens -= 1
    for _ in range(4):
        pair.step()
    for scheduler in pair.schedulers:
        limited = scheduler.running[0]
        limited.num_output_placeholders += 1
    scheduled = [scheduler.schedule() for scheduler in pair.schedulers]
    theirs, ours = (step.num_scheduled_tokens for step in scheduled)
    assert ours == theirs
    assert len(ours) >= 3


class Spy:
    """Passes calls on, and notes how many requests were dealt with."""

    def __init__(self, decodes: Any, seen: list[int]) -> None:
        self._decodes = decodes
        self._seen = seen
        self.advance = decodes.advance
        self.take_outputs = decodes.take_outputs
        self.forget = decodes.forget

    def schedule(self, *args: Any) -> Any:
        scheduled = self._decodes.schedule(*args)
        self._seen.append(scheduled.num_seen)
        return scheduled


def test_what_others_note_between_steps_comes_with_the_last_output() -> None:
    pair = Pair(Setup(ENGINES["full"], is_async=False), Random(0))
    for _ in range(3):
        pair.arrive(max_tokens=6)
    for _ in range(3):
        pair.step()
    noted = pair.ours.requests["request0"]
    assert noted.events == []
    noted.record_event(EngineCoreEventType.QUEUED)
    told = []
    while pair.ours.requests:
        output = pair.ours.schedule()
        sampled = {request_id: [7] for request_id in output.num_scheduled_tokens}
        by_client = pair.ours.update_from_output(output, ran(output, sampled, {}))
        told += [one for outputs in by_client.values() for one in outputs.outputs]
    last = [one for one in told if one.request_id == "request0" and one.finish_reason is not None]
    assert [[event.type for event in one.events or ()] for one in last] == [
        [EngineCoreEventType.QUEUED]
    ]


def test_a_subclass_has_its_own_split_of_chunks() -> None:
    asked: list[int] = []

    class Own(batched.Scheduler):
        def _mamba_block_aligned_split(self, request: Any, *args: Any, **kwargs: Any) -> int:
            asked.append(request.num_prompt_tokens)
            return super()._mamba_block_aligned_split(request, *args, **kwargs)

    pair = Pair(Setup(ENGINES["mamba-align-0"], is_async=False), Random(0))
    pair.schedulers = (pair.schedulers[0], make_ours(pair.setup, Own))
    pair.arrive(max_tokens=6, prompt=[5] * 9)
    pair.step()
    assert asked == [9]


def test_the_asynchronous_one_is_chosen_where_vllm_chooses_its_own() -> None:
    assert type(make_ours(Setup(ENGINES["full"], is_async=True))) is batched.AsyncScheduler
    assert type(make_ours(Setup(ENGINES["full"], is_async=False))) is batched.Scheduler


def test_below_level_manager_every_request_is_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "pool")
    pair = live(Setup(ENGINES["full"], is_async=True), seed=1)
    assert batching.unsupported_reason(pair.ours) == "the block manager is not at level manager"


def test_vllm_finds_the_scheduler_by_its_name() -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname  # noqa: PLC0415

    assert resolve_obj_by_qualname("hybrid_blocks.vllm.Scheduler") is batched.Scheduler
    assert resolve_obj_by_qualname("hybrid_blocks.vllm.AsyncScheduler") is batched.AsyncScheduler
