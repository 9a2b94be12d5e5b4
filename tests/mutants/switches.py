"""A source file in which every mutant has a switch.

``a < b`` becomes ``(if crate::mutants::on(7) {a > b} else {a < b})``. Comments around the changed
part lead from an error of the compiler to its mutant.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

from mutants.mutant import Mutant, Place

# The kind of syntax that a mutant of each genre changes. A guard is changed as it stands.
SYNTAX = {
    "BinaryOperator": ("binary_expression", "compound_assignment_expr"),
    "FnValue": ("function_item",),
    "MatchArm": ("match_arm",),
    "MatchArmGuard": None,
    "StructField": ("struct_expression",),
    "UnaryOperator": ("unary_expression",),
}

MODULE = b"""
mod mutants {
    static ON: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var("MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
    });
    pub(crate) fn on(number: u32) -> bool {
        *ON == number
    }
}
"""
"""Module that the crate's root gets: the environment variable `MUTANT` tells which switch is on."""

_GUARD = b"!crate::mutants::on(%d)"
_MARKED = re.compile(rb"/\*mutant (\d+)\*/.*?/\*end \1\*/", re.DOTALL)


class Switches:
    """The mutants of one source file."""

    def __init__(self, source: bytes, mutants: Iterable[Mutant]) -> None:
        self.unplaced: list[Mutant] = []
        """Mutants without a place for a switch: both sides of one must have the same type, which
        returned values of `impl Trait` have not."""
        self._source = source
        self._lines = source.split(b"\n")
        self._root = Parser(Language(tree_sitter_rust.language())).parse(source).root_node
        self._changed: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self._returns: defaultdict[int, list[bytes]] = defaultdict(list)
        self._guards: defaultdict[int, list[bytes]] = defaultdict(list)
        for mutant in mutants:
            self._place(mutant)

    def text(self) -> bytes:
        """Return the source with all switches."""
        root = self._root
        before, after = self._source[: root.start_byte], self._source[root.end_byte :]
        return before + self._render(root) + after

    def _place(self, mutant: Mutant) -> None:
        start, end = self._offset(mutant.start), self._offset(mutant.end)
        node = self._root.descendant_for_byte_range(start, end)
        wanted = SYNTAX.get(mutant.genre, ())
        while node and wanted is not None and node.type not in wanted:
            node = node.parent
        if node is None or (mutant.genre == "FnValue" and _is_opaque(node)):
            self.unplaced.append(mutant)
            return
        replacement = mutant.replacement.encode()
        if mutant.genre == "FnValue":
            body = _field(node, "body")
            switch = b"if crate::mutants::on(%d) { return %b; }" % (mutant.number, replacement)
            self._returns[body.id].append(_marked(mutant.number, switch))
        elif mutant.genre == "MatchArm":
            pattern = _field(node, "pattern")
            if guard := pattern.child_by_field_name("condition"):
                self._changed[guard.id].append((mutant.number, b"false"))
            else:
                self._guards[pattern.id].append(_marked(mutant.number, _GUARD % mutant.number))
        else:
            before, after = self._source[node.start_byte : start], self._source[end : node.end_byte]
            self._changed[node.id].append((mutant.number, before + replacement + after))

    def _offset(self, place: Place) -> int:
        line, column = place
        above = sum(len(text) + 1 for text in self._lines[: line - 1])
        return above + len(self._lines[line - 1].decode()[: column - 1].encode())

    def _render(self, node: Node) -> bytes:
        parts, at = [], node.start_byte
        for child in node.children:
            parts += [self._source[at : child.start_byte], self._render(child)]
            at = child.end_byte
        text = b"".join([*parts, self._source[at : node.end_byte]])
        if switches := self._returns.get(node.id):
            text = text[:1] + b" ".join(switches) + text[1:]
        if switches := self._guards.get(node.id):
            text += b" if " + b" && ".join(switches)
        if changes := self._changed.get(node.id):
            switches = [
                _marked(number, b"if crate::mutants::on(%d) {%b}" % (number, changed))
                for number, changed in changes
            ]
            text = b"(" + b" else ".join([*switches, b"{" + text + b"}"]) + b")"
        return text


def blamed(text: bytes, start: int, end: int) -> set[int]:
    """Return the mutants of a text with switches that stand where the compiler points at.

    That is the one around ``start``, or else all between ``start`` and ``end``.
    """
    found = set()
    for marked in _MARKED.finditer(text):
        if marked.start() <= start < marked.end():
            return {int(marked[1])}
        if start <= marked.start() < end:
            found.add(int(marked[1]))
    return found


def next_arm(text: bytes, start: int) -> set[int]:
    """Return the first mutant behind ``start`` that takes an arm away from a `match`.

    The compiler points at the matched value where the other arms do not suffice.
    """
    arms = (int(marked[1]) for marked in _MARKED.finditer(text, start))
    return set(itertools.islice((arm for arm in arms if _marked(arm, _GUARD % arm) in text), 1))


def _is_opaque(function: Node) -> bool:
    returned = function.child_by_field_name("return_type")
    return returned is not None and b"impl " in (returned.text or b"")


def _marked(number: int, text: bytes) -> bytes:
    return b"/*mutant %d*/%b/*end %d*/" % (number, text, number)


def _field(node: Node, name: str) -> Node:
    child = node.child_by_field_name(name)
    assert child is not None, f"{node.type} without {name}"
    return child
