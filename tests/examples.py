"""How often properties are tried whose examples are whole lives of an engine."""

from math import ceil

from hypothesis import Phase, settings

_TIMES = {"short": 0.5, "project": 1, "random": 3, "long": 100}

# A life is drawn from a seed: a smaller seed makes no smaller life.
SEEDED = (Phase.explicit, Phase.reuse, Phase.generate)


def examples(usual: int) -> int:
    """Return how many examples the loaded profile draws where the usual run draws ``usual``."""
    return ceil(usual * _TIMES[settings.get_current_profile_name()])
