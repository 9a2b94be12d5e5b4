"""``recorded.toml``, as one release of vLLM should match it."""

from functools import cached_property
from importlib.resources import files
from typing import Any

from hybrid_blocks.tables import read_tables
from hybrid_blocks.vllm.surface import support


class Surface:
    """The adapter's needs in one release.

    Owners are written ``module:Class``, or ``module:`` for a module's own functions.
    """

    def __init__(self, release: str) -> None:
        self._release = release
        self._since: dict[str, str] = self.recorded["since"]
        self._until: dict[str, str] = self.recorded["until"]
        self._older: dict[str, dict[str, list[str]]] = {}
        for last, owners in sorted(self.recorded["older"].items(), key=_order, reverse=True):
            if support.ordered(release) <= support.ordered(last):
                for owner, methods in owners.items():
                    self._older.setdefault(owner, {}).update(methods)

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """The file, parsed."""
        return read_tables((files(__package__) / "recorded.toml").read_text())

    def tier_of_name(self, name: str) -> str:
        """Return the lowest tier that imports ``module:name``."""
        return self._tier("names", name)

    def tier_of_owner(self, owner: str) -> str:
        """Return the lowest tier that uses members of an owner."""
        return self._tier("owners", owner)

    def tier_of_callable(self, owner: str, name: str) -> str:
        """Return the lowest tier that calls a method, or a function of ``module:``."""
        return self.tier_of_name(owner + name) if owner.endswith(":") else self.tier_of_owner(owner)

    def _tier(self, what: str, name: str) -> str:
        tiers: dict[str, dict[str, list[str]]] = self.recorded["tiers"]
        return next((tier for tier, listed in tiers.items() if name in listed[what]), "manager")

    def is_present(self, name: str) -> bool:
        """Return whether the release has a listed name, which came or went with some release."""
        first, last = (it.get(name, self._release) for it in (self._since, self._until))
        here = support.ordered(self._release)
        return support.ordered(first) <= here <= support.ordered(last)

    def reaches(self, tier: str) -> bool:
        """Return whether the release has all that a tier needs."""
        last = self.recorded["unreached"].get(tier)
        return last is None or support.ordered(last) < support.ordered(self._release)

    def callables(self) -> dict[str, dict[str, list[str]]]:
        """Return the parameters of each owner's callables."""
        return {
            owner: {
                name: self._older.get(owner, {}).get(name, parameters)
                for name, parameters in methods.items()
                if self.is_present(f"{owner}.{name}")
            }
            for owner, methods in self.recorded["callables"].items()
        }

    def attributes(self) -> dict[str, set[str]]:
        """Return the attributes that an owner, or an object of it, has."""
        found = {
            owner: set(filter(self.is_present, names))
            for owner, names in self.recorded["fields"].items()
            if self.is_present(owner)
        }
        for part in (*self.recorded["live"].values(), *self.recorded["parts"].values()):
            names = {name for name in part["attributes"] if self.is_present(name)}
            found.setdefault(part["class"], set()).update(names)
        return found

    def names(self) -> dict[str, list[str]]:
        """Return the names imported from each module."""
        return {
            module: [name for name in names if self.is_present(f"{module}:{name}")]
            for module, names in self.recorded["names"].items()
        }

    def closed(self) -> list[str]:
        """Return the classes that ours replace: the record must know all their methods."""
        return list(self.recorded["closed"]["owners"])


def _order(by_release: tuple[str, Any]) -> tuple[int, ...]:
    return support.ordered(by_release[0])
