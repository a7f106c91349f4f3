"""A process that forks while its threads use a store hands it over whole."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from rath.memory.adapters.local.catalog import shared_catalog
from rath.memory.adapters.local.index import NoteIndex


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_in_a_transaction_can_write(tmp_path: Path) -> None:
    catalog = shared_catalog(tmp_path)
    is_in_use, is_forking = threading.Event(), threading.Event()

    def use(index: NoteIndex) -> None:
        with index.writing():
            is_in_use.set()
            is_forking.wait(0.2)

    def write(index: NoteIndex) -> None:
        with index.writing():
            index.put_directory("user", 1)

    thread = threading.Thread(target=catalog.use, args=(use,))
    thread.start()
    is_in_use.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        catalog.use(write)
        os._exit(0)
    is_forking.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    catalog.close()
    assert status == 0
