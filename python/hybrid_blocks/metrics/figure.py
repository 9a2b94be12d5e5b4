"""``Figure``: one metric as Prometheus knows it."""

from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """A metric's full name, its kind, its own labels and what it says.

    Each figure also has vLLM's labels ``model_name`` and ``engine``.
    """

    name: str
    kind: Literal["counter", "gauge"]
    documentation: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name that clients of Prometheus declare: theirs add ``_total`` to counters."""
        return self.name.removesuffix("_total")

    def sample(self, value: float, **labels: str) -> "Sample":
        """Return a value of this figure.

        Raises ``ValueError`` for labels that the figure does not have.
        """
        if not labels.keys() <= set(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(labels)}")
        return Sample(self.family, self.documentation, self.kind, labels, value)


class Sample(msgspec.Struct, frozen=True):
    """One value of a figure, with the labels that tell it from others of the name."""

    family: str
    documentation: str
    kind: Literal["counter", "gauge"]
    labels: dict[str, str]
    value: float
