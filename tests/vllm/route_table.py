"""Prints every route of the vLLM that runs this: a path and its methods a line, as JSON. Run by vLLM's own Python.

The application is built as the server builds it, with all that flags and variables can switch on. Routers that only another
kind of model or machine has are taken from their modules.
"""

import importlib
import json
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import vllm.entrypoints  # type: ignore[import-not-found]
from fastapi import APIRouter
from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore[import-not-found]
from vllm.entrypoints.openai.api_server import build_app  # type: ignore[import-not-found]
from vllm.tasks import SupportedTask  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

PROFILER = '{"profiler":"torch","torch_profiler_dir":"/nowhere"}'


def texts(annotation: Any) -> Iterator[str]:
    """The words of a Literal, or of a union of several."""
    for inner in get_args(annotation):
        yield from [inner] if isinstance(inner, str) else texts(inner)


def told(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for route in routes:
        path = prefix + getattr(route, "path", "")
        if path:
            yield path, " ".join(sorted(getattr(route, "methods", None) or []))
        yield from told(getattr(route, "routes", None) or [], path)


def routers() -> Iterator[APIRouter]:
    """Those of all modules that define some; a module that cannot be loaded here has none that could be served here."""
    for module in pkgutil.walk_packages(vllm.entrypoints.__path__, "vllm.entrypoints.", onerror=lambda _: None):
        if module.name.endswith("api_router"):
            found = importlib.import_module(module.name)
            yield from (value for value in vars(found).values() if isinstance(value, APIRouter))


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["--model", "none", "--enable-lora", "--profiler-config", PROFILER])
    app = build_app(args, tuple(texts(SupportedTask)))
    everything = {*told(app.routes), *(route for router in routers() for route in told(router.routes))}
    for route in sorted(everything):
        print(json.dumps(route))


if __name__ == "__main__":
    main()
