"""How TLS is spoken on connections of Verbatim's own, from a client's properties. Opens nothing."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException

_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Linux distributions keep the certificates of public authorities: Debian, Fedora, RHEL, SUSE,
Alpine."""


def context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """Raises KafkaException where a file can't be read, or a rule can't be followed."""
    try:
        made = ssl.create_default_context(**authorities(config))
        if str(config.get("ssl.endpoint.identification.algorithm", "https")) == "none":
            made.check_hostname = False
        if str(config.get("enable.ssl.certificate.verification", "true")).lower() == "false":
            made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        _follow_rules(made, config)
        with contextlib.ExitStack() as files:
            chain, key = (_pem_file(config, f"ssl.{what}", files) for what in ("certificate", "key"))
            if chain is not None:
                made.load_cert_chain(chain, key, lambda: _key_password(config))
    except (OSError, ValueError) as error:
        raise KafkaException(KafkaError(KafkaError._SSL, f"TLS can't be set up: {error}")) from None
    return made


def _follow_rules(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    if suites := config.get("ssl.cipher.suites"):
        try:
            context.set_ciphers(str(suites))
        except ssl.SSLError:
            raise ValueError(f"ssl.cipher.suites: none of {suites} can be used") from None
    if curve := config.get("ssl.curves.list"):
        try:
            context.set_ecdh_curve(str(curve))
        except (ValueError, ssl.SSLError):
            raise ValueError(f"ssl.curves.list: {curve} is not one curve that Python knows") from None
    if place := config.get("ssl.crl.location"):
        if not Path(str(place)).is_file():
            raise ValueError(f"ssl.crl.location: there is no {place}")
        context.load_verify_locations(str(place))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def authorities(config: Mapping[str, Any]) -> dict[str, Any]:
    """Whose certificates are trusted, as `ssl.create_default_context` takes it: a file, a folder of hashed
    names, a PEM, or the machine's own."""
    place = config.get("ssl.ca.location")
    if place is not None and place != "probe":
        if not Path(place).exists():
            raise OSError(f"ssl.ca.location: there is no {place}")
        return {"capath" if Path(place).is_dir() else "cafile": place, "cadata": config.get("ssl.ca.pem")}
    if "ssl.ca.pem" in config:
        return {"cadata": config["ssl.ca.pem"]}
    own = ssl.get_default_verify_paths()
    found = next((path for path in (own.cafile, *_CA_FILES) if path and Path(path).is_file()), None)
    return {} if found is None else {"cafile": found}


def _key_password(config: Mapping[str, Any]) -> str:
    """Asked for where the key is encrypted; without an answer OpenSSL would ask whoever sits at the
    terminal."""
    if (password := config.get("ssl.key.password")) is None:
        raise ValueError("the key is encrypted, and ssl.key.password is not set")
    return str(password)


def _pem_file(config: Mapping[str, Any], name: str, files: contextlib.ExitStack) -> str | None:
    """Where a PEM lies; Python's TLS takes it from files only."""
    if (pem := config.get(f"{name}.pem")) is None:
        return config.get(f"{name}.location")
    folder = files.enter_context(tempfile.TemporaryDirectory(prefix="verbatim-"))
    path = Path(folder) / "it.pem"
    path.touch(mode=0o600)
    path.write_text(pem)
    return str(path)
