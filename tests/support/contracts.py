"""The findings of a contract that a driver does not keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["failed_checks"]


def failed_checks(check: Callable[..., object], *args: Any, **options: Any) -> dict[str, str]:
    """Run a contract that must fail, and return its failed checks with their details."""
    with pytest.raises(AssertionError) as caught:
        check(*args, **options)
    lines = [line.split(maxsplit=1) for line in str(caught.value).split("\n")[1:] if line]
    failed = [rest.partition(": ") for status, rest in lines if status == "failed"]
    return {name: detail for name, _, detail in failed}
