"""When a client has been waited for too long: in told time, with connections that only say what they wait for."""

from dataclasses import dataclass

import pytest

from warmroute.config.schema import LimitsConfig
from warmroute.observe.counters import RequestCounters
from warmroute.proxy.deadlines import Door, Mark, Wait, Waiting

LIMITS = LimitsConfig(
    head_timeout=10, body_timeout=30, min_body_rate=100, idle_timeout=75, send_timeout=60, max_connections=2
)
PAUSE = 1.0
"""Seconds between two sweeps with these limits."""


class Guest:
    def __init__(self, waiting: Waiting | None = None) -> None:
        self.mark: Mark | None = None
        self.now = waiting
        self.ended: list[Wait] = []

    def waiting(self) -> Waiting | None:
        return self.now

    def time_out(self, wait: Wait) -> None:
        self.ended.append(wait)


@dataclass
class Hall:
    """A door and its clock."""

    now: float = 0.0

    def __post_init__(self) -> None:
        self.counters = RequestCounters()
        self.door = Door(LIMITS, lambda: self.now, self.counters)

    def at(self, time: float) -> None:
        self.now = time
        self.door.sweep()


@pytest.fixture
def hall() -> Hall:
    return Hall()


@pytest.fixture
def guest(hall: Hall) -> Guest:
    guest = Guest()
    assert hall.door.enter(guest)
    return guest


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [(Wait.HEAD, 10), (Wait.BODY, 30), (Wait.IDLE, 75), (Wait.SEND, 60), (Wait.TUNNEL, 3600)],
    ids=str,
)
def test_a_wait_is_over_at_its_deadline_and_not_before(hall: Hall, guest: Guest, wait: Wait, seconds: int) -> None:
    guest.now = Waiting(wait, "request", 0)
    hall.at(100)
    hall.at(100 + seconds - 0.1)
    assert (guest.ended, hall.counters.client_timeouts) == ([], {})
    hall.at(100 + seconds + PAUSE)
    assert (guest.ended, hall.counters.client_timeouts) == ([wait], {wait: 1})


def test_the_first_head_is_waited_for_from_the_moment_of_connecting(hall: Hall, guest: Guest) -> None:
    guest.now = Waiting(Wait.HEAD, None, 0)
    hall.at(9)
    assert guest.ended == []
    hall.at(10)
    assert guest.ended == [Wait.HEAD]


def test_another_request_is_another_wait(hall: Hall, guest: Guest) -> None:
    for i in range(20):
        guest.now = Waiting(Wait.HEAD, i, 0)
        hall.at(9.0 * i)
    assert guest.ended == []


def test_every_byte_keeps_a_websocket(hall: Hall, guest: Guest) -> None:
    for i in range(20):
        guest.now = Waiting(Wait.TUNNEL, "tunnel", i)
        hall.at(3500.0 * i)
    assert guest.ended == []


def test_a_client_that_waits_itself_has_no_deadline(hall: Hall, guest: Guest) -> None:
    guest.now = Waiting(Wait.BODY, 1, 0)
    hall.at(1)
    guest.now = None
    hall.at(1000)
    guest.now = Waiting(Wait.BODY, 1, 0)
    hall.at(1002)
    hall.at(1031)
    assert guest.ended == []


@pytest.mark.parametrize(("rate", "ended"), [(120, False), (80, True)], ids=["above", "below"])
def test_a_body_must_keep_up_the_least_rate(hall: Hall, guest: Guest, rate: int, ended: bool) -> None:
    for second in range(1, 200):
        guest.now = Waiting(Wait.BODY, 1, rate * second)
        hall.at(second)
    assert bool(guest.ended) is ended


def test_a_body_that_stops_after_a_fast_beginning_is_waited_for_no_longer_than_any(hall: Hall, guest: Guest) -> None:
    guest.now = Waiting(Wait.BODY, 1, 50_000_000)
    hall.at(1)
    hall.at(31)
    assert guest.ended == [Wait.BODY]


@pytest.mark.parametrize(("taken", "ended"), [(1024, False), (1, True)], ids=["some", "a byte at a time"])
def test_a_reader_must_take_more_than_single_bytes(hall: Hall, guest: Guest, taken: int, ended: bool) -> None:
    for i in range(10):
        guest.now = Waiting(Wait.SEND, 0, -1_000_000 + taken * i)
        hall.at(1 + 50 * i)
    assert bool(guest.ended) is ended


def test_sweeps_are_no_closer_than_a_second_however_often_they_are_called_for(hall: Hall, guest: Guest) -> None:
    looks: list[float] = []
    guest.waiting = lambda: looks.append(hall.now)  # type: ignore[method-assign]
    for tenth in range(1, 50):
        hall.at(tenth / 10)
    assert looks == [0.1, 1.1, 2.1, 3.1, 4.1]


def test_those_beyond_the_limit_are_counted_and_a_place_is_given_again(hall: Hall, guest: Guest) -> None:
    second, third = Guest(), Guest()
    assert hall.door.enter(second)
    assert not hall.door.enter(third)
    assert hall.counters.connections_refused == 1
    assert repr(hall.door) == "<Door 2 of 2 connections, 0 lingering>"
    hall.door.leave(guest)
    assert hall.door.enter(third)
