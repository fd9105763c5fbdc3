"""Ports for child processes: who asks for free ones gets none that another has been given."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque

import pytest

from verbatim.local import processes
from verbatim.local.processes import HOST, free_ports


def given_elsewhere(port: int) -> subprocess.CompletedProcess[str]:
    """Another process asks for one port, of those that begin with `port` and end there."""
    program = (
        f"from verbatim.local import processes; processes._PORTS = range({port}, {port + 1});"
        " print(processes.free_ports(1))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_port_given_is_free_and_can_be_listened_on() -> None:
    """TCP is not touched by what keeps a port from others."""
    with socket.create_server((HOST, free_ports(1)[0])) as server:
        assert server.getsockname()[0] == HOST


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in one process, though nobody listens on what was given before."""
    (port,) = free_ports(1)
    monkeypatch.setattr(processes, "_PORTS", range(port, port + 1))
    with pytest.raises(OSError, match=f"no 1 free ports between {port} and {port + 1}"):
        free_ports(1)


def test_no_port_is_given_to_two_processes() -> None:
    """While who was given it lives; afterwards it can be given again."""
    (port,) = free_ports(1)
    refused = given_elsewhere(port)
    assert refused.returncode == 1 and "no 1 free ports" in refused.stderr
    processes._given.pop().close()
    assert given_elsewhere(port).stdout == f"[{port}]\n"
    # The process that it was given to has ended: so it can be given once more.
    assert given_elsewhere(port).stdout == f"[{port}]\n"


def test_no_more_are_held_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a file descriptor: where many are asked for, the eldest can be given again."""
    monkeypatch.setattr(processes, "_given", deque())
    monkeypatch.setattr(processes, "_MOST_GIVEN", 2)
    ports = free_ports(3)
    assert [claim.getsockname()[1] for claim in processes._given] == ports[1:]
    assert given_elsewhere(ports[0]).stdout == f"[{ports[0]}]\n"
    for claim in processes._given:
        claim.close()


def test_a_port_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever it is."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(processes, "_PORTS", range(port, port + 1))
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1)
