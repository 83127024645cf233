"""Certificates, keys and authorities out of their files: at the start, and anew at every reload."""

import hashlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ..core.model import SYSTEM, Trust
from .load import ConfigError
from .schema import Config

ALPN = ["http/1.1"]
"""The one protocol that is spoken, in both directions."""

_FAULTS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "BAD_BASE64_DECODE": "not PEM: what stands between BEGIN and END is no base64",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short for this system's OpenSSL",
    "CA_MD_TOO_WEAK": "the certificate is signed with a digest that is too weak for this system's OpenSSL",
}


class Contexts(Mapping[Trust, ssl.SSLContext]):
    """A context for each kind of trust. That in the system alone is made when it is first asked for, since it takes 20 ms,
    and backends that are found while the router runs may want it."""

    def __init__(self, made: dict[Trust, ssl.SSLContext]) -> None:
        self._made = made

    def __repr__(self) -> str:
        return f"<Contexts of {len(self)} kinds of trust>"

    def __getitem__(self, trust: Trust) -> ssl.SSLContext:
        if trust == SYSTEM and trust not in self._made:
            self._made[trust] = client_context(SYSTEM)
        return self._made[trust]

    def __iter__(self) -> Iterator[Trust]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


class _Locked(Exception):
    """A private key wants a passphrase."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the files held: a context for each kind of trust that backends want, and for each listener that speaks TLS.

    `read` is a digest of what was read for each kind of trust.
    """

    backends: Contexts
    read: Mapping[Trust, bytes] = field(repr=False)
    data: ssl.SSLContext | None
    admin: ssl.SSLContext | None


def read_certificates(config: Config, before: Certificates | None = None) -> Certificates:
    """Everything over TLS that a configuration wants. Raises ConfigError, which names key and file.

    Contexts of `before` whose files hold what they held are kept, and with them the connections that were made by them.
    """
    names = {spec.trust: f"ca of backend {spec.name}" for spec in reversed(config.specs) if spec.tls}
    # Backends that are found while the router runs are known by what is said of all.
    names[config.upstream.trust] = "upstream.ca"
    made: dict[Trust, ssl.SSLContext] = {}
    read: dict[Trust, bytes] = {}
    for trust, name in names.items():
        read[trust] = _digest(trust, name)
        known = before is not None and before.read.get(trust) == read[trust]
        if before is not None and known and trust in before.backends:
            made[trust] = before.backends[trust]
        elif trust != SYSTEM:
            made[trust] = client_context(trust)
    listen = config.listen
    return Certificates(
        Contexts(made),
        read,
        data=_server_context("listen.cert", listen.cert, listen.cert_key),
        admin=_server_context("listen.admin_cert", listen.admin_cert, listen.admin_cert_key),
    )


def with_certificates(read: Callable[[], Config], before: Certificates) -> tuple[Config, Certificates]:
    """What `read` gives, and the certificates that it wants. Raises ConfigError."""
    config = read()
    return config, read_certificates(config, before)


def client_context(trust: Trust) -> ssl.SSLContext:
    """What connections to servers are made with. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=trust.ca)
    except ssl.SSLError as error:
        _refuse(trust.ca, error)
    except OSError as error:
        raise ConfigError(f"{trust.ca}: {error.strerror}") from None
    if not trust.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if trust.cert is not None:
        _load(context, trust.cert, trust.cert_key)
    return _ours(context)


def _server_context(name: str, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """What clients connect to; None without a certificate. Raises ConfigError."""
    if cert is None:
        return None
    for file, of in ((cert, name), (key, f"{name}_key")):
        if file is not None:
            _content(of, file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, cert, key)
    return _ours(context)


def command_context(url: str) -> ssl.SSLContext:
    """What a command connects with: the system's authorities, or those of the environment's SSL_CERT_FILE."""
    return ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def command_cure(error: Exception) -> str:
    """What to do when a command does not believe a certificate."""
    if "match" in str(error):
        return "ask for it by a name that its certificate holds"
    return "name the file of its authority in the environment variable SSL_CERT_FILE"


def unverified(config: Config) -> list[str]:
    """The backends whose certificate nobody looks at."""
    return [spec.name for spec in config.specs if spec.tls and not spec.trust.verify]


def _ours(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    return context


def _load(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Take a certificate and its key, which may stand in one file. Raises ConfigError."""
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except _Locked:
        raise ConfigError(
            f"{key or cert}: the key is locked by a passphrase; write it without one (openssl pkey -in {key or cert})"
        ) from None
    except ssl.SSLError as error:
        _refuse(cert if key is None else f"{cert} with {key}", error)
    except OSError as error:
        raise ConfigError(f"{cert}: {error.strerror}") from None


def _no_passphrase() -> NoReturn:
    raise _Locked


def _refuse(files: str | None, error: ssl.SSLError) -> NoReturn:
    reason = error.reason or ""
    told = _FAULTS.get(reason) or (reason.replace("_", " ").lower() or "no certificate and key in PEM are there")
    raise ConfigError(f"{files}: {told}") from None


def _digest(trust: Trust, ca_key: str) -> bytes:
    """Of all that a context is made of. Raises ConfigError if a file cannot be read."""
    digest = hashlib.sha256()
    for key, file in ((ca_key, trust.ca), ("upstream.cert", trust.cert), ("upstream.cert_key", trust.cert_key)):
        digest.update(hashlib.sha256(b"" if file is None else _content(key, file)).digest())
    return digest.digest()


def _content(key: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} {file}: {error.strerror}") from None
