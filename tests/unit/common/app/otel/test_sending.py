"""What OpenTelemetry gets is what /metrics serves; what can't be sent is told once, counted, and stops
nothing; secrets are told to the receiver alone."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from http.client import HTTPConnection

import pytest

from common.app import instance
from common.app.health import Health, sending
from common.app.health_server import serving
from common.app.instance import Instance
from common.app.link_pages import LinkPages
from common.app.link_view import status
from common.app.otel import topic
from common.app.otel.sending import LAST_S
from common.config.settings import Settings
from common.errors import SettingsError
from common.link.lane_work import Work
from common.link.throttling import Limit
from tests.support.brokers import wait_until
from tests.support.made_up_link import MadeUp, settings
from tests.support.metrics import delivering, sample
from tests.support.otlp import HOST, Receiver, attributes, over_grpc, over_http, own, served
from verbatim.local.processes import free_ports

SOON = "20"
SECRET = "s3cr3t hunter2"  # noqa: S105 - nobody's
HEADERS = "authorization=Bearer%20s3cr3t%20hunter2,x-tenant=east"


@pytest.fixture
def health() -> Health:
    """Of every kind something: counters, gauges with labels, a histogram, halts by reason."""
    health = delivering()
    health.instance = "host-1-42"
    health.halted = {"orders-3": "missing", "paid-0": "loop"}
    health.limits = {'a"b': Limit(1, None)}
    return health


def until(reached: Callable[[], object]) -> None:
    wait_until(reached, "what is to be sent", 60.0)


def otlp(receiver: Receiver, protocol: str = "http/protobuf", **variables: str) -> Settings:
    return settings(
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        **{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": SOON, **variables},
    )


@pytest.mark.parametrize(("protocol", "listening"), [("http/protobuf", over_http), ("grpc", over_grpc)])
def test_a_receiver_gets_the_figures_of_metrics_at_that_moment(
    health: Health, protocol: str, listening: type[AbstractContextManager[Receiver]]
) -> None:
    with listening() as receiver, sending(health, otlp(receiver, protocol)):
        until(lambda: receiver.came)
        assert own(receiver.figures) == served(health)
        assert {kind for kind, *_ in receiver.figures.values()} == {"sum", "gauge", "histogram"}
        assert len(receiver.figures) > 20
        names = {name for name, _ in receiver.figures}
        assert {"verbatim_records", "verbatim_build_info", "process_cpu_seconds"} <= names
        health.work.add(Work(Counter(frames=1), {("orders", 3): Counter(records=100)}))
        health.work.delays.took(1, 3)
        seen = len(receiver.came)
        until(lambda: len(receiver.came) > seen + 1)
        assert own(receiver.figures) == served(health)
        assert ("sum", 2, True, 105.0) in receiver.figures.values()
        until(lambda: sample(health, "verbatim_metric_exports_total", exporter="otlp"))
    assert sample(health, "verbatim_metric_exports_failed_total", exporter="otlp") == 0


def test_counters_begin_when_the_instance_does_and_units_are_told(health: Health) -> None:
    with over_http() as receiver, sending(health, otlp(receiver)):
        until(lambda: receiver.came)
    (of_resource,) = receiver.came[-1][1].resource_metrics
    by_name = {metric.name: metric for metric in of_resource.scope_metrics[0].metrics}
    (frames,) = by_name["verbatim_frames"].sum.data_points
    (delays,) = by_name["verbatim_delay_seconds"].histogram.data_points
    for point in (frames, delays):
        assert point.start_time_unix_nano == health.started_ms * 1_000_000
        assert 0 <= time.time_ns() - point.time_unix_nano < 20e9
    assert by_name["verbatim_delay_seconds"].unit == "s" and by_name["verbatim_frames"].unit == ""
    assert by_name["verbatim_frames"].description == "frames written, or read"


def test_who_sends_is_told_and_the_operators_words_count_first(health: Health) -> None:
    with over_http() as receiver:
        with sending(health, otlp(receiver)):
            until(lambda: receiver.came)
        found = attributes(receiver.came[-1][1])
        assert found["service.name"] == "verbatim-deduplicator" and found["service.namespace"] == "east"
        assert found["service.instance.id"] == "host-1-42"
        theirs = {
            "OTEL_SERVICE_NAME": "copying",
            "OTEL_RESOURCE_ATTRIBUTES": "env=prod,service.namespace=a%20b",
        }
        with sending(health, otlp(receiver, **theirs)):
            pass
        found = attributes(receiver.came[-1][1])
    assert (found["service.name"], found["service.namespace"], found["env"]) == ("copying", "a b", "prod")


def test_the_last_figures_are_sent_at_the_end(health: Health) -> None:
    with over_http() as receiver:
        with sending(health, otlp(receiver, OTEL_METRIC_EXPORT_INTERVAL="3600000")):
            health.work.counts["frames"] = 1234
            assert not receiver.came
        assert len(receiver.came) == 1 and ("sum", 2, True, 1234.0) in receiver.figures.values()


def test_the_receiver_away_is_told_once_counted_and_told_when_it_is_back(
    health: Health, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5")  # enough for a second try
    (port,) = free_ports(1)
    receiver = Receiver()
    receiver.endpoint = f"http://{HOST}:{port}"
    caplog.set_level(logging.INFO)
    with sending(health, otlp(receiver)):
        until(lambda: failed(health) > 1)
        assert sample(health, "verbatim_metric_exports_total", exporter="otlp") == 0
        (line,) = caplog.messages
        assert line.startswith("metrics can't be sent by otlp: ") and "Connection refused" in line
        with over_http(port) as back:
            until(lambda: back.came)
            until(lambda: len(caplog.messages) > 1)
            back.status = 401
            until(lambda: len(caplog.messages) > 2)
    assert caplog.messages[1] == "metrics are sent by otlp again"
    assert "401" in caplog.messages[2] and len(caplog.messages) == 3


def test_a_receiver_over_grpc_that_is_away_is_told_once(
    health: Health, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    receiver = Receiver()
    receiver.endpoint = f"http://{HOST}:{free_ports(1)[0]}"
    with sending(health, otlp(receiver, "grpc")):
        until(lambda: failed(health) > 2)
    (line,) = caplog.messages
    assert line.startswith("metrics can't be sent by otlp: ") and receiver.endpoint[7:] in line


def failed(health: Health, exporter: str = "otlp") -> float:
    return sample(health, "verbatim_metric_exports_failed_total", exporter=exporter) or 0


def test_a_receiver_that_never_answers_holds_up_no_end(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(LAST_S + 2))
    with closing(socket.create_server((HOST, 0))) as silent:
        receiver = Receiver()
        receiver.endpoint = f"http://{HOST}:{silent.getsockname()[1]}"
        with sending(health, otlp(receiver)):
            time.sleep(0.2)
            begun = time.monotonic()
        assert time.monotonic() - begun < LAST_S + 1
    # What it says of that when it gives up is not another test's.
    until(lambda: all(thread.name != "metrics-otlp" for thread in threading.enumerate()))


@pytest.mark.parametrize(("protocol", "listening"), [("http/protobuf", over_http), ("grpc", over_grpc)])
def test_headers_are_told_to_the_receiver_and_to_nobody_else(
    health: Health,
    protocol: str,
    listening: type[AbstractContextManager[Receiver]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with listening() as receiver:
        given = otlp(receiver, protocol, OTEL_EXPORTER_OTLP_HEADERS=HEADERS)
        with sending(health, given):
            until(lambda: receiver.came)
    headers = receiver.came[-1][0]
    assert headers["authorization"] == f"Bearer {SECRET}" and headers["x-tenant"] == "east"
    made_up = MadeUp({"orders": 1})
    made_up.settings = given
    made_up.look(0)
    told = json.dumps(status(made_up.health, 0)), repr(given), json.dumps(given.redacted()), caplog.text
    assert "OTEL_EXPORTER_OTLP_HEADERS" in told[0] and "[hidden]" in told[0]
    assert not [one for one in told if "s3cr3t" in one]


def test_what_an_exporter_says_of_a_failure_has_no_secret(
    health: Health, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a later version of it says."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-key=another%2Fkey")
    with over_http() as receiver:
        receiver.status = 400
        given = otlp(receiver, OTEL_EXPORTER_OTLP_HEADERS=HEADERS)
        with sending(health, given):
            logger = logging.getLogger("opentelemetry.exporter")
            way = next(iter(logging.getLogger("opentelemetry").handlers))
            logger.error("refused %s and %s and another/key", HEADERS, f"Bearer {SECRET}")
            said = way.taken()  # type: ignore[attr-defined]
            assert said.startswith("refused authorization=[hidden]") and "x-tenant=[hidden]" in said
            assert "hunter2" not in said and "another" not in said
    assert "hunter2" not in caplog.text


def test_a_login_in_the_endpoint_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    given = settings(
        OTEL_METRICS_EXPORTER="otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://me:hunter2@{HOST}:{free_ports(1)[0]}",
    )
    assert "hunter2" not in repr(given) + json.dumps(given.redacted())


def test_the_console_gets_the_same_figures(health: Health, capsys: pytest.CaptureFixture[str]) -> None:
    with sending(health, settings(OTEL_METRICS_EXPORTER="console,prometheus")):
        pass
    said = json.loads(capsys.readouterr().out)
    (scope,) = said["resource_metrics"][0]["scope_metrics"]
    by_name = {one["name"]: one["data"]["data_points"] for one in scope["metrics"]}
    assert [(p["attributes"]["partition"], p["value"]) for p in by_name["verbatim_records"]] == [
        ("3", 5.0),
        ("10", 0.0),
    ]
    assert by_name["verbatim_delay_seconds"][0]["count"] == 13


def test_a_broker_that_is_away_is_told_once_counted_and_the_others_go_on(
    health: Health, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "EXPORT_S", 0.3)
    with over_http() as receiver:
        given = otlp(
            receiver,
            OTEL_METRICS_EXPORTER="kafka,otlp",
            KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS=f"{HOST}:{free_ports(1)[0]}",
        )
        with sending(health, given):
            until(lambda: failed(health, "kafka") > 1)
            until(lambda: len(receiver.came) > 3)
    (line,) = [m for m in caplog.messages if m.startswith("metrics can't be sent")]
    assert line.startswith("metrics can't be sent by kafka: ")
    assert failed(health) == 0


def test_a_figure_that_can_not_be_told_ends_nothing(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    with over_http() as receiver, sending(health, otlp(receiver)):
        until(lambda: receiver.came)
        health.work.counts["frames"] = "many"  # type: ignore[assignment]
        until(lambda: failed(health) > 1)
        health.work.counts["frames"] = 8
        seen = len(receiver.came)
        until(lambda: len(receiver.came) > seen)
    (line,) = [m for m in caplog.messages if "can't be sent" in m]
    assert "many" not in line


@pytest.mark.parametrize(
    ("exporters", "code"),
    [(None, 200), ("prometheus", 200), ("otlp,Prometheus", 200), ("otlp", 404), ("none", 404)],
)
def test_metrics_are_served_where_prometheus_is_among_the_exporters(
    health: Health, exporters: str | None, code: int
) -> None:
    (port,) = free_ports(1)
    given = {} if exporters is None else {"OTEL_METRICS_EXPORTER": exporters}
    found = settings(HEALTH_PORT=str(port), **given)
    with serving(LinkPages(health, "prometheus" in found.exporters), found):
        assert got(port, "/healthz")[0] == 200
        answer, body = got(port, "/metrics")
    assert answer == code and ("verbatim_leader" if code == 200 else "OTEL_METRICS_EXPORTER") in body


def got(port: int, path: str) -> tuple[int, str]:
    asked = HTTPConnection(HOST, port, timeout=10)
    asked.request("GET", path)
    answer = asked.getresponse()
    return answer.status, answer.read().decode()


@contextmanager
def without(package: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine where it is not installed."""
    with monkeypatch.context() as patch:
        for name in list(sys.modules):
            if name == package or name.startswith(("common.app.otel.", package + ".")):
                patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, package, None)
        yield


@pytest.mark.parametrize(
    ("exporters", "package"),
    [
        ("otlp", "opentelemetry.sdk"),
        ("console,prometheus", "opentelemetry.sdk"),
        ("kafka", "google.protobuf"),
    ],
)
def test_a_missing_package_is_a_line_that_names_the_extra(
    health: Health, exporters: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(OTEL_METRICS_EXPORTER=exporters)
    with without(package, monkeypatch), pytest.raises(SettingsError) as told, sending(health, given):
        pass
    line = str(told.value)
    assert line.startswith("OTEL_METRICS_EXPORTER: ") and "verbatim-kafka[otel]" in line and "\n" not in line


def test_unless_they_are_asked_for_the_packages_of_the_extra_are_not_imported() -> None:
    code = "import sys, replicator.main, offsets.main; print([m for m in sys.modules if m.startswith('opentel')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_the_environment_alone_says_is_checked_before_anything_begins(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "carrier-pigeon")
    wrong = pytest.raises(SettingsError, match="expected http/protobuf or grpc, not 'carrier-pigeon'")
    with wrong, sending(health, otlp(Receiver(), "grpc")):
        pass


def test_an_instance_sends_while_it_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Idle(Instance):
        name = "idle"

        def _run(self) -> int:
            self.health.epochs = 4711
            return 0

    monkeypatch.setattr(instance, "stop_on_signals", lambda _: None)
    assert Idle(settings(OTEL_METRICS_EXPORTER="console", HEALTH_PORT="0"), None).run() == 0
    assert "verbatim-idle" in (out := capsys.readouterr().out) and "4711" in out
