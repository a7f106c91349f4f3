"""09: what outlives a run: remember, recall, commit, forget. With `--live` a model answers too."""

from __future__ import annotations

import sys
import tempfile

from _shared import provider_from_env, show_seen
from rath import flow
from rath.memory import MemoryFindResult, MemoryForgetResult, MemoryStoreSpec, MemoryWriteResult
from rath.session import ChunkTable, Session, assistant_turn_chunk, user_text_chunk

spec = MemoryStoreSpec(options={"path": tempfile.mkdtemp(prefix="rath-notes-")})
provider = provider_from_env(["Tea."])


def show(agent: flow.Agent, query: str) -> None:
    """Print what the memory has about something, with the scores."""
    found = agent.recall_memory(query)
    assert isinstance(found, MemoryFindResult)
    print(f"about {query!r}:")
    for hit in found.hits:
        print(f"  {hit.score:.2f}  {hit.snippet}")


# No model is asked before the last part.
with flow.Agent("You know the guest.", provider, memory=spec) as agent:
    agent.remember_memory("The guest drinks tea, never coffee.")
    agent.remember_memory("The heating is on until six.", category="house", ttl=3600)
    wrong = agent.remember_memory("The guest drinks coffee at noon.")

# The agent is closed, and its notes are Markdown files; another one opens the same store.
with flow.Agent("You know the guest.", provider, memory=spec) as agent:
    show(agent, "coffee")
    assert isinstance(wrong, MemoryWriteResult)
    agent.forget_memory(wrong.uri)
    show(agent, "coffee")

    said = user_text_chunk("The guest comes on Friday.")
    visit = Session(ChunkTable((said, assistant_turn_chunk(tool_calls=None, content="Noted."))))
    agent.commit_memory(visit, wait=True)
    show(agent, "friday")
    erased = agent.forget_memory(session=visit)
    assert isinstance(erased, MemoryForgetResult)
    print("erased with its session:", len(erased.uris))

if "--live" in sys.argv:
    with flow.Agent("You know the guest.", provider, memory=spec, commit_on_forward=True) as agent:
        out = agent(Session.from_user_message("Tea or coffee for the guest?"))
        print("answer:", out.text())
        show_seen(out)
