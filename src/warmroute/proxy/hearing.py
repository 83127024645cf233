"""Reads answers off a backend's bytes, one after another: a head like the last one by its bytes, all else by the parser."""

import httptools

from .answer_head import AnswerHead, LastHead

_HEAD_LIMIT = 256 << 10
"""Bytes in which the head of an answer must have ended."""


class Hearing:
    """Takes a connection's bytes and makes an answer of them. What becomes of its body is for the connection to say.

    `head` is there once it has come, with the `length` that it states. `complete`: the whole answer has come. `bytes_in`
    counts the bytes of the head; later it matters only that there were some.
    """

    closed = False

    def __init__(self, last: LastHead) -> None:
        self._last = last
        self._parser = httptools.HttpResponseParser(self)
        self.head: AnswerHead | None = None
        self.length: int | None = None
        self.status = self.bytes_in = self._owed = 0
        self.complete = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_only = self._keep_alive = self._until_close = self._between_chunks = False

    def _body(self, data: bytes) -> None:
        """Some bytes of the body have come."""
        raise NotImplementedError

    def _garbled(self, detail: str) -> None:
        """What came is no answer: hear no more."""
        raise NotImplementedError

    def _switch(self, rest: bytes) -> None:
        """The backend speaks another protocol from now on; `rest` are the first bytes of it."""
        raise NotImplementedError

    def _next(self) -> None:
        """Wait for another answer. What came before, be it unasked, is not its."""
        if self.bytes_in:
            self.head = self.length = None
            self.status = self.bytes_in = self._owed = 0
            self.complete = self._keep_alive = self._until_close = self._between_chunks = False
            self._headers = []

    def _hear(self, data: bytes) -> None:
        began = self.bytes_in
        self.bytes_in += len(data)
        if self._owed:
            self._go_on(data)
        elif began or self._head_only or not self._is_known(data):
            self._parse(data)
            if not began and self.head is not None and not self.closed:
                self._last.learn(data, self.head)

    def _is_known(self, data: bytes) -> bool:
        """Take an answer that begins as the backend's last one did; False for any other."""
        found = self._last.find(data)
        if found is None:
            return False
        self.head, self.length, begins = found
        self.status, self._keep_alive, self._owed = self.head.status, True, self.length
        self._go_on(data[begins:])
        return True

    def _go_on(self, data: bytes) -> None:
        """Take what comes of the body of an answer whose head was known."""
        owed = self._owed
        if len(data) > owed:  # bytes of a further answer, which nobody asked for
            self._keep_alive, data = False, data[:owed]
        if data:
            self._body(data)
        self._owed = owed - len(data)
        self.complete = not self._owed

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._switch(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._garbled(str(error))
        if self.head is None and self.bytes_in > _HEAD_LIMIT:
            self._garbled("a head that does not end")
        # Not merely at the end of a chunk: the next one's size may have begun in the same bytes.
        self._between_chunks = self._between_chunks and data.endswith(b"\r\n")

    def _has_head(self, *, keep_alive: bool) -> AnswerHead:
        named = dict(self._headers)
        stated = named.pop(b"content-length", None)
        if stated is not None:
            self.length = int(stated)
            self._headers = [pair for pair in self._headers if pair[0] != b"content-length"]
        self._keep_alive = keep_alive
        self.head = AnswerHead(self.status, self._headers, named, keep_alive)
        return self.head

    # What the parser calls

    def on_message_begin(self) -> None:
        if self.complete:  # bytes of a further answer, which nobody asked for
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.head is not None:  # a second answer in the same bytes: nobody asked for it
            self._keep_alive = False
            return
        self.status = self._parser.get_status_code()
        if not 100 <= self.status <= 599:
            self._garbled(f"status {self.status}")
            return
        if self.status < 200:
            return
        head = self._has_head(keep_alive=self._parser.should_keep_alive())
        framed = self.length is not None or b"transfer-encoding" in head.named
        self._until_close = not framed and self.status not in (204, 304)
        if self._head_only:
            self.complete = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._body(data)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        if self.head is None:  # an interim answer (1xx): the real one follows
            self._headers.clear()
        elif not self._until_close:
            self.complete = True
