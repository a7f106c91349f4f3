"""Where code comes from, by the name under which it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rath._core.options import origin_of

PROGRAM = "from rath._core.options import origin_of\nclass Kind: ...\nprint(origin_of(Kind))\n"


def test_a_class_and_a_function_have_module_and_name() -> None:
    assert origin_of(Path) == "pathlib:Path"
    assert origin_of(test_a_class_and_a_function_have_module_and_name).endswith(
        "test_origins:test_a_class_and_a_function_have_module_and_name"
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
