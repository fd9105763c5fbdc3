"""An authority that issues TLS certificates, made for one test, and what it issues, as PEM."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from verbatim.local.processes import HOST


class Authority:
    """`pem`: its certificate."""

    def __init__(self, name: str = "authority") -> None:
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self._signed(self._name, self._key.public_key(), True)

    @property
    def hashed_name(self) -> str:
        """How OpenSSL finds the certificate in a folder: by the canonical form of its name, which for one in
        lower case is its encoding without the outer tag."""
        digest = hashlib.sha1(self._name.public_bytes()[2:], usedforsecurity=False).digest()
        return f"{int.from_bytes(digest[:4], 'little'):08x}.0"

    def issue(self, name: str, password: str = "") -> tuple[str, str]:
        """A key, encrypted where there is a password, and the certificate for it, good for this machine's
        address."""
        key = ec.generate_private_key(ec.SECP256R1())
        hidden = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden).decode()
        return private, self._signed(_named(name), key.public_key(), False)

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, authority: bool) -> str:
        now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
        made = x509.CertificateBuilder(
            self._name, subject, key, x509.random_serial_number(), now - day, now + day
        ).add_extension(x509.BasicConstraints(authority, None), True)
        if not authority:
            here = x509.IPAddress(ipaddress.ip_address(HOST))
            made = made.add_extension(x509.SubjectAlternativeName([here]), False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _named(what: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, what)])
