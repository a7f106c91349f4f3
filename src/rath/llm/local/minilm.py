"""A sentence embedding model in memory; imports onnxruntime, tokenizers and numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rath.llm.embedding.decode import Vector
from rath.llm.local.embedding_files import EmbeddingFiles

__all__ = ["MiniLM", "Part", "Plan"]

_runtime: Any = onnxruntime
"""It ships no types."""

MAX_TOKENS = 256
"""Tokens of a text that are read, its two marks included: what the model was trained for."""

_TOKENS_PER_RUN = 512
"""Tokens of one run, padding included; measured: more are no faster on one thread, and take more
memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """Texts of about the same length, as numbers of tokens."""

    indices: tuple[int, ...]
    """Their places among all texts."""

    token_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a list of texts is embedded."""

    parts: tuple[Part, ...]
    n_tokens: int


class MiniLM:
    """A model and its tokenizer; blocks half a second while they load, on one thread each."""

    def __init__(self, files: EmbeddingFiles) -> None:
        self.version: str = _runtime.__version__
        options = _runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = _runtime.InferenceSession(
            files.model.read(), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer: Any = Tokenizer.from_str(files.tokenizer.read().decode())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def plan(self, texts: Sequence[str]) -> Plan:
        """Return the texts as tokens, those of like length together; blocks, 0.1 ms a text."""
        # One by one: a whole list would start threads, and a fork after that prints a warning.
        found = [tuple(self._tokenizer.encode(text).ids) for text in texts]
        order = sorted(range(len(found)), key=lambda index: len(found[index]))
        parts: list[list[int]] = []
        for index in order:
            # The last one of a part is its longest, and the others are padded to it.
            if not parts or (len(parts[-1]) + 1) * len(found[index]) > _TOKENS_PER_RUN:
                parts.append([])
            parts[-1].append(index)
        return Plan(
            tuple(Part(tuple(part), tuple(found[index] for index in part)) for part in parts),
            sum(map(len, found)),
        )

    def embed(self, part: Part) -> dict[int, Vector]:
        """Return the vectors of a part by the places of its texts; blocks, 6 ms a text.

        A vector is the mean of those of its tokens, L2-normalised.
        """
        width = max(map(len, part.token_ids))
        ids = np.zeros((len(part.indices), width), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(part.token_ids):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden: NDArray[np.float32] = self._session.run(None, feeds)[0]
        summed = (hidden * mask[..., np.newaxis]).sum(axis=1, dtype=np.float64)
        vectors = summed / np.linalg.norm(summed, axis=1, keepdims=True)
        return {
            index: tuple(row) for index, row in zip(part.indices, vectors.tolist(), strict=True)
        }
