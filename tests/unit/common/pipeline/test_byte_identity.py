"""What no stage is asked to change keeps its bytes: digits of numbers, escapes, white space, names that come
twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipelines import FEW, arrays, jsons, objects, pipeline, strings, values, white

OTHERS = ("x", "y", "e-mail", "straße")
others = st.lists(
    st.tuples(white, strings(st.sampled_from(OTHERS)), white, jsons, white).map(
        lambda m: "{}{}{}:{}{}".format(*m)
    ),
    max_size=4,
)


@st.composite
def around(draw: st.DrawFn, inner: str) -> tuple[str, str]:
    """An object in text, in two parts: what stands before one of its values, and what behind it. Its other
    members may be there twice."""
    before, after = draw(others), draw(others)
    name = draw(strings(st.just(inner)))
    spaces = [draw(white) for _ in range(4)]
    begin = ",".join([*before, f"{spaces[0]}{name}{spaces[1]}:{spaces[2]}"])
    return "{" + begin, ",".join([spaces[3], *after]) + "}"


deep = st.integers(1, 60).map(lambda depth: "[" * depth + "1.10" + "]" * depth)
hidden = (
    strings()
    | st.sampled_from(["1.10", "true", "12345678901234567890"])
    | objects(jsons)
    | arrays(jsons)
    | deep
)


@FEW
@given(around("email"), around("customer"), hidden)
def test_a_mask_changes_the_bytes_of_its_field_and_no_other(
    inner: tuple[str, str], outer: tuple[str, str], secret: str
) -> None:
    before, after = outer[0] + inner[0], inner[1] + outer[1]
    (found,) = values(
        pipeline({"mask": {"fields": {"customer.email": "redact"}}}), f"{before}{secret}{after}".encode()
    )
    assert found == f'{before}"***"{after}'.encode()


@FEW
@given(around("a"), hidden)
def test_a_field_that_is_set_leaves_all_others_as_they_are(parts: tuple[str, str], old: str) -> None:
    text = f"{parts[0]}{old}{parts[1]}".encode()
    first, second = values(pipeline({"fields": {"set": {"a": 1.5, "new": "{offset}"}}}), text, text)
    assert first == f'{parts[0]}1.5{parts[1][:-1]},"new":"40"}}'.encode()
    assert second == f'{parts[0]}1.5{parts[1][:-1]},"new":"41"}}'.encode()


@FEW
@given(around("a"), hidden)
def test_what_is_renamed_or_taken_out_keeps_its_bytes(parts: tuple[str, str], old: str) -> None:
    text = f"{parts[0]}{old}{parts[1]}".encode()
    assert values(pipeline({"fields": {"extract": "a", "wrap": "b"}}), text) == [f'{{"b":{old}}}'.encode()]
    (renamed,) = values(pipeline({"fields": {"rename": {"a": "b"}}}), text)
    assert renamed is not None and renamed.endswith(f"{old}{parts[1]}".encode())


def test_fields_that_go_take_one_comma_each_along() -> None:
    made = pipeline({"fields": {"drop": ["a", "b", "c"]}})
    given_ = (
        b'{"a":1,"x":1.10}',
        b'{"x":1.10,"a":1}',
        b'{"x" :1, "a":2 , "b":3}',
        b'{"a":1, "b":2,"c":3 }',
        b'{"x":1,"b":2,"y":3}',
    )
    assert values(made, *given_) == [b'{"x":1.10}', b'{"x":1.10}', b'{"x" :1}', b"{ }", b'{"x":1,"y":3}']


def test_what_is_kept_and_flattened_is_copied() -> None:
    text = rb'{"a" : {"b": 1.10, "c":{}}, "d":[{"b":1,"z":2},{"z":3}],"e":"\u0041"}'
    assert values(pipeline({"fields": {"keep": ["a.b", "d[*].b"]}}), text) == [
        b'{"a" : {"b": 1.10},"d":[{"b":1},{}]}'
    ]
    assert values(pipeline({"fields": {"flatten": "_"}}), text) == [
        rb'{"a_b":1.10,"a_c":{},"d":[{"b":1,"z":2},{"z":3}],"e":"\u0041"}'
    ]
