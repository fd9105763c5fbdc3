"""Demands that an accepted loss answers."""

from __future__ import annotations

from common.link.control_records import Consent, Request
from replicator.lane.resend_requests import given_up


def consent(start: int | None, end: int | None, at: int = 10) -> Consent:
    return Consent(at, "t", start, end, "")


def test_an_accepted_loss_answers_what_was_asked_before_it() -> None:
    assert given_up(Request(5, "t", 100), consent(0, 7))


def test_an_accepted_loss_answers_a_later_demand_for_what_wasgiven_up() -> None:
    assert given_up(Request(11, "t", 3), consent(3, 7))
    assert given_up(Request(11, "t", 6), consent(3, 7))


def test_a_later_demand_for_anything_else_is_answered_by_sending_again() -> None:
    assert not given_up(Request(11, "t", 7), consent(3, 7))
    assert not given_up(Request(11, "t", 2), consent(3, 7))
    assert not given_up(Request(11, "t", None), consent(3, 7))
    assert not given_up(Request(11, "t", 5), consent(3, None))
