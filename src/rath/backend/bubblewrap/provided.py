"""The few files that a sandbox needs and that are not the host's own."""

from __future__ import annotations

import os
import platform
import shutil
import weakref

from rath.backend.bubblewrap.seccomp import program_for
from rath.backend.bubblewrap.view import ETC_DIRECTORIES, ETC_FILES, ETC_OF_NETWORK, HOME
from rath.backend.host.owner import new_directory

_OWN = {
    "passwd": f"sandbox:x:1000:1000:sandbox:{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "sandbox:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}


class Provided:
    """A private directory with these files; it ends with this object or with the program.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self) -> None:
        directory = new_directory("bwrap")
        self.remove = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self.etc = os.path.join(directory, "etc")
        """Directory that is /etc inside. Copied: each mount would cost every command 0.2 ms."""

        _fill(self.etc)
        self.filter: str | None = None
        """File with the filter of system calls, None on a machine that has none."""

        program = program_for(platform.machine())
        if program is not None:
            self.filter = os.path.join(directory, "seccomp")
            _write(self.filter, program)


def _fill(etc: str) -> None:
    for name in ETC_DIRECTORIES:
        # Only a place for the directory of the host.
        if os.path.isdir(f"/etc/{name}"):
            os.makedirs(os.path.join(etc, name))
    for name in (*ETC_OF_NETWORK, *ETC_FILES):
        path = os.path.join(etc, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if name in ETC_OF_NETWORK:
            _write(path, b"")
        elif os.path.isfile(f"/etc/{name}"):
            shutil.copyfile(f"/etc/{name}", path)
    for name, text in _OWN.items():
        _write(os.path.join(etc, name), text.encode())


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
