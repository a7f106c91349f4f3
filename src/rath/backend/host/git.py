"""Checkouts of git as the start of a workspace: recognized, and fetched again.

What a checkout contains may be hostile: whoever worked in it wrote its settings too. Git runs
programs that settings name (filters, monitors, hooks, transports), so that it looks at a checkout
only when all of its own settings are known to name none.
"""

from __future__ import annotations

import os
import re
import subprocess
from urllib.parse import urlsplit, urlunsplit

from rath.backend.changes import EffectPolicy
from rath.backend.host.process import INHERITED, environment
from rath.backend.start import WorkspaceStart, is_ignored

LOOK_SECONDS = 5.0
"""How long git may take to tell whether a checkout is clean; a guess, far above what it takes."""

CLONE_SECONDS = 600.0

_VARIABLES = INHERITED | {
    "ALL_PROXY", "CURL_CA_BUNDLE", "GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM",
    "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "HTTPS_PROXY", "HTTP_PROXY",
    "NO_PROXY", "SSH_ASKPASS", "SSH_AUTH_SOCK", "SSL_CERT_DIR", "SSL_CERT_FILE", "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
}  # fmt: skip
"""What git sees of our environment: how it reaches servers, and no other repository (`GIT_DIR`)."""

_SAFE = {
    "GIT_OPTIONAL_LOCKS": "0",  # looking at a checkout writes nothing
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",  # an address names no command
}

_HARMLESS = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode"
    r"|symlinks|untrackedcache|abbrev|quotepath)"
    r"|extensions\.objectformat"
    r"|remote\..*\.(url|fetch|push|pushurl|tagopt|prune|mirror|gh-resolved)"
    r"|(branch|user|gc|pull|push|fetch|color|advice|init|maintenance|commit|tag|rebase|http"
    r"|credential)\..*",
    re.DOTALL,
)
"""Settings of a checkout by which git neither runs anything nor sees other files than a clone."""

_COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")


def git_start(root: str, policy: EffectPolicy) -> WorkspaceStart | None:
    """Return the start of a clean git checkout with a remote, None for anything else; blocks."""
    if not os.path.lexists(os.path.join(root, ".git")):
        return None
    settings = _look(root, "config", "--local", "--name-only", "--list", "-z").split("\0")[:-1]
    if not settings or not all(map(_HARMLESS.fullmatch, settings)):
        return None
    # "H" is a file that is compared; others are skipped, or are checkouts of their own.
    indexed = _look(root, "ls-files", "-v", "--stage", "-z").split("\0")[:-1]
    if not all(re.match("H (100644|100755|120000) ", line) for line in indexed):
        return None
    status = _look(root, "status", "--porcelain=v2", "--branch", "--ignored=matching", "-z")
    lines = status.split("\0")[:-1]
    commits = [line.removeprefix("# branch.oid ") for line in lines if "branch.oid " in line]
    remote = public_address(_look(root, "config", "--get", "remote.origin.url").strip())
    is_clean = bool(lines) and all(
        line.startswith("# ") or is_ignored(f"{line[2:].rstrip('/')}/.", policy) for line in lines
    )
    if not (is_clean and remote and commits and _COMMIT.fullmatch(commits[0])):
        return None
    return WorkspaceStart(revision=commits[0], remote=remote)


def public_address(remote: str) -> str:
    """Return the address of a repository without secrets, "" where they cannot be told from it."""
    if "://" not in remote:
        # A path, or `user@host:path`; a colon before the user's end begins a password.
        return "" if ":" in remote.partition("@")[0] and "@" in remote else remote
    parts = urlsplit(remote)
    if parts.query or parts.fragment or "@" in parts.path:
        return ""
    login, _, host = parts.netloc.rpartition("@")
    user = login.partition(":")[0] if parts.scheme in {"ssh", "git+ssh"} else ""
    return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host))


def check_out(start: WorkspaceStart, directory: str) -> str | None:
    """Put the files of a revision into an empty directory; return why not, None if it worked."""
    revision, remote = start.revision or "", start.remote or ""
    if not _COMMIT.fullmatch(revision) or not remote or remote.startswith("-"):
        return "the recorded revision or remote is none"
    for words in (
        # Whoever works in the clone must not write through a hard link into the other one.
        ("clone", "--quiet", "--no-checkout", "--no-hardlinks", "--", remote, "."),
        ("checkout", "--quiet", "--detach", revision),
    ):
        try:
            _output(directory, *words, seconds=CLONE_SECONDS)
        except (OSError, subprocess.SubprocessError) as exc:
            message = getattr(exc, "stderr", None) or str(exc)
            return f"git {words[0]} failed: {message.strip()[:300]}"
    return None


def _look(root: str, *words: str) -> str:
    try:
        return _output(root, *words, seconds=LOOK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""


def _output(root: str, *words: str, seconds: float) -> str:
    """Run git in the repository of a directory itself, with no hook and no monitor."""
    above = os.path.dirname(os.path.realpath(root))
    done = subprocess.run(
        ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *words],
        cwd=root,
        env=environment(_SAFE, {"GIT_CEILING_DIRECTORIES": above}, names=_VARIABLES),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,  # without a terminal at which ssh could ask
        text=True,
        errors="surrogateescape",
        timeout=seconds,
        check=True,
    )
    return done.stdout
