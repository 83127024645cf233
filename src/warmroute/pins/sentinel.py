"""Where the primary is now, as sentinels tell it."""

import asyncio
from collections import Counter

import redis.exceptions as failures

from ..core.store_url import Node, StoreUrl
from .link import Op, StoreError
from .wire import call, told, wire_to


async def primaries(url: StoreUrl, timeout: float) -> list[Node]:
    """What the sentinels take for the primary, that of most first; all are asked at once, for `timeout` seconds.

    Some may be wrong for a while, so who uses a node has to see that it is a primary. Raises StoreError, the error of the
    first in the URL, if none says anything.
    """
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_primary(url, sentinel, timeout)) for sentinel in url.nodes]
    answers = [task.result() for task in asked]
    nodes = [answer for answer in answers if not isinstance(answer, StoreError)]
    if not nodes and isinstance(answers[0], StoreError):
        raise answers[0]
    return [node for node, _ in Counter(nodes).most_common()]


async def _primary(url: StoreUrl, sentinel: Node, timeout: float) -> Node | StoreError:
    wire = wire_to(url.sentinel, timeout, sentinel)
    try:
        with told(Op.CONNECT):
            async with asyncio.timeout(timeout):
                await wire.connect()
                answer = await call(wire, b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", url.service.encode())
                if not isinstance(answer, list) or len(answer) != 2:
                    raise failures.ResponseError(f"the sentinels know no service named {url.service}")
                return answer[0].decode(), int(answer[1])
    except StoreError as error:
        return error
    finally:
        await wire.disconnect(nowait=True)
