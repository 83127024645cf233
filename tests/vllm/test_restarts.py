"""Real vLLM servers are killed under steady clients, one and then all: no request fails, and all are soon served again."""

import asyncio
import statistics
from pathlib import Path

from tests.vllm.conftest import StartServers
from tests.vllm.killing import all_at_once, one_after_the_other, routed


async def test_nobody_notices_a_killed_server_and_all_are_served_again(
    vllm_servers: StartServers, tmp_path: Path
) -> None:
    servers = await asyncio.to_thread(vllm_servers, 3)
    with routed("warmroute", servers, tmp_path) as router:
        turns = await one_after_the_other(router, servers, seconds=20, kills=1, compared=60)
        print(turns)
        assert turns.failures + turns.failures_unbroken == []
        assert [r.ran > 0 and r.served_again is not None for r in turns.restarts] == [True]
        assert sum(turns.told.values()) > 0
        assert {name for name in turns.told if name.startswith("broken_streams")} <= {"broken_streams: resumed"}
        assert turns.compared_met > 0
        # On a CPU what else is in the batch changes a word now and then, with and without deaths.
        assert turns.equal >= turns.equal_unbroken - turns.compared // 20

        outage = await all_at_once(router, servers, down=5)
        print(outage)
        assert outage.dead.latencies
        assert set(outage.dead.statuses) | set(outage.starting.statuses) == {"503"}
        assert "none" not in outage.dead.retry_after | outage.starting.retry_after
        assert statistics.median(outage.dead.latencies) < 0.1
        assert outage.back < 5
