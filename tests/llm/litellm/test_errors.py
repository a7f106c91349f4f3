"""Which class of LiteLLM becomes which error of rath."""

from __future__ import annotations

import pytest

from tests.support.asking import KEY
from tests.support.error_table import assert_is, documented
from tests.support.litellm import needs_litellm
from tests.support.targets import request_target

ASKED = request_target("https://h/v1", timeout=600.0, secret=KEY)


@needs_litellm
@pytest.mark.parametrize(("library", "name", "ours", "base"), documented("litellm", "httpx"))
def test_an_error_of_litellm_is_what_the_documents_say(
    library: str, name: str, ours: str, base: str
) -> None:
    # Where the library is not installed, this module cannot be imported.
    import httpx  # noqa: PLC0415

    # Imported by us first: what a program has imported itself keeps its own settings.
    from rath.llm.litellm.connection import MAPPED, litellm, map_error  # noqa: PLC0415

    request = httpx.Request("POST", "https://h/v1")
    response = httpx.Response(422, request=request)
    needs_response = name in {"PermissionDeniedError", "UnprocessableEntityError"}
    more = {"response": response} if needs_response else {}
    if name == "PermissionDeniedError":
        response.status_code = 403
    error: Exception
    if library == "httpx":
        error = getattr(httpx, name)("it failed", request=request)
    else:
        error = getattr(litellm, name)(
            message="it failed", model="m", llm_provider="openai", **more
        )
    assert isinstance(error, MAPPED)
    assert_is(map_error(error, ASKED), ours, base)
