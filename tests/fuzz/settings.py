"""A configuration: any text of a file, and any variables of the environment."""

import tempfile
from pathlib import Path

from warmroute.config import Config, ConfigError, load, needs_restart

from .pieces import Case, Dice

_FILES = Path(__file__).parent.parent / "config"
_WHOLE = [path.read_bytes() for path in sorted(_FILES.glob("*.yaml"))] + [b"backends: [http://127.0.0.1:8000]\n"]
_KEYS = [
    b"%s:" % name.encode()
    for name in (*Config.model_fields, "url", "name", "weight", "key", "port", "keys", "ca", "cert", "verify")
]
_WORDS = [
    *_KEYS,
    b"\n",
    b"\n  ",
    b"\n    - ",
    b" ",
    b"- ",
    b"[",
    b"]",
    b"{",
    b"}",
    b", ",
    b": ",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!python/object:os.system ",
    b"!!binary ",
    b"? ",
    b"|\n",
    b"'",
    b'"',
    b"#",
    b"---\n",
    b"...\n",
    b"null",
    b"~",
    b"true",
    b"off",
    b"1h",
    b"2s",
    b"64MiB",
    b"-1",
    b".inf",
    b".nan",
    b"0x10",
    b"1_000",
    b"2026-01-01",
    b"http://a",
    b"https://b:8443/x",
    b"http://[::1]:1",
    b"http://a:99999",
    b"env:HOME",
    b"env:NONE_OF_THAT",
    b"file:/nowhere",
    b"file:/dev/null",
    b"sha256:00",
    b"\xff",
    b"\0",
    b"\xef\xbb\xbf",
    b"\t",
    b"[" * 300,
    b"redis://x",
    b"rediss://u:p@h/1?ssl_x=1",
    b"http://a:0",
    b"header:x-y",
    b"body:a.b",
    b"9" * 5000,
]
_NAMES = [
    "BACKENDS",
    "LISTEN__PORT",
    "LISTEN__KEYS",
    "LISTEN__HOST",
    "STORE__REDIS",
    "STORE__SECRET",
    "LISTEN",
    "AFFINITY__KEY_SOURCES",
    "UPSTREAM__CA",
    "LIMITS__BODY",
    "X",
    "__",
    "HEALTH__X__Y",
    "RESPONSE_HEADERS",
]


def build(dice: Dice) -> Case:
    """The file, and then name and value of each variable."""
    text = dice.text(dice.pick((_WHOLE, _WHOLE[-1:])), _WORDS)
    variables = [(dice.pick(_NAMES).encode(), dice.soup(_WORDS, 3)) for _ in range(dice.below(3))]
    return (text, *(part for pair in variables for part in pair))


class Target:
    """Loads it, as a start or a reload does: a configuration comes of it, or one line a fault."""

    name = "settings"
    share = 0.04

    def __init__(self) -> None:
        # In memory where there is such a place: this writes a file for each case.
        memory = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self._file = Path(self._folder.name) / "router.yaml"
        self._plain = Config.from_urls(["http://127.0.0.1:8000"])

    def close(self) -> None:
        self._folder.cleanup()

    build = staticmethod(build)

    def check(self, case: Case) -> None:
        text, *flat = case
        self._file.write_bytes(text)
        # What stands in a process's environment has no zero bytes, and comes as Python decodes it.
        values = [value.replace(b"\0", b"").decode("utf-8", "surrogateescape") for value in flat[1::2]]
        environment = {f"WARMROUTE_{name.decode()}": value for name, value in zip(flat[::2], values, strict=True)}
        try:
            config = load(self._file, environment=environment)
        except ConfigError as error:
            told = str(error)
        else:
            told = f"good, {len(config.specs)} backends"
            config.model_dump(mode="json")
            needs_restart(self._plain, config)
        assert told.strip()
        assert "Traceback" not in told
