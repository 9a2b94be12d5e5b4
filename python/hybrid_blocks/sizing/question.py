"""A trace, a model and targets, and the clock of each candidate."""

from dataclasses import dataclass
from typing import Final

import msgspec

from hybrid_blocks.model import Model
from hybrid_blocks.plan import Deployment
from hybrid_blocks.plan.memory import UTILIZATION, estimate, parse_cards
from hybrid_blocks.replay import Cache, EngineConfig, StepTime
from hybrid_blocks.replay.cache import plan_cache
from hybrid_blocks.sizing.candidate import Candidate
from hybrid_blocks.sizing.equations import COLUMNS
from hybrid_blocks.sizing.fit import Fit
from hybrid_blocks.sizing.slo import Target
from hybrid_blocks.sizing.speed import estimate_step_time
from hybrid_blocks.trace import SharedPrefixes, Trace

ESTIMATE: Final = "estimate"
SCALED: Final = "estimate, scaled from the fit"


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question to every candidate.

    Attributes:
        trace: the requests.
        prefixes: how far they agree.
        model: which model serves them.
        targets: what latencies it has to keep.
        deployment: how the model is served; each candidate brings its own number of cards.
        config: the limits of the scheduler; each candidate brings its own clock.
        utilization: share of a card that the engine may use.
        fit: a clock that was fitted, on the cards of ``fitted_on``.
        fitted_on: where it was fitted.
    """

    trace: Trace
    prefixes: SharedPrefixes
    model: Model
    targets: tuple[Target, ...]
    deployment: Deployment
    config: EngineConfig
    utilization: float = UTILIZATION
    fit: Fit | None = None
    fitted_on: Candidate | None = None

    def cache(self, candidate: Candidate) -> Cache:
        """Plan the memory that is estimated to be free on each card.

        Raises:
            PlanError: the weights do not fit, or the model cannot be split so.
            ReplayError: more blocks than a replay keeps track of.

        """
        deployment = msgspec.structs.replace(self.deployment, tp=candidate.count)
        cards = parse_cards(candidate.card)
        free = estimate(self.model, deployment, cards, self.utilization).free
        return plan_cache(self.model, free, deployment)

    def clock(self, candidate: Candidate, cache: Cache) -> tuple[StepTime, str]:
        """Return the time of a step on a candidate's cards, and how sure it is.

        A fit holds for its own cards. For others each of its coefficients is scaled as the data
        sheets say.
        """
        if self.fit is None or self.fitted_on is None:
            return self._estimate(candidate, cache), ESTIMATE
        fitted, own = self.fit.step_time, self.fitted_on
        if (candidate.card, candidate.count) == (own.card, own.count):
            ttft = self.fit.errors[0]
            return fitted, f"fitted; ttft off by {ttft.p50:.0%} (p50), {ttft.p95:.0%} (p95)"
        there = self._estimate(candidate, cache)
        here = self._estimate(own, self.cache(own))
        scaled = {
            name: getattr(fitted, name) * _ratio(getattr(there, name), getattr(here, name))
            for name in COLUMNS
        }
        return StepTime(**scaled), SCALED

    def _estimate(self, candidate: Candidate, cache: Cache) -> StepTime:
        assert cache.deployment is not None
        return estimate_step_time(self.model, cache.geometry, cache.deployment, candidate.card)


def _ratio(there: float, here: float) -> float:
    return there / here if here else 1.0
