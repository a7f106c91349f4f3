"""08: a long conversation becomes one short row; what it took is carried over."""

from __future__ import annotations

import rath
from _shared import provider_from_env
from rath import flow
from rath.session import ChunkTable, assistant_turn_chunk, user_text_chunk
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

rath.autosave()
compressor = flow.Compressor(
    "Sum up the conversation in one or two sentences. Keep names and times.",
    provider_from_env(["The belt slipped at ten and four; Jon tightened it, a new one is due."]),
)
session = rath.Session(ChunkTable(tuple(rows)))
out = compressor(session)
print("the summary:", out.text())
print(f"{len(session.rows)} rows became {len(out.rows)}")
for entry in out.record:
    if isinstance(entry, Summary):
        print(f"the record names the {len(entry.replaced)} rows that the summary stands for")
print(f"tokens: {out.usage.prompt_tokens} in, {out.usage.completion_tokens} out")
