"""The files of a link, as text: settings, a compose file, and a kustomization beside the base that it builds
on. The same for the same scan. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable

from verbatim.init.choices import MOST_PARTITIONS, RESERVE, SEGMENT, Chosen
from verbatim.plan.report import size

SETTINGS, COMPOSE, KUSTOMIZATION, SECRETS = (
    "settings.env",
    "docker-compose.yml",
    "kustomization.yaml",
    "secrets",
)
MOUNTED = "/etc/verbatim"
"""Where containers have the files of SECRETS."""
_SHOWN = 50
"""Topics, at most, that comments go through one by one."""


def files(chosen: Chosen) -> dict[str, str]:
    """Path -> content."""
    here = resources.files("verbatim.init")
    base = {f"base/{path}": text for path, text in _below(here / "base")}
    return {
        SETTINGS: "\n".join(settings(chosen)) + "\n",
        COMPOSE: compose(chosen),
        KUSTOMIZATION: kustomization(chosen),
        **({"offsets.yaml": (here / "offsets.yaml").read_text("utf-8")} if chosen.groups else {}),
        ".gitignore": f"{SECRETS}/\n",
        **dict(sorted(base.items())),
    }


def _below(folder: Traversable) -> Iterator[tuple[str, str]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from ((f"{one.name}/{path}", text) for path, text in _below(one))
        else:
            yield one.name, one.read_text("utf-8")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 108, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def secret_files(chosen: Chosen) -> list[str]:
    """Of the source, as the scan came in: what it may not tell."""
    return [_file(name) for name, value in chosen.scan.asked.properties.items() if value is None]


def _file(name: str) -> str:
    return f"source.{name.removesuffix('.location')}"


# settings


def settings(chosen: Chosen) -> Iterator[str]:
    """Lines of variables and comments."""
    scan, m = chosen.scan, chosen.moving
    yield from _comment(
        f"Settings of the link {chosen.link} (docs: reference/settings), written by `verbatim init` from a scan of cluster "
        f"{scan.cluster}. For Compose, Kubernetes and `docker run --env-file`, which read lines as they stand: no quotes."
    )
    yield f"APPLICATION_NAME={chosen.link}"
    yield ""
    yield "# As the scan reached the source. Brokers must be reachable by the names that they tell."
    yield f"KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS={scan.asked.bootstrap_servers}"
    yield from _way_in(chosen)
    yield ""
    yield f"KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS={chosen.target}"
    yield from _comment(
        f"A scan does not know how to log in there (docs: guides/security). With a password in {SECRETS}/destination.sasl.password:"
    )
    for name, value in (
        ("SECURITY_PROTOCOL", "SASL_SSL"),
        ("SASL_MECHANISM", "SCRAM-SHA-512"),
        ("SASL_USERNAME", "..."),
        ("SASL_PASSWORD_FILE", f"{MOUNTED}/destination.sasl.password"),
    ):
        yield f"#KAFKA_CLUSTERS_DESTINATION_PROPERTIES_{name}={value}"
    yield ""
    yield from _topics(chosen)
    yield ""
    yield from _comment(
        f"Copied from the beginning: {size(m['copy_bytes'])}, while {size(m['inflow_bytes_per_second'])}/s come. `latest`: only "
        "what comes from now on. A time such as 2026-01-31T00:00:00Z: what is younger. `mirrormaker:...`: where MirrorMaker 2 has "
        "stopped (docs: guides/migration). Looked at once, when the link begins; what appears later is copied whole."
    )
    yield "START_OFFSETS=earliest"
    yield ""
    yield from _sizes(chosen)
    yield ""
    yield from _groups(chosen)


def _way_in(chosen: Chosen) -> Iterator[str]:
    properties = chosen.scan.asked.properties
    if hidden := secret_files(chosen):
        yield from _comment(
            f"What a scan does not tell is in files that you put into {SECRETS}/: {', '.join(hidden)}."
        )
    for name, value in properties.items():
        variable = f"KAFKA_CLUSTERS_SOURCE_PROPERTIES_{name.upper().replace('.', '_')}"
        if value is not None:
            yield f"{variable}={value}"
        else:
            # One that is a file's path stays one.
            by_file = "" if name.endswith(".location") else "_FILE"
            yield f"{variable}{by_file}={MOUNTED}/{_file(name)}"


def _topics(chosen: Chosen) -> Iterator[str]:
    yield from _comment(
        f"{len(chosen.topics):,} topics of the scan with {chosen.partitions:,} partitions; and what appears later and matches. "
        "Internal topics never are."
    )
    most = sorted(chosen.topics, key=lambda one: (-(one.bytes or 0), one.topic))
    for one in most[:_SHOWN]:
        yield f"#   {one.topic}: {one.partitions} partitions, {size(one.bytes)}"
    if more := most[_SHOWN:]:
        yield f"#   and {len(more):,} smaller ones"
    yield f"KAFKA_CLUSTERS_SOURCE_TOPIC={chosen.pattern}"
    for topic, why in sorted(chosen.left_out.items()):
        yield f"# Can't be copied: {topic}: {why}. Once it can, take it off the list."
    for hidden in chosen.scan.unread:
        if hidden.what.startswith("topic "):
            yield from _comment(f"Not seen by the scan: {hidden.what}: {hidden.why}")
    if chosen.exclude:
        yield f"KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE={chosen.exclude}"
    factors = sorted({one.replication_factor for one in chosen.topics})
    yield from _comment(
        f"Replicas of the topics that the link makes: as many as the target has by default. The source's have {', '.join(map(str, factors))}."
    )
    yield f"#REPLICATION_FACTOR={factors[-1]}"


def _sizes(chosen: Chosen) -> Iterator[str]:
    """What docs/operations/sizing.md says of it."""
    m = chosen.moving
    pace = f"{size(m['inflow_bytes_per_second'])}/s that came while the scan looked"
    if m["line_mbit"] is not None:
        pace += f", and a line of {m['line_mbit']:,.0f} Mbit/s to catch up by"
    yield from _comment(
        f"From {pace}, {RESERVE} times for reserve (docs: operations/sizing). It can't be changed once the link is made. More share "
        "evenly among lanes; each costs a transaction every 8 to 30 ms while it is in use."
    )
    yield f"STAGING_PARTITIONS={chosen.staging_partitions}"
    yield "# Lanes of each application, of which one has moved 350 MB/s. Without it: as many as CPUs."
    yield f"PARALLELISM={chosen.lanes}"
    yield from _comment(
        f"Staging has no retention by time: it is trimmed once its records are delivered and folded. It takes up to "
        f"{size(m['staging_bytes'])} on the target's disks, with as many replicas as the source's topics have. Segments of "
        f"{size(SEGMENT)} instead of 1 GiB, since they are deleted whole."
    )
    yield f"LINK_TOPIC_CONFIG=staging:segment.bytes={SEGMENT}"
    if m["unknown"]:
        yield from _comment(f"Not in these figures, for want of a size: {', '.join(m['unknown'])}")
    for warning in warnings(chosen):
        yield from _comment(f"NOTE: {warning}")


def warnings(chosen: Chosen) -> list[str]:
    """What the operator should know before he starts."""
    found = []
    if chosen.partitions > MOST_PARTITIONS:
        found.append(
            f"{chosen.partitions:,} source partitions; a link has been tried with {MOST_PARTITIONS:,}: make several, by topics"
        )
    if chosen.moving["keeps_up"] is False:
        found.append(
            "as much comes as the line or a core of the applications can carry: the link never catches up"
        )
    return found


def _groups(chosen: Chosen) -> Iterator[str]:
    if chosen.scan.groups is None:
        yield "# Consumer groups could not be read by the scan, so `offsets` is not among the applications."
        return
    if not chosen.groups:
        yield "# The source has no consumer groups, so `offsets` is not among the applications."
        return
    yield f"# {len(chosen.groups):,} consumer groups; `offsets` keeps all in step, but for those excluded."
    yield "CONSUMER_GROUPS=.*"
    named = []
    for one in chosen.unmovable:
        yield from _comment(f"Not moved: group {json.dumps(one.group)} is of type {one.type}.")
        named += (
            [one.group] if all(c.isalnum() or c in "._-" for c in one.group) and one.group.isascii() else []
        )
    if named:
        yield f"CONSUMER_GROUPS_EXCLUDE={','.join(named)}"


# compose and Kubernetes


def applications(chosen: Chosen) -> list[str]:
    return ["replicator", "deduplicator", *(["offsets"] if chosen.groups else [])]


def _image() -> str:
    return metadata.version("verbatim-kafka")


def compose(chosen: Chosen) -> str:
    services = "".join(_service(chosen, name, 8081 + n) for n, name in enumerate(applications(chosen)))
    return f"""\
# The link {chosen.link} on one machine: docker compose up -d
#
# Before that: put into {SECRETS}/ what {SETTINGS} names there, readable for user 10001, and look with
#   docker compose run --rm replicator verbatim plan
# The page of each application is at 127.0.0.1:8081 and the ports after it.
name: {chosen.name}

x-application: &application
  image: verbatim:{_image()}
  restart: unless-stopped
  read_only: true
  # With exec: the JVM unpacks native libraries there and loads them.
  tmpfs:
    - /tmp:exec,mode=1777,size=1g
  cap_drop: [ALL]
  security_opt:
    - no-new-privileges:true
  env_file:
    - {SETTINGS}
  # An application ends or aborts its transactions within 10 s.
  stop_grace_period: 20s
  healthcheck:
    test:
      - CMD
      - python
      - -c
      - import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=3)
    interval: 5s
    timeout: 5s
    retries: 12
    start_period: 60s

services:
{services}
volumes:
  # Some megabytes of Delta tables. Lost, they are made again from the offset mappings.
  state:
"""


def _service(chosen: Chosen, name: str, port: int) -> str:
    limit = 512 if name == "offsets" else chosen.memory_limit_mib
    state = "\n      - state:/var/lib/verbatim" if name == "deduplicator" else ""
    return f"""\
  {name}:
    <<: *application
    command: [{name}]
    # {"24 bytes for each run of records in its index" if name == "offsets" else _why_memory(chosen)}
    mem_limit: {limit}m
    ports:
      - 127.0.0.1:{port}:8080
    volumes:
      - ./{SECRETS}:{MOUNTED}:ro{state}
"""


def _why_memory(chosen: Chosen) -> str:
    return f"It takes about {chosen.memory_mib} MiB, and up to 96 for each of {chosen.lanes} lanes far from the source."


def _list(entries: Iterable[str]) -> str:
    return "\n".join(f"  - {entry}" for entry in entries)


def kustomization(chosen: Chosen) -> str:
    offsets = ["offsets.yaml"] if chosen.groups else []
    hidden = secret_files(chosen)
    secrets = (
        f"""\
secretGenerator:
  - name: verbatim-clients
    behavior: merge
    files:
{_indented(hidden)}
"""
        if hidden
        else f"""\
#secretGenerator:
#  - name: verbatim-clients
#    behavior: merge
#    files:
#      - {SECRETS}/destination.sasl.password
"""
    )
    return f"""\
# The link {chosen.link} on Kubernetes: kubectl apply -k .
#
# base/ is Verbatim's own (and offsets.yaml, where there are consumer groups); what is this link's is said here and in
# {SETTINGS}. The namespace is the base's; links beside each other differ by prefix and label.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: verbatim
namePrefix: {chosen.name}-
resources:
{_list(["base", *offsets])}
labels:
  - pairs:
      app.kubernetes.io/part-of: verbatim
  # In every selector: two links in one namespace would take each other's Pods for their own otherwise.
  - pairs:
      app.kubernetes.io/instance: {chosen.name}
    includeSelectors: true
configMapGenerator:
  - name: verbatim-settings
    behavior: replace
    envs:
      - {SETTINGS}
# Files that {SETTINGS} names under {MOUNTED}; the base's own two are not used.
{secrets}\
# Push the image to a registry of yours, and name it here.
images:
  - name: verbatim
    newName: verbatim
    newTag: {_image()}
# {_why_memory(chosen)}
# It takes up to 0.6 ms of a CPU a megabyte, five times as much in small batches, as {chosen.small:.0%} of the bytes are.
patches:
  - target:
      kind: Deployment
      name: replicator|deduplicator
    patch: |-
      - op: replace
        path: /spec/template/spec/containers/0/resources
        value:
          requests:
            cpu: 250m
            memory: {chosen.memory_mib}Mi
          limits:
            cpu: "{chosen.cpus}"
            memory: {chosen.memory_limit_mib}Mi
"""


def _indented(names: Iterable[str]) -> str:
    return "\n".join(f"      - {SECRETS}/{name}" for name in names)
