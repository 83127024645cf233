"""A certificate authority for tests, its certificates as files, and TLS contexts of both sides."""

import ssl
from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    """The paths of a certificate (with its chain) and of its key."""

    cert: str
    key: str


class Authority:
    """An authority whose own certificate is in `ca`, a file of `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._made = trustme.CA(organization_name=name)
        self._folder = folder
        self.ca = str(folder / f"{name}.pem")
        self._made.cert_pem.write_to_path(self.ca)

    def __repr__(self) -> str:
        return f"<Authority {self.ca}>"

    @property
    def text(self) -> str:
        """What its file holds."""
        return self._made.cert_pem.bytes().decode()

    def forget(self) -> None:
        """Remove its file."""
        Path(self.ca).unlink()

    def issue(self, *names: str, file: str = "server") -> Files:
        """A certificate for these names or addresses; files of the same name are written over."""
        leaf = self._made.issue_cert(*names, common_name=names[0])
        found = Files(str(self._folder / f"{file}.pem"), str(self._folder / f"{file}.key"))
        leaf.private_key_pem.write_to_path(found.key)
        Path(found.cert).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        return found

    def server(self, *names: str, wants_client: bool = False) -> ssl.SSLContext:
        """The context of a server for these names, by default for 127.0.0.1; it may want a certificate of ours."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._made.issue_cert(*(names or ("127.0.0.1",))).configure_cert(context)
        if wants_client:
            context.verify_mode = ssl.CERT_REQUIRED
            self._made.configure_trust(context)
        return context

    def client(self) -> ssl.SSLContext:
        """The context of a client that believes this authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._made.configure_trust(context)
        return context
