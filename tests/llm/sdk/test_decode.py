"""Lists of models and bodies of errors, in the forms that vendors give them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.errors import decode_error_body
from rath.llm.sdk_transport import decode_models

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_any_json_is_a_list_of_models_or_none(value: object) -> None:
    try:
        names, _ = decode_models(json.dumps(value).encode())
    except ValueError:
        return
    assert all(names)


@given(JSON | JSON.map(lambda inner: {"error": inner}))
def test_any_json_may_be_the_body_of_an_error(value: object) -> None:
    for said in decode_error_body(json.dumps(value).encode()):
        assert said is None or isinstance(said, str)


@pytest.mark.parametrize(
    ("payload", "names"),
    [
        ({"object": "list", "data": [{"id": "a"}, {"id": "b", "name": "B"}]}, ("a", "b")),
        ({"models": [{"name": "a"}, {"id": "b"}]}, ("a", "b")),
        ({"data": [{"id": "a"}], "models": [{"name": "b"}]}, ("a",)),
        ([{"id": "a"}, "b"], ("a", "b")),
        ({"data": [{"id": ""}, {"id": 3}, None, {}]}, ()),
    ],
    ids=["openai", "ollama", "both", "bare", "junk"],
)
def test_every_form_of_a_list_is_read(payload: object, names: tuple[str, ...]) -> None:
    assert decode_models(json.dumps(payload).encode()) == (names, None)


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({"has_more": True, "last_id": "a"}, "a"),
        ({"has_more": False, "last_id": "a"}, None),
        ({"has_more": True, "last_id": None}, None),
        ({"last_id": "a"}, None),
    ],
)
def test_a_page_tells_where_the_next_one_begins(
    fields: dict[str, object], last: str | None
) -> None:
    content = json.dumps({"data": [{"id": "a"}], **fields}).encode()
    assert decode_models(content) == (("a",), last)


@pytest.mark.parametrize("content", [b"", b"<html>", b"{}", b'{"data": {}}', b"3", b"\xff"])
def test_what_lists_no_models_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"no list of models|Expecting value|can't decode"):
        decode_models(content)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c"}}, ("m", "c")),
        ({"error": {"message": "m", "type": "t", "code": None}}, ("m", "t")),
        ({"error": {"message": "m", "code": 404}}, ("m", "404")),
        (
            {"type": "error", "error": {"type": "t", "message": "m"}, "request_id": "r"},
            ("m", "t"),
        ),
        ({"error": {"type": "t", "message": "m", "details": {"error_code": "c"}}}, ("m", "c")),
        ({"error": "model 'x' not found"}, ("model 'x' not found", None)),
        ({"error": ""}, (None, None)),
        ({"message": "m", "code": "c"}, ("m", "c")),
        ({"detail": "Not Found"}, ("Not Found", None)),
        (["m"], (None, None)),
    ],
    ids=[
        "openai",
        "no-code",
        "number",
        "anthropic",
        "details",
        "text",
        "empty",
        "bare",
        "detail",
        "list",
    ],
)
def test_every_form_of_an_error_is_read(body: object, said: tuple[str | None, str | None]) -> None:
    assert decode_error_body(json.dumps(body).encode()) == said


@pytest.mark.parametrize("content", [b"", b"<html>Bad gateway</html>", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_not_json_says_nothing(content: bytes) -> None:
    assert decode_error_body(content) == (None, None)
