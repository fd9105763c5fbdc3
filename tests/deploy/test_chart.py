"""The Helm chart: by default it makes what kustomize makes of the same files, each overlay's value what that
overlay adds, and each other value what it says; a wrong one is told by name."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import loading
from common.config.fields import FIELDS
from tests.deploy.deployed import K8S, ROOT, of_kind, passes, rendered, run, tool
from tests.deploy.test_kubernetes import documented, pods

Documents = list[dict[str, Any]]
GUIDE = ROOT / "docs/guides/kubernetes.md"
BUCKET = "settings.STATE_PATH=s3a://my-bucket/verbatim"
WATCHING = "monitoring.podMonitor=true,monitoring.rules=true,monitoring.dashboards=true"
OVERLAYS = {
    ".": "",
    "overlays/offsets": "offsets.enabled=true",
    "overlays/schemas": "schemas.enabled=true",
    "overlays/autoscaling": "autoscaling.enabled=true",
    "overlays/executors": f"executors.enabled=true,{BUCKET}",
    "overlays/monitoring": f"enabled=false,namespace.create=false,{WATCHING}",
}
"""Folder of k8s/ -> the values that make the same of the chart."""


def helm(*arguments: str | Path) -> str:
    """What it prints. Skips where there is none."""
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm is not on the PATH")
    done = run(found, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def charted(
    *arguments: str | Path, release: str = "verbatim", namespace: str = "verbatim", chart: Path = K8S
) -> Documents:
    """What `helm install` would send."""
    text = helm("template", release, chart, "--namespace", namespace, *arguments)
    return [dict(document) for document in yaml.safe_load_all(text) if document]


def with_values(tmp_path: Path, values: Mapping[str, Any]) -> Documents:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return charted("--values", file)


def normal(documents: Documents) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name, without what tells that content has changed: kustomize's suffixes of names, the
    chart's annotation, and where a Secret's lines are broken."""
    text = re.sub(
        r"(verbatim-(?:settings|clients|spark))-[0-9a-z]{10}\b", r"\1", yaml.safe_dump_all(documents)
    )
    found = {}
    for document in yaml.safe_load_all(text):
        if document["kind"] == "Deployment":
            document["spec"]["template"]["metadata"]["annotations"].pop("checksum/verbatim", None)
        if document["kind"] == "Secret":
            document["data"] = {name: base64.b64decode(text) for name, text in document["data"].items()}
        at = document["kind"], document["metadata"]["name"]
        assert at not in found
        found[at] = document
    return found


# --- the same as kustomize


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_chart_makes_what_kustomize_makes(folder: str) -> None:
    made = normal(charted("--set", "namespace.create=true", "--set", OVERLAYS[folder]))
    assert made == normal(rendered(folder))


@pytest.mark.parametrize("folder", [folder for folder in OVERLAYS if folder != "overlays/monitoring"])
def test_another_release_is_the_second_link_that_is_documented(folder: str, tmp_path: Path) -> None:
    values = f"namespace.create=true,settings.KAFKA_CLUSTERS_SOURCE_TOPIC=payments,{OVERLAYS[folder]}"
    made = charted("--set", values, release="eu", namespace="replication")
    assert normal(made) == normal(documented("eu", "base" if folder == "." else folder, tmp_path))


def test_the_namespace_is_helms_own_unless_it_is_asked_for() -> None:
    asked = normal(charted("--set", "namespace.create=true"))
    assert normal(charted()) == {at: o for at, o in asked.items() if at != ("Namespace", "verbatim")}


def test_a_packaged_chart_has_all_that_it_reads(tmp_path: Path) -> None:
    helm("package", K8S, "--destination", tmp_path)
    (package,) = tmp_path.glob("verbatim-*.tgz")
    values = f"offsets.enabled=true,schemas.enabled=true,executors.enabled=true,{BUCKET},{WATCHING},strimzi.target.cluster=kafka"
    assert charted("--set", values, chart=package) == charted("--set", values)


def test_the_chart_passes_its_linter() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", K8S)


# --- values


def examples() -> list[dict[str, Any]]:
    """The values that the guide shows."""
    blocks = re.findall(r"^```yaml title=.*?\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in blocks]


def test_the_guides_examples_can_be_installed_together(tmp_path: Path) -> None:
    arguments: list[str | Path] = []
    for number, example in enumerate(examples()):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(example))
        arguments += ["--values", tmp_path / f"{number}.yaml"]
    assert len(arguments) == 4
    documents = charted(*arguments, release="eu", namespace="replication")
    users = {d["metadata"]["name"] for d in of_kind(documents, "KafkaUser")}
    (pod,) = (p["spec"] for name, p in pods(documents).items() if name == "eu-replicator")
    (settings,) = (m["data"] for m in of_kind(documents, "ConfigMap"))
    logins = {e["valueFrom"]["secretKeyRef"]["name"]: e["name"] for e in pod["containers"][0]["env"]}
    assert logins.keys() == users == {settings[e.replace("PASSWORD", "USERNAME")] for e in logins.values()}
    secrets = dict.fromkeys(logins.values(), "x")
    files = {name for name in settings if name.endswith("_CLIENT_CONFIG")}
    assert loading.load({k: v for k, v in (settings | secrets).items() if k not in files}).warnings == []


FULL: dict[str, Any] = {
    "image": {
        "repository": "somewhere/verbatim",
        "tag": "1",
        "pullPolicy": "Always",
        "pullSecrets": ["login"],
    },
    "settings": {
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
        "MAPPINGS_LIMIT": 4000000,
        "REWIND": False,
        "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SOCKET_KEEPALIVE_ENABLE": True,
    },
    "clients": {"files": {"source.properties": "a=b\n", "ca.pem": "certificate\n"}},
    "env": [{"name": "LOG_LEVEL", "value": "DEBUG"}],
    "replicator": {
        "replicas": 1,
        "resources": {"limits": {"cpu": "4"}},
        "args": ["--conf=spark.driver.memory=1g"],
        "env": [{"name": "PARALLELISM", "value": "3"}],
        "existingSecret": "login-of-the-replicator",
        "podLabels": {"team": "data"},
        "podAnnotations": {"note": "x"},
        "pod": {"nodeSelector": {"pool": "copying"}, "priorityClassName": "high", "tolerations": []},
    },
    "offsets": {"enabled": True, "resources": {"requests": {"memory": "300Mi"}}},
    "state": {"size": "5Gi", "storageClassName": "fast"},
    "autoscaling": {"enabled": True, "maxAllowed": {"cpu": "2"}},
    "monitoring": {"podMonitor": True, "labels": {"release": "prometheus"}},
}


def test_each_value_gets_where_it_belongs_and_nowhere_else(tmp_path: Path) -> None:
    documents = with_values(tmp_path, FULL)
    made, plain = pods(documents), pods(charted("--set", "offsets.enabled=true"))
    spec, before = made["replicator"]["spec"], plain["replicator"]["spec"]
    container, was = spec["containers"][0], before["containers"][0]
    assert container["resources"] == {
        "requests": was["resources"]["requests"],
        "limits": {**was["resources"]["limits"], "cpu": "4"},
    }
    assert container["args"] == ["replicator", "--conf=spark.driver.memory=1g"]
    assert container["env"] == FULL["env"] + FULL["replicator"]["env"]
    for pod in made.values():
        assert pod["spec"]["containers"][0]["image"] == "somewhere/verbatim:1"
        assert pod["spec"]["containers"][0]["imagePullPolicy"] == "Always"
        assert pod["spec"]["imagePullSecrets"] == [{"name": "login"}]
    assert {key: spec[key] for key in FULL["replicator"]["pod"]} == FULL["replicator"]["pod"]
    assert spec["securityContext"] == before["securityContext"]
    assert made["replicator"]["metadata"]["labels"]["team"] == "data"
    assert made["replicator"]["metadata"]["annotations"]["note"] == "x"
    secrets = {name: pod["spec"]["volumes"][0]["secret"]["secretName"] for name, pod in made.items()}
    assert secrets == {
        "replicator": "login-of-the-replicator",
        "deduplicator": "verbatim-clients",
        "offsets": "verbatim-clients",
    }
    assert made["deduplicator"]["spec"]["containers"][0]["args"] == ["deduplicator"]
    assert made["deduplicator"]["spec"]["containers"][0]["resources"] == was["resources"]
    assert made["offsets"]["spec"]["containers"][0]["resources"]["requests"] == {
        "cpu": "100m",
        "memory": "300Mi",
    }
    by_name = normal(documents)
    assert by_name["Deployment", "replicator"]["spec"]["replicas"] == 1
    assert by_name["Deployment", "deduplicator"]["spec"]["replicas"] == 2
    assert by_name["Secret", "verbatim-clients"]["data"]["ca.pem"] == b"certificate\n"
    assert by_name["Secret", "verbatim-clients"]["data"]["source.properties"] == b"a=b\n"
    claim = by_name["PersistentVolumeClaim", "verbatim-state"]["spec"]
    assert claim == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "5Gi"}},
    }
    scaled = by_name["VerticalPodAutoscaler", "replicator"]["spec"]["resourcePolicy"]["containerPolicies"][0]
    assert scaled["maxAllowed"] == {"cpu": "2", "memory": "3Gi"}
    assert by_name["PodMonitor", "verbatim"]["metadata"]["labels"]["release"] == "prometheus"
    assert ("PrometheusRule", "verbatim") not in by_name
    custom = ("VerticalPodAutoscaler", "PodMonitor")
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(d for d in documents if d["kind"] not in custom))
    passes(tool("kubernetes-validate"), "--strict", tmp_path / "all.yaml")


def test_a_value_that_is_false_or_null_is_heeded(tmp_path: Path) -> None:
    nobody = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    given = {
        "pod": {"securityContext": {**nobody, "runAsNonRoot": False}},
        "resources": {"limits": {"cpu": None}},
    }
    made, plain = pods(with_values(tmp_path, {"replicator": given})), pods(charted())
    before = plain["replicator"]["spec"]
    spec = made["replicator"]["spec"]
    left = {key: v for key, v in before["securityContext"].items() if key not in nobody}
    assert spec["securityContext"] == {**left, "runAsNonRoot": False}
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "3Gi"}
    assert made["deduplicator"] == plain["deduplicator"]


@pytest.mark.parametrize("state", [BUCKET, "state.accessMode=ReadWriteMany"])
def test_all_of_it_together_fits_kubernetes_schemas(state: str, tmp_path: Path) -> None:
    parts = "offsets.enabled=true,executors.enabled=true,autoscaling.enabled=true,namespace.create=true"
    documents = [d for d in charted("--set", f"{parts},{state}") if d["kind"] != "VerticalPodAutoscaler"]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents))
    passes(tool("kubernetes-validate"), "--strict", tmp_path / "all.yaml")
    # Consumer groups have no executors.
    args = {name: pod["spec"]["containers"][0]["args"] for name, pod in pods(documents).items()}
    assert args["offsets"] == ["offsets"] and len(args["replicator"]) == len(args["deduplicator"]) > 5


def test_settings_come_through_as_the_application_reads_them(tmp_path: Path) -> None:
    maps = {m["metadata"]["name"]: m["data"] for m in of_kind(with_values(tmp_path, FULL), "ConfigMap")}
    settings = loading.load(
        {k: v for k, v in maps["verbatim-settings"].items() if not k.endswith("_CLIENT_CONFIG")}
    )
    assert (settings.source_topic, settings.mappings_limit, settings.rewind) == ("orders", 4_000_000, False)
    assert settings.application_name == "verbatim"
    assert settings.client_properties["source.consumer"]["socket.keepalive.enable"] == "true"


def test_a_change_of_settings_or_logins_rolls_the_pods() -> None:
    def told(*arguments: str) -> str:
        return str(pods(charted(*arguments))["replicator"]["metadata"]["annotations"]["checksum/verbatim"])

    found = [told(), told("--set", "settings.LOG_LEVEL=DEBUG"), told("--set", "clients.files.x=y")]
    assert len(set(found)) == 3 and told() == found[0]


def test_a_secret_and_a_claim_that_are_there_are_used_and_not_made() -> None:
    documents = charted("--set", "clients.existingSecret=login,state.existingClaim=disk", release="eu")
    assert {d["kind"] for d in documents} == {"ConfigMap", "Deployment", "PodDisruptionBudget"}
    for pod in pods(documents).values():
        assert pod["spec"]["volumes"][0]["secret"]["secretName"] == "login"
    claim = pods(documents)["eu-deduplicator"]["spec"]["volumes"][-1]["persistentVolumeClaim"]
    assert claim == {"claimName": "disk"}


@pytest.mark.parametrize(
    ("values", "replicas", "strategy", "claims"),
    [
        ("state.accessMode=ReadWriteMany", 2, None, 1),
        ("settings.STATE_PATH=gs://bucket/verbatim", 2, None, 0),
        (BUCKET, 1, "Recreate", 0),
        (f"{BUCKET},settings.STATE_SHARING=checked", 2, None, 0),
    ],
)
def test_state_that_is_no_nodes_frees_the_deduplicators_of_one(
    values: str, replicas: int, strategy: str | None, claims: int
) -> None:
    documents = charted("--set", values)
    (spec,) = (d["spec"] for d in of_kind(documents, "Deployment") if d["metadata"]["name"] == "deduplicator")
    assert (spec["replicas"], spec["strategy"].get("type")) == (replicas, strategy)
    pod = spec["template"]["spec"]
    assert "affinity" not in pod
    assert len([v for v in pod["volumes"] if "persistentVolumeClaim" in v]) == claims
    assert {m["name"] for m in pod["containers"][0]["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert len([d for d in documents if d["kind"] == "PersistentVolumeClaim"]) == claims
    budgets = {d["metadata"]["name"] for d in of_kind(documents, "PodDisruptionBudget")}
    assert budgets == {"replicator", "deduplicator"}


def test_executors_have_the_properties_that_are_given_last() -> None:
    values = f"executors.enabled=true,{BUCKET},executors.conf.spark\\.executor\\.instances=5"
    (conf,) = (
        m["data"]["spark-defaults.conf"]
        for m in of_kind(charted("--set", values), "ConfigMap")
        if m["metadata"]["name"] == "verbatim-spark"
    )
    last = dict(re.findall(r"^(spark\S+)\s+(\S+)$", conf, re.MULTILINE))
    assert last["spark.executor.instances"] == "5" and last["spark.executor.cores"] == "2"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("settings.KAFKA_TOPIC=orders", "at '/settings': additional properties 'KAFKA_TOPIC' not allowed"),
        # YAML's word for false.
        ("settings.ACL_SYNC=false", "at '/settings/ACL_SYNC': got boolean"),
        ("replicator.replica=1", "at '/replicator': additional properties 'replica' not allowed"),
        ("offsets.replicas=0", "at '/offsets/replicas': minimum: got 0, want 1"),
        ("deduplicator.pod.containers=x", "at '/deduplicator/pod': additional properties 'containers'"),
        ("state.accessMode=ReadOnlyMany", "at '/state/accessMode': value must be one of"),
        ("image.digest=abc", "at '/image/digest': 'abc' does not match pattern"),
        ("executors.conf.master=x", "invalid propertyName 'master'"),
        ("executors.enabled=true", "executors: a volume of one node can't be shared"),
        ("strimzi.users=all", "at '/strimzi/users': value must be one of 'shared', 'each', 'none'"),
    ],
)
def test_a_wrong_value_is_told_by_its_name(value: str, told: str) -> None:
    helm("version")
    done = run("helm", "template", "verbatim", K8S, "--set", value)
    assert done.returncode != 0 and told in done.stderr, done.stderr


def test_every_value_that_is_there_is_in_the_schema_and_every_setting() -> None:
    schema = json.loads((K8S / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load((K8S / "values.yaml").read_text())
    assert schema.keys() == values.keys() | {"global"}
    assert schema["settings"]["properties"].keys() == FIELDS.keys()
