"""What is said of mutants: which count, and which are excused."""

from pathlib import Path

from mutants import ROOT, accepted, nameless, summary


def test_a_survivor_with_a_reason_is_known_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "mutants.toml"
    file.write_text('[[accepted]]\nreason = "only faster"\nmutants = ["a.rs: replace f with ()"]\n')
    known = accepted(file)
    assert known == {"a.rs: replace f with ()": "only faster"}
    missed = ["a.rs:7:5: replace f with ()", "a.rs:9:5: replace g with ()"]
    assert summary(["x", "y"], missed, known).splitlines() == [
        "survived: a.rs:9:5: replace g with ()",
        "mutants: 2 / 4 caught (50.0 %), 1 accepted, 1 survived",
    ]


def test_no_mutant_is_no_division() -> None:
    assert summary([], [], {}) == "mutants: 0 / 0 caught (0.0 %), 0 accepted, 0 survived"


def test_every_accepted_mutant_has_a_reason_and_a_file() -> None:
    for mutant, reason in accepted().items():
        assert (ROOT / mutant.split(": ", maxsplit=1)[0]).is_file(), mutant
        assert nameless(mutant) == mutant
        assert reason
