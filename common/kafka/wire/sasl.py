"""The client's side of SASL/PLAIN and SASL/SCRAM (RFC 4616, RFC 5802), as Kafka speaks them. Pure; bytes
travel elsewhere."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from common.config.wire_properties import PASSWORD_MECHANISMS

LEAST_ITERATIONS = 4096
"""RFC 7677's, which Kafka's brokers hold themselves to as well."""
MOST_ITERATIONS = 1_000_000
"""Half a second of a core. Who answers decides how long is computed, before it has proved anything: with two
milliards, for a quarter of an hour. Brokers with KRaft allow 16,384; older ones had no bound, so this is well
above what anybody has been told to set (600,000)."""


class Refused(Exception):
    """The broker's answer is not one of a broker that knows the password."""


class Client:
    """One authentication: `first`, then an answer to each of the broker's tokens until `done`."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self._hash = PASSWORD_MECHANISMS[mechanism]
        self._user, self._password = user, password
        self._nonce = secrets.token_urlsafe(24)
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._signature = b""
        self.done = False
        self.said = ""

    def first(self) -> bytes:
        if self._hash is None:
            self.done = True
            return f"\0{self._user}\0{self._password}".encode()
        return f"n,,{self._bare}".encode()

    def answer(self, token: bytes) -> bytes | None:
        """What to say to the broker's token; None where it was its last word, and the right one. Raises
        Refused."""
        fields = _fields(token)
        if "e" in fields:
            raise Refused(f"the broker says {fields['e']}")
        if self._signature:
            try:
                proof = base64.b64decode(fields["v"])
            except (KeyError, ValueError):
                raise Refused("the broker's last word can't be read") from None
            if not hmac.compare_digest(proof, self._signature):
                raise Refused("the broker can't prove that it knows the password")
            self.done = True
            return None
        return self._proof(token, fields)

    def _proof(self, token: bytes, fields: dict[str, str]) -> bytes:
        assert self._hash is not None
        try:
            nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"]), int(fields["i"])
        except (KeyError, ValueError):
            raise Refused("the broker's challenge can't be read") from None
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise Refused("the broker answers with another nonce")
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            few = "few" if iterations < LEAST_ITERATIONS else "many"
            raise Refused(f"the broker asks for {iterations} iterations, which are too {few}")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, iterations)
        client_key = self._mac(salted, b"Client Key")
        final = f"c=biws,r={nonce}"
        signed = b",".join([self._bare.encode(), token, final.encode()])
        signature = self._mac(hashlib.new(self._hash, client_key).digest(), signed)
        self._signature = self._mac(self._mac(salted, b"Server Key"), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _mac(self, key: bytes, text: bytes) -> bytes:
        assert self._hash is not None
        return hmac.new(key, text, self._hash).digest()


def _fields(token: bytes) -> dict[str, str]:
    pairs = (field.partition("=") for field in token.decode("utf-8", "replace").split(","))
    return {name: value for name, _, value in pairs}
