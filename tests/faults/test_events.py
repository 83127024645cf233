"""Event streams keep their bytes and their pace, wherever a write is cut."""

import asyncio
import hashlib
import random

from warmroute.app import Router

from ..integration.conftest import until
from ..integration.scripted import RawClient, Talk, token
from .backend import FaultyBackend, everywhere, stream, turn
from .conftest import LONG

PIECES = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b": ping\n",
    b"\n",
    b"event: del",
    b"ta\nid: 1\n",
    b'data: {"t":"\xe4',  # one byte of three
    b'\xbd\xa0\xe5\xa5\xbd"}\n\n',
    b'data: {"t":"\xf0\x9f',  # two bytes of four
    b'\x8e\x89"}\r',  # and half of a line's end
    b"\n\r",
    b"\n",
    b"data:no space\n\n",
    b"data: a\ndata: b\nda",
    b"ta: c\n\nretry: 100\n\n",
    b"data: " + b"y" * 300_000 + b"\n\n",
    b"data: [DONE]",
    b"\n\n",
)


class TestEventBytes:
    async def test_each_write_reaches_the_client_before_the_next_one_is_made(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        """Were a part of an event held back, the backend would wait for ever."""
        seen = asyncio.Semaphore(0)

        async def in_step(talk: Talk) -> None:
            talk.stream_head()
            for piece in PIECES:
                talk.chunk(piece)
                await talk.drain()
                await seen.acquire()
            talk.end()

        everywhere(backends, in_step)
        got = b""
        async with asyncio.timeout(5 * LONG), await RawClient.connect(router.data_url) as client:
            client.post({"model": "m", "stream": True})
            await client.head()
            for piece in PIECES:
                wanted = len(got) + len(piece)
                while len(got) < wanted:
                    got += await client.chunk()
                seen.release()
            assert await client.chunk() == b""
        assert got == b"".join(PIECES)

    async def test_any_cuts_give_the_same_bytes(self, router: Router, backends: list[FaultyBackend]) -> None:
        """Held parts before the first content included: comments, a role chunk, all kinds of line ends."""
        chance = random.Random(7)
        begin = b': ping\r\n\r\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n: again\n\n'
        text = begin + b"".join(PIECES).replace(b"y" * 300_000, b"y" * 900)
        cuts: list[int] = []

        async def cut(talk: Talk) -> None:
            talk.stream_head()
            for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
                talk.chunk(text[start:end])
                await talk.drain()
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
            talk.end()

        everywhere(backends, cut)
        wanted = hashlib.sha256(text).digest()
        async with await RawClient.connect(router.data_url) as client:
            for _ in range(40):
                cuts = sorted(chance.sample(range(1, len(text)), chance.randint(1, 30)))
                reply = await client.chat("s", stream=True)
                assert (hashlib.sha256(reply.body).digest(), reply.whole) == (wanted, True), cuts

    async def test_chunks_in_odd_writes_give_the_same_bytes(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        """The framing is cut too: sizes in two writes, several chunks in one, extensions, upper-case digits, zeros."""
        chance = random.Random(11)
        events = [b"data: %d %b\n\n" % (i, b"z" * chance.randint(0, 40)) for i in range(40)]
        forms = (b"%x\r\n%b\r\n", b"%X\r\n%b\r\n", b"000%x\r\n%b\r\n", b"%x;a=b\r\n%b\r\n")
        framed = b""

        async def cut(talk: Talk) -> None:
            talk.stream_head()
            at = 0
            while at < len(framed):
                size = chance.randint(1, 60)
                talk.send(framed[at : at + size])
                await talk.drain()
                await asyncio.sleep(0)
                at += size

        everywhere(backends, cut)
        async with await RawClient.connect(router.data_url) as client:
            for _ in range(25):
                framed = b"".join(chance.choice(forms) % (len(e), e) for e in events) + b"0\r\n\r\n"
                reply = await client.chat("s", stream=True)
                assert (reply.body, reply.whole) == (b"".join(events), True)

    async def test_the_first_content_waits_for_nothing_behind_it(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        """What comes before it is held, since another backend may still answer; from there on all is passed at once."""
        read = asyncio.Event()

        async def one_then_wait(talk: Talk) -> None:
            talk.stream_head()
            talk.chunk(b": ping\n\n")
            talk.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            talk.event(token("a"))
            await talk.drain()
            await read.wait()
            talk.end()

        everywhere(backends, one_then_wait)
        async with asyncio.timeout(1 * LONG), await RawClient.connect(router.data_url) as client:
            client.post({"model": "m", "stream": True})
            await client.head()
            assert (await client.chunk()).startswith(b": ping\n\n")
            read.set()
            while await client.chunk():
                pass


async def test_hundreds_of_streams_at_once(router: Router, backends: list[FaultyBackend]) -> None:
    """All run at the same time, all end whole, and nothing of them stays."""
    together = asyncio.Event()

    async def wait(talk: Talk) -> None:
        if sum(b.running for b in backends) == 300:
            together.set()
        await together.wait()
        await stream(talk)

    everywhere(backends, wait)
    async with asyncio.timeout(15 * LONG):
        replies = await asyncio.gather(*(turn(router.data_url, f"s{i}", stream=True) for i in range(300)))
    assert all(reply.whole and reply.body.endswith(b"[DONE]\n\n") for reply in replies)
    await until(lambda: all(b.in_flight == 0 for b in router.registry.backends.values()))
    assert max(b.most_running for b in backends) <= 100 + 1
