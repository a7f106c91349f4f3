"""08: a long session becomes one short row; what it cost is carried over."""

from __future__ import annotations

from _shared import provider_from_env, show_usage
from rath import flow
from rath.session import ChunkTable, Session, assistant_turn_chunk, user_text_chunk
from rath.session.record import Summary

FACTS = {
    "When did the press start?": "At nine, after the cleaning.",
    "Who was on shift?": "Mara until two, then Jon.",
    "What went wrong?": "The belt slipped twice, at ten and at four.",
    "What was done?": "Jon tightened it and ordered a new one for Friday.",
}
rows = [
    row
    for question, answer in FACTS.items()
    for row in (
        user_text_chunk(question),
        assistant_turn_chunk(tool_calls=None, content=answer),
    )
]
session = Session(ChunkTable(tuple(rows)))

compressor = flow.Compressor(
    "Sum up the conversation in one or two sentences. Keep names and times.",
    provider_from_env(["The belt slipped at ten and four; Jon tightened it, a new one is due."]),
)
out = compressor(session)
print(out.text())
print("rows:", len(session.chunk_table), "->", len(out.chunk_table))
print("rows replaced:", [len(entry.replaced) for entry in out.record if isinstance(entry, Summary)])
show_usage(out)
