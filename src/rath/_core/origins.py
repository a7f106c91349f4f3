"""Where code comes from, as the record names it."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["module_name", "origin_of"]


def origin_of(kind: object) -> str:
    """Return `module:qualname` of a class or function."""
    name = getattr(kind, "__qualname__", type(kind).__qualname__)
    return f"{module_name(str(getattr(kind, '__module__', None) or '<unknown>'))}:{name}"


def module_name(module: str) -> str:
    """Return the name under which a module is imported, also of the one that runs as a program.

    So a tool of `shop.py` has the same name whether that runs by itself or is imported.
    """
    if module != "__main__":
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    path = getattr(main, "__file__", None)
    return Path(path).stem if path else module
