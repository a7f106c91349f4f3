"""Errors around models: what names them, their keys, their endpoints and their answers."""

from __future__ import annotations

import rath
from rath import flow
from rath.llm import EmbeddingProvider, RathOpenAIEmbeddingClient
from rath.session import Session
from tests.support.chat_replies import (
    completion,
    dropped,
    empty,
    event_stream,
    html,
    invalid_json,
    raw,
    status_error,
    text_chunk,
)
from tests.support.error_cases import ErrorCase, Machine, odd, user

_RATE = '{"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}'
_QUOTA = '{"error": {"message": "You have no credit left", "code": "insufficient_quota"}}'
_REDIRECT = raw("", status=302, headers={"location": "https://login.example/"})


def _ask(agent: flow.Agent) -> str | None:
    return agent(user()).text()


def _provider(**fields: object) -> flow.Provider:
    return flow.Provider(**odd(fields))


def _answer(text: str) -> str | None:
    """Ask with a provider of which only these fields are given."""
    return _ask(flow.Agent("Answer.", flow.Provider(model=text)))


def _key_with_line_end(machine: Machine) -> object:
    machine.variables(OPENAI_API_KEY="sk-line\nend")
    return _answer("gpt-5.5")


def _bad_address(machine: Machine) -> object:
    machine.variables(OPENAI_API_KEY="sk-1", OPENAI_BASE_URL="localhost:8000/v1")
    return _answer("gpt-5.5")


def _closed_port(machine: Machine) -> object:
    provider = flow.Provider(
        model="m", api_key="sk-1", base_url="http://127.0.0.1:9/v1", retry_max_attempts=1
    )
    return _ask(flow.Agent("Answer.", provider))


def _proxy(machine: Machine) -> object:
    machine.variables(HTTPS_PROXY="socks5://127.0.0.1:1080")
    provider = flow.Provider(model="m", api_key="sk-1", base_url="https://models.example/v1")
    return _ask(flow.Agent("Answer.", provider))


def _certificates(machine: Machine) -> object:
    machine.variables(SSL_CERT_FILE=str(machine.project / "none.pem"))
    provider = flow.Provider(model="m", api_key="sk-1", base_url="https://models.example/v1")
    return _ask(flow.Agent("Answer.", provider))


def _key_of_a_project(machine: Machine) -> object:
    machine.variables(OPENAI_API_KEY="sk-1")
    entry = {"provider_kind": "openai", "model": "m", "base_url": "https://models.example/v1"}
    machine.config({"llm": {"providers": {"team": entry}}}, of="project")
    return _ask(flow.Agent("Answer.", flow.Provider.from_config("team")))


def _offline(machine: Machine) -> object:
    agent = machine.agent(completion("Hello."))
    with rath.offline():
        return _ask(agent)


def _budget(machine: Machine) -> object:
    agent = machine.agent(completion("Hello."), budget_usd=1.0)
    return _ask(agent)


def _typed(machine: Machine) -> object:
    return machine.scripted("no number", output=int, output_retries=0, system_tools=False)(
        user()
    ).output


def _ignore(delta: object) -> None:
    pass


def _stream(machine: Machine) -> object:
    agent = machine.agent(event_stream(text_chunk("Hel"), done=False))
    agent.on_event = _ignore
    return _ask(agent)


CASES = [
    ErrorCase(
        cause="An agent was made without a model.",
        cure='Name one: `Agent(..., model="NAME")` or `Agent(..., Provider.from_config("NAME"))`.',
        meet=lambda m: flow.Agent("Answer."),
    ),
    ErrorCase(
        cause="A model name stands where a provider is expected.",
        cure='Write `model="NAME"`.',
        meet=lambda m: flow.Agent("Answer.", odd("gpt-5.5")),
    ),
    ErrorCase(
        cause="No key for OpenAI was found.",
        cure="Run `rath config init`, or set `OPENAI_API_KEY`.",
        meet=lambda m: _answer("gpt-5.5"),
    ),
    ErrorCase(
        cause="No key for Anthropic was found.",
        cure="Run `rath config init`, or set `ANTHROPIC_API_KEY`.",
        meet=lambda m: _ask(
            flow.Agent("Answer.", flow.Provider(model="claude", provider_kind="anthropic"))
        ),
    ),
    ErrorCase(
        cause="The key is wrong, was revoked, or is of another vendor.",
        cure="Make a new key, and store it where the text says that this one came from.",
        meet=lambda m: _ask(m.agent(status_error(401, "Incorrect API key provided"))),
    ),
    ErrorCase(
        cause="The account may not use this model or this address.",
        cure="Ask for access at the vendor, or take another model.",
        meet=lambda m: _ask(m.agent(status_error(403, "You may not use this model"))),
    ),
    ErrorCase(
        cause="The key was copied with a line end or another character that cannot be sent.",
        cure="Copy it again.",
        meet=_key_with_line_end,
    ),
    ErrorCase(
        cause="The endpoint has no model of this name.",
        cure="Correct the name; `rath doctor --live` lists what the endpoint offers.",
        meet=lambda m: _ask(m.agent(status_error(404, "The model does not exist"))),
    ),
    ErrorCase(
        cause="A kind of provider that does not exist.",
        cure="Take one of those that the text lists.",
        meet=lambda m: _ask(
            flow.Agent("Answer.", flow.Provider(model="m", provider_kind="opneai"))
        ),
    ),
    ErrorCase(
        cause="A provider that the config does not have.",
        cure="Correct the name, or store the provider: `rath config init`.",
        meet=lambda m: _ask(flow.Agent("Answer.", flow.Provider.from_config("main"))),
    ),
    ErrorCase(
        cause="`base_url` has no `http://` or `https://`.",
        cure="Write the whole address, as in `http://localhost:8000/v1`.",
        meet=_bad_address,
    ),
    ErrorCase(
        cause="Nothing listens at `base_url`: the server does not run, or has another port.",
        cure="Start the server, or correct the address.",
        meet=_closed_port,
    ),
    ErrorCase(
        cause="The server closed the connection without an answer.",
        cure="Look at the log of the server; often it ran out of memory, or speaks https only.",
        meet=lambda m: _ask(m.agent(dropped())),
    ),
    ErrorCase(
        cause="Too many requests in a minute.",
        cure="Wait; or ask for less at once, with `Provider(max_in_flight=...)`.",
        meet=lambda m: _ask(m.agent(raw(_RATE, status=429))),
    ),
    ErrorCase(
        cause="The account at the vendor has no credit left.",
        cure="Add credit at the vendor; trying again does not help.",
        meet=lambda m: _ask(m.agent(raw(_QUOTA, status=429))),
    ),
    ErrorCase(
        cause="The server of the vendor failed, also after the retries.",
        cure="Try later, or name `fallbacks=[...]`.",
        meet=lambda m: _ask(m.agent(status_error(500, "Internal error"))),
    ),
    ErrorCase(
        cause="The vendor is overloaded, also after the retries.",
        cure="Try later, or name `fallbacks=[...]`.",
        meet=lambda m: _ask(m.agent(status_error(503, "Overloaded"))),
    ),
    ErrorCase(
        cause="The endpoint refuses a parameter of the request.",
        cure="Leave out what the text names; not each server takes each parameter.",
        meet=lambda m: _ask(m.agent(status_error(400, "temperature is not supported"))),
    ),
    ErrorCase(
        cause="The session is longer than the context of the model.",
        cure="Shorten it with `compress`, or take a model with a longer context.",
        meet=lambda m: _ask(m.agent(status_error(400, "maximum context length exceeded"))),
    ),
    ErrorCase(
        cause="`base_url` leads to a web page: often `/v1` is missing at its end.",
        cure="Correct `base_url`.",
        meet=lambda m: _ask(m.agent(html())),
    ),
    ErrorCase(
        cause="The endpoint answered with nothing.",
        cure="Look at the log of the server.",
        meet=lambda m: _ask(m.agent(empty())),
    ),
    ErrorCase(
        cause="The endpoint, or a proxy before it, cut its answer.",
        cure="Try again; where it comes again, look at the log of the server.",
        meet=lambda m: _ask(m.agent(invalid_json())),
    ),
    ErrorCase(
        cause="A stream broke off in the middle of an answer.",
        cure="Run it again; `partial_text` of the error is what had come.",
        meet=_stream,
    ),
    ErrorCase(
        cause="The endpoint sends the client to another address.",
        cure="Set `base_url` to that address if you know it.",
        meet=lambda m: _ask(m.agent(_REDIRECT)),
    ),
    ErrorCase(
        cause="The environment names a proxy of a kind that cannot be used.",
        cure="Name an HTTP proxy, or take the host out of it with `NO_PROXY`.",
        meet=_proxy,
    ),
    ErrorCase(
        cause="`SSL_CERT_FILE` names a file that is not there.",
        cure="Correct it, or unset it.",
        meet=_certificates,
    ),
    ErrorCase(
        cause="A project that you did not trust names where your key would go.",
        cure="Read its config; if you agree: `rath config trust`.",
        meet=_key_of_a_project,
    ),
    ErrorCase(
        cause="A model was asked inside of `rath.offline()`.",
        cure="Record it with a cassette, or leave the block.",
        meet=_offline,
    ),
    ErrorCase(
        cause="A budget in money, and a model whose price is not known.",
        cure="Give a budget in tokens: `budget_total_tokens`.",
        meet=_budget,
    ),
    ErrorCase(
        cause="The time limit of a call is not above zero.",
        cure="Give seconds, such as 60.",
        meet=lambda m: _provider(model="m", timeout=-1),
    ),
    ErrorCase(
        cause="A temperature that is a text.",
        cure="Give a number.",
        meet=lambda m: _provider(model="m", temperature="hot"),
    ),
    ErrorCase(
        cause="`tool_choice` is none of what models take.",
        cure='Give "auto", "none", "required" or a mapping.',
        meet=lambda m: _provider(model="m", tool_choice=3),
    ),
    ErrorCase(
        cause="`output_mode` is unknown.",
        cure='Give "schema" or "tool".',
        meet=lambda m: _provider(model="m", output_mode="json"),
    ),
    ErrorCase(
        cause="A single provider was given as fallbacks.",
        cure="Give a list of them.",
        meet=lambda m: _provider(model="m", fallbacks=flow.Provider(model="n")),
    ),
    ErrorCase(
        cause="A fallback has fallbacks itself.",
        cure="List all of them in one.",
        meet=lambda m: _provider(
            model="a",
            fallbacks=[flow.Provider(model="b", fallbacks=[flow.Provider(model="c")])],
        ),
    ),
    ErrorCase(
        cause="A client that rath cannot call.",
        cure="Give `AsyncOpenAI(...)` or `AsyncAnthropic(...)`, or name a `base_url`.",
        meet=lambda m: _provider(model="m", client=object()),
    ),
    ErrorCase(
        cause="A scripted model was asked more often than it has answers.",
        cure="Give the script one more turn, or find out why the program asks once more.",
        meet=lambda m: _ask(m.scripted()),
    ),
    ErrorCase(
        cause="The model gave no answer of the type that was asked for.",
        cure="Raise `output_retries`, simplify the type, or take a stronger model.",
        meet=_typed,
    ),
    ErrorCase(
        cause="`output` was read of a run that was asked for none.",
        cure="Ask with `Agent(..., output=Type)`.",
        meet=lambda m: m.scripted("Hello.")(user()).output,
    ),
    ErrorCase(
        cause="A type that has no JSON Schema.",
        cure="Give a type of pydantic, a dataclass, a TypedDict or a plain type.",
        meet=lambda m: m.scripted("x", output=odd(object()))(user()).output,
    ),
    ErrorCase(
        cause="An image was given as an address.",
        cure="Give the path of a file, or bytes.",
        meet=lambda m: Session.from_user_message("See.", images=["https://pictures.example/a.png"]),
    ),
    ErrorCase(
        cause="The file of an image is not there.",
        cure="Correct the path.",
        meet=lambda m: Session.from_user_message("See.", images=["picture.png"]),
    ),
    ErrorCase(
        cause="One image was given where a list is expected.",
        cure="Write `images=[...]`.",
        meet=lambda m: Session.from_user_message("See.", images=odd("picture.png")),
    ),
    ErrorCase(
        cause="One text was given where a list of texts is expected.",
        cure="Call `embed_one`.",
        meet=lambda m: RathOpenAIEmbeddingClient(
            EmbeddingProvider(model="e", api_key="sk-1")
        ).embed(odd("a text")),
    ),
]
