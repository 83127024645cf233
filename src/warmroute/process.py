"""A router as a process of its own: signals, and what systemd is told."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

from .app import Router
from .config import Config
from .notify import Notifier
from .observe.writer import BackgroundWriter
from .tuning import raise_descriptor_limit, settle_memory

log = logging.getLogger("warmroute")


async def serve(config: Config, log_stream: BackgroundWriter, read: Callable[[], Config]) -> None:
    """Run until SIGTERM or SIGINT; a second one ends at once. SIGHUP reloads what `read` gives. Raises StartError.

    After SIGTERM requests are still taken for `limits.pre_drain`, since it comes from what also tells a balancer. SIGINT comes
    from a keyboard, where somebody waits.
    """
    raise_descriptor_limit()
    router = kind_for(config)(config, log_stream, read)
    end = _listen_to_signals(router)
    notifier = Notifier.of_this_process(time.monotonic)
    router.on_reload = notifier.reloading
    with notifier:
        async with router:
            if end.done():
                return
            found = (f"discovery.{source}" for source in config.discovery.sources)
            names = ", ".join([*(spec.name for spec in config.specs), *found])
            print(f"warmroute: {router.data_url} -> {names}", file=sys.stderr)
            print(f"warmroute: dashboard at {router.admin_url}/", file=sys.stderr, flush=True)
            if config.listen.is_open:
                log.warning(
                    "who can reach %s can use the models: set listen.keys, or let only a proxy that asks for keys reach it",
                    router.data_url,
                )
            settle_memory()
            notifier.ready(f"{router.data_url} -> {names}")
            number, limits = await end, router.config.limits
            pre_drain = limits.pre_drain if number is signal.SIGTERM else 0.0
            taken = f"requests are taken for {pre_drain:g} s more, then " if pre_drain else ""
            told = f"{taken}those that run have {limits.shutdown:g} s to end"
            notifier.stopping(told)
            log.info("%s: %s; a second signal ends them now", number.name, told)
            if pre_drain:
                await router.pre_drain()


def kind_for(config: Config) -> type[Router]:
    """What several processes need is loaded only for them."""
    if config.listen.workers == 1:
        return Router
    from .workers.supervisor import Supervisor

    return Supervisor


def _listen_to_signals(router: Router) -> asyncio.Future[signal.Signals]:
    """The first signal that wants an end. It is heard from here on, while the router still starts too."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[signal.Signals] = loop.create_future()

    def signalled(number: signal.Signals) -> None:
        if end.done():
            router.hurry()
        else:
            end.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(signalled, number))
    loop.add_signal_handler(signal.SIGHUP, router.ask_for_reload)
    return end
