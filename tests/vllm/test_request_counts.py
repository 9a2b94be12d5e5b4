"""Counts and status of vLLM's requests, where the one-call scheduler keeps them."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hybrid_blocks._core.vllm import RequestAttribute, RequestState
from hybrid_blocks.tools.profile.engine import Groups, make_scheduler
from hybrid_blocks.vllm import attach, install
from hybrid_blocks.vllm.scheduler.one_call import AsyncScheduler
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

COUNTS = ("num_computed_tokens", "num_in_flight_tokens", "num_output_placeholders")


def pickled(request: Request) -> Request:
    copied: Request = pickle.loads(pickle.dumps(request))
    return copied


def make_request(name: str = "a") -> Request:
    return Request(name, [1, 2, 3], SamplingParams(max_tokens=8), None)


@pytest.fixture
def before() -> Iterator[Request]:
    """A request from before a scheduler exists; the class is as it was afterwards."""
    names = (*COUNTS, "status", "__getstate__")
    kept = {name: vars(Request).get(name) for name in names}
    for name in names:
        if name in vars(Request):
            delattr(Request, name)
    try:
        yield make_request("before")
    finally:
        for name, value in kept.items():
            if value is not None:
                setattr(Request, name, value)
            elif name in vars(Request):
                delattr(Request, name)


@pytest.fixture
def after(before: Request) -> Iterator[Request]:
    """A request from after a scheduler was made."""
    before.num_computed_tokens = 5
    was_installed = install.is_installed()
    attach.register()
    make_scheduler(
        Groups.FULL, num_requests=4, num_blocks=64, max_model_len=64, scheduler_cls=AsyncScheduler
    )
    yield make_request("after")
    if not was_installed:
        install.uninstall()


def test_counts_and_status_are_attributes_as_before(before: Request, after: Request) -> None:
    for name in (*COUNTS, "status"):
        assert isinstance(vars(Request)[name], RequestAttribute)
    assert before.num_computed_tokens == 5
    for request in (before, after):
        request.num_computed_tokens += 2
        request.num_in_flight_tokens = 3
        request.num_output_placeholders -= 1
        request.status = RequestStatus.RUNNING
        assert request.num_in_flight_tokens == 3
        assert request.num_output_placeholders == -1
        assert request.status is RequestStatus.RUNNING
        assert not vars(request).keys() & set(COUNTS)
    assert (before.num_computed_tokens, after.num_computed_tokens) == (7, 2)


def test_a_count_is_a_whole_number(after: Request) -> None:
    with pytest.raises(TypeError):
        after.num_computed_tokens = "many"  # type: ignore[assignment]
    assert after.num_computed_tokens == 0


def test_what_was_never_set_is_no_attribute(after: Request) -> None:
    bare = object.__new__(Request)
    with pytest.raises(AttributeError, match="status"):
        _ = bare.status
    with pytest.raises(AttributeError, match="num_computed_tokens"):
        _ = bare.num_computed_tokens
    assert after.status is RequestStatus.WAITING


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_has_the_counts_of_its_time_and_goes_its_way(after: Request, copied: type) -> None:
    after.num_computed_tokens, after.num_in_flight_tokens = 4, 2
    other = copied(after)
    after.num_computed_tokens = 9  # before any code reads the copy's
    assert (other.num_computed_tokens, other.num_in_flight_tokens) == (4, 2)
    other.num_computed_tokens += 1
    other.status = RequestStatus.PREEMPTED
    after.num_in_flight_tokens = 3
    assert (after.num_computed_tokens, other.num_computed_tokens) == (9, 5)
    assert (after.num_in_flight_tokens, other.num_in_flight_tokens) == (3, 2)
    assert (after.status, other.status) == (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def test_counts_survive_pickling_what_keeps_them(after: Request) -> None:
    """As a copy of the request's whole dictionary does."""
    after.num_computed_tokens, after.num_in_flight_tokens = 4, 2
    state = vars(after)["_hybrid_blocks"]
    other = make_request("other")
    vars(other)["_hybrid_blocks"] = pickle.loads(pickle.dumps(state))
    assert (other.num_computed_tokens, other.num_in_flight_tokens) == (4, 2)
    assert pickle.loads(pickle.dumps(RequestState())).__reduce__()[1] == (None,)


def test_a_pickle_is_vllms_and_needs_nothing_of_this_package(after: Request) -> None:
    after.num_computed_tokens = 4
    state: Any = after.__getstate__()
    assert {name: state[name] for name in COUNTS} == dict(zip(COUNTS, (4, 0, 0), strict=True))
    assert state["status"] is RequestStatus.WAITING
    assert not any("hybrid" in name for name in state)
    assert b"hybrid_blocks" not in pickle.dumps(after)


def test_an_attribute_can_be_replaced_for_a_while(after: Request) -> None:
    after.num_computed_tokens, after.num_in_flight_tokens = 4, 2
    for name, value in (("num_computed_tokens", 7), ("status", RequestStatus.PREEMPTED)):
        kept = getattr(after, name)
        with mock.patch.object(after, name, value):
            assert getattr(after, name) == value
        assert getattr(after, name) == kept
    del after.num_computed_tokens
    with pytest.raises(AttributeError, match="num_computed_tokens"):
        _ = after.num_computed_tokens
    with pytest.raises(AttributeError, match="num_computed_tokens"):
        del after.num_computed_tokens
    assert after.num_in_flight_tokens == 2
