"""ServeGen's clients: a folder of rates and length distributions, from which requests are drawn.

Source: github.com/alibaba/ServeGen, for example its ``data/language/m-large``. Each client has
``chunk-N-trace.csv``, a line for each ten minutes: second, requests a second, deviation, Gamma or
Weibull, shape, scale. Its ``chunk-N-dataset.json`` holds the share of requests with each number of
tokens, from a second on. There are no prefix ids: nothing is shared.

Requests are drawn from the window in which all clients together send most, and from those behind
it. A client's gaps have the recorded shape and rate.
"""

import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, TraceBuilder
from hybrid_blocks.trace.errors import TraceError
from hybrid_blocks.trace.lengths import elapsed
from hybrid_blocks.trace.lines import LineReader
from hybrid_blocks.trace.trace import Trace
from hybrid_blocks.trace.value import shown

NUM_REQUESTS: Final = 4000
_SHARE: Final = re.compile(r"(\d{1,12})(?:\.0)?: (\d+(?:\.\d*)?(?:e[+-]?\d+)?)")
_MOST_AT_ONCE: Final = 1 << 20
"""Gaps drawn at once; a client that asks more often is not drawn to the end of its window."""
_INPUT, _OUTPUT = "input_tokens", "output_tokens"

Floats = npt.NDArray[np.float64]


class Window(msgspec.Struct, frozen=True):
    """How often a client asks from a second on; gaps have a law and its shape."""

    begins: float
    rate: float
    law: str
    shape: float


class Lengths(msgspec.Struct, frozen=True):
    """Numbers of tokens, and how often each occurs."""

    tokens: npt.NDArray[np.int64]
    shares: Floats


class Client(msgspec.Struct, frozen=True):
    """One client: its windows by their beginning, and its lengths of prompts and answers."""

    windows: dict[float, Window]
    lengths: dict[float, tuple[Lengths, Lengths]]

    def lengths_at(self, second: float) -> tuple[Lengths, Lengths] | None:
        """Return the last distributions that begin before a second."""
        known = [begins for begins in self.lengths if begins <= second]
        return self.lengths[max(known)] if known else None


def generate_clients(folder: Path, num_requests: int = NUM_REQUESTS, seed: int = 0) -> Trace:
    """Draw requests of all clients of a folder.

    Raises:
        TraceError: the folder holds no client, a client is damaged, or none ever asks.

    """
    clients = [_read(file) for file in sorted(folder.glob("chunk-*-trace.csv"))]
    begins = sorted({second for client in clients for second in client.windows})
    if len(begins) < 2:
        raise TraceError(f"{folder} holds no ServeGen client: chunk-N-trace.csv with two windows")
    rates = [sum(_rate(client, second) for client in clients) for second in begins]
    start = max(range(len(begins)), key=lambda at: rates[at])
    rng = np.random.default_rng(seed)
    times: list[Floats] = []
    askers: list[npt.NDArray[np.int64]] = []
    drawn = 0
    for index in range(start, len(begins)):
        end = (
            begins[index + 1] if index + 1 < len(begins) else 2 * begins[index] - begins[index - 1]
        )
        for number, client in enumerate(clients):
            found = _arrivals(client, begins[index], end, num_requests, rng)
            times.append(found)
            askers.append(np.full(len(found), number))
            drawn += len(found)
        if drawn >= num_requests:
            break
    if not drawn:
        raise TraceError(f"{folder}: no client asks for anything")
    second, asker = np.concatenate(times), np.concatenate(askers)
    order = np.argsort(second, kind="stable")[:num_requests]
    return _trace(folder.name, clients, second[order], asker[order], rng)


def _trace(
    name: str,
    clients: Sequence[Client],
    second: Floats,
    asker: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> Trace:
    """Draw a prompt and an answer for each arrival."""
    sizes = np.ones((len(second), 2), dtype=np.int64)
    for number, client in enumerate(clients):
        for begins, lengths in client.lengths.items():
            later = [other for other in client.lengths if other > begins]
            own = (asker == number) & (second >= begins) & (second < min(later, default=math.inf))
            for column, one in enumerate(lengths):
                sizes[own, column] = rng.choice(one.tokens, np.count_nonzero(own), p=one.shares)
    builder = TraceBuilder(name)
    for when, (prompt, output) in zip(second, np.maximum(sizes, 1).tolist(), strict=True):
        builder.add(
            [builder.fresh(prompt + output)],
            arrival=float(when - second[0]),
            prompt_tokens=prompt,
            output_tokens=output,
        )
    return builder.build()


def _rate(client: Client, second: float) -> float:
    window = client.windows.get(second)
    return window.rate if window is not None and client.lengths_at(second) is not None else 0.0


def _arrivals(
    client: Client, begins: float, end: float, most: int, rng: np.random.Generator
) -> Floats:
    """Draw the times at which a client asks in one window, or the first ``most`` of very many."""
    window = client.windows.get(begins)
    if window is None or client.lengths_at(begins) is None or not window.rate:
        return np.empty(0)
    parts: list[Floats] = []
    last, drawn = begins, 0
    while last < end and drawn < max(most, _MOST_AT_ONCE):
        gaps = _gaps(window, math.ceil(min((end - last) * window.rate + 8, _MOST_AT_ONCE)), rng)
        drawn += len(gaps)
        if not parts:
            # The window opens somewhere within a gap.
            gaps[0] *= rng.random()
        parts.append(last + np.cumsum(gaps))
        last = float(parts[-1][-1])
    found = np.concatenate(parts)
    return found[found < end]


def _gaps(window: Window, count: int, rng: np.random.Generator) -> Floats:
    if window.law == "Gamma":
        return rng.gamma(window.shape, size=count) / (window.shape * window.rate)
    mean = math.gamma(1 + 1 / window.shape)
    return rng.weibull(window.shape, size=count) / (mean * window.rate)


def _read(file: Path) -> Client:
    windows = {
        window.begins: window for window in LineReader(file, "raise").parse(_window) if window
    }
    beside = file.with_name(file.name.replace("-trace.csv", "-dataset.json"))
    try:
        text = beside.read_bytes().removeprefix(BOM_UTF8)
        fields = msgspec.json.decode(text, type=dict[str, dict[str, str]])
        lengths = dict(_lengths(fields))
    except OSError as error:
        raise TraceError(f"{beside}: {error.strerror or error}") from None
    except ValueError as error:
        raise TraceError(f"{beside}: {error}") from None
    return Client(windows, lengths)


def _window(line: bytes) -> Window | None:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    fields = line.decode().strip().split(",")
    if len(fields) != 6:
        raise ValueError(f"second,rate,deviation,law,shape,scale are expected, not {len(fields)}")
    begins, rate, _, law, shape, _ = fields
    window = Window(elapsed(begins, "second"), float(rate), law, float(shape))
    if not 0 <= window.rate < 1e6:
        raise ValueError(f"{rate} requests a second from {begins} on")
    if window.rate and (law not in {"Gamma", "Weibull"} or not 0.01 <= window.shape < 1e6):
        raise ValueError(f"gaps by {law or 'no law'} of shape {shape}; Gamma and Weibull are known")
    return window


def _lengths(
    fields: Mapping[str, Mapping[str, str]],
) -> Iterator[tuple[float, tuple[Lengths, Lengths]]]:
    for begins, texts in fields.items():
        if _INPUT not in texts or _OUTPUT not in texts:
            raise ValueError(f"second {begins} lacks {_INPUT} or {_OUTPUT}")
        prompt, output = (_shares(texts[field], begins) for field in (_INPUT, _OUTPUT))
        if prompt is not None and output is not None:
            yield elapsed(begins, "second"), (prompt, output)


def _shares(text: str, begins: str) -> Lengths | None:
    """Read ``{tokens: share, ...}``; None of an empty one."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    found = [_share(pair.strip(), begins) for pair in inner.split(",")] if inner else []
    tokens = np.array([number for number, _ in found], dtype=np.int64)
    shares = np.array([share for _, share in found])
    if not found or not shares.sum():
        return None
    if tokens.max() > MAX_TOKEN_ID or not np.isfinite(shares.sum()):
        raise ValueError(f"second {begins} has {tokens.max():,} tokens or an endless share")
    return Lengths(tokens, shares / shares.sum())


def _share(pair: str, begins: str) -> tuple[int, float]:
    if (match := _SHARE.fullmatch(pair)) is None:
        raise ValueError(
            f"second {begins} has {shown(pair)}; a number of tokens and its share are "
            "expected, as 100: 0.5"
        )
    return int(match[1]), float(match[2])
