"""What a client has taken, by a real socket's own figures."""

import asyncio
import socket
from itertools import pairwise

import pytest

from warmroute.proxy.taking import taken


@pytest.mark.parametrize("tls", [False, True], ids=["without TLS", "with TLS"])
async def test_it_grows_by_what_the_client_takes_and_by_nothing_else(tls: bool) -> None:
    """Also where the system's queue is filled up again from a buffer of ours that nobody can see, as under TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listening.getsockname())
        served, _ = listening.accept()
    served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, served)
    transport.write(b"x" * 1_000_000)

    def now() -> int:
        # Under TLS our own number says nothing of what is in the transport.
        return taken(transport, 0 if tls else transport.get_write_buffer_size(), tls)

    async def settled() -> int:
        before = now()
        async with asyncio.timeout(10):
            while await asyncio.sleep(0.1, now()) != before:
                before = now()
        return before

    begun = await settled()
    seen = [begun]
    took = 0
    while took < 300_000:
        took += len(await loop.sock_recv(client, 10_000))
        if len(seen) * 60_000 < took:
            seen.append(await settled())
    assert seen == sorted(seen)
    assert all(later - earlier > 20_000 for earlier, later in pairwise(seen))
    assert abs((seen[-1] - begun) - took) < 100_000
    transport.abort()
    client.close()
