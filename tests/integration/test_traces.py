"""Spans of a real link's frames reach a real receiver: one trace a frame, over both applications."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Kafka, Names
from tests.faults.processes import Process, environment
from tests.support.brokers import Record, create_topic, produce, read_all
from tests.support.harness import Link, assert_copied
from tests.support.otlp import HOST, Sent, over_http
from verbatim.local.processes import free_ports

PARTITIONS = 2
HEADER = "authorization=Bearer%20hidden-token"


def in_spark(link: Link, application: str, folder: Path) -> None:
    """An application as it is started by hand, until all is copied."""
    scratch = environment(link.source, link.target, "", "", folder)
    variables = scratch | link.variables | {"STATE_PATH": str(folder / "state")}
    process = Process(application, variables, folder / f"{application}.log", "--until-caught-up")
    try:
        assert process.wait(400) == 0, process.said()[-3000:]
    finally:
        process.end()
    assert "hidden-token" not in process.said()


def in_threads(link: Link, application: str, _: Path) -> None:
    assert {"replicator": link.replicate, "deduplicator": link.deduplicate}[application]() == 0


def traced(source: Kafka, target: Kafka, names: Names, patch: pytest.MonkeyPatch, endpoint: str) -> Link:
    """A link with something to copy, whose spans go somewhere."""
    topic = names.topic("orders")
    create_topic(source.bootstrap_servers, topic, PARTITIONS)
    produce(
        source.bootstrap_servers, topic, [Record(b"%d" % n, partition=n % PARTITIONS) for n in range(100)]
    )
    variables = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": HEADER,
    }
    for name, value in variables.items():
        # Lanes that are threads share one environment.
        patch.setenv(name, value)
    return Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic, **variables)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", [in_threads, pytest.param(in_spark, marks=pytest.mark.whole)])
def test_a_receiver_gets_one_trace_of_each_frame_with_both_applications_spans(
    source: Kafka,
    target: Kafka,
    names: Names,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[Link, str, Path], None],
) -> None:
    """Promise: the six spans of each frame with records, whose figures are those of the frame in staging,
    also from lanes in Spark's Python workers, which find the receiver's headers where they run."""
    with over_http() as receiver:
        link = traced(source, target, names, monkeypatch, receiver.endpoint)
        (topic,) = link.settings.named_topics
        run(link, "replicator", tmp_path)
        # Before it is trimmed.
        staged = {}
        for partition in read_all(link.target, link.settings.staging_topic):
            for record in partition:
                headers = {name: value or b"" for name, value in record.headers or ()}
                if headers["count"] != b"0":
                    at = int(headers["partition"]), int(headers["start"])
                    staged[at] = int(headers["count"]), len(record.value or b"")
        run(link, "deduplicator", tmp_path)
        found = receiver.spans
        assert {headers["authorization"] for headers, _ in receiver.traces} == {"Bearer hidden-token"}
    assert_copied(link, topic)
    traces: dict[str, dict[str, Sent]] = defaultdict(dict)
    for span in found:
        assert span.name not in traces[span.trace]
        traces[span.trace][span.name] = span
    assert len(traces) == len(staged) >= PARTITIONS
    for spans in traces.values():
        assert spans.keys() == {"frame", "cut", "stage", "deliver", "produce", "commit"}
        for name, parent in {
            "cut": "frame",
            "stage": "frame",
            "deliver": "frame",
            "commit": "deliver",
        }.items():
            assert spans[name].parent == spans[parent].id
        of = spans["frame"].attributes
        assert (of["link"], of["topic"]) == (names.link, topic)
        assert staged[int(of["partition"]), int(of["first_offset"])] == (of["records"], of["bytes"])
        assert spans["frame"].end <= spans["deliver"].begin
        assert {span.attributes["service.name"] for span in spans.values()} == {
            "verbatim-replicator",
            "verbatim-deduplicator",
        }


def test_records_come_where_nobody_takes_the_spans(
    source: Kafka, target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = traced(source, target, names, monkeypatch, f"http://{HOST}:{free_ports(1)[0]}")
    assert link.copy() == (0, 0)
    assert_copied(link, link.settings.named_topics[0])
