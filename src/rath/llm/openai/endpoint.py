"""Where the calls of OpenAI's clients go; Azure has paths of its own for each deployed model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urlsplit

from rath.config.env import env_value
from rath.llm.call import ProviderOrigin
from rath.llm.credentials import Account
from rath.llm.endpoint import checked_url, is_azure, password_in, public_url
from rath.llm.failure import Asked
from rath.llm.openai.completions import MODELS, load_sdk
from rath.llm.sdk.target import Target, open_wire
from rath.llm.vendor import Route
from rath.llm.wire import Wire

__all__ = ["DEFAULT_BASE_URL", "OpenAIEndpoint"]

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_AZURE_VERSION = "2024-10-21"
HEADERS_VARIABLE = "OPENAI_CUSTOM_HEADERS"

_AZURE_PATH = re.compile(r"/openai(?:/deployments(?:/.*)?)?$")
"""What each call adds to the address of a resource, but many base URLs name too."""


@dataclass(frozen=True, slots=True)
class OpenAIEndpoint:
    """An account at an endpoint, and one of the things that it offers."""

    account: Account
    target: Target
    resource: str
    """Path of what is asked for, such as `/chat/completions`."""

    @classmethod
    def of(cls, account: Account, resource: str) -> Self:
        """Return what `account` calls.

        Raises:
            ValueError: Its base_url is not one, or headers of the environment would be sent to
                an endpoint that a project's config names.
        """
        base_url = checked_url(account.base_url.value, account.base_url.origin)
        version = _azure_version(base_url)
        target = Target(
            load=load_sdk,
            base_url=base_url if version is None else _AZURE_PATH.sub("", base_url),
            key_origin=account.api_key.origin,
            from_project=account.from_project,
            api_key=account.api_key.value,
            api_version=version,
            headers_variable=HEADERS_VARIABLE,
            # Azure lists models, but calls name deployments, which bear names of their own.
            listing=None if is_azure(base_url) else MODELS,
        )
        return cls(account, target, resource)

    def route(self, model: str, *, provider_origin: ProviderOrigin = "call") -> Route:
        """Return where a call for `model` goes."""
        root = self.target.base_url + ("/openai" if self.target.api_version else "")
        return Route(
            endpoint=public_url(root + self._path(model)),
            model=model,
            origins=self.account.origins_for(model, provider_origin=provider_origin),
            secret=self.account.api_key.value,
            password=password_in(self.target.base_url),
        )

    async def connect(self, asked: Asked) -> Wire:
        """Return the way there; see `Vendor.connect`."""
        return await open_wire(self.target, self._path(asked.model), asked)

    def _path(self, model: str) -> str:
        if self.target.api_version is None:
            return self.resource
        return f"/deployments/{quote(model, safe='')}{self.resource}"


def _azure_version(base_url: str) -> str | None:
    """Return the API version for an Azure resource; one of the v1 API needs none."""
    if not is_azure(base_url) or "/openai/v1" in urlsplit(base_url).path:
        return None
    return env_value("OPENAI_API_VERSION") or DEFAULT_AZURE_VERSION
