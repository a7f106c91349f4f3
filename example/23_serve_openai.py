"""23: a workflow behind the OpenAI API, used by the official client."""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path

import openai
import uvicorn

from _shared import provider_from_env
from rath import flow
from rath.serving import Principal, ServerOptions, TokenFile, asgi
from rath.session import Session
from rath.session.persistence.store import FileStore

guide = flow.Agent(
    "You are a friendly guide.",
    provider_from_env(["Rome is worth a week.", "Start at the Pantheon."]),
    system_tools=False,
)

with tempfile.TemporaryDirectory() as folder:
    tokens = TokenFile(Path(folder, "tokens.json"))
    token = tokens.add(Principal(name="example", requests_per_minute=60))
    store = FileStore(Path(folder, "sessions"))
    app = asgi({"guide": guide}, ServerOptions(tokens=tokens, store=store))

    # `rath serve agents:guide` does the same from a command line.
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()

    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    with openai.OpenAI(base_url=url, api_key=token) as client:
        first = client.responses.create(model="guide", input="Where should I go?")
        print(first.output_text)
        second = client.responses.create(
            model="guide", input="And then?", previous_response_id=first.id
        )
        print(second.output_text)
        session = Session.load(second.id.split("_")[1], store=store)
        print("its session has", len(session.chunk_table), "rows")

    server.should_exit = True
    thread.join()
