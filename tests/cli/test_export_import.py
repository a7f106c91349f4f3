"""`rath export` and `rath import`: a session with all it came from, from store to store."""

from __future__ import annotations

from pathlib import Path

from rath.cli.terminal import Exit
from tests.cli.conftest import Rath
from tests.support.store_family import Family, damage


def test_a_session_goes_to_another_store(rath: Rath, family: Family, tmp_path: Path) -> None:
    file, there = tmp_path / "packed.zip", str(tmp_path / "there")
    result = rath("export 33333333", str(file), ends=Exit.ANSWERED, out="", err="sessions in all")
    result = rath("import", str(file), "--store", there, ends=Exit.ANSWERED)
    (ident,) = result.stdout.split()
    assert ident.startswith("33333333")
    assert rath("verify", ident, "--store", there).exit_code == Exit.ANSWERED
    log = family.directory / f"{ident}.jsonl"
    assert (Path(there) / log.name).read_bytes() == log.read_bytes()
    rath("import", str(file), "--store", there, err="0 sessions added, 0 grown")


def test_a_file_that_is_there_is_replaced_only_by_force(
    rath: Rath, family: Family, tmp_path: Path
) -> None:
    file = tmp_path / "packed.zip"
    file.write_text("mine")
    result = rath("export 33333333", str(file))
    assert (result.exit_code, file.read_text()) == (Exit.MISUSE, "mine")
    assert rath("export 33333333", str(file), "--force").exit_code == Exit.ANSWERED
    assert file.read_bytes() != b"mine"


def test_a_damaged_file_is_refused_by_name(rath: Rath, family: Family, tmp_path: Path) -> None:
    file, there = tmp_path / "packed.zip", tmp_path / "there"
    rath("export 33333333", str(file))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    rath("import", str(file), "--store", str(there), ends=Exit.DAMAGED, err="packed.zip:")
    assert not list(there.glob("*.jsonl"))


def test_a_damaged_session_is_not_exported(rath: Rath, family: Family, tmp_path: Path) -> None:
    damage(family.directory, family.user)
    rath("export 33333333", str(tmp_path / "packed.zip"), ends=Exit.DAMAGED)
    assert not (tmp_path / "packed.zip").exists()


def test_what_the_store_lacks_of_a_session_is_named(
    rath: Rath, family: Family, tmp_path: Path
) -> None:
    (family.directory / f"{family.user.session}.jsonl").unlink()
    result = rath("export 33333333", str(tmp_path / "packed.zip"), ends=Exit.MISSING)
    assert str(family.user.session) in result.stderr
    assert (tmp_path / "packed.zip").exists()


def test_a_file_that_is_not_there(rath: Rath, tmp_path: Path) -> None:
    result = rath("import", str(tmp_path / "none"))
    assert (result.exit_code, "bundle not found" in result.stderr) == (Exit.WORLD, True)
