"""A destination's configuration is changed as far as the target lets it, and what it refuses is said once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from common.errors import KafkaTimeout, LinkRefused
from common.kafka.client import topics
from common.kafka.model import Value
from common.link.control_kinds import SourceTopic
from common.link.control_records import Destination
from common.link.topic_config_sync import Rules
from common.ports import Deadline
from deduplicator.driver.config_sync import ConfigSync

SOURCE = SourceTopic(
    "t", "id", 1, {"retention.ms": "900", "segment.ms": "70"}, explicit=frozenset({"retention.ms", "segment.ms"})
)  # fmt: skip
THERE = {"retention.ms": Value("100", False), "segment.ms": Value("50", False)}


class Target:
    """Refuses the keys given, with an error each; keeps what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **refused: Exception) -> None:
        self.refused = {name.replace("_", "."): error for name, error in refused.items()}
        self.asked: list[dict[str, str | None]] = []
        monkeypatch.setattr(topics, "alter", self.alter)

    def alter(self, _: Any, name: str, changes: dict[str, str | None], deadline: Deadline) -> None:
        self.asked.append(changes)
        for key in changes:
            if key in self.refused:
                raise self.refused[key]


def in_step(
    sync: ConfigSync, there: dict[str, Value] = THERE
) -> tuple[dict[str, Value], dict[str, str]]:  # fmt: skip
    return sync.bring_in_step(SOURCE, Destination("d", 1, 1), there, Deadline(5.0))


def a_sync() -> ConfigSync:
    return ConfigSync(object(), Rules("", "target"))  # type: ignore[arg-type]


def policy() -> Exception:
    return KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, "not here"))


def test_all_that_differs_is_set_at_once_and_is_the_links_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Target(monkeypatch)
    there, ours = in_step(a_sync())
    assert target.asked == [{"retention.ms": "900", "segment.ms": "70"}]
    assert there == {"retention.ms": Value("900", True), "segment.ms": Value("70", True)}
    assert ours == {"retention.ms": "900", "segment.ms": "70"}


def test_what_is_in_step_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch)
    there = {"retention.ms": Value("900", True), "segment.ms": Value("70", True)}
    assert in_step(a_sync(), there)[0] == there
    assert target.asked == []


@pytest.mark.parametrize("error", [policy(), LinkRefused("no right")])
def test_one_change_that_is_refused_keeps_no_other_from_being_made_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    target = Target(monkeypatch, retention_ms=error)
    sync = a_sync()
    for _ in range(2):
        there, ours = in_step(sync)
        assert there == {"retention.ms": Value("100", False), "segment.ms": Value("70", True)}
        assert ours == {"segment.ms": "70"}
    assert target.asked[1:3] == [{"retention.ms": "900"}, {"segment.ms": "70"}]
    assert len([line for line in caplog.records if line.levelno == logging.ERROR]) == 1
    assert "destination topic d can't be kept in step with its source: retention.ms=900: " in caplog.text


def test_what_was_said_is_said_again_once_it_had_been_mended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(monkeypatch, retention_ms=policy())
    sync = a_sync()
    in_step(sync)
    error, target.refused = target.refused, {}
    in_step(sync)
    target.refused = error
    in_step(sync)
    assert len([line for line in caplog.records if line.levelno == logging.ERROR]) == 2


def test_a_target_that_does_not_answer_has_refused_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, segment_ms=KafkaTimeout("no answer"))
    with pytest.raises(KafkaTimeout):
        in_step(a_sync())
    assert len(target.asked) == 1
