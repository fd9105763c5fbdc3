"""The method `encrypt` of masks: deterministic AES-SIV (RFC 5297), and the way back. Needs the extra
`encrypt`. Pure.

What is encrypted of a text, or of bytes that are no JSON, is a double quote and these; of any other scalar
its JSON, which never begins with one. So what comes back is what there was, and equal texts are equal
wherever they stand. Fields may move behind a mask, so neither topic nor path is part of it: to decrypt, the
key is all that is needed.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from common.errors import SettingsError
from common.pipeline.definition import key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

FORMAT = b"siv1"
"""What a ciphertext begins with. Then follow the key's id and, base64url without padding, what AES-SIV has
made, the synthetic IV in front; dots stand between."""
TEXT = b'"'
_TOKEN = rb"siv1\.([0-9a-f]{16})\.[A-Za-z0-9_-]{23,}"
_PLACES = re.compile(rb'(?<!\\)"%b"|\\"%b\\"|%b' % (_TOKEN, _TOKEN, _TOKEN))
_KEY = re.compile(rb"(?:[0-9a-fA-F]{64}|[0-9a-fA-F]{96}|[0-9a-fA-F]{128})")


def is_key(key: bytes) -> bool:
    """Whether it is one for AES-SIV, as a key's file has it."""
    return _KEY.fullmatch(key) is not None


class Cipher:
    """A key, ready."""

    def __init__(self, key: bytes, label: str) -> None:
        """`key`: as its file has it. `label`: of an error. Raises SettingsError."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        except ImportError:
            raise SettingsError(
                f"{label}: encrypt needs the extra encrypt: install verbatim-kafka[encrypt]"
            ) from None
        if not is_key(key):
            raise SettingsError(
                f"{label} is none for encrypt: 64, 96 or 128 hexadecimal digits are expected, as `openssl rand -hex 64`"
                f" makes them; it has {len(key)} bytes"
            )
        self._siv: AESSIV = AESSIV(bytes.fromhex(key.decode()))
        self.key_id = key_id(key).encode()
        self._head = b"%b.%b" % (FORMAT, self.key_id)

    def encrypt(self, plain: bytes) -> bytes:
        sealed = urlsafe_b64encode(self._siv.encrypt(plain, [self._head]))
        return b"%b.%b" % (self._head, sealed.rstrip(b"="))

    def decrypt(self, token: bytes) -> bytes:
        """Raises ValueError where the key has not made it so."""
        from cryptography.exceptions import InvalidTag

        head, _, sealed = token.rpartition(b".")
        try:
            return self._siv.decrypt(urlsafe_b64decode(sealed + b"=" * (-len(sealed) % 4)), [head])
        except InvalidTag:
            raise ValueError("it was not made with this key, or was changed since") from None


class Opener:
    """Puts back what was encrypted, wherever it stands in bytes. `opened`, `changed`: how many, and how many
    the key does not open; `unknown`: ids of keys that are not there. These two stay as they are."""

    def __init__(self, ciphers: Iterable[Cipher]) -> None:
        self._ciphers = {cipher.key_id: cipher for cipher in ciphers}
        self.opened = self.changed = 0
        self.unknown: dict[str, int] = {}

    def open(self, line: bytes) -> bytes:
        """In quotes it was JSON, and becomes that; in quotes with a backslash, JSON within a text of JSON."""
        return _PLACES.sub(self._put_back, line)

    def _put_back(self, match: re.Match[bytes]) -> bytes:
        there, its_id = match[0], next(filter(None, match.groups()))
        if (cipher := self._ciphers.get(its_id)) is None:
            self.unknown[its_id.decode()] = self.unknown.get(its_id.decode(), 0) + 1
            return there
        try:
            plain = cipher.decrypt(there.strip(b'\\"'))
        except ValueError:
            self.changed += 1
            return there
        self.opened += 1
        if not there.endswith(b'"'):
            return plain.removeprefix(TEXT)
        json = _written(plain.removeprefix(TEXT)) if plain.startswith(TEXT) else plain
        return _written(json)[1:-1] if there.startswith(b"\\") else json


def _written(text: bytes) -> bytes:
    """A text as JSON."""
    return msgspec.json.encode(text.decode(errors="backslashreplace"))
