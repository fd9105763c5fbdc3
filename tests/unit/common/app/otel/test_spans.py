"""A frame's spans are of one trace whoever sends them, few where few are wanted, and in nobody's way."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace

import pytest

from common.app import traces
from common.app.otel.spans import LAST_S, Spans
from common.config.credentials import traces_for_plan
from common.config.settings import Settings
from common.errors import SettingsError
from common.kafka.wire.chunks import Chunk
from common.link.frame import Frame, decode_headers, encode_headers
from deduplicator.lane import frame_trace as taking
from replicator.lane import frame_trace as reading
from tests.support.made_up_link import settings
from tests.support.otlp import HOST, Receiver, Sent, over_grpc, over_http
from verbatim.local.processes import free_ports

FRAME = Frame("src", "orders", "AAAAAAAAAAAAAAAAAAAAAQ", 3, 100, 110, 10, "host/1.0.0.ab")
SECRET = "s3cr3t-hunter2"  # noqa: S105 - nobody's


@pytest.fixture(autouse=True)
def logging_of_the_sdk() -> Iterator[None]:
    """What it says reaches no test's log, this one's or a later one's."""
    sdk = logging.getLogger("opentelemetry")
    before = sdk.handlers, sdk.propagate
    yield
    for thread in threading.enumerate():
        if thread.name == "spans":
            thread.join(10)
            assert not thread.is_alive()
    sdk.handlers, sdk.propagate = before


def spans(of: Settings, application: str = "replicator") -> Spans:
    plan = traces_for_plan(of)
    assert plan is not None
    return Spans(json.loads(json.dumps(plan)), application, of.application_name, "host-1")


def otlp(receiver: Receiver, **more: str) -> Settings:
    given = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    return settings(**given, **more)


def go(frame: Frame, replicator: Spans, deduplicator: Spans) -> None:
    """A frame through both applications."""
    first, second = reading.FrameTrace(replicator), taking.FrameTrace(deduplicator)
    first.read([Chunk(frame.topic, frame.partition, frame.next, 0)])
    first.cut(frame)
    first.staged(replace(frame, next=frame.start, count=0, origin=True), 0)
    first.staged(frame, 500)
    # What phase 2 has is what Kafka's headers say.
    there, _ = decode_headers(encode_headers(frame, b"x"))
    second.taken(there)
    second.produced(500)
    second.committed()


def each(found: list[Sent]) -> dict[str, Sent]:
    by_name = {span.name: span for span in found}
    assert len(by_name) == len(found)
    return by_name


@pytest.mark.parametrize(("protocol", "listening"), [("http/protobuf", over_http), ("grpc", over_grpc)])
def test_both_applications_spans_of_a_frame_are_one_trace_though_nothing_travels_with_it(
    protocol: str, listening: type[AbstractContextManager[Receiver]]
) -> None:
    with listening() as receiver:
        of = otlp(
            receiver,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20t",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20t")
            one, other = spans(of), spans(of, "deduplicator")
        before = time.time_ns()
        go(FRAME, one, other)
        one.close()
        other.close()
        found = each(receiver.spans)
        assert {headers["authorization"] for headers, _ in receiver.traces} == {"Bearer t"}
    assert found.keys() == {"frame", "cut", "stage", "deliver", "produce", "commit"}
    assert len({span.trace for span in found.values()}) == 1
    parents = {
        name: next((n for n, s in found.items() if s.id == span.parent), "") for name, span in found.items()
    }
    assert parents == {
        "frame": "",
        "cut": "frame",
        "stage": "frame",
        "deliver": "frame",
        "produce": "deliver",
        "commit": "deliver",
    }
    for name, span in found.items():
        application = "deduplicator" if name in ("deliver", "produce", "commit") else "replicator"
        own = {
            "link": "east",
            "topic": "orders",
            "partition": 3,
            "first_offset": 100,
            "records": 10,
            "bytes": 500,
        }
        assert own.items() <= span.attributes.items()
        assert span.attributes["service.name"] == f"verbatim-{application}"
        assert span.attributes["service.instance.id"] == "host-1"
        assert span.attributes["deployment.environment.name"] == "test"
        assert before <= span.begin <= span.end <= time.time_ns()
    order = [found[name] for name in ("cut", "stage", "produce", "commit")]
    assert [span.end for span in order] == sorted(span.end for span in order)
    assert found["stage"].begin == found["cut"].end and found["commit"].begin == found["produce"].end


def test_both_applications_take_the_same_frames_for_sampled_and_as_many_as_was_said() -> None:
    with over_http() as receiver:
        of = otlp(receiver, OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.1")
        with closing(spans(of)) as one, closing(spans(of, "deduplicator")) as other:
            frames = [replace(FRAME, start=n, next=n + 1, count=1) for n in range(20_000)]
            ids = [one.sampled(frame) for frame in frames]
            assert ids == [other.sampled(frame) for frame in frames]
    found = {trace for trace in ids if trace is not None}
    assert len(found) == len(ids) - ids.count(None)
    assert 1800 < len(found) < 2200


@pytest.mark.parametrize("change", [{"topic_id": "B"}, {"partition": 4}, {"start": 101}])
def test_another_frame_is_another_trace_and_the_same_sent_again_is_not(change: dict[str, object]) -> None:
    with over_http() as receiver:
        here = otlp(receiver)
        with closing(spans(here)) as found, closing(spans(_of_link(here, "west"))) as west:
            there = found.sampled(FRAME)
            assert there is not None
            assert found.sampled(replace(FRAME, **change)) != there  # type: ignore[arg-type]
            assert found.sampled(replace(FRAME, writer="host/2", next=105)) == there
            assert west.sampled(FRAME) != there


def _of_link(of: Settings, link: str) -> Settings:
    return of.model_copy(update={"application_name": link})


def test_a_frame_that_was_staged_twice_has_spans_of_its_own_in_one_trace() -> None:
    with over_http() as receiver:
        with closing(spans(otlp(receiver))) as one, closing(spans(otlp(receiver))) as other:
            go(FRAME, one, other)
            go(replace(FRAME, writer="host/2"), one, other)
        found = receiver.spans
    assert len(found) == len({span.id for span in found}) == 12
    assert len({span.trace for span in found}) == 1


def test_frames_that_are_given_up_or_not_sampled_have_no_spans() -> None:
    with over_http() as receiver:
        none = otlp(receiver, OTEL_TRACES_SAMPLER="always_off")
        with closing(spans(none)) as one, closing(spans(none)) as other:
            go(FRAME, one, other)
        with closing(spans(otlp(receiver))) as found:
            trace = taking.FrameTrace(found)
            trace.taken(FRAME)
            trace.produced(1)
            trace.dropped()
            trace.taken(FRAME)  # seen before: nothing is produced of it
            trace.taken(replace(FRAME, count=0))
            trace.produced(1)
            trace.committed()
        assert receiver.spans == []


def test_a_frame_begins_when_the_first_of_its_records_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 100))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    with over_http() as receiver:
        with closing(spans(otlp(receiver))) as found:
            trace = reading.FrameTrace(found)
            for position in (105, 110, 130):  # at 1, 2, 3
                trace.read([Chunk("orders", 3, position, 0)])
            trace.cut(replace(FRAME, start=100, next=107, count=7))
            trace.cut(replace(FRAME, start=107, next=120, count=13))
            trace.read([Chunk("orders", 3, 107, 0)])  # back again
            trace.cut(replace(FRAME, start=90, next=107, count=17))
            for start in (100, 107, 90):
                trace.staged(replace(FRAME, start=start), 1)
        begun = {s.attributes["first_offset"]: s.begin for s in receiver.spans if s.name == "frame"}
    assert begun == {100: 1, 107: 2, 90: 6}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "common.app.otel.spans"]


def hanging() -> socket.socket:
    """It takes connections, and never answers."""
    return socket.create_server((HOST, 0), backlog=100)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "refuses"])
def test_a_receiver_that_hangs_or_refuses_holds_nothing_up_and_is_told_once(
    caplog: pytest.LogCaptureFixture, protocol: str, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: neither a frame nor the end of a lane waits for it; what does not fit is left out; one
    line."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    with hanging() as server:
        port = server.getsockname()[1] if hangs else free_ports(1)[0]
        found = spans(
            settings(
                OTEL_TRACES_EXPORTER="otlp",
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{HOST}:{port}",
                OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
                OTEL_EXPORTER_OTLP_HEADERS=f"authorization={SECRET}",
            )
        )
        first = time.monotonic()
        go(FRAME, found, found)
        for n in range(3000):
            go(replace(FRAME, start=n, next=n + 10), found, found)
            assert time.monotonic() - first < 30, "a frame waits"
        assert len(found._processor._batch_processor._queue) <= 2048
        while time.monotonic() - first < 20 and not told(caplog):
            time.sleep(0.05)
        begun = time.monotonic()
        found.close()
        assert time.monotonic() - begun < LAST_S
    (said,) = told(caplog)
    assert said.startswith("spans can't be sent by otlp: ")
    assert SECRET not in caplog.text


def test_without_the_extra_the_application_says_what_to_install_and_a_lane_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = settings(OTEL_TRACES_EXPORTER="console")
    monkeypatch.setitem(sys.modules, "common.app.otel.spans", None)
    with pytest.raises(SettingsError, match=r"OTEL_TRACES_EXPORTER: console: .* verbatim-kafka\[otel\]"):
        traces.must_be_had(of)
    plan = {"traces": traces_for_plan(of), "application": "replicator", "link": "l", "instance": "i"}
    assert traces.spans_of(plan) is None
    assert "no spans are sent" in caplog.text
    traces.must_be_had(settings())


@pytest.mark.parametrize(
    ("exporter", "protocol", "known"),
    [("otlp", "http/protobuf", 2), ("otlp", "grpc", 1), ("console", "grpc", 1), ("none", "grpc", 0)],
)
def test_lanes_import_ahead_what_their_spans_need_but_nothing_that_minds_forks(
    exporter: str, protocol: str, known: int
) -> None:
    of = settings(OTEL_TRACES_EXPORTER=exporter, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    names = traces.modules(of)
    assert len(names) == known
    code = "import importlib, sys; [importlib.import_module(n) for n in sys.argv[1:]]; print('grpc' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code, *names], text=True).strip() == "False"


def test_nothing_of_opentelemetry_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, replicator.lane.lane, deduplicator.lane.lane; from common.app import traces;"
        "assert traces.spans_of({'traces': None, 'application': '', 'link': '', 'instance': ''}) is None;"
        "print([n for n in sys.modules if n.startswith('opentelemetry')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "expected otlp, console or none, not 'zipkin'"),
        ("OTEL_TRACES_SAMPLER", "often", "expected one of always_on, always_off, "),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "expected a ratio between 0 and 1, not '2'"),
        ("OTEL_TRACES_SAMPLER_ARG", "some", "expected a ratio between 0 and 1, not 'some'"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "expected a ratio between 0 and 1, not 'nan'"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "expected http://host:port or https://host:port"),
        ("OTEL_RESOURCE_ATTRIBUTES", "test", "entry 'test' is not of the form name=value"),
    ],
)
def test_a_wrong_variable_is_named_at_once(variable: str, value: str, words: str) -> None:
    given = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", variable: value}
    with pytest.raises(SettingsError) as refused:
        settings(**given)
    assert str(refused.value).startswith(f"{variable}: {words}")
