"""Child processes that never outlive this one, and free ports for them; knows nothing of what runs in
them."""

from __future__ import annotations

import os
import queue
import random
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

HOST = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections (32768 up), or a client that knocks
# at a stopped server could be given its port, and the server could not come back on it.
_PORTS = range(15000, 32000)
# The UDP ports of the TCP ports given out last. Nobody uses them: while this process holds them, no other
# that asks for free ports is given the same, though whom they were given to may listen there only seconds
# later, or not yet again.
_given: deque[socket.socket] = deque()
_MOST_GIVEN = 200
_LOG_LINES = 15

# Runs between fork and exec in a small interpreter of its own, for Python code in a fork of a process with
# threads can deadlock. PR_SET_PDEATHSIG (1) is kept across exec. The parent may have died before it was set:
# hence the look after.
_LAUNCHER = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent process has gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

_Job = tuple[Sequence[str], Path, Mapping[str, str] | None, "Future[subprocess.Popen[bytes]]"]
_jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
_lock = threading.Lock()
_spawner_pid: int | None = None


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `command`, its output appended to `log`, out of reach of the terminal's Ctrl-C; `environment`
    None: this process's.

    On Linux the kernel kills it when this process ends, however that happens; elsewhere it has to be stopped.
    Raises OSError when it can't be started.
    """
    global _jobs, _spawner_pid
    with _lock:
        if _spawner_pid != os.getpid():
            # The first call, or a fork, which takes no thread along.
            _jobs, _spawner_pid = queue.SimpleQueue(), os.getpid()
            threading.Thread(target=_serve, args=(_jobs,), name="spawner", daemon=True).start()
    started: Future[subprocess.Popen[bytes]] = Future()
    _jobs.put((command, log, environment, started))
    return started.result()


def _serve(jobs: queue.SimpleQueue[_Job]) -> None:
    # The "parent" of PR_SET_PDEATHSIG is the thread that forked, not the process: a child started from a
    # short-lived thread (a pool's, say) would be killed as that thread ends. This one lives as long as the
    # process.
    while True:
        command, log, environment, started = jobs.get()
        try:
            started.set_result(_popen(command, log, environment))
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to the caller
            started.set_exception(error)


def _popen(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*launcher, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def tail(log: Path) -> str:
    """The last lines of a log; nothing where there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    except OSError:
        return ""


def free_ports(count: int) -> list[int]:
    """`count` different ports of 127.0.0.1 that nobody listens on now. Raises OSError when there are too few.

    Nor was any of them given by this function in a process that still lives, unless that was given 200 others
    since.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        if claim := _claim(port):
            _given.append(claim)
            if len(_given) > _MOST_GIVEN:
                _given.popleft().close()
            found.append(port)
    if len(found) < count:
        raise OSError(f"{HOST} has no {count} free ports between {_PORTS.start} and {_PORTS.stop}")
    return found


def _claim(port: int) -> socket.socket | None:
    """What holds a port against other claims; None: it has been claimed, or somebody listens on it."""
    claim = socket.socket(type=socket.SOCK_DGRAM)
    try:
        claim.bind((HOST, port))
        with socket.socket() as probe:
            # As Java's servers do: a port in TIME_WAIT may be taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except OSError:
        claim.close()
        return None
    return claim
