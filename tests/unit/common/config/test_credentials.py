"""No secret is in a plan, and a lane finds each where it runs."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.app.application import Application
from common.config import credentials, loading
from common.config.client_properties import KNOWN, is_secret
from common.config.fields import CLUSTERS, KINDS
from common.config.settings import Settings
from common.errors import SettingsError
from common.link.control_state import Control
from common.link.lane_plan import LaneShare
from common.link.lane_progress import Refused, decode
from deduplicator.lane import lane as deduplicator_lane
from deduplicator.lane_plan import DeduplicatorPlan
from deduplicator.state.mappings_source import options
from deduplicator.state.table import StateTable
from replicator.lane import lane as replicator_lane
from replicator.lane_plan import ReplicatorPlan
from tests.support.harness import ThreadDeduplicator, ThreadReplicator

REQUIRED = {
    "APPLICATION_NAME": "link",
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "source:9092",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "target:9092",
}
SECRET = sorted(
    name for name, prop in KNOWN.items() if is_secret(name) and prop.type == "str" and "pem" not in name
)
GIVEN = st.dictionaries(
    st.tuples(
        st.sampled_from(["SOURCE", "DESTINATION"]),
        st.sampled_from(["PROPERTIES", "CONSUMER", "PRODUCER", "ADMIN", "file", "config"]),
        st.sampled_from([*SECRET, "sasl.username", "client.id"]),
    ),
    st.integers(10_000, 99_999).map("v{}v".format),
    max_size=8,
)


def variable(cluster: str, group: str, name: str) -> str:
    return f"KAFKA_CLUSTERS_{cluster}_{group}_{name.upper().replace('.', '_')}"


def load(given: dict[tuple[str, str, str], str], folder: Path) -> tuple[Settings, dict[str, str]]:
    """Settings of which each secret comes from somewhere else, and the environment that lanes have too."""
    environ = {**REQUIRED}
    files: dict[str, str] = {"SOURCE": "", "DESTINATION": "", "config": ""}
    for (cluster, group, name), value in given.items():
        if group == "file":
            files[cluster] += f"{name}={value}\n"
        elif group == "config":
            files["config"] += f"{variable(cluster, 'PROPERTIES', name)}: {value}\n"
        else:
            environ[variable(cluster, group, name)] = value
    for name, text in files.items():
        (folder / name).write_text(text)
    for cluster in ("SOURCE", "DESTINATION"):
        environ[f"KAFKA_CLUSTERS_{cluster}_CLIENT_CONFIG"] = str(folder / cluster)
    return loading.load(environ, folder / "config"), environ


@given(GIVEN)
def test_what_a_plan_says_of_any_client_has_no_secret_and_becomes_the_same_client_again(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[tuple[str, str, str], str]
) -> None:
    try:
        settings, environ = load(chosen, tmp_path_factory.mktemp("here"))
    except SettingsError:
        return  # two spellings of one property, for example
    for cluster in CLUSTERS:
        for kind in KINDS:
            config = settings.client_config(cluster, kind)
            said = json.dumps(credentials.for_plan(settings, cluster, kind))
            assert not [name for name, value in config.items() if is_secret(name) and str(value) in said]
            assert credentials.found(json.loads(said), environ) == config


def test_no_plan_and_no_option_given_to_spark_has_a_secret(tmp_path: Path) -> None:
    secret = {
        (cluster, "PROPERTIES", name): f"hidden-{cluster}-{name}"
        for cluster in ("SOURCE", "DESTINATION")
        for name in ("sasl.password", "ssl.key.password")
    }
    settings, _ = load(secret, tmp_path)
    telling = {
        "traces_exporter": "otlp",
        "otlp_headers": "authorization=hidden-header",
        "otlp_endpoint": "http://me:hidden-login@host",
    }
    settings = settings.model_copy(update=telling)
    for application in (ThreadReplicator, ThreadDeduplicator):
        instance: Any = application.__new__(application)
        instance.settings, instance.instance, instance.term, instance.epoch = settings, "i", 1, 1
        instance.bounded, instance.link, instance.control = False, _Link(), SimpleNamespace(state=Control())
        assert "hidden-" not in json.dumps(Application.lane_plan(instance, LaneShare(), 0))
    table = StateTable.of(_Spark(), settings)  # type: ignore[arg-type]
    assert "hidden-" not in json.dumps(options(table.config, table.topic))


class _Link:
    source_cluster = target_cluster = "c"


class _Spark:
    dataSource = type("", (), {"register": staticmethod(lambda _: None)})  # noqa: N815 - Spark's


@pytest.mark.parametrize(
    ("lane", "of"), [(replicator_lane, ReplicatorPlan), (deduplicator_lane, DeduplicatorPlan)]
)
def test_a_lane_without_its_secrets_refuses_by_the_variables_name(
    lane: Any, of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: one row, which ends the application with that line; no client is made that would try
    without."""
    settings, _ = load({("DESTINATION", "file", "sasl.password"): "hidden"}, tmp_path)
    plan: dict[str, Any] = {field.name: {} for field in fields(of)} | {
        "log_level": "INFO",
        "partitions": [],
        "control_consumer": credentials.for_plan(settings, "destination", "consumer"),
    }
    file = tmp_path / "DESTINATION"
    file.unlink()
    monkeypatch.setattr(lane, "Lane", lambda *_: pytest.fail("made a lane"))
    (refused,) = map(decode, lane.run(plan))
    assert isinstance(refused, Refused)
    assert refused.detail.startswith("KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SASL_PASSWORD: not set on ")
    assert str(file) in refused.detail and "hidden" not in refused.detail
    monkeypatch.setenv("KAFKA_CLUSTERS_DESTINATION_PROPERTIES_SASL_PASSWORD", "hidden")
    monkeypatch.setattr(lane, "Lane", _Found)
    (found,) = map(decode, lane.run(plan))
    assert found == Refused("hidden")


class _Found:
    """In a lane's place: what properties it was given."""

    def __init__(self, plan: Any, _: Any) -> None:
        self.config = plan.control_consumer

    def run(self) -> Any:
        yield Refused(self.config["sasl.password"])

    def close(self) -> None:
        pass


def test_a_file_that_was_changed_gives_the_user_with_the_password(tmp_path: Path) -> None:
    before = {("SOURCE", "file", "sasl.username"): "old", ("SOURCE", "file", "sasl.password"): "old-secret"}
    settings, environ = load(before, tmp_path)
    said = credentials.for_plan(settings, "source", "admin")
    (tmp_path / "SOURCE").write_text("sasl.username=new\nsasl.password=new-secret\n")
    found = credentials.found(said, environ)
    assert (found["sasl.username"], found["sasl.password"]) == ("new", "new-secret")


def test_a_secret_in_a_file_of_its_own_is_found_where_a_lane_runs(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret-of-here\n")
    environ = {**REQUIRED, variable("SOURCE", "PROPERTIES", "sasl.password") + "_FILE": str(file)}
    planned = credentials.for_plan(loading.load(environ), "source", "consumer")
    assert "s3cret-of-here" not in json.dumps(planned)
    file.write_text("s3cret-of-there\n")
    assert credentials.found(planned, environ)["sasl.password"] == "s3cret-of-there"
    file.unlink()
    with pytest.raises(SettingsError, match="SASL_PASSWORD_FILE: can't read"):
        credentials.found(planned, environ)


def test_a_lane_takes_headers_of_traces_from_its_own_machine_and_goes_on_where_that_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: a plan names them only; a lane without them tells that, by name, and sends without."""
    file = tmp_path / "config"
    file.write_text("OTEL_EXPORTER_OTLP_HEADERS: authorization=hidden-file\n")
    given = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318"}
    plan = credentials.traces_for_plan(loading.load(REQUIRED | given, file))
    assert plan is not None and "hidden" not in json.dumps(plan)
    assert plan["variables"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://host:4318"
    name = "OTEL_EXPORTER_OTLP_HEADERS"
    assert credentials.traces_found(plan, {})[name] == "authorization=hidden-file"
    assert credentials.traces_found(plan, {name: "a=hidden-here"})[name] == "a=hidden-here"
    assert not caplog.messages
    file.unlink()
    assert credentials.traces_found(plan, {})[name] is None
    (said,) = caplog.messages
    assert said.startswith(f"{name}: not set on ") and "hidden" not in said
    assert credentials.traces_for_plan(loading.load(REQUIRED)) is None
