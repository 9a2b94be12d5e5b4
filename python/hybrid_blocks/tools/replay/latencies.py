"""When each request arrived, had its first token, and was finished."""

from typing import Final

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]

KINDS: Final = ("ttft", "e2e", "tpot")


class Latencies:
    """Virtual times of the requests of a trace, shape ``[n]`` each; NaN until it is so far.

    Attributes:
        arrived: when a request came in; a follower comes after its leader's end and the pause.
        first_token: when its first token was sampled.
        finished: when its last token was.
    """

    def __init__(self, output_tokens: Counts) -> None:
        self._output_tokens = output_tokens
        self.arrived, self.first_token, self.finished = np.full((3, len(output_tokens)), np.nan)

    def of(self, kind: str) -> Seconds:
        """Return the seconds of each request that has them, by a name of `KINDS`.

        ``ttft`` is the time to the first token, and ``e2e`` to the last. ``tpot`` is the time of
        each token after the first; a request with one token has none.
        """
        match kind:
            case "ttft":
                seconds = self.first_token - self.arrived
            case "e2e":
                seconds = self.finished - self.arrived
            case _:
                several = self._output_tokens > 1
                spent = (self.finished - self.first_token)[several]
                seconds = spent / (self._output_tokens[several] - 1)
        known: Seconds = seconds[~np.isnan(seconds)]
        return known
