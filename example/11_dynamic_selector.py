"""11: a model chooses the next workflow; `while` stays plain Python."""

from __future__ import annotations

import rath
from _shared import provider_from_env
from rath import flow

rath.autosave()
provider = provider_from_env(
    ["0", "A question about a printer.", "0", "Switch the printer off and on again.", "-1"]
)


class Desk(rath.Workflow):
    """One agent behind a description that the selector reads."""

    def __init__(self, description: str, prompt: str) -> None:
        super().__init__(description)
        self.agent = rath.Agent(prompt, provider)

    def forward(self, session: rath.Session) -> rath.Session:
        return self.agent(session)


selector = flow.Selector(provider)
desks = flow.WorkflowDict(
    {
        "triage": Desk("Finds out what a request is about.", "Name the topic in five words."),
        "tech": Desk("Solves technical problems.", "Give one tip in ten words, no list."),
        "wrapup": Desk("Says goodbye when all is solved.", "Say goodbye in five words."),
    }
)

session = rath.Session.from_user_message("My printer prints blank pages. What can I do?")
# Each desk is asked once at most: a selector without candidates ends the loop by itself.
while not isinstance(chosen := selector.forward(session, *desks.values()), flow.EmptyWorkflow):
    name = next(name for name, desk in desks.items() if desk is chosen)
    del desks[name]
    session = chosen(session)
    print(f"{name}: {session.text()}")
print("left over:", ", ".join(desks) or "no desk")
print(f"why which desk: rath explain {session.id}")
