"""The images in what a tool returned: which a model is shown, and what stands in their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rath.llm.image import MAX_IMAGE_BYTES, Image

MAX_RESULT_IMAGES = 16
"""Most images of one result that a model is shown; a guess at what still helps it."""

MAX_RESULT_IMAGE_BYTES = MAX_IMAGE_BYTES
"""Most bytes of all images of one result together: as many as one may have."""


class Album:
    """Takes images up to the limits and gives the label of each, the same one for the same image.

    The label of one that is not shown says so, and why.
    """

    __slots__ = ("_labels", "_n_bytes", "_shown")

    def __init__(self) -> None:
        self._shown: list[Image] = []
        self._labels: dict[tuple[str, str], str] = {}
        """By digest and media type."""
        self._n_bytes = 0

    @property
    def images(self) -> tuple[Image, ...]:
        """What the model is shown, in the order in which it was met."""
        return tuple(self._shown)

    @property
    def counts(self) -> dict[str, int]:
        """How many images are shown and how many are not; empty where there are none."""
        n_shown, n_met = len(self._shown), len(self._labels)
        return {"images_shown": n_shown, "images_not_shown": n_met - n_shown} if n_met else {}

    def label_of(self, value: object) -> str:
        """Return what stands for `value` in JSON: the label of an image, the text of all else."""
        if not isinstance(value, Image):
            return str(value)
        name = (value.blob.digest, value.mime)
        if name not in self._labels:
            self._labels[name] = self._take(value)
        return self._labels[name]

    def labels_in(self, value: object) -> list[str]:
        """Return the labels of all images in lists, tuples and mappings, at any depth."""
        found: list[str] = []
        todo, met = [value], set[int]()
        while todo:
            item = todo.pop()
            if isinstance(item, Image):
                found.append(self.label_of(item))
                continue
            if id(item) in met:
                continue
            met.add(id(item))
            if isinstance(item, Mapping):
                todo += reversed(list(cast("Mapping[object, object]", item).values()))
            elif isinstance(item, list | tuple):
                todo += reversed(cast("list[object]", item))
        return found

    def _take(self, image: Image) -> str:
        problem = image.problem or self._beyond(image)
        if problem is not None:
            return f"{image.label} (not shown: {problem})"
        self._shown.append(image)
        self._n_bytes += image.blob.size
        return image.label

    def _beyond(self, image: Image) -> str | None:
        if len(self._shown) >= MAX_RESULT_IMAGES:
            return f"the result has more than {MAX_RESULT_IMAGES} images"
        if self._n_bytes + image.blob.size > MAX_RESULT_IMAGE_BYTES:
            return f"the images of the result have more than {MAX_RESULT_IMAGE_BYTES} bytes"
        return None
