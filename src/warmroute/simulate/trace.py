"""Traces in Mooncake's format: a JSON object a line, with the hash of each block of the prompt and no text."""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from .workload import Request, Workload, name

BLOCK_SIZE = 512
"""Tokens in a block of the traces that were published with Mooncake (FAST'25)."""


class TraceError(Exception):
    """A trace that cannot be used. The text is one line and says which line is wrong, and how."""


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: list[int]


def read_trace(lines: Iterable[bytes], *, title: str = "trace", block_size: int = BLOCK_SIZE) -> Workload:
    """The requests of a trace: `timestamp` in milliseconds, `input_length` and `output_length` in tokens, `hash_ids`.

    There is an id for each block of the prompt, the last of which may not be full. An id is taken together with those
    before it, as vLLM takes a block's hash, so ids need not be unique by themselves. Requests that are out of order are put
    in order. Raises TraceError.
    """
    decoder = msgspec.json.Decoder(_Line)
    known: dict[tuple[int, int], int] = {}
    requests = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(f"line {number} is no request: {error}") from None
        needed = -(-line.input_length // block_size)
        if len(line.hash_ids) != needed:
            raise TraceError(
                f"line {number}: {len(line.hash_ids)} hash_ids, but {line.input_length} tokens are {needed} blocks of "
                f"{block_size}; give --block-size if this trace has blocks of another size"
            )
        chain = []
        at = 0
        for block in line.hash_ids[: line.input_length // block_size]:
            at = known.setdefault((at, block), len(known) + 1)
            chain.append(name(at))
        requests.append(Request(line.timestamp / 1000, line.input_length, max(1, line.output_length), tuple(chain)))
    if not requests:
        raise TraceError("no request in it")
    return Workload(title, block_size, sorted(requests, key=lambda request: request.at))
