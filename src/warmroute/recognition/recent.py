"""A bounded map that forgets what nobody has used for a while."""

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Two plain dicts: entries are put into the young one, which becomes the old one when time or room is over.

    An entry lives for `expiry` to twice `expiry` seconds after it was last put; at most `limit` are held, and of those
    that lack of room took away `evicted` is the number. That costs less than half the memory of a map in order of use.
    Times are seconds of `clock`, which must not jump.
    """

    def __init__(self, clock: Callable[[], float], *, expiry: float, limit: int) -> None:
        self._clock = clock
        self._expiry = expiry
        self._half = max(1, limit // 2)
        self._keeps_old = limit > 1
        self._young: dict[bytes, Value] = {}
        self._old: dict[bytes, Value] = {}
        self._born = clock()
        self.evicted = 0

    def __repr__(self) -> str:
        return f"<Recent {len(self)} entries, {self.evicted} evicted>"

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: bytes) -> Value | None:
        """An entry; looking does not keep it longer."""
        if self._clock() - self._born >= self._expiry:
            self._age()
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def renew(self, key: bytes) -> Value | None:
        """An entry, which is held from now on as if it were put again."""
        found = self._young.get(key)
        if found is None or self._clock() - self._born >= self._expiry:
            found = self.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: bytes, value: Value) -> None:
        """Hold an entry, and from now on for `expiry` at least, if there is room."""
        if self._clock() - self._born >= self._expiry:
            self._age()
        self._old.pop(key, None)
        if len(self._young) >= self._half and key not in self._young:
            self.evicted += len(self._old) if self._keeps_old else len(self._young)
            self._turn()
        self._young[key] = value

    def _age(self) -> None:
        while self._young or self._old:
            if self._clock() - self._born < self._expiry:
                return
            self._turn(self._born + self._expiry)
        self._born = self._clock()

    def _turn(self, born: float | None = None) -> None:
        self._old, self._young = self._young if self._keeps_old else {}, {}
        self._born = self._clock() if born is None else born
