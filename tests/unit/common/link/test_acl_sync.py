"""Which access rules a copy gets from its source topic, and which are granted and taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.settings import Policy
from common.kafka.model import LITERAL, PREFIXED, Acl
from common.link.acl_sync import ALLOW, DENY, READING, of_topic, on_copies, on_copy, steps

READ_ONLY = Policy(read_only=True, own=frozenset({"User:verbatim"}))


def rule(operation: str, permission: str = ALLOW, principal: str = "User:a", name: str = "orders") -> Acl:
    return Acl(LITERAL, name, principal, "*", operation, permission)


def operations(acls: set[Acl], permission: str = ALLOW) -> set[str]:
    assert all(acl.pattern == LITERAL and acl.name == "copy" for acl in acls)
    return {acl.operation for acl in acls if acl.permission == permission}


@pytest.mark.parametrize(
    ("pattern", "name", "concerned"),
    [
        (LITERAL, "orders", True),
        (LITERAL, "order", False),
        (LITERAL, "*", True),
        (PREFIXED, "ord", True),
        (PREFIXED, "orders", True),
        (PREFIXED, "orders.", False),
        (PREFIXED, "*", False),
    ],
)
def test_a_topic_is_concerned_by_name_prefix_and_star(pattern: str, name: str, concerned: bool) -> None:
    acl = Acl(pattern, name, "User:a", "*", "READ", ALLOW)
    assert of_topic([acl], "orders") == ([acl] if concerned else [])
    if concerned:
        assert on_copies({"orders": [acl]}, {"orders": "copy", "other": "x"}, {}, Policy()) == {
            "copy": {acl._replace(pattern=LITERAL, name="copy")}
        }


def test_a_copy_of_several_topics_allows_what_each_of_them_allows_and_denies_what_any_denies() -> None:
    def acl(topic: str, principal: str, operation: str, permission: str = ALLOW) -> Acl:
        return Acl(LITERAL, topic, principal, "*", operation, permission)

    of = {
        "one": [acl("one", "User:a", "READ"), acl("one", "User:b", "READ"), acl("one", "User:c", "ALL")],
        "two": [
            acl("two", "User:a", "READ"),
            acl("two", "User:b", "READ", DENY),
            acl("two", "User:c", "READ"),
        ],
        "alone": [acl("alone", "User:b", "READ")],
    }
    copies = {"one": "both", "two": "both", "alone": "own"}
    own = {acl("own", "User:b", "READ")}
    both = {acl("both", "User:a", "READ"), acl("both", "User:c", "READ"), acl("both", "User:b", "READ", DENY)}
    assert on_copies(of, copies, {}, Policy()) == {"both": both, "own": own}
    # Their records are there still, or may come to be: of one that is gone, of one that nothing is known of,
    # of one without any rule.
    gone = {"one": "both", "alone": "own"}
    there = {"both": {"one", "two"}, "own": {"alone"}}
    assert on_copies(of, gone, there, Policy()) == {"both": both, "own": own}
    denied = {acl("both", "User:b", "READ", DENY)}
    assert on_copies(of, copies, {"both": {"one", "two", "three"}}, Policy()) == {"both": denied, "own": own}
    assert on_copies({}, copies, there, Policy()) == {}


def test_rights_to_read_are_copied_and_none_to_write_or_alter() -> None:
    everything = [
        rule(o)
        for o in (
            "READ",
            "WRITE",
            "CREATE",
            "DELETE",
            "ALTER",
            "DESCRIBE",
            "DESCRIBE_CONFIGS",
            "ALTER_CONFIGS",
        )
    ]
    assert operations(on_copy(everything, "copy", Policy())) == set(READING)
    assert operations(on_copy([rule("ALL")], "copy", Policy())) == {"READ", "DESCRIBE_CONFIGS"}
    assert operations(on_copy([rule("ALL"), rule("WRITE")], "copy", Policy(writes=True))) == {"ALL", "WRITE"}


def test_what_is_denied_is_denied_on_the_copy_but_never_so_that_verbatim_can_not_write_it() -> None:
    denied = [rule("ALL", DENY), rule("READ", DENY, "User:*"), rule("WRITE", DENY)]
    assert on_copy(denied, "copy", Policy()) == {
        *(rule(o, DENY, name="copy") for o in READING),
        rule("READ", DENY, "User:*", "copy"),
    }
    own = Policy(writes=True, own=frozenset({"User:verbatim"}))
    for policy in (own, READ_ONLY):
        for operation in ("ALL", "WRITE", "DESCRIBE"):
            for principal in ("User:verbatim", "User:*"):
                copied = on_copy([rule(operation, DENY, principal)], "copy", policy)
                assert operations(copied, DENY) <= {"READ"}
                assert principal == "User:*" or not copied


def test_a_read_only_copy_denies_writing_to_those_who_write_the_source_but_not_to_verbatim() -> None:
    writers = [rule("WRITE"), rule("ALL", principal="User:b"), rule("READ", principal="User:c")]
    copied = on_copy([*writers, rule("WRITE", principal="User:verbatim")], "copy", READ_ONLY)
    assert {acl.principal for acl in copied if acl.permission == DENY} == {"User:a", "User:b"}
    assert operations(copied, DENY) == {"WRITE"}


def test_a_copy_that_others_write_is_read_only_no_longer_and_else_left_as_it_is() -> None:
    reads, denied = rule("READ", name="copy"), rule("WRITE", DENY, name="copy")
    of, copies, granted = (
        {"orders": [rule("WRITE"), rule("ALTER")]},
        {"orders": "copy"},
        {"copy": {reads, denied}},
    )
    assert denied in on_copies(of, copies, {}, READ_ONLY, (), granted)["copy"]
    assert on_copies(of, copies, {}, READ_ONLY, {"copy"}, granted) == {"copy": {reads}}
    assert on_copies(of, copies, {}, READ_ONLY, {"copy"}, {"copy": {reads}}) == {}, (
        "nothing is put there again"
    )
    assert on_copies(of, copies, {}, Policy(writes=True), {"copy"}, granted) == {}, (
        "denied at the source, too"
    )


rules = st.builds(
    Acl,
    st.just(LITERAL),
    st.just("copy"),
    st.sampled_from(["User:a", "User:b"]),
    st.just("*"),
    st.sampled_from(READING),
    st.sampled_from([ALLOW, DENY]),
)


@given(st.sets(rules), st.sets(rules), st.sets(rules))
def test_in_step_there_is_all_that_is_wanted_and_nothing_of_others_is_taken(
    wanted: set[Acl], there: set[Acl], ours: set[Acl]
) -> None:
    found = steps(wanted, there, ours)
    by = {action: {s.acl for s in found if s.action == action} for action in ("grant", "revoke", "foreign")}
    after = (there | by["grant"]) - by["revoke"]
    assert wanted <= after
    assert by["revoke"] <= ours
    assert after - wanted == by["foreign"] == there - wanted - ours
    assert {s.action for s in steps(wanted, after, ours | by["grant"])} <= {"in-step", "foreign"}
