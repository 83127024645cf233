"""Prints every endpoint of the vLLM that runs this which takes a form: its path and its fields a line, as JSON. Run by vLLM's
own Python."""

import json
from collections.abc import Iterator

from fastapi import params
from fastapi.routing import APIRoute

from tests.vllm.route_table import routers


def told() -> Iterator[tuple[str, list[str]]]:
    for router in routers():
        for route in router.routes:
            if not isinstance(route, APIRoute):
                continue
            for field in route.dependant.body_params:
                if isinstance(field.field_info, params.Form):
                    model = field.field_info.annotation
                    inner = getattr(model, "model_fields", None)
                    names = [f.alias or name for name, f in inner.items()] if inner is not None else [field.alias]
                    yield route.path, names


if __name__ == "__main__":
    for found in told():
        print(json.dumps(found))
