from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from rath.session.view.page_data import cut_text, harmless


@given(st.text(), st.integers(1, 20))
def test_a_long_text_keeps_its_ends_and_says_what_is_missing(text: str, max_chars: int) -> None:
    made = cut_text(text, max_chars)
    if len(text) <= max_chars:
        assert made == text
        return
    assert isinstance(made, list)
    head, n_left, tail = made
    assert isinstance(head, str)
    assert isinstance(tail, str)
    assert len(head) + len(tail) == max_chars
    assert n_left == len(text) - max_chars
    assert text.startswith(head)
    assert text.endswith(tail)


texts = st.text() | st.sampled_from(["</script>", "<!--<script>", "\u2028", "&lt;", "]]>"])


@given(st.lists(texts) | st.dictionaries(texts, texts))
def test_harmless_json_says_the_same_and_ends_no_script(value: object) -> None:
    made = harmless(json.dumps(value, ensure_ascii=False))
    assert json.loads(made) == value
    assert not set(made) & set("<>&\u2028\u2029")
