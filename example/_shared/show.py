"""Print what a session says about its run."""

from __future__ import annotations

from rath.memory import MemoryFindResult, MemoryResult
from rath.session import ChunkKind, ChunkTable, Session
from rath.session.record import ModelCall


def show_rows(table: ChunkTable) -> None:
    """Print what was said, the tool calls with their arguments, and what they came to."""
    for row in table:
        if row.kind is ChunkKind.TOOL_RESULT:
            print(f"  result     {row.payload['name']} {row.payload['content']}")
        elif row.payload.get("content"):
            print(f"  {row.kind_name:<9}  {row.payload['content']}")
        for call in row.payload.get("tool_calls") or ():
            print(f"  call       {call['function']['name']} {call['function']['arguments']}")


def show_usage(session: Session) -> None:
    """Print the tokens of all model calls behind a session."""
    usage = session.cumulative_usage
    if usage is not None:
        print(f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out")


def show_calls(session: Session) -> None:
    """Print who was asked in each model call, why, and what came of it."""
    for entry in session.record:
        if isinstance(entry, ModelCall):
            call = entry.evidence
            model = call.served_model or call.requested_model
            print(f"  {entry.status}: {call.provider_kind} {model}")
            print(f"    endpoint   {call.endpoint}")
            for name, origin in call.origins:
                print(f"    {name:<9}  from the {origin}")
            if call.fallback_from:
                print(f"    in place of {call.fallback_from}")
            price = "no price is known" if call.cost is None else f"{call.cost.usd} USD"
            print(f"    cost       {price}")


def show_recalled(found: MemoryResult) -> None:
    """Print the notes that a memory found."""
    hits = found.hits if isinstance(found, MemoryFindResult) else ()
    print("recalled from earlier runs:" if hits else "recalled from earlier runs: nothing yet")
    for hit in hits:
        print(f"  {hit.uri}  {' '.join((hit.snippet or '').split())}")


def show_seen(session: Session) -> None:
    """Print the notes that the model was shown, as the record of the session has them."""
    notes = {
        note
        for entry in session.record
        if isinstance(entry, ModelCall) and entry.seen is not None
        for note in entry.seen.recalled
    }
    print("notes that the model was shown, what this run remembered among them:")
    for note in sorted(notes, key=lambda note: note.uri):
        print(f"  {note.uri}  {' '.join(note.text.split())}")


def rows_before(session: Session) -> ChunkTable:
    """Return the rows of the session that this one was made from, which it never forgets."""
    before = session.provenance.parents[0].body
    return ChunkTable() if before is None else before.result().table
