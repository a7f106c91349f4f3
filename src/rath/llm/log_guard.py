"""Logs of the libraries that carry our calls, kept free of keys that an endpoint repeats.

They log addresses, status lines and headers as they come, before anyone else has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import quote

from rath.llm.repeated_key import MIN_IN_ANSWER, without_secret

__all__ = ["guard_logs"]


class _KeyFilter(logging.Filter):
    """Lets every record pass, without the keys that it knows."""

    def __init__(self) -> None:
        super().__init__()
        self._forms: dict[str, tuple[str, str]] = {}
        """A key, and how it may stand in a record."""

    def add(self, secret: str) -> None:
        """Hide a key from now on."""
        self._forms[secret] = (repr(secret)[1:-1], quote(secret, safe=""))

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            return True  # the handler tells of arguments that do not fit
        shown = self._hide(message)
        if shown != message:
            record.msg, record.args = shown, None
        if record.exc_info and record.exc_info[0] is not None:
            text = logging.Formatter().formatException(record.exc_info)
            shown = self._hide(text)
            if shown != text:
                record.exc_info, record.exc_text = None, shown
        return True

    def _hide(self, text: str) -> str:
        for secret, forms in self._forms.copy().items():
            if any(form in text for form in forms):
                text = without_secret(text, secret)
        return text


_filter = _KeyFilter()


def guard_logs(libraries: Iterable[str], *secrets: str) -> None:
    """Keep long keys out of the logs of these libraries, which are imported, from now on."""
    for secret in secrets:
        if len(secret) >= MIN_IN_ANSWER:
            _filter.add(secret)
    roots = set(libraries)
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in roots:
            # Adding it again changes nothing.
            logging.getLogger(name).addFilter(_filter)
