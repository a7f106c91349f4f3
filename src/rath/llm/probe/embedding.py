"""One embedding model, asked for the vector of a word."""

from __future__ import annotations

from rath.llm.embedding.client import EmbeddingClient
from rath.llm.probe.findings import ProbeReport
from rath.llm.probe.judge import Judgement
from rath.llm.probe.steps import Steps

__all__ = ["EmbeddingProbe"]


class EmbeddingProbe:
    """Asks for one embedding; whatever comes of it is a finding.

    Args:
        client: Who is asked.
        timeout: Seconds for the answer.
    """

    def __init__(self, client: EmbeddingClient, *, timeout: float) -> None:
        self._client = client
        self._route = client.route()
        self._steps = Steps(timeout, client.provider.api_key, self._route)

    async def run(self) -> ProbeReport:
        """Ask; runs on the runtime loop."""
        route = self._route
        return ProbeReport(
            provider_kind=self._client.provider.provider_kind or self._client.kind,
            endpoint=route.endpoint,
            model=route.model,
            model_origin=dict(route.origins).get("model"),
            findings=(await self._steps.take("embedding", self._embed),),
        )

    async def _embed(self) -> Judgement:
        (vector,) = await self._client.aembed(("word",), on_call=self._steps.note)
        return "works", f"{self._route.model!r} gave a vector of {len(vector)} dimensions"
