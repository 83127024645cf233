"""The background writer: a reader who is stuck stops nobody, and what is lost is counted."""

import io
import threading

from warmroute.observe.writer import BackgroundWriter


class Stuck(io.StringIO):
    """A stream whose reader takes nothing until `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.free.wait(10)
        return super().write(text)


def test_everything_is_written_in_order() -> None:
    stream = io.StringIO()
    writer = BackgroundWriter(stream)
    for i in range(1000):
        writer.write(f"{i}\n")
    writer.close(10)
    assert stream.getvalue() == "".join(f"{i}\n" for i in range(1000))
    assert writer.dropped == 0


def test_a_stuck_reader_costs_lines_and_no_time() -> None:
    stream = Stuck()
    writer = BackgroundWriter(stream)
    line = "x" * 1023 + "\n"
    for _ in range(3000):
        writer.write(line)
    assert 1900 < writer.dropped < 2100  # a mebibyte waits, the rest of three is gone
    assert "1048576 waiting" in repr(writer)
    writer.close(0.01)  # does not wait for ever
    stream.free.set()
    writer._thread.join(10)
    assert len(stream.getvalue()) + writer.dropped * 1024 == 3000 * 1024


def test_a_closed_stream_is_told_by_the_count() -> None:
    stream = io.StringIO()
    stream.close()
    writer = BackgroundWriter(stream)
    writer.write("one\ntwo\n")
    writer.close(10)
    assert writer.dropped == 2
