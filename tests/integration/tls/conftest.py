"""A router that speaks TLS; every test runs on the loop of the standard library and on the one that routers run on."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml

from warmroute.app import Router
from warmroute.config import load
from warmroute.process import kind_for

from ...authority import Authority, Files
from ..conftest import FAST, until, up
from ..scripted import RawClient, Scripted


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Secure:
    """A router over TLS, its configuration's file, its certificate, and who vouches for that."""

    def __init__(
        self, router: Router, authority: Authority, files: Files, file: Path, sections: dict[str, Any]
    ) -> None:
        self.router, self.authority, self.files, self.file, self.sections = router, authority, files, file, sections
        self.trusting = authority.client()

    async def connect(self, tls: ssl.SSLContext | None = None, receive_buffer: int | None = None) -> RawClient:
        return await RawClient.connect(self.router.data_url, receive_buffer, tls or self.trusting)

    def write(self, **listen: object) -> None:
        """Write the configuration anew, with other keys of `listen`."""
        whole = {**self.sections, "listen": {**self.sections["listen"], **listen}}
        self.file.write_text(yaml.safe_dump(whole))


StartSecure = Callable[..., Awaitable[Secure]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def start_secure(
    stack: AsyncExitStack, backends: list[Scripted], authority: Authority, tmp_path: Path
) -> StartSecure:
    async def start(**sections: Any) -> Secure:
        files, file = authority.issue("127.0.0.1", "localhost"), tmp_path / "router.yaml"
        listen = {"cert": files.cert, "cert_key": files.key, **FAST["listen"], **sections.pop("listen", {})}
        whole = {**FAST, **sections, "listen": listen, "backends": [b.url for b in backends]}
        file.write_text(yaml.safe_dump(whole))
        read = partial(load, file, environment={})
        router = await stack.enter_async_context(kind_for(read())(read(), read=read))
        await until(lambda: up(router) == len(backends) and all(b.models for b in router.registry.backends.values()))
        return Secure(router, authority, files, file, whole)

    return start


@pytest.fixture
async def secure(start_secure: StartSecure) -> Secure:
    return await start_secure()
