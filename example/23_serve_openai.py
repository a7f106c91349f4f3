"""23: a workflow behind the OpenAI API, used by the official client."""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path

import openai
import uvicorn

import rath
from _shared import provider_from_env
from rath.serving import Principal, ServerOptions, TokenFile, asgi

guide = rath.Agent(
    "You are a friendly guide.",
    provider_from_env(["Rome is worth a week.", "Start at the Pantheon."]),
)

with tempfile.TemporaryDirectory() as folder:
    tokens = TokenFile(Path(folder, "tokens.json"))
    token = tokens.add(Principal(name="example", requests_per_minute=60))
    app = asgi({"guide": guide}, ServerOptions(tokens=tokens))

    # `rath serve agents:guide` does the same from a command line.
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()

    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    with openai.OpenAI(base_url=url, api_key=token) as client:
        first = client.responses.create(model="guide", input="Where should I go?")
        print("first answer:", first.output_text)
        second = client.responses.create(
            model="guide", input="And then?", previous_response_id=first.id
        )
        print("second answer:", second.output_text)
        session = rath.Session.load(second.id.split("_")[1])
        print(f"the conversation is a session of {len(session.rows)} rows: rath show {session.id}")

    server.should_exit = True
    thread.join()
