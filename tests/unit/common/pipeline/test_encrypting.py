"""The method `encrypt`: AES-SIV as RFC 5297 has it, stored as it is for ever, and back to what there was."""

from __future__ import annotations

import builtins
import json
import re
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher as Block
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.cmac import CMAC
from hypothesis import given
from hypothesis import strategies as st

from common.errors import SettingsError
from common.pipeline.definition import key_id
from common.pipeline.encrypting import Cipher, Opener
from common.pipeline.engine import Engine, Outcome
from tests.support.pipelines import FEW, KEYS, applied, documents, headers, pipeline, values
from verbatim.verify.pipeline.json_tree import same, tree

KEY = b"fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
OTHER = KEY[::-1]
ENCRYPT = pipeline({"mask": {"key": "k1", "fields": {"a": "encrypt"}}})


def doubled(block: bytes) -> bytes:
    number = int.from_bytes(block, "big") << 1
    return ((number ^ (0x87 if number >> 128 else 0)) & ((1 << 128) - 1)).to_bytes(16, "big")


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def siv(key: bytes, plain: bytes, *associated: bytes) -> bytes:
    """As the RFC writes it down, from CMAC and AES-CTR."""
    first, second = key[: len(key) // 2], key[len(key) // 2 :]

    def cmac(text: bytes) -> bytes:
        made = CMAC(algorithms.AES(first))
        made.update(text)
        return made.finalize()

    d = cmac(bytes(16))
    for one in associated:
        d = xor(doubled(d), cmac(one))
    if len(plain) >= 16:
        iv = cmac(plain[:-16] + xor(plain[-16:], d))
    else:
        iv = cmac(xor(doubled(d), (plain + b"\x80").ljust(16, b"\0")))
    counter = int.from_bytes(iv, "big") & ~(1 << 63 | 1 << 31)
    encryptor = Block(algorithms.AES(second), modes.CTR(counter.to_bytes(16, "big"))).encryptor()
    return iv + encryptor.update(plain)


@pytest.mark.parametrize(
    ("key", "associated", "plain", "expected"),
    [
        (
            KEY.decode(),
            ["101112131415161718191a1b1c1d1e1f2021222324252627"],
            "112233445566778899aabbccddee",
            "85632d07c6e8f37f950acd320a2ecc9340c02b9690c4dc04daef7f6afe5c",
        ),
        (
            "7f7e7d7c7b7a79787776757473727170404142434445464748494a4b4c4d4e4f",
            [
                "00112233445566778899aabbccddeeffdeaddadadeaddadaffeeddccbbaa99887766554433221100",
                "102030405060708090a0",
                "09f911029d74e35bd84156c5635688c0",
            ],
            "7468697320697320736f6d6520706c61696e7465787420746f20656e6372797074207573696e67205349562d414553",
            (
                "7bdb6e3b432667eb06f4d14bff2fbd0f"
                "cb900f2fddbe404326601965c889bf17dba77ceb094fa663b7a3f748ba8af829ea64ad544a272e9c485b62a3fd5c0d"
            ),
        ),
    ],
    ids=["A.1", "A.2"],
)
def test_the_vectors_of_the_rfc(key: str, associated: list[str], plain: str, expected: str) -> None:
    given, more = bytes.fromhex(plain), [bytes.fromhex(one) for one in associated]
    assert siv(bytes.fromhex(key), given, *more).hex() == expected
    assert AESSIV(bytes.fromhex(key)).encrypt(given, more).hex() == expected


@pytest.mark.parametrize("size", [32, 48, 64])
@given(st.data())
def test_a_ciphertext_names_its_key_and_is_aes_siv_of_what_there_was(size: int, data: st.DataObject) -> None:
    key = data.draw(st.binary(min_size=size, max_size=size)).hex().encode()
    plain = data.draw(st.binary(min_size=1, max_size=40))
    head = f"siv1.{key_id(key)}".encode()
    token = Cipher(key, "key").encrypt(plain)
    sealed = urlsafe_b64encode(siv(bytes.fromhex(key.decode()), plain, head)).rstrip(b"=")
    assert token == b"%b.%b" % (head, sealed)
    assert Cipher(key, "key").decrypt(token) == plain


def test_what_is_stored_stays_readable() -> None:
    cipher = Cipher(KEY, "key")
    assert cipher.encrypt(b'"a@b.org') == b"siv1.c32c2cd21191699d.xR6bA3OCvGEIVUkkkeFSYZkOU3UQ9cHo"


def back(*keys: bytes) -> Opener:
    return Opener([Cipher(key, "key") for key in keys])


@FEW
@given(st.lists(documents, min_size=1, max_size=6))
def test_whoever_has_the_key_gets_the_json_that_there_was(given: list[bytes]) -> None:
    """Of a text another spelling may come back; all else is the same to the byte."""
    made = pipeline({"mask": {"key": "k1", "fields": {"a": "encrypt", "b.id": "encrypt"}}}, onError="skip")
    found = applied(made, [(None, value, None, 0) for value in given])
    opener = back(KEYS["k1"])
    kept = [v for v, o in zip(given, found.outcomes, strict=True) if o in (Outcome.KEPT, Outcome.CHANGED)]
    for before, after in zip(kept, found.rows.column(4).to_pylist(), strict=True):
        assert same(tree(before), tree(opener.open(after)))
        assert b"\\" in before or opener.open(after) == before
    assert not opener.changed and not opener.unknown


@FEW
@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40), headers)
def test_bytes_come_back_to_the_byte(key: bytes | None, value: bytes | None, some: Any) -> None:
    made = pipeline(
        {"mask": {"key": "k1", "fields": {"key": "encrypt", "value": "encrypt", "header.x-a": "encrypt"}}},
        value="bytes",
    )
    (row,) = applied(made, [(key, value, some, 0)]).rows.to_pylist()
    opener = back(KEYS["k1"])
    for before, after in ((key, row["key"]), (value, row["value"])):
        assert (before is None) == (after is None)
        assert after is None or (after != before and opener.open(after) == before)
    hidden = [(h["key"], h["value"]) for h in row["headers"] or ()]
    assert all(v is None or v.startswith(b"siv1.") for name, v in hidden if name == "x-a")
    assert [(name, v and opener.open(v)) for name, v in hidden] == list(some or ())


def test_equal_texts_are_equal_wherever_they_stand_and_a_number_is_no_text() -> None:
    both = pipeline({"mask": {"key": "k1", "fields": {"a": "encrypt", "b": "encrypt", "key": "encrypt"}}})
    (row,) = applied(
        both, [("é/".encode(), rb'{"a":"\u00e9\/","b":"' + "é/".encode() + b'"}', None, 0)]
    ).rows.to_pylist()
    value = json.loads(row["value"])
    assert value["a"] == value["b"] == row["key"].decode()
    assert len({*values(ENCRYPT, *(b'{"a":%b}' % v for v in (b"5", b'"5"', b"5.0", b"50")))}) == 4
    assert values(ENCRYPT, b'{"a":null}', b"{}") == [b'{"a":null}', b"{}"]


@pytest.mark.parametrize("value", [b'{"a":{"x":"s3cret"}}', b'{"a":["s3cret"]}', b'{"a":"s3cret","a":1}'])
def test_what_it_can_not_encrypt_goes_no_further(value: bytes) -> None:
    made = pipeline({"mask": {"key": "k1", "fields": {"a": "encrypt"}}}, onError="skip")
    found = applied(made, [(None, value, None, 0)])
    assert len(found.rows) == 0 and "s3cret" not in found.failures[0].reason


@pytest.mark.parametrize(
    "json_text",
    ['{"a":"x\\"\\n é"}', '{"a":1.10}', '{"a":true}', '{"a":"","b":"TOKEN"}'],
)
def test_json_in_a_text_of_json_comes_back_as_such(json_text: str) -> None:
    """As who shows records as JSON has it."""
    (hidden,) = values(ENCRYPT, json_text.encode())
    assert hidden is not None and hidden != json_text.encode()
    line = json.dumps({"payload": hidden.decode(), "key": json.loads(hidden)["a"]}).encode()
    opened = json.loads(back(KEYS["k1"]).open(line))
    assert json.loads(opened["payload"]) == json.loads(json_text)
    assert opened["key"] == json.loads(json_text)["a"]


def test_what_the_keys_do_not_open_stays_and_is_counted() -> None:
    token = Cipher(KEY, "key").encrypt(b'"a')
    changed = token[:-3] + (b"abc" if not token.endswith(b"abc") else b"abd")
    line = b'{"a":"%b","b":"%b"} %b siv1.no' % (token, changed, Cipher(OTHER, "key").encrypt(b"1"))
    opener = back(KEY)
    assert opener.open(line) == line.replace(token, b"a", 1)
    assert (opener.opened, opener.changed, opener.unknown) == (1, 1, {key_id(OTHER): 1})
    assert back(KEY, OTHER).open(line).endswith(b" 1 siv1.no"), "keys are told apart by their ids"
    # The head is part of what is authenticated.
    moved = token.replace(key_id(KEY).encode(), key_id(OTHER).encode())
    cipher = Cipher(KEY, "key")
    with pytest.raises(ValueError, match="not made with this key"):
        cipher.decrypt(moved)


@pytest.mark.parametrize("key", [b"0123456789abcdef", KEY[1:], KEY + b"0", KEY * 3, b"g" * 64, b" " * 64])
def test_a_key_of_another_length_is_refused_by_its_name(key: bytes) -> None:
    for made in (ENCRYPT, pipeline({"mask": {"key": "k1", "fields": {"key": "encrypt"}}})):
        with pytest.raises(
            SettingsError, match=r"flow 1, stage 1 \(mask\): key k1 is none for encrypt"
        ) as no:
            Engine(made, {"k1": key})
        assert key.decode() not in str(no.value) and f"it has {len(key)} bytes" in str(no.value)
    Engine(pipeline({"mask": {"key": "k1", "fields": {"a": "hmac"}}}), {"k1": key})


def test_without_the_extra_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    there = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return there(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        SettingsError, match=r"stage 1 \(mask\).*extra encrypt: install verbatim-kafka\[encrypt\]"
    ):
        Engine(ENCRYPT, KEYS)
    Engine(pipeline({"mask": {"key": "k1", "fields": {"a": "hmac"}}}), KEYS)


def test_the_lines_of_python_in_the_guide_decrypt(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/guides/pipelines/personal-data.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "pii").write_bytes(KEYS["k1"] + b"\n")
    lines: dict[str, Any] = {}
    exec(code.replace("/run/secrets/pii", str(tmp_path / "pii")), lines)  # noqa: S102 - it is the guide's
    for item in ("a@b.org", "", "é", 1.5, 12345678901234567890, True, False):
        (hidden,) = values(ENCRYPT, json.dumps({"a": item}).encode())
        assert hidden is not None
        found = lines["decrypted"](json.loads(hidden)["a"])
        assert found == item and type(found) is type(item)
