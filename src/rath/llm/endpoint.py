"""URLs of endpoints: the public part, the checks, and whose host one names."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

__all__ = [
    "checked_url",
    "is_azure",
    "is_loopback",
    "password_in",
    "public_url",
    "without_login",
]

_AZURE_SUFFIXES = tuple(
    f".{service}.azure.{cloud}"
    for service in ("openai", "cognitiveservices", "services.ai")
    for cloud in ("com", "us", "cn")
)
"""Hosts of Azure's resources for models, in its clouds. Virtual machines and others of its services
end with `.azure.com` too."""


def public_url(url: str | None) -> str | None:
    """Return scheme, host, port and path of `url`, without query, user and password."""
    parts = _split(url)
    if parts is None or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def checked_url(url: str, origin: str) -> str:
    """Return a base URL without a slash at its end.

    Args:
        url: What somebody gave.
        origin: Where it came from, for the error.

    Raises:
        ValueError: It is not the URL of a host, by http or https, or more than that.
    """
    parts = _split(url)
    # The text does not repeat it: it may hold a password, or be a key in the wrong place.
    if parts is None or not parts.hostname or parts.scheme not in {"http", "https"}:
        raise ValueError(
            "base_url must begin with http:// or https:// and name a host; the value that does "
            f"not came from {origin}"
        )
    if parts.query or parts.fragment or "@" in parts.path:
        raise ValueError(
            "base_url must end with its path: a query is not sent with calls, and in a password "
            f"the characters / ? # @ are written as %2F %3F %23 %40. The value came from {origin}"
        )
    return url.rstrip("/")


def without_login(url: str) -> str:
    """Return `url` without user and password, and otherwise as it is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def password_in(url: str) -> str:
    """Return the password in a URL, the user where there is none, or an empty text."""
    parts = _split(url)
    return "" if parts is None else unquote(parts.password or parts.username or "")


def is_azure(url: str | None) -> bool:
    """Tell whether `url` names a model resource of Azure, by its host alone."""
    return _host(url).endswith(_AZURE_SUFFIXES)


def is_loopback(url: str | None) -> bool:
    """Tell whether `url` names this machine, by its host alone."""
    host = _host(url)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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
