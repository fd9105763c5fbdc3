"""Which tool's settings a file holds, and each of its links as settings of Verbatim. Pure."""

from __future__ import annotations

from typing import Any

import yaml

from verbatim.convert import k2k, kafka_reo, mirror_maker, settings
from verbatim.convert.settings import Converted


def converted(text: str, label: str) -> list[Converted]:
    """Raises SettingsError, with the label, for what is none of them."""
    documents = _documents(text)
    found = [k2k.converted(one, label) for document in documents for one in k2k.pipelines(document)]
    deployed = [pair for document in documents for pair in kafka_reo.of_document(document).items()]
    for name, given in deployed or kafka_reo.of_text(text).items():
        found.append(kafka_reo.converted(name, given))
    return found or [settings.converted(mirror) for mirror in mirror_maker.read(text, label)]


def _documents(text: str) -> list[Any]:
    """Nothing, where it is no YAML."""
    try:
        return list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
