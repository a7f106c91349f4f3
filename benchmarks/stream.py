"""A stream of many text deltas, folded and shown piece by piece: CPU of the client process."""

from __future__ import annotations

from benchmarks.by_hand import add_tool, openai_sdk, plain_httpx
from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, measure
from benchmarks.ours import provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMostTimes, Line, Reference
from rath.llm import RathLLMStreamDelta
from rath.session import Session, create_system_session, run_session_loop


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """One line for each reference."""
    url = endpoint.url(f"stream-{sizes.deltas}")
    shown: list[str] = []

    def show(delta: RathLLMStreamDelta) -> None:
        if delta.content_delta:
            shown.append(delta.content_delta)

    def run_ours() -> str | None:
        shown.clear()
        user = Session.from_user_message(add_tool.QUESTION)
        agent = create_system_session(add_tool.SYSTEM)
        return run_session_loop(user, agent, agent_provider=provider(url), on_event=show).text()

    def check(text: str | None) -> None:
        if text is None or not text.endswith(f"word{sizes.deltas - 1} "):
            raise ValueError(f"the stream was not folded whole: {text!r:.80}")

    with (
        openai_sdk.open_client(url) as sdk,
        plain_httpx.open_httpx(url) as httpx_client,
        plain_httpx.open_httpx2(url) as httpx2_client,
    ):
        cpu = interleave(
            {
                "ours": lambda: measure(lambda: check(run_ours())),
                "openai SDK": lambda: measure(
                    lambda: check(openai_sdk.fold_stream(sdk, shown.append))
                ),
                "httpx": lambda: measure(
                    lambda: check(plain_httpx.fold_stream(httpx_client, shown.append))
                ),
                "httpx2": lambda: measure(
                    lambda: check(plain_httpx.fold_stream(httpx2_client, shown.append))
                ),
            },
            repeats=sizes.repeats,
        )
    row = f"stream of {sizes.deltas} deltas, CPU"
    return [
        Line(
            row,
            cpu["ours"].cpu,
            "ms",
            Reference(name, sample.cpu),
            AtMostTimes(0.6) if name == "openai SDK" else None,
        )
        for name, sample in cpu.items()
        if name != "ours"
    ]
