"""A Ray cluster of several nodes on loopback, in a process of its own: the program and its handle.

A line on stdin is the id of a worker process, whose node is removed, or empty: as many nodes are
added as were removed. The end of stdin ends the cluster.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
N_NODES = 3
HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


def environment(home: str) -> dict[str, str]:
    """What Ray reads at its import, for the cluster and its drivers."""
    return {
        # Loopback only, which is the default elsewhere than on Linux.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": home,
    }


class RayCluster:
    """The handle of a running cluster."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = str(json.loads(self._answer()))

    def remove_node(self, worker: int) -> None:
        """Kill all processes of the node that a worker is on, and wait until they have ended."""
        self._order(str(worker))

    def restore(self) -> None:
        """Add nodes in the place of those that were removed."""
        self._order("")

    def _order(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        assert json.loads(self._answer()) == words

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the cluster has ended: {self._process.wait()}"
        return line


@contextmanager
def ray_cluster(settings: dict[str, str]) -> Generator[RayCluster]:
    """Start a cluster, and end it with all of its processes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_cluster"],
        cwd=ROOT,
        env={**os.environ, **settings, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        yield RayCluster(process)
        process.communicate()
    assert process.returncode == 0


@contextmanager
def ray_home() -> Generator[str]:
    """A directory for the sockets and logs of Ray, with a path that is short enough for sockets."""
    home = tempfile.mkdtemp(prefix="rath-ray-")
    try:
        yield home
    finally:
        shutil.rmtree(home)


def raylet_of(node: Any) -> int:
    """The process that starts the workers of a node."""
    (raylet,) = node.all_processes["raylet"]
    return int(raylet.process.pid)


def parent(pid: int) -> int:
    """The process that started one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def main() -> None:
    """Run a cluster until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    def answer(value: object) -> None:
        print(json.dumps(value), file=answers, flush=True)

    options: dict[str, Any] = {
        "num_cpus": 2,
        "object_store_memory": 80 << 20,
        "include_dashboard": False,
    }
    # Drivers are attached to the head, so there is no worker on it.
    head = {**options, "num_cpus": 0, "_system_config": HEALTH}
    cluster: Any = Cluster(initialize_head=True, shutdown_at_exit=True, head_node_args=head)
    nodes = [cluster.add_node(**options, wait=False) for _ in range(N_NODES - 1)]
    cluster.wait_for_nodes()
    answer(cluster.address)
    for line in map(str.strip, sys.stdin):
        if line:
            (node,) = (each for each in nodes if raylet_of(each) == parent(int(line)))
            nodes.remove(node)
            cluster.remove_node(node, allow_graceful=False)
        else:
            nodes += [cluster.add_node(**options) for _ in range(N_NODES - 1 - len(nodes))]
        answer(line)
    cluster.shutdown()


if __name__ == "__main__":
    main()
