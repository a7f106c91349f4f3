"""A JSON file that is checked, and what is found in it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast

from rath.cli.config_places import Place, place_in, places_of
from rath.cli.findings import Finding, Level
from rath.config.keys import format_key

__all__ = ["CheckedFile", "Key", "Table"]

Key: TypeAlias = tuple[str | int, ...]
Table: TypeAlias = Mapping[str, object]

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(slots=True)
class CheckedFile:
    """Reads a file as a JSON object; what is wrong is a finding that says where."""

    group: str
    subject: str
    path: Path
    findings: list[Finding] = field(default_factory=list[Finding])
    payload: Table | None = None
    """None where it is missing or cannot be used."""

    places: Mapping[Key, Place] = field(default_factory=dict[Key, Place])

    def add(
        self,
        level: Level,
        text: str,
        advice: str = "",
        *,
        key: Sequence[str | int] = (),
        place: Place | None = None,
    ) -> None:
        """Note something about the file, or about what stands in it at a key or a place."""
        place = place or place_in(self.places, key)
        details: dict[str, object] = {"file": str(self.path)}
        where = str(self.path)
        if place is not None:
            line, column = place
            details |= {"line": line, "column": column}
            where = f"{where}:{line}:{column}"
        if key:
            dotted = format_key(map(str, key))
            details["key"] = dotted
            text = f"{dotted}: {text}"
        self.findings.append(
            Finding(self.group, self.subject, level, f"{where}: {text}", advice, details)
        )

    def read(self) -> None:
        """Read the file; a missing one is left out."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
            payload: object = json.loads(text)
            self.places = places_of(text)
        except FileNotFoundError:
            return
        except json.JSONDecodeError as exc:
            advice = "correct it there; nothing in this file counts until then"
            self.add(
                "problem", f"is not valid JSON: {exc.msg}", advice, place=(exc.lineno, exc.colno)
            )
        except RecursionError:
            self.add("problem", "is nested too deeply to be read")
        except (OSError, UnicodeDecodeError) as exc:
            self.add("problem", f"cannot be read: {exc}", "it must be a JSON file in UTF-8")
        else:
            if isinstance(payload, dict):
                self.payload = cast("Table", payload)
                return
            found = type(payload).__name__
            self.add("problem", f"must hold a JSON object, not {found}", 'it begins with a "{"')

    def check_private(self) -> None:
        """Find out whether other users of the machine can reach the secrets in the file."""
        if os.name != "posix":
            return
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
        except OSError:
            return
        if mode & _OTHERS:
            text = f"has permissions {mode:o}, so other users can reach the secrets in it"
            self.add("problem", text, f"chmod 600 {self.path}")
