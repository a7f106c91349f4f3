"""`rath serve`: tokens of clients, and a server as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from rath.session import Session
from rath.session.outcome import Cancelled
from rath.session.persistence.store import FileStore
from tests.cli.conftest import Rath
from tests.support.serving import PROGRAM, ROOT, environment
from tests.support.waiting import PATIENCE, wait_until


def test_a_token_is_shown_once_and_its_limits_are_listed(rath: Rath) -> None:
    rath("serve token ls", ends=0, err="rath serve token add")
    made = rath(
        "serve token add alice --rate 6 --usd-per-day 2.5 --runs 3 --workflow a --approve", ends=0
    )
    token = made.stdout.strip()
    assert token.startswith("rath_")
    listed = rath("serve token ls", ends=0, out="name alice, workflows ['a']").stdout
    assert token not in listed
    (row,) = json.loads(rath("serve token ls --json", ends=0).stdout)["tokens"]
    assert (row["usd_per_day"], row["may_approve"]) == ("2.5", True)
    rath("serve token add alice", ends=2, err="rath serve token rm alice")
    rath("serve token rm alice", ends=0)
    rath("serve token rm alice", ends=1, err="no token of 'alice'")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("add no/name", "cannot be the name"),
        ("add a --rate 0", "above zero"),
        ("add a --usd-per-day much", "a number of US dollars"),
    ],
)
def test_a_token_that_cannot_be_is_refused(rath: Rath, options: str, problem: str) -> None:
    rath(f"serve token {options}", ends=2, err=problem)


def test_what_cannot_be_served_is_refused(rath: Rath) -> None:
    rath("serve nowhere:team", ends=2, err="no module 'nowhere'")
    rath("serve team", ends=2, err="no verb 'team' of `rath serve`. Known: MODULE:WORKFLOW, token")


def test_an_address_of_the_network_is_not_announced_without_a_token(rath: Rath) -> None:
    done = rath(f"serve {PROGRAM} --host 0.0.0.0 --port 0", ends=2, err="rath serve token add NAME")
    assert "serving 'Team' at" not in done.output


def test_an_address_of_another_machine_is_refused(rath: Rath) -> None:
    rath("serve token add alice", ends=0)
    told = ("cannot listen on 203.0.113.1:0", "choose another --host, such as 127.0.0.1")
    rath(f"serve {PROGRAM} --host 203.0.113.1 --port 0", ends=1, err=told)


def test_a_certificate_that_cannot_be_used_is_named_before_the_address(
    rath: Rath, tmp_path: Path
) -> None:
    made: Any = trustme.CA()  # its types need those of OpenSSL, which are not there
    other: Any = trustme.CA()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made.cert_pem.write_to_path(certificate)
    other.private_key_pem.write_to_path(key)
    for files in ((certificate, tmp_path / "gone.pem"), (certificate, key), (key, key)):
        words = f"--certificate {files[0]} --key {files[1]}"
        done = rath(f"serve {PROGRAM} --port 0 {words}", ends=1, err=f"the key {str(files[1])!r}")
        assert "serving" not in done.stderr


def test_an_engine_that_there_is_not_is_refused_at_once(rath: Rath) -> None:
    rath(f"serve {PROGRAM} --port 0 --engine kubernets", ends=1, err="no engine named 'kubernets'")


def test_a_server_ends_on_sigterm_and_its_sessions_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rath", "serve", PROGRAM, "--name", "team", "--port", "0"]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(tmp_path),
        cwd=ROOT,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1]
            assert url.startswith("http://127.0.0.1:")
            body = {"model": "team", "input": "wait", "stream": True}
            with httpx2.stream("POST", f"{url}/v1/responses", json=body) as answer:
                lines = (line for line in answer.iter_lines() if line.startswith("data: "))
                session_id = json.loads(next(lines)[6:])["response"]["id"].split("_")[1]
                wait_until((tmp_path / "begun").exists)
                process.send_signal(signal.SIGTERM)
                for _ in lines:
                    pass
            process.wait(timeout=PATIENCE)
        finally:
            process.kill()
    session = Session.load(session_id, store=FileStore(tmp_path / "sessions"))
    assert isinstance(session.outcome, Cancelled)
