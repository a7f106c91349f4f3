"""The filter of system calls, run as the kernel runs it, on calls that nobody has to make."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend.bubblewrap.command import program_for

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003


def verdict(number: int, *arguments: int, machine: str = "x86_64", architecture: int = X86) -> int:
    """Interpret the program as the kernel would and return what it returns."""
    program = program_for(machine)
    assert program is not None
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    instructions: list[tuple[int, int, int, int]] = list(struct.iter_unpack("<HBBI", program))
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                at += if_true if loaded == operand else if_false
            case 0x35:
                at += if_true if loaded >= operand else if_false
            case 0x45:
                at += if_true if loaded & operand else if_false
            case 0x06:
                return operand
            case _:
                raise AssertionError(code)


@given(number=st.integers(0, 400), arguments=st.lists(st.integers(0, 2**32 - 1), max_size=6))
def test_a_native_call_is_allowed_or_fails_and_never_kills(
    number: int, arguments: list[int]
) -> None:
    assert verdict(number, *arguments) in {
        ALLOW,
        FAIL | errno.ENOSYS,
        FAIL | errno.EPERM,
        FAIL | errno.EAFNOSUPPORT,
    }


@pytest.mark.parametrize("number", [0, 1, 59, 56, 231, 435])
def test_what_every_program_needs_is_allowed(number: int) -> None:
    assert verdict(number) == ALLOW


@pytest.mark.parametrize("number", [103, 248, 249, 250, 298, 321, 323, 425, 426, 427, 437])
def test_a_denied_call_is_not_there(number: int) -> None:
    assert verdict(number) == FAIL | errno.ENOSYS


@pytest.mark.parametrize("family", [1, 2, 10, 16])
def test_families_of_a_namespace_have_sockets(family: int) -> None:
    assert verdict(41, family) == ALLOW


@pytest.mark.parametrize("family", [0, 17, 31, 38, 40])
def test_other_families_have_none(family: int) -> None:
    assert verdict(41, family) == FAIL | errno.EAFNOSUPPORT


@pytest.mark.parametrize(("number", "before"), [(90, 1), (91, 1), (268, 2), (452, 2), (85, 1),
                                                (133, 1), (259, 2)])  # fmt: skip
@pytest.mark.parametrize(("mode", "is_allowed"), [(0o755, True), (0o4755, False), (0o2755, False)])
def test_no_call_makes_a_set_id_file(number: int, before: int, mode: int, is_allowed: bool) -> None:
    expected = ALLOW if is_allowed else FAIL | errno.EPERM
    assert verdict(number, *(0,) * before, mode) == expected


@pytest.mark.parametrize(("number", "before"), [(2, 1), (257, 2)])
@pytest.mark.parametrize(("flags", "is_allowed"), [(0, True), (0o100, False), (0o20200000, False)])
def test_opening_has_a_mode_only_where_it_creates(
    number: int, before: int, flags: int, is_allowed: bool
) -> None:
    arguments = (*(0,) * before, flags, 0o4755)
    assert verdict(number, *arguments) == (ALLOW if is_allowed else FAIL | errno.EPERM)


def test_another_instruction_set_is_ended() -> None:
    assert verdict(1, architecture=I386) == KILL


def test_the_second_set_of_numbers_is_not_there() -> None:
    assert verdict(0x40000000 | 41, 40) == FAIL | errno.ENOSYS


@pytest.mark.parametrize(("number", "expected"), [(198, FAIL | errno.EAFNOSUPPORT), (64, ALLOW),
                                                  (219, FAIL | errno.ENOSYS)])  # fmt: skip
def test_another_machine_has_numbers_of_its_own(number: int, expected: int) -> None:
    assert verdict(number, 40, machine="aarch64", architecture=ARM) == expected


def test_an_unknown_machine_has_no_filter() -> None:
    assert program_for("riscv64") is None
