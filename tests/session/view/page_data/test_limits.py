from __future__ import annotations

import pytest

from rath.session.view import PageLimits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_chars", 0),
        ("max_diff_chars", -1),
        ("max_image_bytes", -1),
        ("max_all_images_bytes", -1),
    ],
)
def test_a_limit_that_means_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        PageLimits(**{name: value})
