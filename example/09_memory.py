"""09: what outlives a run: remember, recall, commit, forget. With `--live` a model answers too."""

from __future__ import annotations

import sys
import tempfile

import rath
from _shared import provider_from_env
from rath.memory import MemoryFindResult, MemoryForgetResult, MemoryStoreSpec, MemoryWriteResult
from rath.session import ChunkTable, assistant_turn_chunk, user_text_chunk

spec = MemoryStoreSpec(options={"path": tempfile.mkdtemp(prefix="rath-notes-")})
provider = provider_from_env(["Tea."])


def show(agent: rath.Agent, query: str) -> None:
    """Print the notes on something, with their scores."""
    found = agent.recall_memory(query)
    assert isinstance(found, MemoryFindResult)
    print(f"notes about {query!r}:")
    for hit in found.hits:
        print(f"  {hit.score:.2f}  {hit.snippet}")


# No model is asked before the last part.
with rath.Agent("You know the guest.", provider, memory=spec) as agent:
    agent.remember_memory("The guest drinks tea, never coffee.")
    agent.remember_memory("The heating is on until six.", category="house", ttl=3600)
    wrong = agent.remember_memory("The guest drinks coffee at noon.")

# The agent is closed, and its notes are Markdown files; another one opens the same store.
with rath.Agent("You know the guest.", provider, memory=spec) as agent:
    show(agent, "coffee")
    assert isinstance(wrong, MemoryWriteResult)
    agent.forget_memory(wrong.uri)
    show(agent, "coffee")

    asked = user_text_chunk("The guest comes on Friday.")
    visit = rath.Session(ChunkTable((asked, assistant_turn_chunk(tool_calls=None, content="Yes."))))
    agent.commit_memory(visit, wait=True)
    show(agent, "friday")
    erased = agent.forget_memory(session=visit)
    assert isinstance(erased, MemoryForgetResult)
    print("notes erased with the session they came from:", len(erased.uris))

if "--live" in sys.argv:
    rath.autosave()
    with rath.Agent("You know the guest.", provider, memory=spec, commit_on_forward=True) as agent:
        out = agent(rath.Session.from_user_message("Tea or coffee for the guest?"))
        print("answer:", out.text())
        print(f"the notes that the model was shown: rath explain {out.id}")
