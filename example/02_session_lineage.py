"""02: branch a session with `fork`, cut its lineage with `detach`, join two with `merge`."""

from __future__ import annotations

import json

import rath
from rath.session import ancestors_bfs, edge_pairs
from rath.session.graph import export_jsonl_string

question = rath.Session.create("user", "Which city is the capital of France?")
branch = question.fork()
other = question.fork()
alone = question.detach()
joined = branch.merge(other)
longer = joined.say("And of Italy?")

sessions = {
    "question": question,
    "branch": branch,
    "other": other,
    "alone": alone,
    "joined": joined,
    "longer": longer,
}
by_id = {session.id: session for session in sessions.values()}
name_of = {session.id: name for name, session in sessions.items()}

print("from parent to child, and by which operation:")
for parent, child in edge_pairs(by_id):
    print(f"  {name_of[parent]} -> {name_of[child]} ({by_id[child].lineage_operator})")
print("joined comes from:", ", ".join(name_of[each] for each in ancestors_bfs(by_id, joined.id)))
print("alone has no parents:", alone.parent_session_ids == ())

# Rows are shared, not copied: what one branch adds, no other branch sees.
for name, session in sessions.items():
    print(f"  {name}: {len(session.rows)} rows")

lines = export_jsonl_string(by_id.values()).splitlines()
print(f"for other programs: {len(lines)} lines of JSON, each with", ", ".join(json.loads(lines[0])))

longer.save()  # with all that it comes from
print(f"the same as a picture: rath view {longer.id} --open")
