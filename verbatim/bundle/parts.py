"""What goes into a bundle, part by part, asked of clusters, instances and this machine. Changes nothing. What
can't be had is for the caller to name; secrets are for verbatim/bundle/scrubbing.py."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import confluent_kafka
import orjson
from confluent_kafka.admin import AdminClient

from common.config.fields import CLUSTERS
from common.config.shown import shown
from common.errors import VerbatimError
from common.kafka.client import clients, cluster_check, topics
from common.kafka.wire import protocol
from common.kafka.wire.connection import Connection, access
from common.ports import Deadline
from common.spark import java
from verbatim.commands.status import Looks
from verbatim.links import tails

if TYPE_CHECKING:
    from common.config.fields import Cluster
    from common.config.settings import Settings

CALL_S = 20.0
CONTROL_RECORDS, SAID_RECORDS = 20_000, 2_000
LOG_BYTES = 8 << 20
MOST_ANSWER_BYTES = 64 << 20
ASKED = ("healthz", "readyz", "status.json", "metrics")
"""Of an instance's health port."""

Part = tuple[str, Callable[[], bytes]]
"""A file's name, and what makes its content."""


def of_link(settings: Settings) -> Iterator[Part]:
    yield "versions.json", lambda: _json(_versions())
    yield "settings.json", lambda: _json(shown(settings))
    for cluster in CLUSTERS:
        yield f"{cluster}.json", partial(_cluster, settings, cluster)
    yield "status.json", lambda: _json(_status(settings))
    yield "topics.json", lambda: _json(_own_topics(settings))
    yield "control.jsonl", lambda: _records(settings, settings.control_topic, CONTROL_RECORDS)
    yield "positions.jsonl", lambda: _records(settings, settings.positions_topic, SAID_RECORDS)


def of_instance(at: str, link: str | None) -> Iterator[Part]:
    """`at`: host:port of its health port. Where it runs many links, what it says of `link` too; None: of
    each."""
    folder = f"instances/{at.replace(':', '_')}"
    yield from _answers(at, folder, "")
    links = _links(at)
    asked = [name for name, of in links.items() if link in (None, of)]
    for name in asked:
        yield from _answers(at, f"{folder}/link-{quote(name, safe='')}", f"{quote(name)}/")
    if link is not None and links and not asked:
        yield f"{folder}/link-{link}", partial(_not_there, at, link, links.values())


def _answers(at: str, folder: str, under: str) -> Iterator[Part]:
    for path in ASKED:
        name = path if "." in path else f"{path}.{'txt' if path == 'metrics' else 'json'}"
        yield f"{folder}/{name}", partial(_asked, at, f"{under}{path}")


def of_log(file: Path, number: int) -> Iterator[Part]:
    """The end of a file; `number` tells two of one name apart."""
    yield f"logs/{number}-{file.name}", lambda: _end(file)


def _json(found: Any) -> bytes:
    return orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def _versions() -> dict[str, Any]:
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    return {
        "python": sys.version,
        "platform": platform.platform(),
        "librdkafka": confluent_kafka.libversion()[0],
        "java": java.version(),
        "packages": dict(sorted(packages.items())),
    }


def _cluster(settings: Settings, cluster: Cluster) -> bytes:
    """Its id and brokers, and which versions of each request these speak."""
    deadline = Deadline(CALL_S)
    cluster_id = cluster_check.cluster_id(settings, cluster, deadline)
    config = settings.client_config(cluster, "admin")
    listed = clients.admin(config).list_topics(settings.control_topic, timeout=deadline.left(1.0))
    brokers = []
    for broker in sorted(listed.brokers.values(), key=lambda each: each.id):
        address = (str(broker.host), broker.port)
        line: dict[str, Any] = {"id": broker.id, "host": address[0], "port": address[1]}
        try:
            with closing(Connection(access(config), address)) as connection:
                answer = connection.ask(protocol.API_VERSIONS, [], Deadline(CALL_S / 4))
                line["requests"] = protocol.versions(answer)[1]
        except confluent_kafka.KafkaException as error:
            line["requests"] = str(error.args[0])
        brokers.append(line)
    return _json({"cluster": cluster_id, "controller": listed.controller_id, "brokers": brokers})


def _status(settings: Settings) -> dict[str, Any]:
    with closing(Looks(settings)) as looks:
        return looks.look()


def _own_topics(settings: Settings) -> dict[str, Any]:
    """What the link keeps at the target: partitions, their offsets, configuration."""
    deadline, admin = Deadline(CALL_S), _target(settings)
    there = topics.describe(admin, list(settings.own_topic_kinds), deadline)
    at = [(name, partition) for name, info in there.items() for partition in range(info.partitions)]
    bounds = topics.bounds(admin, at, deadline)
    config = topics.configs(admin, list(there), deadline)
    return {
        name: {
            "kind": kind,
            "there": name in there,
            "offsets": {partition: bounds[t, partition] for t, partition in at if t == name},
            "config": config.get(name, {}),
        }
        for name, kind in settings.own_topic_kinds.items()
    }


def _records(settings: Settings, topic: str, most: int) -> bytes:
    """Its last records, a line of JSON each."""
    config = settings.client_config("destination", "consumer")
    found, failed = tails.read(config, _target(settings), [topic], most, Deadline(CALL_S))
    if topic not in found:
        raise VerbatimError(f"topic {topic}: {failed.get(topic, 'it has several partitions')}")
    lines = (
        {"offset": e.offset, "at_ms": e.at_ms, "key": _read(e.key), "value": _read(e.value)}
        for e in found[topic]
    )
    return b"\n".join(map(orjson.dumps, lines))


def _read(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode(errors="backslashreplace")


def _target(settings: Settings) -> AdminClient:
    return clients.admin(settings.client_config("destination", "admin"))


def _asked(at: str, path: str) -> bytes:
    """Whatever the state of health is that it tells. Raises VerbatimError where it has no such page."""
    try:
        with closing(HTTPConnection(at, timeout=CALL_S / 4)) as instance:
            instance.request("GET", f"/{path}")
            answer = instance.getresponse()
            content = answer.read(MOST_ANSWER_BYTES)
    except HTTPException as error:
        raise VerbatimError(f"http://{at}/{path}: {error}") from None
    if answer.status == HTTPStatus.NOT_FOUND:
        raise VerbatimError(f"http://{at}/{path}: {content[:200].decode(errors='backslashreplace')}")
    return content


def _links(at: str) -> dict[str, str]:
    """The links of a process that runs many, by their files' names. None where nothing is said, which its
    answers are missed for already."""
    with suppress(VerbatimError, OSError, ValueError, LookupError, TypeError):
        return {
            str(line["name"]): str(line["link"]) for line in orjson.loads(_asked(at, "status.json"))["links"]
        }
    return {}


def _not_there(at: str, link: str, links: Iterable[str]) -> bytes:
    raise VerbatimError(f"{at} does not run link {link}, but {', '.join(links)}")


def _end(file: Path) -> bytes:
    with file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - LOG_BYTES))
        text = log.read(LOG_BYTES)
    # A line that is cut may have lost what its secret is known by.
    return text if size <= LOG_BYTES else text.partition(b"\n")[2]
