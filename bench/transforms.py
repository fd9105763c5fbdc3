"""The same work on each record by a stage of a pipeline and by a transform of Kafka Connect's (SMT): what
copiers are given for it. Starts nothing.

MirrorMaker 2 has no transform that looks into a value: that one is compiled here.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

VERBATIM = {
    "verbatim-no-flow": ("somebody-elses", "filter: {drop: {header.gone: {exists: true}}}"),
    "verbatim-filter": (".*", "filter: {drop: {header.gone: {exists: true}}}"),
    "verbatim-header": (".*", "headers: {set: {origin: east}}"),
    "verbatim-mask": (".*", "mask: {fields: {email: redact}}"),
}
"""Copier -> the topics of its flow, and its stage. The filter leaves none out: the arrival of all that are
counted is waited for."""

_PATH = "{source}->target."
MIRROR_MAKER = {
    "mm2-filter": {
        f"{_PATH}transforms": "t",
        f"{_PATH}transforms.t.type": "org.apache.kafka.connect.transforms.Filter",
        f"{_PATH}transforms.t.predicate": "gone",
        f"{_PATH}predicates": "gone",
        f"{_PATH}predicates.gone.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
        f"{_PATH}predicates.gone.name": "gone",
    },
    "mm2-header": {
        f"{_PATH}transforms": "t",
        f"{_PATH}transforms.t.type": "org.apache.kafka.connect.transforms.InsertHeader",
        f"{_PATH}transforms.t.header": "origin",
        f"{_PATH}transforms.t.value.literal": "east",
        # Its own converter takes bytes only, and what is inserted is text.
        f"{_PATH}header.converter": "org.apache.kafka.connect.storage.StringConverter",
    },
    "mm2-mask": {
        f"{_PATH}transforms": "t",
        f"{_PATH}transforms.t.type": "MaskField",
        f"{_PATH}transforms.t.field": "email",
    },
}
"""Configuration -> its properties, over those for throughput."""


def write_pipeline(name: str, file: Path) -> None:
    """The file of a Verbatim's pipeline."""
    topics, stage = VERBATIM[name]
    file.write_text(
        f"version: 1\nflows:\n  - topics: ['{topics}']\n    value: json\n    stages:\n      - {stage}\n"
    )


def compiled(classpath: str, folder: Path) -> str:
    """The class path with our transform on it. Raises OSError or CalledProcessError where there is no Java
    compiler."""
    source = Path(__file__).with_name("MaskField.java")
    subprocess.run(["javac", "-cp", classpath, "-d", folder, source], check=True)
    return f"{folder}:{classpath}"
