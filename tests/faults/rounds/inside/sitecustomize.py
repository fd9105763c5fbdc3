"""Crash points and deliberate breakages inside an application's processes: Python imports this at its start,
from PYTHONPATH.

No production code knows of it. All that is wrapped stands in one table at the end, by dotted names.
Variables:

    VERBATIM_FAULTS          folder: a file `<point>.armed` there, {"id", "n", "action"}, makes the n-th
                             passage of that point act, in whichever process comes first; it becomes
                             `<id>.fired`
    VERBATIM_BREAK           name of a breakage: proves that a round notices what it is there to notice
    VERBATIM_FOLD_S          seconds between two folds of the state table
    VERBATIM_HANGS_S         seconds after which a lane that says nothing is taken for one that hangs
    VERBATIM_FETCH_KIB       what a partition is asked for at first: a round's records are few, and what is
                             asked for grows all the same
    VERBATIM_TRANSACTION_MS  the deliveries' transaction time-out, so that a pause can outlast it
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("VERBATIM_FAULTS", "")
BREAK = os.environ.get("VERBATIM_BREAK", "")
# The first Python of an application is its driver; what it starts inherits this.
ROOT = int(os.environ.setdefault("VERBATIM_FAULTS_ROOT", str(os.getpid())))

_passages: Counter[str] = Counter()
_lock = threading.Lock()


def point(name: str) -> None:
    """A place where it may end, or stop for a while."""
    armed = f"{FOLDER}/{name}.armed"
    if not os.path.exists(armed):
        return
    try:
        with open(armed) as file:
            wish = json.load(file)
    except (OSError, ValueError):
        return
    with _lock:
        _passages[wish["id"]] += 1
        if _passages[wish["id"]] < wish["n"]:
            return
        claimed = f"{FOLDER}/{wish['id']}.claimed"
        try:
            os.rename(armed, claimed)
        except OSError:
            return  # another process was first
        with open(claimed, "w") as file:
            json.dump(
                {"point": name, "pid": os.getpid(), "time": time.time(), "action": wish["action"]}, file
            )
        os.rename(claimed, f"{FOLDER}/{wish['id']}.fired")
    if wish["action"] == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    for pid in _family(ROOT) if wish["action"] == "kill-all" else []:
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal may take a moment, and nothing may pass the point


def _family(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def around(owner: Any, name: str, point_name: str) -> None:
    """Points before and after a function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        point(f"{point_name}-before")
        found = original(*args, **kwargs)
        point(f"{point_name}-after")
        return found

    setattr(owner, name, wrapped)


def _producers(module: ModuleType) -> None:
    """Points at what producers do, told apart by the topic, and not by who calls: that may move from file to
    file."""
    original: Any = module.Producer

    class Producer(original):  # type: ignore[misc]
        def produce(self, topic: str, *args: Any, **kwargs: Any) -> None:
            what = self._what(topic, args[1] if len(args) > 1 else None)
            if what in ("frame", "position"):
                # Keywords only: these two are produced with few arguments, and the report is wanted here as
                # well.
                kwargs["on_delivery"] = functools.partial(_acknowledged, what, kwargs.get("on_delivery"))
            point(f"{what}-before")
            super().produce(topic, *args, **kwargs)
            point(f"{what}-after")

        def _what(self, topic: str, key: bytes | None) -> str:
            if topic.endswith(".staging"):
                return "frame"
            if topic.endswith(".positions"):
                return "counters" if key and b"metrics" in key else "position"
            if topic.endswith(".control"):
                return "control"
            return "produce"

    module.Producer = Producer  # type: ignore[attr-defined]


def _batch_producers(module: ModuleType) -> None:
    """The same at the producer of batches."""
    original: Any = module.BatchProducer
    transaction_ms = os.environ.get("VERBATIM_TRANSACTION_MS")

    class BatchProducer(original):  # type: ignore[misc]
        def __init__(
            self, config: dict[str, Any], transactional_id: str, timeout_ms: int, *args: Any
        ) -> None:
            if BREAK == "no-fencing":
                transactional_id = f"{transactional_id}.{uuid.uuid4().hex[:8]}"
            super().__init__(config, transactional_id, int(transaction_ms or timeout_ms), *args)

        def init_transactions(self, *args: Any) -> None:
            super().init_transactions(*args)
            point("fenced")

    around(BatchProducer, "produce", "mapping")
    around(BatchProducer, "produce_batch", "produce")
    around(BatchProducer, "produce_whole", "produce")
    around(BatchProducer, "send_offsets_to_transaction", "offsets")
    around(BatchProducer, "commit_transaction", "commit")
    module.BatchProducer = BatchProducer  # type: ignore[attr-defined]


def _acknowledged(what: str, report: Callable[..., None] | None, error: Any, message: Any) -> None:
    if report is not None:
        report(error, message)
    if error is None:
        point(f"{what}-acknowledged")


def _state(module: ModuleType) -> None:
    around(module.StateTable, "_append_history", "history")
    around(module.StateTable, "_merge_state", "delta")
    around(module.StateTable, "fold", "fold")


def _often(module: ModuleType) -> None:
    interval = os.environ.get("VERBATIM_FOLD_S")
    if interval:
        _replace(module, "LOOK_S", lambda _: float(interval))


def _hang_soon(module: ModuleType) -> None:
    seconds = os.environ.get("VERBATIM_HANGS_S")
    if seconds:
        _replace(module, "HANGS_S", lambda _: float(seconds))


def _small_fetches(module: ModuleType) -> None:
    kib = os.environ.get("VERBATIM_FETCH_KIB")
    if kib:
        share = int(kib) / 1024
        for name in ("PARTITION_BYTES", "FETCH_BYTES", "GROWN_BYTES"):
            _replace(module, name, lambda usual: int(usual * share))


def _small_runs(module: ModuleType) -> None:
    """Of few batches, or there were hardly any."""
    _replace(module, "LEAST_BATCHES", lambda _: 3)
    _replace(module, "BATCHES_A_RECORD", lambda _: 0)


def _folding(module: ModuleType) -> None:
    if os.environ.get("VERBATIM_FOLD_S"):
        _replace(module.Deduplicator, "_fold_due", lambda _: lambda self: True)


def _lanes(module: ModuleType) -> None:
    # The epoch's rows are in, and its driver has not heard of it.
    around(module.LaneJobs, "_epoch_ended", "epoch-ended")
    around(module.LaneJobs, "submit", "plan")


def _stale_next(module: ModuleType) -> None:
    """What was decided in a transaction that never happened is kept."""

    def keeping(recover: Callable[..., None]) -> Callable[..., None]:
        def kept(self: Any) -> None:
            before = dict(self.state.next)
            recover(self)
            self.state.next = {k: max(v, before.get(k, v)) for k, v in self.state.next.items()}

        return kept

    _replace(module.Delivery, "_recover", keeping)


def _no_dedup(module: ModuleType) -> None:
    """Frames that were delivered before are delivered again."""

    def forgetting(decide: Callable[..., Any]) -> Callable[..., Any]:
        def forgetful(next_offset: int | None, frame: Any, *rest: Any) -> Any:
            if next_offset is not None and frame.start < next_offset and frame.count:
                next_offset = frame.start
            return decide(next_offset, frame, *rest)

        return forgetful

    _replace(module, "decide", forgetting)


def _commit_without_records(module: ModuleType) -> None:
    """Now and then a frame's records are left out of the transaction that commits its position and
    mapping."""
    frames = Counter[str]()

    def leaving_out(produce: Callable[..., None]) -> Callable[..., None]:
        def sometimes(self: Any, *args: Any) -> None:
            frames["seen"] += 1
            # Seldom enough that most arrives, often enough for a round of a dozen frames.
            if frames["seen"] % 3:
                produce(self, *args)

        return sometimes

    _replace(module.Transaction, "produce", leaving_out)


def _replace(owner: Any, name: str, broken: Callable[[Any], Any]) -> None:
    # A name that has moved is an AttributeError here: a breakage that breaks nothing would prove nothing.
    setattr(owner, name, broken(getattr(owner, name)))


# module -> what is done to it once it is imported. Where production code moves, this table and the functions
# it names follow.
POINTS: dict[str, Callable[[ModuleType], None]] = {
    "common.kafka.wire.batch_producer": _batch_producers,
    "common.kafka.wire.batch_runs": _small_runs,
    "common.kafka.wire.fetch_limits": _small_fetches,
    "common.link.lane_counters": _hang_soon,
    "common.ports": _producers,
    "common.spark.lane_jobs": _lanes,
    "deduplicator.main": _folding,
    "deduplicator.state.table": _state,
    "deduplicator.state.folding": _often,
}
BREAKAGES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "stale-next": ("deduplicator.lane.delivery", _stale_next),
    "no-dedup": ("deduplicator.lane.frame_handler", _no_dedup),
    "commit-without-records": ("deduplicator.lane.transaction", _commit_without_records),
    "no-fencing": ("common.kafka.wire.batch_producer", lambda _: None),
}


class _Wrapping(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        broken, breakage = BREAKAGES.get(BREAK, ("", None))
        wanted = [POINTS.get(fullname), breakage if broken == fullname else None]
        if not any(wanted):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            for patch in wanted:
                if patch is not None:
                    patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FOLDER:
    if BREAK and BREAK not in BREAKAGES:
        raise SystemExit(f"VERBATIM_BREAK: no breakage is called {BREAK}")
    sys.meta_path.insert(0, _Wrapping())
    # When delivery stands still, its threads say where.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
