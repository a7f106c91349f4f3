"""02: branch a session with `fork`, cut its lineage with `detach`, join with `merge`, export."""

from __future__ import annotations

from rath.session import Session, ancestors_bfs, edge_pairs
from rath.session.graph import export_jsonl_string

question = Session.create("user", "Which city is the capital of France?")
branch = question.fork()
other = question.fork()
alone = question.detach()
joined = branch.merge(other)

names = {
    question.id: "question",
    branch.id: "branch",
    other.id: "other",
    alone.id: "alone",
    joined.id: "joined",
}
by_id = {session.id: session for session in (question, branch, other, alone, joined)}

print("edges, parent -> child:")
for parent, child in edge_pairs(by_id):
    print(f"  {names[parent]} -> {names[child]}  ({by_id[child].lineage_operator})")

print("ancestors of joined:", [names[each] for each in ancestors_bfs(by_id, joined.id)])
print("parents of alone:", list(alone.parent_session_ids))

# Rows are shared, not copied: what one branch adds, no other branch sees.
longer = branch.merge(Session.from_user_message("And of Italy?"))
print("rows:", len(question.chunk_table), len(joined.chunk_table), len(longer.chunk_table))

print("as JSON lines:")
print(export_jsonl_string(by_id.values()), end="")
