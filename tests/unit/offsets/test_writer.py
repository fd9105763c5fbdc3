"""What a bounded run says of offsets that Kafka refused, or of which it is not known whether it took them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError

from common.errors import GroupsFailed
from common.ports import Deadline
from offsets import main
from offsets.group_offsets import GroupKey, GroupOffset
from offsets.survey import Row
from offsets.writer import write_offsets


def row(group: str) -> Row:
    record = GroupOffset("id", 5, group, "t", 0, 5, True, None, "written", "", 0, "", None)
    return Row(GroupKey(group, "t", 0), record, None)


def test_once_does_not_pass_for_a_success_where_it_is_not_known_that_all_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: exit 3 and the groups by name, also where the refusal may pass by itself: a next round sees to
    it, and here is none."""
    errors = {"doubtful": KafkaError.REQUEST_TIMED_OUT, "refused": KafkaError.INVALID_COMMIT_OFFSET_SIZE}
    refused = {(group, ("t", 0)): KafkaError(code) for group, code in errors.items()}
    groups: Any = SimpleNamespace(commit=lambda *_: refused)
    log: Any = SimpleNamespace(known={}, write=lambda *_: 0)
    rows = write_offsets([row("doubtful"), row("refused"), row("sound")], groups, log, Deadline(10))
    # A record says what may have been written: without its offset the link would not know its own.
    assert [r.record.outcome for r in rows] == ["written", "failed", "written"]

    service = SimpleNamespace(rows=rows, unmoved=[], run=lambda: 0)
    monkeypatch.setattr(main, "Service", lambda *_: service)
    variables = {
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "t",
    }
    ended = CliRunner().invoke(main.command, ["--once"], env=variables)
    assert isinstance(ended.exception, GroupsFailed), ended.output
    assert ended.exception.exit_code == 3
    said = str(ended.exception)
    assert said.startswith("offsets of 2 groups could not be moved: group doubtful: ")
    assert "; group refused: " in said
    assert "sound" not in said
    assert "1 written, 0 not exact, 2 failed" in ended.output
    service.rows = rows[2:]
    assert CliRunner().invoke(main.command, ["--once"], env=variables).exit_code == 0
