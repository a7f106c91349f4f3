"""What a sandbox says of a run, without a sandbox."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend.opensandbox.answers import Answer, Lines, Printed, Trouble, cut_note
from rath.backend.opensandbox.defaults import MAX_OUTPUT_BYTES


def _trouble(value: str, *traceback: str) -> Trouble:
    return Trouble("CommandExecError", value, traceback)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(Answer(True, None), 0, id="complete"),
        pytest.param(Answer(False, None), None, id="cut off"),
        pytest.param(Answer(False, _trouble("3", "exit status 3")), 3, id="exit status"),
        pytest.param(Answer(False, _trouble("-1", "signal: killed")), -9, id="killed"),
        pytest.param(Answer(False, _trouble("-1", "signal: terminated")), -15, id="terminated"),
        pytest.param(
            Answer(False, _trouble("-1", "signal: segmentation fault (core dumped)")), -11,
            id="with a core",
        ),
        pytest.param(Answer(False, _trouble("-1")), -1, id="no reason"),
        pytest.param(Answer(False, _trouble("no such shell")), None, id="no number"),
    ],
)  # fmt: skip
def test_an_exit_code_is_what_was_said_and_never_guessed(
    answer: Answer, expected: int | None
) -> None:
    assert answer.exit_code == expected


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (Trouble("ValueError", "no"), "ValueError: no"),
        (Trouble("", "2"), "exit code 2"),
        (Trouble("", "odd"), "odd"),
        (Trouble("", ""), "the sandbox says that it failed, and not why"),
        (Trouble("E", "x", ("\x1b[31mTraceback\x1b[0m", "E: x")), "Traceback\nE: x"),
        (Trouble("E", "x", ("Traceback",)), "Traceback\nE: x"),
    ],
)
def test_trouble_is_told_as_a_person_reads_it(trouble: Trouble, expected: str) -> None:
    assert trouble.text() == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"))))
def test_lines_are_put_together_again(lines: list[str]) -> None:
    # An empty line is sent as its end alone, as the recorded server does.
    taken = Lines("lines")
    for line in lines:
        taken.add(line or "\n")
    assert taken.data() == "".join(f"{line}\n" for line in lines).encode()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_pieces_are_kept_as_they_are(pieces: list[str]) -> None:
    taken = Lines("pieces")
    for piece in pieces:
        taken.add(piece)
    assert taken.data() == "".join(pieces).encode()


def test_the_middle_of_long_output_is_left_out() -> None:
    taken = Lines("pieces")
    taken.add("a" * MAX_OUTPUT_BYTES)
    taken.add("b" * 1000)
    half = MAX_OUTPUT_BYTES // 2
    end = b"a" * (half - 1000) + b"b" * 1000
    assert taken.data() == b"a" * half + cut_note(1000) + end


def test_both_streams_are_apart() -> None:
    printed = Printed("lines")
    printed.add_stdout("out")
    printed.add_stderr("err")
    assert (printed.stdout, printed.stderr) == (b"out\n", b"err\n")
