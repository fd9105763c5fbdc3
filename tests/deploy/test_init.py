"""What `verbatim init` writes, as Compose and kubectl would take it: beside nothing but itself, schemas fit,
and applications get the settings, the secrets and the image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from common.config import loading
from tests.deploy.deployed import applications, of_kind, passes, rendered, tool
from tests.support.env_files import variables_of
from tests.support.scans import SCAN
from verbatim.init import files
from verbatim.init.choices import choose
from verbatim.init.reading import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A link's files, with the secret that they ask for."""
    folder = tmp_path_factory.mktemp("link")
    for path, text in files.files(
        choose(read(json.dumps(SCAN).encode(), "scan"), "EU.orders", "t:1", [])
    ).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / files.SECRETS).mkdir()
    (folder / files.SECRETS / "source.sasl.password").write_text("s3cret")
    return folder


def in_its_folder(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    return {
        name: value.replace(files.MOUNTED, str(folder / files.SECRETS)) for name, value in variables.items()
    }


def test_the_compose_file_fits_its_specification_and_runs_as_the_projects_own_does(folder: Path) -> None:
    passes(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", folder / files.COMPOSE)
    services = yaml.safe_load((folder / files.COMPOSE).read_text())["services"]
    assert set(services) == {"replicator", "deduplicator", "offsets"}
    for name, service in services.items():
        ours = applications()[name]
        same = ("image", "command", "read_only", "tmpfs", "cap_drop", "security_opt", "healthcheck")
        assert {key: service[key] for key in same} == {key: ours[key] for key in same}
        assert (
            service["restart"] == ours["restart"]
            and service["stop_grace_period"] == ours["stop_grace_period"]
        )
        assert f"./{files.SECRETS}:{files.MOUNTED}:ro" in service["volumes"]
        assert set(ours.get("volumes", [])) <= set(service["volumes"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        (env_file,) = service["env_file"]
        loading.load(in_its_folder(folder, variables_of((folder / env_file).read_text())))


def test_what_kubectl_applies_fits_kubernetes_and_is_this_links(folder: Path, tmp_path: Path) -> None:
    documents = rendered(str(folder))
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents))
    passes(tool("kubernetes-validate"), "--strict", tmp_path / "all.yaml")
    (settings,) = of_kind(documents, "ConfigMap")
    assert settings["data"] == variables_of((folder / files.SETTINGS).read_text())
    assert loading.load(in_its_folder(folder, settings["data"])).application_name == "EU.orders"
    (secret,) = of_kind(documents, "Secret")
    assert "source.sasl.password" in secret["data"]
    deployments = {d["metadata"]["name"]: d["spec"] for d in of_kind(documents, "Deployment")}
    assert set(deployments) == {f"eu-orders-{name}" for name in ("replicator", "deduplicator", "offsets")}
    images = {service["image"] for service in applications().values()}
    for name, spec in deployments.items():
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert {container["image"]} == images
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        (volume,) = (one["name"] for one in pod["volumes"] if one.get("secret"))
        assert mounted[volume] == files.MOUNTED
        assert (
            next(one for one in pod["volumes"] if one["name"] == volume)["secret"]["secretName"]
            == (secret["metadata"]["name"])
        )
        assert spec["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "eu-orders"
        if "offsets" not in name:
            resources = container["resources"]
            assert (resources["limits"]["cpu"], settings["data"]["PARALLELISM"]) == ("6", "6")
            assert resources["requests"]["memory"] == "1280Mi"
