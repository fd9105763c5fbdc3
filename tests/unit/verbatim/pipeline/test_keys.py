"""Keys that are not there are left out, and stop nobody from checking the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import loading
from common.errors import SettingsError
from verbatim.pipeline.keys import keys_of

NEEDED = {
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "s:1",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "t",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "d:1",
}


def test_the_keys_that_can_be_read_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pipeline.yaml"
    flows = "flows: [{topics: [t], stages: [{mask: {fields: {key: redact}}}]}]"
    file.write_text(f"{{version: 1, keys: {{a: env:A, b: env:B, c: 'file:{tmp_path}/c'}}, {flows}}}")
    (tmp_path / "c").write_text("0123456789abcdef\n")
    monkeypatch.setenv("A", "fedcba9876543210")
    settings = loading.load(environ={**NEEDED, "PIPELINE": str(file)})
    assert keys_of(settings) == {"a": b"fedcba9876543210", "c": b"0123456789abcdef"}
    assert keys_of(loading.load(environ=NEEDED)) == {}
    file.write_text("version: 2")
    with pytest.raises(SettingsError):
        keys_of(settings)
