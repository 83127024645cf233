"""The admin routes by which backends are added and removed by hand."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, ConfigDict

from ..discovery.members import MemberError

Add = Callable[[dict[str, object]], Awaitable[dict[str, object]]]
Remove = Callable[[str, bool], Awaitable[dict[str, object]]]


class Wish(BaseModel):
    """A backend as the configuration names it, but for its key: one that is added by hand has that of `upstream.key`."""

    model_config = ConfigDict(extra="forbid")

    url: str
    name: str | None = None
    weight: float | None = None


def add(app: FastAPI, add_backend: Add, remove_backend: Remove) -> None:
    """Give the application its routes."""

    @app.post("/api/backends")
    async def add_one(wish: Wish) -> dict[str, object]:
        """Use one backend more, from its first check on, until it is removed or the router ends."""
        try:
            return await add_backend(wish.model_dump(exclude_none=True))
        except MemberError as error:
            raise HTTPException(409, str(error)) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None

    @app.post("/api/backends/{name:path}/remove")
    async def remove_one(name: str, now: Annotated[str | None, Query()] = None) -> dict[str, object]:
        """Drain the backend and then forget it; with `?now` at once, when its conversations move at their next turn."""
        try:
            return await remove_backend(name, now is not None and now.lower() not in ("0", "false", "no"))
        except MemberError as error:
            raise HTTPException(404 if error.unknown else 409, str(error)) from None
