"""Who made a response: known for a while, as digests."""

from warmroute.core.model import Session
from warmroute.recognition.owners import Owner, Owners

SESSION = Session(b"s" * 16, "content")


def test_an_owner_is_known_until_it_is_forgotten() -> None:
    now = [0.0]
    owners = Owners(lambda: now[0], expiry=10, limit=4)
    owners.made("resp_1", Owner("a", SESSION))
    assert owners.find("resp_1") == Owner("a", SESSION)
    assert owners.find("resp_2") is None
    owners.made("resp_1", Owner("b", None))
    assert (owners.find("resp_1"), len(owners)) == (Owner("b", None), 1)
    now[0] = 9.9
    assert owners.find("resp_1") is not None
    now[0] = 20.0
    assert owners.find("resp_1") is None


def test_room_is_bounded_and_no_id_is_kept() -> None:
    owners = Owners(lambda: 0.0, expiry=10, limit=4)
    for i in range(20):
        owners.made(f"resp_{i}", Owner("a", None))
        assert len(owners) <= 4
    assert owners.find("resp_19") is not None
    assert repr(owners) == f"<Owners {len(owners)} responses, 0 asked for and unknown>"


def test_any_text_is_an_id() -> None:
    owners = Owners(lambda: 0.0, expiry=10, limit=4)
    for name in ("\ud800", "", "é" * 10_000):
        owners.made(name, Owner("a", None))
        assert owners.find(name) == Owner("a", None)
