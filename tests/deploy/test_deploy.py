"""Container, compose file and manifests, as far as they can be judged without a container engine or a
Kubernetes.

They fit their schemas, set only what the settings declare, start only commands that exist, and agree with
each other on versions. The commands run in an environment as bare as a container's, from the wheel that the
image installs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import loading
from common.config.client_properties import parse_properties
from common.config.fields import FIELDS
from common.config.sources import _FAMILY
from common.spark import jars, worker_python
from tests.conftest import Kafka, Names
from tests.deploy.deployed import (
    COMPOSE,
    FOLDERS,
    K8S,
    ROOT,
    applications,
    compose,
    of_kind,
    our_services,
    passes,
    rendered,
    run,
    tool,
)
from tests.support.brokers import create_topic, read_all
from tests.support.env_files import variables_of
from tests.support.scans import SCAN
from verbatim.init import files
from verbatim.init.choices import choose
from verbatim.init.reading import read

CLIENT_FILES = "/etc/verbatim/"
# What is for Python, Spark, Kubernetes or the shell in our containers; all else must be a setting.
OTHERS = {
    *("PATH", "HOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    *(
        "VERBATIM_JARS",
        "SPARK_CONF_DIR",
        "POD_NAME",
        "POD_IP",
        "POD_NAMESPACE",
        "SERVICE_ACCOUNT",
        "IMAGE",
        "CLIENTS_SECRET",
    ),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHELL_SCRIPTS = (".ci/run", "container/spark-executor", "container/try", "container/look-alikes")
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]


def settings_env() -> dict[str, str]:
    return variables_of((K8S / "base/config/settings.env").read_text())


def unknown(variables: Mapping[str, Any]) -> set[str]:
    return {name for name in variables if not (name in FIELDS or _FAMILY.fullmatch(name) or name in OTHERS)}


# --- schemas and linters


def test_the_compose_file_fits_the_compose_specification() -> None:
    passes(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE)


def test_the_dockerfile_passes_its_linter() -> None:
    passes(tool("hadolint"), ROOT / "Dockerfile")


def test_shell_scripts_pass_their_linter() -> None:
    passes(tool("shellcheck"), *(ROOT / file for file in SHELL_SCRIPTS))


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_kubectl_applies_fits_kubernetes_schemas(folder: str, tmp_path: Path) -> None:
    # VerticalPodAutoscaler is a custom resource: its schema does not come with Kubernetes.
    documents = [d for d in rendered(folder) if d["kind"] != "VerticalPodAutoscaler"]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    passes(tool("kubernetes-validate"), "--strict", file)


def test_the_executors_pod_template_fits_kubernetes_schema(tmp_path: Path) -> None:
    template = yaml.safe_load((K8S / "overlays/executors/executor.yaml").read_text())
    template["metadata"]["name"] = "spark-gives-one"
    file = tmp_path / "executor.yaml"
    file.write_text(yaml.safe_dump(template))
    passes(tool("kubernetes-validate"), "--strict", file)


# --- variables


@pytest.mark.parametrize("service", [*our_services()])
def test_compose_sets_only_declared_variables(service: str) -> None:
    assert unknown(our_services()[service].get("environment", {})) == set()


@pytest.mark.parametrize("service", [*applications()])
def test_compose_gives_an_application_all_that_it_needs(service: str) -> None:
    variables = {key: str(value) for key, value in applications()[service]["environment"].items()}
    settings = loading.load(variables)
    assert settings.source_bootstrap_servers.split(":")[0] in compose()["services"]
    assert settings.destination_bootstrap_servers.split(":")[0] in compose()["services"]
    assert settings.warnings == []


def test_the_image_sets_only_declared_variables() -> None:
    stage = (ROOT / "Dockerfile").read_text().split(" AS runtime\n")[1]
    block = re.search(r"^ENV (.+?[^\\])\n", stage, re.MULTILINE | re.DOTALL)
    assert block
    variables = dict(pair.split("=", 1) for pair in block[1].replace("\\\n", " ").split())
    assert unknown(variables) == set()
    assert variables["HEALTH_ADDRESS"] == "0.0.0.0"  # noqa: S104 - reached from outside the container
    assert "VOLUME " + str(Path(variables["STATE_PATH"]).parent) in stage


def test_the_image_runs_as_nobody_of_importance_and_hands_signals_on() -> None:
    stage = (ROOT / "Dockerfile").read_text().split(" AS runtime\n")[1]
    (user,) = re.findall(r"^USER (\d+):\d+$", stage, re.MULTILINE)
    pods = [d["spec"]["template"]["spec"] for d in of_kind(rendered("."), "Deployment")]
    assert {pod["securityContext"]["runAsUser"] for pod in pods} == {int(user)} != {0}
    # A shell as the first process would keep SIGTERM to itself.
    assert re.search(r'^ENTRYPOINT \["/usr/bin/tini", "--"\]$', stage, re.MULTILINE)


def test_the_config_map_is_a_complete_set_of_settings(tmp_path: Path) -> None:
    variables = settings_env()
    assert unknown(variables) == set()
    for name in ("source.properties", "destination.properties"):
        # Placeholders: a login that only looks real would be sent to somebody's cluster.
        text = (K8S / "base/config" / name).read_text()
        assert parse_properties(text, name) == []
        (tmp_path / name).write_text(text)
        assert CLIENT_FILES + name in variables.values()
    there = {k: v.replace(CLIENT_FILES, f"{tmp_path}/") for k, v in variables.items()}
    assert loading.load(there).warnings == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_manifests_set_only_declared_variables_and_the_settings_load(folder: str, tmp_path: Path) -> None:
    shutil.copytree(K8S / "base/config", tmp_path / "config")
    maps = {m["metadata"]["name"]: m["data"] for m in of_kind(rendered(folder), "ConfigMap")}
    for deployment in of_kind(rendered(folder), "Deployment"):
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        given = maps[container["envFrom"][0]["configMapRef"]["name"]]
        assert unknown({**given, **{v["name"]: v for v in container.get("env", [])}}) == set()
        loading.load({k: v.replace(CLIENT_FILES, f"{tmp_path}/config/") for k, v in given.items()})


def test_executors_have_the_clients_secrets_where_the_drivers_do() -> None:
    """Plans have none: the Secret is mounted by the name that it gets, at the path that the settings give."""
    documents = rendered("overlays/executors")
    (secret,) = of_kind(documents, "Secret")
    for deployment in of_kind(documents, "Deployment"):
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        given = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert given["CLIENTS_SECRET"] == secret["metadata"]["name"]
        mounted = "--conf=spark.kubernetes.executor.secrets.$(CLIENTS_SECRET)="
        (path,) = (arg.removeprefix(mounted) for arg in container["args"] if arg.startswith(mounted))
        assert f"{path}/" == CLIENT_FILES


# --- commands


def test_compose_and_manifests_start_console_scripts() -> None:
    scripts = set(PROJECT["scripts"])
    commands = {name: service["command"] for name, service in our_services().items()}
    assert commands.pop("load")[:2] == ["python", "/load.py"]
    assert commands.pop("verify")[:2] == ["sh", "-c"]
    assert {command[0] for command in commands.values()} <= scripts
    for folder in FOLDERS:
        for deployment in of_kind(rendered(folder), "Deployment"):
            container = deployment["spec"]["template"]["spec"]["containers"][0]
            assert container["args"][0] in scripts
            assert "command" not in container, "the image's tini would be left out"


def test_every_package_of_the_project_gets_into_the_image() -> None:
    rooms = {p.parent.name for p in ROOT.glob("*/__init__.py")} - {"tests", "bench"}
    assert set(WHEEL["packages"]) == rooms
    dockerfile, ignored = (ROOT / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text().split()
    for room in rooms:
        assert f"COPY {room}/ {room}/\n" in dockerfile
        assert f"!{room}" in ignored
    for source in re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", dockerfile, re.MULTILINE):
        for path in source.split():
            assert (ROOT / path).exists(), path
            assert f"!{path.split('/')[0]}" in ignored


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as the image has it."""
    folder = tmp_path_factory.mktemp("wheel")
    passes(tool("uv"), "build", "--wheel", "--quiet", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


def in_a_bare_environment(
    installed: Path, script: str, *args: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a console script as the image would: nothing of this environment, the wheel before the work
    tree."""
    module, function = PROJECT["scripts"][script].split(":")
    home = installed.parent / "home"
    home.mkdir(exist_ok=True)
    code = (
        f"import sys; sys.argv[0] = {script!r}; import {module} as m, common; "
        f"assert common.__file__.startswith({str(installed)!r}), common.__file__; assert m.__file__.startswith({str(installed)!r}), m.__file__; m.{function}()"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(installed)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", **variables}
    before = sorted(home.rglob("*"))
    done = run(sys.executable, "-c", code, *args, env=environment, cwd=home)
    assert sorted(home.rglob("*")) == before, "it writes where a container may be read-only"
    return done


# What Spark is given as its Python is no command of its own.
@pytest.mark.parametrize("script", sorted(PROJECT["scripts"].keys() - {worker_python.NAME}))
def test_a_command_explains_itself_in_a_bare_environment(installed: Path, script: str) -> None:
    done = in_a_bare_environment(installed, script, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: {script} ")
    assert done.stderr == ""


def test_the_page_is_in_the_wheel(installed: Path) -> None:
    code = (
        "import verbatim_kafka; from common.app import page; print(page.__file__); print(len(page.page()[0]))"
    )
    done = run(sys.executable, "-c", code, env={"PYTHONPATH": str(installed)}, cwd=installed)
    where, size = done.stdout.split()
    assert where.startswith(str(installed)) and int(size) == (ROOT / "common/app/page.html").stat().st_size


def test_init_writes_all_that_a_link_needs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "scan.json").write_text(json.dumps(SCAN))
    link = ("--link", "eu", "--target", "t:9092", "--out", str(tmp_path / "link"))
    done = in_a_bare_environment(installed, "verbatim", "init", str(tmp_path / "scan.json"), *link)
    assert (done.returncode, done.stderr) == (0, "")
    found = {str(f.relative_to(tmp_path / "link")): f.read_text() for f in (tmp_path / "link").rglob("*.*")}
    ours = files.files(choose(read(json.dumps(SCAN).encode(), "scan"), "eu", "t:9092", []))
    assert found == ours
    base = {f"base/{f.relative_to(K8S / 'base')}" for f in (K8S / "base").rglob("*") if f.is_file()}
    assert base <= found.keys()


@pytest.mark.parametrize(
    "command", [*(s["command"] for s in applications().values()), ["verbatim", "verify"]], ids=" ".join
)
def test_a_container_without_settings_ends_with_one_line_and_exit_2(
    installed: Path, command: list[str]
) -> None:
    done = in_a_bare_environment(installed, *command)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"error: KAFKA_CLUSTERS_\w+: .+\n", done.stderr)


# --- what keeps a link safe and reachable


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_application_has_a_standby_probes_limits_and_no_rights(folder: str) -> None:
    health = (ROOT / "common/app/link_pages.py").read_text()
    deployments = {d["metadata"]["name"]: d["spec"] for d in of_kind(rendered(folder), "Deployment")}
    added = {Path(folder).name} & {"offsets", "schemas"}
    assert set(deployments) == {"replicator", "deduplicator"} | added
    for name, spec in deployments.items():
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        # One at a time where two could spoil the state tables: the next starts when the one before has gone.
        alone = name == "deduplicator" and folder.endswith("executors")
        assert (spec["replicas"], spec["strategy"].get("type")) == ((1, "Recreate") if alone else (2, None))
        assert pod["enableServiceLinks"] is False
        assert pod["terminationGracePeriodSeconds"] > 10
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["ports"][0]["containerPort"] == int(settings_env()["HEALTH_PORT"])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
            assert f'"{container[probe]["httpGet"]["path"]}"' in health
        # Without a CPU limit, local[*] means as many lanes as the node has cores.
        assert "cpu" in container["resources"]["limits"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/tmp", CLIENT_FILES.rstrip("/")} <= mounts  # noqa: S108 - the container's
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


@pytest.mark.parametrize("folder", FOLDERS)
def test_state_lies_where_every_deduplicator_reaches_it(folder: str) -> None:
    (settings,) = (
        m["data"] for m in of_kind(rendered(folder), "ConfigMap") if "STATE_PATH" in m.get("data", {})
    )
    (pod,) = (
        d["spec"]["template"]["spec"]
        for d in of_kind(rendered(folder), "Deployment")
        if d["metadata"]["name"] == "deduplicator"
    )
    claims = [d for d in rendered(folder) if d["kind"] == "PersistentVolumeClaim"]
    if re.match(r"\w+://", settings["STATE_PATH"]):
        assert claims == []
        assert "affinity" not in pod
        return
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    (volume,) = (v for v in pod["volumes"] if "persistentVolumeClaim" in v)
    assert volume["persistentVolumeClaim"]["claimName"] == claims[0]["metadata"]["name"]
    assert settings["STATE_PATH"].startswith(mounted[volume["name"]] + "/")


@pytest.mark.parametrize("service", [*applications()])
def test_compose_runs_applications_read_only_and_asks_for_their_health(service: str) -> None:
    spec = applications()[service]
    assert spec["read_only"] is True
    # The JVM unpacks native libraries there; Docker mounts a tmpfs noexec unless told otherwise.
    assert any(mount.startswith("/tmp:") and "exec" in mount for mount in spec["tmpfs"])  # noqa: S108
    assert "/readyz" in spec["healthcheck"]["test"][-1]
    assert float(spec["stop_grace_period"].rstrip("s")) > 10


def test_the_two_clusters_of_the_compose_file_are_not_one() -> None:
    ids = [compose()["services"][name]["environment"]["CLUSTER_ID"] for name in ("source", "target")]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", cluster_id) for cluster_id in ids)


def test_compose_opens_no_port_to_the_network() -> None:
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


# --- versions


def test_every_file_names_the_same_versions() -> None:
    version = PROJECT["version"]
    assert {s["image"] for s in our_services().values()} == {f"verbatim:{version}"}
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f'image.version="{version}"' in dockerfile
    base = yaml.safe_load((K8S / "base/kustomization.yaml").read_text())
    assert [image["newTag"] for image in base["images"]] == [version]
    chart = yaml.safe_load((K8S / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    brokers = {s["image"] for n, s in compose()["services"].items() if n in ("source", "target", "topics")}
    assert brokers == {"apache/kafka:" + jars.KAFKA.rsplit(":", 1)[1]}


def test_the_object_stores_jar_is_of_the_hadoop_that_spark_ships() -> None:
    import pyspark

    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    shipped = client.stem.removeprefix("hadoop-client-api-")
    for file in (ROOT / "Dockerfile", K8S / "overlays/executors/kustomization.yaml"):
        assert re.findall(r"hadoop-aws:([\d.]+\d)", file.read_text()) == [shipped]


def test_the_dockerfile_asks_for_jars_that_exist() -> None:
    done = run(sys.executable, ROOT / "container/fetch_jars.py", "--help")
    assert done.returncode == 0, done.stderr
    (default,) = re.findall(r'^ARG JARS="(.+)"$', (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in default.split():
        assert re.search(rf"\b{name}\b", done.stdout)
        assert isinstance(getattr(jars, name), str)


# --- programs of the image


def test_an_executor_is_started_with_what_spark_says(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    says = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_EXECUTOR_POD_NAME": "verbatim-exec-3",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_CLASSPATH": "/opt/verbatim/extra-jars/*",
        **{f"SPARK_JAVA_OPT_{n}": f"-Dnumber={n} and more" for n in range(11)},
        "PATH": os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
    }
    done = run("/bin/bash", ROOT / "container/spark-executor", "executor", env=says)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:11] == [f"-Dnumber={n} and more" for n in range(11)]
    assert lines[11:14] == ["-Xms512m", "-Xmx512m", "-cp"]
    assert re.fullmatch(r"/opt/spark/conf:/\S+/pyspark/jars/\*:/opt/verbatim/extra-jars/\*", lines[14])
    assert lines[15] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(lines[16::2], lines[17::2], strict=True)) == {
        "--driver-url": says["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "verbatim-exec-3",
    }
    backend = next((Path(lines[14].split(":")[1]).parent).glob("spark-kubernetes_*.jar"))
    assert lines[15].replace(".", "/") + ".class" in zipfile.ZipFile(backend).namelist()


def test_the_load_generator_writes_keyed_records_over_all_partitions(source: Kafka, names: Names) -> None:
    topic = names.topic()
    create_topic(source.bootstrap_servers, topic, 3)
    options = [
        "--bootstrap-servers",
        source.bootstrap_servers,
        "--topic",
        topic,
        "--rate",
        "2000",
        "--count",
        "500",
    ]
    done = run(sys.executable, ROOT / "container/load.py", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"500 records written to {topic}\n"
    partitions = read_all(source.bootstrap_servers, topic)
    assert sum(len(records) for records in partitions) == 500
    assert all(records for records in partitions)
    assert all(
        r.key and r.headers and r.value and json.loads(r.value) for records in partitions for r in records
    )
