"""A router as a process of its own: signals, descriptors, memory."""

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Callable

from .app import Router
from .config import Config
from .observe.writer import BackgroundWriter


async def serve(config: Config, log_stream: BackgroundWriter, read: Callable[[], Config]) -> None:
    """Run until SIGTERM or SIGINT; a second one ends at once. SIGHUP reloads what `read` gives. Raises StartError."""
    _raise_descriptor_limit()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with Router(config, log_stream, read) as router:

        def signalled() -> None:
            if ended.is_set():
                router.hurry()
            ended.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled)
        loop.add_signal_handler(signal.SIGHUP, router.ask_for_reload)
        names = ", ".join(spec.name for spec in config.specs)
        print(f"warmroute: {router.data_url} -> {names}", file=sys.stderr)
        print(f"warmroute: dashboard at {router.admin_url}/", file=sys.stderr, flush=True)
        _settle_memory()
        await ended.wait()


def _raise_descriptor_limit() -> None:
    """Take as many file descriptors as the system gives: a stream needs two, and many systems begin with 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle_memory() -> None:
    """Let the garbage collector leave alone what lives as long as the process, and look at the rest less often.

    With the defaults it took a sixth of the time of every request: a request makes some hundred objects and frees them by
    reference count alone, since nothing on its path is cyclic.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
