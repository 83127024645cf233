"""The routers that are compared: how each is started before some backends, and whether it is here."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .processes import ROOT, free_port

REFERENCE = "vllm-router"
"""The router that the others' ratios refer to."""

DIRECT = "direct"
"""No router at all: what backend and load generator reach by themselves, the bound of what can be seen of a router."""

PEER_VENV = ROOT / ".venv-bench"

_NGINX = """daemon off;
worker_processes 1;
pid {scratch}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  client_body_temp_path {scratch}/nginx-body;
  proxy_temp_path {scratch}/nginx-proxy;
  fastcgi_temp_path {scratch}/nginx-fastcgi;
  uwsgi_temp_path {scratch}/nginx-uwsgi;
  scgi_temp_path {scratch}/nginx-scgi;
  keepalive_requests 1000000000;
  upstream vllm {{
    hash $http_x_session_id consistent;
{servers}
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://vllm;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""

_HAPROXY = """global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  http-reuse always
  option http-no-delay
frontend api
  bind 127.0.0.1:{port} backlog 4096
  default_backend vllm
backend vllm
  balance hdr(x-session-id)
  hash-type consistent
{servers}
"""


@dataclass(frozen=True, slots=True)
class Start:
    """A router's command, and the port where its clients ask."""

    command: list[str]
    port: int


@dataclass(frozen=True, slots=True)
class Router:
    """One router. `start` makes its command for backends on these ports, with files in a scratch folder."""

    name: str
    package: str
    find: Callable[[], str | None]
    version: Callable[[str], str]
    start: Callable[[str, Sequence[int], Path], Start]


def _said(*command: str) -> str:
    """The version in what a command says of itself."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, cwd=ROOT)
    match = re.search(r"\d+(?:\.\d+)+", done.stdout + done.stderr)
    return match[0] if match else "of unknown version"


def _find_peer() -> str | None:
    own = PEER_VENV / "bin" / "vllm-router"
    return str(own) if own.exists() else shutil.which("vllm-router")


def _peer_version(command: str) -> str:
    code = "import importlib.metadata; print(importlib.metadata.version('vllm-router'))"
    python = Path(command).with_name("python")
    return _said(str(python), "-c", code) if python.exists() else "of unknown version"


def _debian(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def _urls(backends: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in backends]


def _warmroute(command: str, backends: Sequence[int], scratch: Path) -> Start:
    port, admin = free_port(), free_port()
    words = [command, "-m", "warmroute", "serve", *_urls(backends)]
    return Start([*words, "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin)], port)


def _vllm_router(command: str, backends: Sequence[int], scratch: Path) -> Start:
    port, metrics = free_port(), free_port()
    words = [command, "--policy", "consistent_hash", "--worker-urls", *_urls(backends)]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    return Start([*words, "--host", "127.0.0.1", "--port", str(port)], port)


def _nginx(command: str, backends: Sequence[int], scratch: Path) -> Start:
    port = free_port()
    servers = "\n".join(f"    server 127.0.0.1:{backend};" for backend in backends)
    file = scratch / "nginx.conf"
    file.write_text(_NGINX.format(scratch=scratch, port=port, servers=servers))
    return Start([command, "-e", "stderr", "-c", str(file)], port)


def _haproxy(command: str, backends: Sequence[int], scratch: Path) -> Start:
    port = free_port()
    servers = "\n".join(f"  server vllm{i} 127.0.0.1:{backend}" for i, backend in enumerate(backends))
    file = scratch / "haproxy.cfg"
    file.write_text(_HAPROXY.format(port=port, servers=servers))
    return Start([command, "-db", "-f", str(file)], port)


ROUTERS = {
    router.name: router
    for router in (
        Router(
            "warmroute",
            "this package",
            lambda: sys.executable,
            lambda command: _said(command, "-m", "warmroute", "--version"),
            _warmroute,
        ),
        Router(
            REFERENCE,
            "`make .venv-bench/.installed-0.1.17` installs it",
            _find_peer,
            _peer_version,
            _vllm_router,
        ),
        Router("nginx", "Debian package nginx", lambda: _debian("nginx"), lambda command: _said(command, "-v"), _nginx),
        Router(
            "haproxy",
            "Debian package haproxy",
            lambda: _debian("haproxy"),
            lambda command: _said(command, "-v"),
            _haproxy,
        ),
    )
}
