"""How much of a session a page shows; what is left out is said on the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Sizes above which the page shows a part; all are guesses that keep a page below 20 MB."""

    max_chars: int = 20_000
    """Of one text: a message, arguments, a result. Both ends of a longer one are shown."""

    max_diff_chars: int = 40_000
    """Of the diff of one file."""

    max_image_bytes: int = 300_000
    """Of one image; of a larger one the page says type, size and digest."""

    max_all_images_bytes: int = 8_000_000
    """Of all images of a page together."""

    def __post_init__(self) -> None:
        for name in ("max_chars", "max_diff_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_image_bytes", "max_all_images_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
