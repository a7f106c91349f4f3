"""What may be told of a URL, and whose host it names."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

__all__ = ["is_azure", "public_url"]

_AZURE_SUFFIX = ".azure.com"


def public_url(url: str | None) -> str | None:
    """Return scheme, host, port and path of `url`, without query, user and password."""
    parts = _split(url)
    if parts is None or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def is_azure(url: str | None) -> bool:
    """Tell whether the host of `url` belongs to Azure; a path or query that says so does not."""
    return _host(url).endswith(_AZURE_SUFFIX)


def _host(url: str | None) -> str:
    parts = _split(url)
    return (parts.hostname or "").rstrip(".") if parts is not None else ""


def _split(url: str | None) -> SplitResult | None:
    try:
        parts = urlsplit((url or "").strip())
        _ = parts.port
    except ValueError:
        return None
    return parts
