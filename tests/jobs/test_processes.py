"""Items that are carried out in processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rath import flow
from rath.errors import EngineError
from rath.jobs.engine import Rate, find_engine
from rath.jobs.job import Job
from rath.session import Session
from rath.testing import FakeSessionStore
from tests.support.job_program import (
    CountedItem,
    CountedTeam,
    count,
    counted_items,
    lines,
    release,
    repeated_calls,
    team,
)
from tests.support.killed_driver import driver_program, holding_pids, is_running
from tests.support.waiting import PATIENCE, wait_until


def job_of(tmp_path: Path, items: Any, engine: str = "procs:2", **options: Any) -> Job:
    return flow.map(
        options.pop("workflow", None) or team(),
        items,
        key=lambda item: item.key,
        session=CountedItem.session,
        store=str(tmp_path / "store"),
        engine=engine,
        **options,
    )


DRIVER = """
import sys
from pathlib import Path
from rath import flow
from tests.support.job_program import CountedItem, counted_items, team

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print("the driver prints", flush=True)
    job = flow.map(team(), counted_items(4, folder, sys.argv[2]), key=lambda item: item.key,
                   session=CountedItem.session, job="j", store=str(folder / "store"),
                   engine="procs:2")
    print(job.synchronize().report().counts["done"])
"""


# ---------------------------------------------------------------- items


def test_items_are_carried_out_by_all_workers_at_once(tmp_path: Path) -> None:
    job = job_of(tmp_path, counted_items(6, tmp_path, "hold"), concurrency=6)
    wait_until(lambda: len(lines(tmp_path, "held")) == 6)
    workers = holding_pids(tmp_path)
    assert len(workers) == 2
    assert os.getpid() not in workers
    release(tmp_path)
    assert job.synchronize().report().counts == {"done": 6}
    assert count(tmp_path, "effects") == {f"i{n}": 1 for n in range(6)}
    assert repeated_calls(tmp_path) == {}
    assert not any(map(is_running, workers))


def test_a_second_start_serves_what_is_done(tmp_path: Path) -> None:
    job_of(tmp_path, counted_items(3, tmp_path), job="j").synchronize()
    again = job_of(tmp_path, counted_items(4, tmp_path), job="j").synchronize()
    assert again.report().counts == {"done": 4}
    assert repeated_calls(tmp_path) == {}


def test_errors_and_questions_come_back(tmp_path: Path) -> None:
    items = [
        CountedItem("f", str(tmp_path), "fail"),
        CountedItem("a", str(tmp_path), "ask"),
        CountedItem("w", str(tmp_path)),
    ]
    job = job_of(tmp_path, items, retries=0).synchronize()
    found = {item.key: (item.state, item.error) for item in job}
    assert found["f"] == ("failed", "ConnectionError: no answer for f")
    assert (found["a"], found["w"]) == (("waiting", None), ("done", None))


def test_a_job_that_is_cancelled_ends_its_workers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = job_of(tmp_path, counted_items(2, tmp_path, "hold"))
    wait_until(lambda: len(lines(tmp_path, "held")) == 2)
    job.cancel().synchronize()
    assert not any(map(is_running, holding_pids(tmp_path)))
    assert "cut off" not in capfd.readouterr().err


def test_workers_share_the_limits_of_their_job(tmp_path: Path) -> None:
    items = counted_items(6, tmp_path)
    job = job_of(
        tmp_path, items, rate=Rate(requests_per_minute=6), concurrency=6, timeout=4, retries=0
    ).synchronize()
    n_calls = sum(count(tmp_path, "calls").values())
    assert 1 <= n_calls <= 6
    assert "failed" in job.report().counts


# ---------------------------------------------------------------- workers that die


def test_items_of_a_worker_that_was_killed_are_carried_out_by_others(tmp_path: Path) -> None:
    job = job_of(tmp_path, counted_items(6, tmp_path, "hold"), concurrency=6)
    wait_until(lambda: len(lines(tmp_path, "held")) == 6)
    first = holding_pids(tmp_path)
    os.kill(min(first), signal.SIGKILL)
    wait_until(lambda: len(lines(tmp_path, "held")) == 9)
    assert max(first) in holding_pids(tmp_path)
    release(tmp_path)
    assert job.synchronize().report().counts == {"done": 6}
    assert count(tmp_path, "effects") == {f"i{n}": 1 for n in range(6)}


def test_a_worker_is_started_again_after_its_death(tmp_path: Path) -> None:
    job = job_of(tmp_path, counted_items(1, tmp_path, "hold"), "procs:1")
    wait_until(lambda: len(holding_pids(tmp_path)) == 1)
    os.kill(min(holding_pids(tmp_path)), signal.SIGKILL)
    wait_until(lambda: len(holding_pids(tmp_path)) == 2)
    release(tmp_path)
    assert job.synchronize().report().counts == {"done": 1}


class Leaving(CountedTeam):
    """Ends the process that carries it out."""

    def forward(self, session: Session) -> Session:
        os._exit(3)


def test_an_item_that_kills_its_workers_fails_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(tmp_path, counted_items(1, tmp_path), "procs:1", workflow=Leaving())
    (item,) = job.synchronize()
    assert (item.state, item.error) == ("failed", "its workers died 6 times")
    assert "ended with status 3 with 1 items in flight, and is started again" in caplog.text


def test_a_program_that_cannot_be_imported_is_named_with_its_traceback(tmp_path: Path) -> None:
    broken = tmp_path / "broken_program.py"
    broken.write_text(
        "import os\n"
        "from tests.support.job_program import CountedTeam\n"
        f"if os.getpid() != {os.getpid()}:\n"
        "    raise ImportError('no such driver')\n"
        "class Broken(CountedTeam):\n"
        "    pass\n"
    )
    with added_to_path(tmp_path):
        job = job_of(tmp_path, counted_items(1, tmp_path), workflow="broken_program:Broken")
        with pytest.raises(EngineError, match=r"(?s)not load the job:.*Traceback.*no such driver"):
            job.synchronize()


def test_workers_that_die_again_and_again_at_the_start_are_given_up(tmp_path: Path) -> None:
    broken = tmp_path / "deadly_program.py"
    broken.write_text(
        "import os\n"
        "from tests.support.job_program import team\n"
        f"if os.getpid() != {os.getpid()}:\n"
        "    os._exit(7)\n"
    )
    with added_to_path(tmp_path):
        job = job_of(tmp_path, counted_items(1, tmp_path), workflow="deadly_program:team")
        with pytest.raises(EngineError, match=r"died 3 times before it was ready.* with status 7"):
            job.synchronize()


def test_a_job_whose_last_worker_cannot_start_again_ends(tmp_path: Path) -> None:
    broken = tmp_path / "fragile_program.py"
    broken.write_text(
        "import pathlib\n"
        "from tests.support.job_program import team\n"
        f"if pathlib.Path({str(tmp_path / 'broken')!r}).exists():\n"
        "    raise ImportError('no more')\n"
    )
    with added_to_path(tmp_path):
        items = counted_items(1, tmp_path, "hold")
        job = job_of(tmp_path, items, "procs:1", workflow="fragile_program:team")
        wait_until(lambda: len(holding_pids(tmp_path)) == 1)
        (tmp_path / "broken").touch()
        os.kill(min(holding_pids(tmp_path)), signal.SIGKILL)
        with pytest.raises(EngineError, match=r"(?s)engine 'procs' has no workers.*no more"):
            job.synchronize()


@contextmanager
def added_to_path(folder: Path) -> Generator[None]:
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


# ---------------------------------------------------------------- drivers


class Busy(CountedTeam):
    """Computes for ever."""

    def forward(self, session: Session) -> Session:
        folder = json.loads(session.chunk_table.rows[0].payload["content"])["folder"]
        with (Path(folder) / "held").open("a") as file:
            file.write(f"i0 here {os.getpid()}\n")
        while True:
            pass


BUSY = """
import sys
from pathlib import Path
from rath import flow
from tests.jobs.test_processes import Busy
from tests.support.job_program import CountedItem, counted_items

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    flow.map(Busy(), counted_items(2, folder), session=CountedItem.session,
             store=str(folder / "store"), engine="procs:2", concurrency=2).synchronize()
"""


def test_workers_end_with_a_driver_that_was_killed(tmp_path: Path) -> None:
    with driver_program(tmp_path, DRIVER, "hold") as driver:
        wait_until(lambda: len(lines(tmp_path, "held")) == 4)
        driver.kill()
        wait_until(lambda: not any(map(is_running, holding_pids(tmp_path))))
    release(tmp_path)
    with driver_program(tmp_path, DRIVER, "hold") as again:
        out, err = again.communicate(timeout=PATIENCE)
    assert out.splitlines() == ["the driver prints", "4"], err
    assert count(tmp_path, "effects") == {f"i{n}": 1 for n in range(4)}


def test_busy_workers_end_with_their_driver_too(tmp_path: Path) -> None:
    with driver_program(tmp_path, BUSY) as driver:
        wait_until(lambda: len(holding_pids(tmp_path)) == 2)
        driver.kill()
        wait_until(lambda: not any(map(is_running, holding_pids(tmp_path))))


def test_ctrl_c_in_the_terminal_is_for_the_driver(tmp_path: Path) -> None:
    with driver_program(tmp_path, DRIVER, "hold") as driver:
        wait_until(lambda: len(lines(tmp_path, "held")) == 4)
        os.killpg(driver.pid, signal.SIGINT)
        _, err = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == -signal.SIGINT
    assert err.count("KeyboardInterrupt") == 1, err
    wait_until(lambda: not any(map(is_running, holding_pids(tmp_path))))


MAIN = """
import sys
from pathlib import Path
from rath import flow
from rath.session import Session
from tests.support.job_program import CountedItem, CountedTeam, count, counted_items

print("imported as", __name__)

class Own(CountedTeam):
    def forward(self, session: Session) -> Session:
        print("carried out")
        return super().forward(session)

def run():
    folder = Path(sys.argv[1])
    job = flow.map(Own(), counted_items(3, folder), session=CountedItem.session,
                   store=str(folder / "store"), engine="procs:1")
    print(job.synchronize().report().counts["done"], sorted(count(folder, "effects").items()))

GUARD
    run()
"""


def test_what_the_program_declares_travels_and_what_workers_print_is_no_output(
    tmp_path: Path,
) -> None:
    with driver_program(tmp_path, MAIN.replace("GUARD", "if __name__ == '__main__':")) as driver:
        out, err = driver.communicate(timeout=PATIENCE)
    done = "3 [('i0', 1), ('i1', 1), ('i2', 1)]"
    assert out.splitlines() == ["imported as __main__", done], err
    assert (err.count("imported as __mp_main__"), err.count("carried out")) == (1, 3)


def test_a_program_that_runs_when_it_is_imported_is_told_what_to_do(tmp_path: Path) -> None:
    with driver_program(tmp_path, MAIN.replace("GUARD", "if True:")) as driver:
        _, err = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 1
    assert "if __name__ == '__main__':" in err


# ---------------------------------------------------------------- what is refused


def test_a_store_of_this_process_alone_is_refused(tmp_path: Path) -> None:
    items = counted_items(1, tmp_path)
    job = flow.map(
        team(), items, session=CountedItem.session, store=FakeSessionStore(), engine="procs:1"
    )
    with pytest.raises(EngineError, match="cannot be opened by another process"):
        job.synchronize()


def test_a_workflow_that_cannot_travel_is_refused(tmp_path: Path) -> None:
    class Hidden(CountedTeam):
        pass

    job = job_of(tmp_path, counted_items(1, tmp_path), workflow=Hidden())
    with pytest.raises(EngineError, match="Hidden cannot be found by that name"):
        job.synchronize()


@pytest.mark.parametrize("rest", ["0", "-1", "many", "\u00b2"])
def test_a_number_of_processes_is_wanted(rest: str) -> None:
    with pytest.raises(EngineError, match="'procs' takes a number of processes"):
        find_engine(f"procs:{rest}")
