"""Load of whole JSON answers by wrk, which takes less CPU than the benchmark's own generator and so hides less."""

import json
import shutil
from pathlib import Path

from .loadgen import SESSIONS
from .processes import BenchError, output_of

_GRACE_S = 30.0
_MARK = "figures: "
_SCRIPT = """-- Requests of all sessions, made once; at the end the figures as JSON.
local file = io.open(os.getenv("BENCH_BODY"), "rb")
local body = file:read("*a")
file:close()
local requests, sent = {}, 0

function init(args)
  for i = 0, SESSIONS - 1 do
    local headers = {["content-type"] = "application/json", ["x-session-id"] = "s" .. i}
    requests[i] = wrk.format("POST", "/v1/chat/completions", headers, body)
  end
end

function request()
  sent = sent + 1
  return requests[sent % SESSIONS]
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '\\nMARK{"requests": %d, "failed": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f}\\n',
    summary.requests - e.status, e.connect + e.read + e.write + e.status + e.timeout, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""


def available() -> bool:
    return shutil.which("wrk") is not None


def run(port: int, body: Path, connections: int, seconds: int, cpu: int, scratch: Path) -> dict[str, float]:
    """Put the load on a port of the loopback from one CPU; the figures by the names that `loadgen` uses.

    `seconds` are whole ones, as wrk wants them. Raises BenchError.
    """
    script = scratch / "wrk.lua"
    script.write_text(_SCRIPT.replace("SESSIONS", str(SESSIONS)).replace("MARK", _MARK))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}"]
    said = output_of(command, cpu, seconds + _GRACE_S, {"BENCH_BODY": str(body)})
    line = next((line for line in said.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        raise BenchError(f"wrk printed no figures: {said.strip()[-400:]}")
    found: dict[str, float] = json.loads(line.removeprefix(_MARK))
    return found
