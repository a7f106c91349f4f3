"""One model that sees, asked about a small picture."""

from __future__ import annotations

import struct
import zlib

from rath.errors import ProviderProtocolError
from rath.llm.evidence import evidence_of
from rath.llm.probe.findings import ProbeReport
from rath.llm.probe.judge import Judgement, judge_answer
from rath.llm.probe.steps import Steps
from rath.llm.vlm import RathOpenAIVLMClient

__all__ = ["PictureProbe", "red_square"]

_PIXELS = 32
"""Width and height; vendors refuse pictures of very few pixels. A guess that costs few tokens."""


class PictureProbe:
    """Asks what a picture shows; whatever comes of it is a finding.

    Args:
        client: Who is asked.
        timeout: Seconds for the answer.
    """

    def __init__(self, client: RathOpenAIVLMClient, *, timeout: float) -> None:
        self._client = client
        self._route = client.route()
        self._steps = Steps(timeout, client.provider.api_key, self._route)

    async def run(self) -> ProbeReport:
        """Ask; runs on the runtime loop."""
        route = self._route
        return ProbeReport(
            provider_kind="openai",
            endpoint=route.endpoint,
            model=route.model,
            model_origin=dict(route.origins).get("model"),
            findings=(await self._steps.take("picture", self._look),),
        )

    async def _look(self) -> Judgement:
        try:
            exchange = await self._client.adescribe(
                red_square(), prompt="Which colour is this? One word.", mime="image/png"
            )
        except BaseException as exc:
            evidence = evidence_of(exc)
            if evidence is not None:
                self._steps.note(evidence)
            raise
        self._steps.note(exchange.evidence)
        if not exchange.response.choices:
            raise ProviderProtocolError("the answer holds no choices; expected at least one")
        verdict, text = judge_answer(exchange.response.primary_choice, exchange.evidence)
        return verdict, f"{text}, shown a picture" if verdict == "works" else text


def red_square() -> bytes:
    """Return a small picture in one colour, as PNG (W3C, PNG specification, 3rd edition)."""
    size = struct.pack(">IIBBBBB", _PIXELS, _PIXELS, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\0\0" * _PIXELS) * _PIXELS
    parts = ((b"IHDR", size), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
