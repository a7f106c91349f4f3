"""The errors of the sandbox plane, under the path where programs look for them."""

from __future__ import annotations

from rath.errors import (
    BackendError,
    BackendNotFound,
    BackendSandboxClosed,
    UnsupportedBackendTool,
)

__all__ = ["BackendError", "BackendNotFound", "BackendSandboxClosed", "UnsupportedBackendTool"]
