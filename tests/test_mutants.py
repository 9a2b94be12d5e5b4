"""Which changes of a program count as caught, and which are excused."""

from pathlib import Path

import pytest
from mutants.build import CannotBuildError, CompiledTest, Program, build
from mutants.mutant import Mutant, Place, parse, sample
from mutants.report import accepted, summary
from mutants.run import FailsAnywayError, Runner
from mutants.switches import Switches, blamed

ROOT = Path(__file__).parents[1]
FILE = "src/lib.rs"
SOURCE = """
pub struct Pair { pub left: u32, pub right: u32 }

/// Half of all, the rest of a pair: é.
pub fn shorten(mut length: u32) -> Pair {
    let mut left = 0;
    while length > 9 && left < u32::MAX { length -= 1; left += 1; }
    match length {
        8 if !cfg!(windows) => Pair { left: 8, ..Pair { left, right: 0 } },
        7 => Pair { left: 7, right: 0 },
        _ => Pair { left, right: length },
    }
}

pub fn digit(set: bool) -> u32 { match set { true => 1, false => 0 } }

pub fn numbers() -> impl Iterator<Item = u32> { 0..3 }

#[test]
fn shortens() {
    let seen = [3, 7, 8, 12].map(|length| { let pair = shorten(length); (pair.left, pair.right) });
    assert_eq!(seen, [(0, 3), (7, 0), (8, 0), (3, 9)]);
    assert_eq!((digit(true), numbers().count()), (1, 3));
}
"""
CHANGES = {
    "caught": [
        ("BinaryOperator", "> 9", ">", "<"),
        ("BinaryOperator", "&& left", "&&", "||"),
        ("FnValue", "let mut left", "let mut left", "Pair { left: 1, right: 1 }"),
        ("MatchArm", "7 => Pair { left: 7, right: 0 }", "7", ""),
        ("MatchArmGuard", "!cfg!(windows)", "!cfg!(windows)", "false"),
        ("UnaryOperator", "!cfg!", "!", ""),
        ("StructField", "left: 8, ..", "left: 8,", ""),
    ],
    "missed": [("BinaryOperator", "< u32", "<", "<=")],
    "hung": [("BinaryOperator", "-= 1", "-=", "/=")],
    "not compiled": [
        ("FnValue", "0..3", "0..3", "::std::iter::empty()"),
        ("FnValue", "let mut left", "let mut left", "Default::default()"),
        ("MatchArm", "true => 1", "true", ""),
    ],
}


def place(offset: int) -> Place:
    above = SOURCE[:offset].split("\n")
    return len(above), len(above[-1]) + 1


def change(number: int, kind: str, words: tuple[str, str, str, str]) -> Mutant:
    """Return a mutant named after its outcome."""
    genre, around, old, new = words
    start = SOURCE.index(around) + around.index(old)
    end = place(start + len(old))
    return Mutant(number, kind, FILE, genre, new, place(start), end)


MUTANTS = [
    change(number, kind, words)
    for number, (kind, words) in enumerate(
        ((kind, words) for kind, all_words in CHANGES.items() for words in all_words), 1
    )
]


def crate(folder: Path, source: str) -> Program:
    (folder / "src").mkdir()
    (folder / FILE).write_text(source)
    (folder / "Cargo.toml").write_text('[package]\nname = "tiny"\nedition = "2024"\n')
    return Program(folder, ("Cargo.toml", "src"), ("tiny",))


def test_each_mutant_has_the_outcome_that_its_change_has(tmp_path: Path) -> None:
    built = build(crate(tmp_path, SOURCE), MUTANTS, tmp_path / "built")
    assert {mutant.name for mutant in built.left_out} == {"not compiled"}
    assert len(built.left_out) == len(CHANGES["not compiled"])
    runner = Runner(built.tests, patience=2.0)
    outcomes = {mutant: runner.run(mutant) for mutant in built.switched}
    assert {mutant: mutant.name for mutant in outcomes} == outcomes
    assert (tmp_path / FILE).read_text() == SOURCE


def test_without_a_switch_the_source_is_as_it_was() -> None:
    source = SOURCE.encode()
    assert Switches(source, []).text() == source


def test_an_error_is_traced_to_the_mutant_around_it_or_to_all_that_it_spans() -> None:
    text = Switches(SOURCE.encode(), MUTANTS[:2]).text()
    inside = text.index(b"length < 9")
    assert blamed(text, inside, inside + 1) == {1}
    assert blamed(text, 0, len(text)) == {1, 2}
    assert blamed(text, 0, 1) == set()


def test_a_program_that_never_compiled_blames_no_mutant(tmp_path: Path) -> None:
    program = crate(tmp_path, SOURCE + "fn broken() -> u32 { true }\n")
    with pytest.raises(CannotBuildError, match="mismatched types"):
        build(program, MUTANTS[:1], tmp_path / "built")


def test_tests_that_fail_anyway_prove_nothing(tmp_path: Path) -> None:
    script = tmp_path / "fails"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(FailsAnywayError, match="fails without a mutant"):
        Runner([CompiledTest(script, tmp_path)])


@pytest.mark.parametrize(("seconds", "outcome"), [(0.5, "missed"), (600, "hung")])
def test_a_test_hangs_where_it_waits_for_long(seconds: float, outcome: str, tmp_path: Path) -> None:
    script = tmp_path / "waits"
    script.write_text(f'#!/bin/sh\n[ "$MUTANT" = 0 ] || exec sleep {seconds}\n')
    script.chmod(0o755)
    runner = Runner([CompiledTest(script, tmp_path)], patience=0.1)
    assert runner.run(named("a", 1)) == outcome


def named(name: str, number: int = 0, genre: str = "FnValue") -> Mutant:
    return Mutant(number, name, name.split(":", maxsplit=1)[0], genre, "()", (1, 1), (1, 2))


def test_what_cargo_mutants_lists_is_read() -> None:
    span = {"start": {"line": 3, "column": 5}, "end": {"line": 4, "column": 6}}
    entry = {"name": "a", "file": FILE, "genre": "FnValue", "replacement": "()", "span": span}
    assert parse([entry]) == [Mutant(1, "a", FILE, "FnValue", "()", (3, 5), (4, 6))]


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    mutants = [named("a", number) for number in range(95)]
    tenth = sample(mutants, 10, "x")
    assert len(set(tenth)) == 10
    assert tenth == sample(mutants, 10, "x") != sample(mutants, 10, "y")
    assert sample(mutants, 1, "x") == mutants


def test_a_survivor_with_a_reason_is_known_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "mutants.toml"
    file.write_text('[[accepted]]\nreason = "only faster"\nmutants = ["src/a.rs: replace f"]\n')
    known = accepted(file)
    assert known == {"src/a.rs: replace f": "only faster"}
    outcomes = {
        named("src/a.rs:7:5: replace f"): "missed",
        named("src/rules/b/c.rs:9:5: replace g"): "missed",
        named("src/rules/b/d.rs:1:1: replace h"): "caught",
        named("src/a.rs:2:5: replace i"): "hung",
    }
    left_out = [named("src/a.rs"), named("src/b.rs"), named("src/c.rs", genre="MatchArm")]
    assert summary(outcomes, left_out, known).splitlines() == [
        "hung: src/a.rs:2:5: replace i",
        "survived: src/rules/b/c.rs:9:5: replace g",
        "a.rs             1 / 2",
        "rules/b          1 / 2",
        "not compiled: 3 (2 FnValue, 1 MatchArm)",
        "mutants: 2 / 4 caught (50.0 %), 1 hung, 1 accepted, 1 survived",
    ]


def test_no_mutant_is_no_division() -> None:
    told = "mutants: 0 / 0 caught (0.0 %), 0 hung, 0 accepted, 0 survived"
    assert summary({}, [], {}).splitlines() == ["not compiled: 0", told]


def test_every_accepted_mutant_has_a_reason_and_a_file() -> None:
    for mutant, reason in accepted().items():
        assert (ROOT / mutant.split(": ", maxsplit=1)[0]).is_file(), mutant
        assert named(mutant).nameless == mutant
        assert reason
