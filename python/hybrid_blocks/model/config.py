"""Typed reading of a Hugging Face ``config.json``."""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from hybrid_blocks.errors import PlanError

T = TypeVar("T")

MAX_LAYERS: Final = 10_000
"""More than any model has, and few enough to be planned."""

MAX_SIZE: Final = 2**31 - 1
"""The largest integer of a configuration that tensors can be made of."""

DERIVED: Final = "auto"
"""Stands in some fields for a size that follows from others, as if the field were absent."""


class Config:
    """Fields of a ``config.json``, or of one object in it.

    ``defaults`` stand in for absent fields; a field that is null has no value. Where a field has
    several names, one that is there goes before the default of another. `PlanError` names a field
    that is missing, and the value of one of another type.
    """

    def __init__(
        self, fields: Mapping[str, object], name: str, defaults: Mapping[str, object] | None = None
    ) -> None:
        self.name = name
        self._fields = fields
        self._defaults = defaults or {}
        # Fields that a reader missed, where `read` names them all in the end.
        self._missing: dict[str, None] | None = None

    def read(self, reader: Callable[["Config"], T]) -> T:
        """Return what a reader makes; an error names every field that the reader missed."""
        config = Config(self._fields, self.name, self._defaults)
        missing = config._missing = {}
        try:
            made = reader(config)
        except PlanError:
            if not missing:
                raise
        if missing:
            raise PlanError(f"{self.name}: config.json lacks {', '.join(missing)}")
        return made

    def require(self, *fields: str) -> None:
        """Check that fields are there; ``a|b`` stands for either of two names."""
        missing = [f for f in fields if all(self.get(alias) is None for alias in f.split("|"))]
        if missing:
            self._miss(", ".join(f.replace("|", " or ") for f in missing))

    def _miss(self, named: str) -> None:
        if self._missing is None:
            raise PlanError(f"{self.name}: config.json lacks {named}")
        self._missing[named] = None

    def get(self, field: str) -> object:
        """Value of a field or its default; None where neither is there, or the field is null."""
        return self._fields[field] if field in self._fields else self._defaults.get(field)

    def _first(self, aliases: tuple[str, ...]) -> tuple[str, object]:
        """Name and value of the first of ``aliases`` that is there, else of one with a default."""
        for values in (self._fields.get, self.get):
            for field in aliases:
                value = values(field)
                if value is not None and value != DERIVED:
                    return field, value
        return aliases[0], None

    def names(self, field: str) -> bool:
        """Whether the object itself has a field, be it null."""
        return field in self._fields

    def __contains__(self, field: str) -> bool:
        return self.get(field) is not None

    def integer(self, *aliases: str, default: int | None = None) -> int:
        """First of ``aliases`` that is there, as a non-negative integer."""
        field, value = self._first(aliases)
        if value is None:
            if default is None:
                self._miss(" or ".join(aliases))
            return 1 if default is None else default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise PlanError(f"{self.name}: {field} must be a non-negative integer: {value!r}")
        if value > MAX_SIZE:
            raise PlanError(f"{self.name}: {field} is {value:,}, at most {MAX_SIZE:,} is planned")
        return value

    def layer_count(self, *aliases: str, default: int | None = None) -> int:
        """Like ``integer``, for layers that are described one by one."""
        count = self.integer(*aliases, default=default)
        if count > MAX_LAYERS:
            raise PlanError(
                f"{self.name}: {self._first(aliases)[0]} is {count:,}; {MAX_LAYERS:,} layers at "
                "most are planned"
            )
        return count

    def positive(self, *aliases: str, default: int | None = None) -> int:
        """Like ``integer``, and not 0."""
        value = self.integer(*aliases, default=default)
        if value == 0:
            raise PlanError(f"{self.name}: {aliases[0]} must be positive: 0")
        return value

    def optional(self, *aliases: str) -> int | None:
        """First of ``aliases`` that is there, or None."""
        return None if self._first(aliases)[1] is None else self.integer(*aliases)

    def text(self, field: str, default: str = "") -> str:
        """Read a string field."""
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, str):
            raise PlanError(f"{self.name}: {field} must be a string: {value!r}")
        return value

    def flag(self, field: str, *, default: bool = False) -> bool:
        """Read a boolean field."""
        value = self.get(field)
        return default if value is None else bool(value)

    def integers(self, field: str) -> tuple[int, ...] | None:
        """Read a list of integers, None where it is absent."""
        return self._list(field, int, "integers")

    def strings(self, field: str) -> tuple[str, ...] | None:
        """Read a list of strings, None where it is absent."""
        return self._list(field, str, "strings")

    def _list(self, field: str, kind: type[T], kinds: str) -> tuple[T, ...] | None:
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise PlanError(f"{self.name}: {field} must be a list of {kinds}: {value!r}")
        return tuple(value)

    def section(self, field: str) -> "Config":
        """Read a nested object as a config of its own."""
        value = self.get(field)
        if not isinstance(value, Mapping):
            raise PlanError(f"{self.name}: config.json lacks the object {field}")
        return Config(value, f"{self.name}: {field}")

    @property
    def num_layers(self) -> int:
        """Number of decoder layers; where the field is absent, as many as a list of them names."""
        listed = self.get("layers_block_type") or self.get("hybrid_override_pattern")
        if isinstance(listed, str):
            listed = listed.replace("|", "")
        default = len(listed) if isinstance(listed, list | str) else None
        names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        self.layer_count(*names, default=default)
        return self.positive(*names, default=default)

    @property
    def query_heads(self) -> int:
        """Number of query heads."""
        return self.positive("num_attention_heads", "n_head")

    @property
    def any_query_heads(self) -> int | None:
        """Number of query heads, None where the field is absent."""
        return self.optional("num_attention_heads", "n_head")

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads; as many as query heads where the field is absent."""
        named = self.optional("num_key_value_heads", "num_kv_heads", "num_attention_groups")
        return named or self.query_heads

    @property
    def head_dim(self) -> int:
        """Head size; hidden size / query heads where the field is absent."""
        if explicit := self.optional("head_dim", "hidden_size_per_head"):
            return explicit
        width, heads = self.positive("hidden_size"), self.query_heads
        if width < heads and not self._missing:
            raise PlanError(f"{self.name}: hidden_size {width:,} is less than {heads:,} heads")
        return width // heads

    def one_per_layer(self, values: tuple[object, ...], field: str) -> None:
        """Check that a per-layer list has one entry for each layer."""
        if len(values) != self.num_layers:
            raise PlanError(
                f"{self.name}: {field} has {len(values)} entries for {self.num_layers} layers"
            )
