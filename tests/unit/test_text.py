"""Texts, options, origins and imports that are made late."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rath
from rath._core.lazy_imports import lazy_names
from rath._core.options import Sourced, first_set, origin_of
from rath._core.text import (
    cut_middle,
    decode_output,
    did_you_mean,
    nearest,
    one_line_preview,
    valid_unicode,
)
from tests.support.api import format_module

any_text = st.text(st.characters())  # surrogates included
clean_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(any_text)
def test_valid_unicode_can_always_be_encoded(text: str) -> None:
    valid_unicode(text).encode("utf-8")


@given(clean_text)
def test_valid_unicode_gives_the_same_object_for_valid_text(text: str) -> None:
    assert valid_unicode(text) is text


@given(clean_text, st.characters(categories=["Cs"]), clean_text)
def test_valid_unicode_replaces_only_the_surrogate(head: str, bad: str, tail: str) -> None:
    assert valid_unicode(head + bad + tail) == f"{head}\ufffd{tail}"


def test_valid_unicode_joins_a_surrogate_pair() -> None:
    assert valid_unicode("a\ud83d\ude00b") == "a\U0001f600b"


@given(clean_text)
def test_decode_output_reads_utf8_exactly(text: str) -> None:
    assert decode_output(text.encode()) == text


@given(st.binary(), st.sampled_from([None, "cp1252", "ascii", "no-such-encoding"]))
def test_decode_output_never_fails(data: bytes, fallback: str | None) -> None:
    valid = decode_output(data, fallback=fallback)
    assert valid_unicode(valid) is valid


def test_decode_output_uses_the_fallback_for_what_is_not_utf8() -> None:
    assert decode_output(b"na\xef\xbfve \x80", fallback="cp1252") == "naï¿ve €"


def test_decode_output_uses_latin1_when_the_fallback_is_unknown() -> None:
    assert decode_output(b"na\xefve", fallback="no-such-encoding") == "naïve"


@given(clean_text, st.integers(min_value=9, max_value=60))
def test_preview_is_one_line_within_its_limit(text: str, max_chars: int) -> None:
    preview = one_line_preview(text, max_chars)
    assert len(preview) <= max_chars
    assert not {"\n", "\r"} & set(preview)


@pytest.mark.parametrize(
    ("text", "max_chars", "expected"),
    [
        pytest.param("a\r\nb\rc\nd", 100, r"a\nb\nc\nd", id="line-breaks"),
        pytest.param("abcdefghijklm", 11, "abc ... klm", id="cut"),
        pytest.param("abcdefghijklm", 12, "abc ... klm", id="cut-odd"),
        pytest.param("abcdefghijklm", 13, "abcdefghijklm", id="fits"),
        pytest.param("abcdefghijklm", 8, "abcdefghijklm", id="limit-too-small"),
        pytest.param("", 100, "", id="empty"),
    ],
)
def test_preview_rule(text: str, max_chars: int, expected: str) -> None:
    assert one_line_preview(text, max_chars) == expected


@given(clean_text, st.integers(min_value=0, max_value=200))
def test_cut_middle_stays_within_its_limit(text: str, max_chars: int) -> None:
    shown, left_out = cut_middle(text * 5, max_chars)
    assert len(shown) <= max_chars
    assert (shown == text * 5) == (left_out == 0)


def test_cut_middle_keeps_head_and_tail_and_says_what_is_missing() -> None:
    shown, left_out = cut_middle("<" * 500 + ">" * 500, 100)
    assert shown.startswith("<" * 25)
    assert shown.endswith(">" * 25)
    assert f"{left_out} characters left out" in shown
    assert shown.count("<") + shown.count(">") == 1000 - left_out


def test_cut_middle_keeps_only_the_head_without_room_for_a_note() -> None:
    assert cut_middle("abcdefgh", 3) == ("abc", 5)


def test_nearest_ignores_letter_case() -> None:
    assert nearest("OpenAi", ["anthropic", "openAI"]) == "openAI"


def test_nearest_gives_none_when_nothing_is_near() -> None:
    assert nearest("zzz", ["anthropic", "openai"]) is None


def test_did_you_mean_is_a_sentence_or_nothing() -> None:
    assert did_you_mean("locl", ["local"]) == " Did you mean 'local'?"
    assert did_you_mean("zzz", ["local"]) == ""


def test_first_set_value_wins_with_its_origin() -> None:
    chosen = first_set(
        Sourced(None, "call"), Sourced("m-1", "env MODEL"), Sourced("m-2", "default")
    )
    assert chosen == Sourced("m-1", "env MODEL")


@pytest.mark.parametrize("unset", [None, "", " \t"], ids=["none", "empty", "blank"])
def test_unset_candidates_are_skipped(unset: str | None) -> None:
    assert first_set(Sourced(unset, "call"), Sourced("x", "default")) == Sourced("x", "default")


def test_strings_come_back_stripped() -> None:
    assert first_set(Sourced(" key \n", "call")) == Sourced("key", "call")


@pytest.mark.parametrize("value", [0, 0.0, False], ids=repr)
def test_falsy_values_other_than_blank_text_are_set(value: float) -> None:
    assert first_set(Sourced(value, "call"), Sourced(7, "default")) == Sourced(value, "call")


def test_nothing_set_gives_none() -> None:
    assert first_set(Sourced(None, "call"), Sourced("", "default")) is None


PROGRAM = "from rath._core.options import origin_of\nclass Kind: ...\nprint(origin_of(Kind))\n"


def test_a_class_and_a_function_have_module_and_name() -> None:
    assert origin_of(Path) == "pathlib:Path"
    assert origin_of(test_a_class_and_a_function_have_module_and_name).endswith(
        "test_text:test_a_class_and_a_function_have_module_and_name"
    )


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        (["shop.py"], "shop:Kind"),
        (["-m", "shop"], "shop:Kind"),
        (["-m", "stall"], "stall:Kind"),
        (["-c", PROGRAM], "__main__:Kind"),
    ],
)
def test_a_program_has_the_name_under_which_it_is_imported(
    tmp_path: Path, started: list[str], expected: str
) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "stall").mkdir()
    (tmp_path / "stall" / "__main__.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *started], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{expected}\n"


LATE = (
    "rath.backend",
    "rath.flow",
    "rath.flow.tool",
    "rath.llm",
    "rath.mcp",
    "rath.memory",
    "rath.session",
    "rath.session.graph",
    "rath.session.persistence",
    "rath.session.log",
    "rath.session.log.index",
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with a late name, another module, and one that cannot be imported."""
    folder = tmp_path / "a_late_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from rath._core.lazy_imports import lazy_names\n"
        '__getattr__, __dir__ = lazy_names(__name__, {"given": ("ANSWER",)})\n'
    )
    (folder / "given.py").write_text("ANSWER = 42\n")
    (folder / "other.py").write_text("")
    (folder / "broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(folder.name)


def test_a_name_is_loaded_on_first_use(package: ModuleType) -> None:
    assert "a_late_package.given" not in sys.modules
    assert package.ANSWER == 42
    assert "a_late_package.given" in sys.modules


def test_a_module_of_the_package_is_one_of_its_attributes(package: ModuleType) -> None:
    assert package.other is sys.modules["a_late_package.other"]


def test_a_package_that_a_module_misses_is_reported(package: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        package.broken  # noqa: B018  reading it is the test


@pytest.mark.parametrize("name", ["nothing", "_private", "__wrapped__"])
def test_an_unknown_name_is_an_attribute_error(package: ModuleType, name: str) -> None:
    with pytest.raises(AttributeError, match=f"'a_late_package' has no attribute '{name}'"):
        getattr(package, name)


def test_dir_names_what_is_not_loaded_yet(package: ModuleType) -> None:
    assert {"ANSWER", "__name__"} <= {*dir(package)}


def test_a_name_that_a_module_would_hide_is_refused() -> None:
    with pytest.raises(ValueError, match="'load'"):
        lazy_names("some.package", {"load": ("load",), "other": ("fine",)})


@pytest.mark.parametrize("name", LATE)
def test_dir_of_a_package_names_all_that_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert {*module.__all__} <= {*dir(module)}


@pytest.mark.parametrize("name", LATE)
def test_no_module_of_a_package_hides_one_of_its_names(name: str) -> None:
    module = importlib.import_module(name)
    folder = Path(rath.__file__).parent.joinpath(*name.split(".")[1:])
    modules = {path.name.removesuffix(".py") for path in folder.iterdir()}
    assert modules & {*module.__all__} == set()


def test_listing_loads_neither_a_model_nor_what_reads_logs() -> None:
    code = "import rath.cli.listing, json, sys; print(json.dumps([*sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {*json.loads(run.stdout)}
    assert (
        loaded
        & {
            "asyncio",
            "rath.llm.provider",
            format_module.__name__,
            "rath.session.loading",
            "rath.session.session",
            "rich.progress",
        }
        == set()
    )
