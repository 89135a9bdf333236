import json
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx_proto.errors import CorruptData
from phalanx_worker import channel
from phalanx_worker.channel import Decoder, Message

BODIES = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=4)
FRAMES = st.lists(st.tuples(BODIES, st.binary(max_size=40)), min_size=1, max_size=5)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.settimeout(10)
        yield ours, theirs


def drain(decoder: Decoder) -> list[tuple[dict[str, object], bytes]]:
    found = []
    while (message := decoder.next()) is not None:
        found.append((message.body, message.payload))
    return found


@given(frames=FRAMES, size=st.integers(1, 17))
def test_messages_survive_any_fragmentation(frames: list[tuple[dict[str, object], bytes]], size: int) -> None:
    data = b"".join(channel.encode(body, payload) for body, payload in frames)
    decoder, found = Decoder(), []
    for start in range(0, len(data), size):
        decoder.feed(data[start : start + size])
        found += drain(decoder)
    assert found == frames
    assert decoder.next() is None


def test_a_message_crosses_a_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    channel.send(ours, {"op": "x", "n": [1, 2]}, b"payload")
    assert channel.receive(theirs, Decoder()) == Message(body={"op": "x", "n": [1, 2]}, payload=b"payload")


def test_the_end_of_the_peer_is_the_end_of_messages(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(channel.encode({"a": 1}, b"some")[:-2])
    ours.shutdown(socket.SHUT_WR)
    assert channel.receive(theirs, Decoder()) is None


def test_silence_times_out(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].settimeout(0.01)
    with pytest.raises(TimeoutError):
        channel.receive(pair[1], Decoder())


def test_descriptors_arrive_and_work(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    read, write = os.pipe()
    channel.send(ours, {"n": 1}, b"p" * 100, [write])
    os.close(write)
    message = channel.receive(theirs, Decoder())
    assert message is not None
    (received,) = message.descriptors
    assert not os.get_inheritable(received)
    os.write(received, b"hello")
    os.close(received)
    assert os.read(read, 10) == b"hello"
    os.close(read)


def test_descriptors_belong_to_the_frame_they_were_sent_with(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    read, write = os.pipe()
    channel.send(ours, {"n": 1})
    channel.send(ours, {"n": 2}, b"", [write])
    channel.send(ours, {"n": 3})
    decoder = Decoder()
    found = [channel.receive(theirs, decoder) for _ in range(3)]
    assert [len(message.descriptors) for message in found if message] == [0, 1, 0]
    for descriptor in (read, write, *(found[1].descriptors if found[1] else ())):
        os.close(descriptor)


def test_unclaimed_descriptors_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    read, write = os.pipe()
    frame = channel.encode({"n": 1}, b"rest", 1)
    socket.send_fds(ours, [frame[:-1]], [write])
    os.close(write)
    decoder = Decoder()
    data, descriptors, _, _ = socket.recv_fds(theirs, 1000, channel.DESCRIPTORS)
    decoder.feed(data, descriptors)
    assert decoder.next() is None
    decoder.close()
    assert os.read(read, 1) == b"", "the write end is closed everywhere"
    os.close(read)


@pytest.mark.parametrize("lengths", [(channel.MAXIMUM + 1, 0), (2, channel.MAXIMUM + 1)])
def test_an_oversized_frame_is_refused_before_it_is_read(lengths: tuple[int, int]) -> None:
    decoder = Decoder()
    decoder.feed(struct.pack("<III", *lengths, 0))
    with pytest.raises(CorruptData, match="announces"):
        decoder.next()


def test_an_oversized_payload_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAXIMUM", 10)
    with pytest.raises(CorruptData, match="above the limit of 10"):
        channel.encode({}, bytes(11))
    with pytest.raises(CorruptData, match="9 descriptors"):
        channel.encode({}, b"", 9)


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[1]", json.dumps("word").encode()])
def test_what_is_no_json_object_is_corrupt(text: bytes) -> None:
    decoder = Decoder()
    decoder.feed(struct.pack("<III", len(text), 0, 0) + text)
    with pytest.raises(CorruptData, match="a frame holds"):
        decoder.next()


def test_announced_descriptors_must_have_come() -> None:
    decoder = Decoder()
    decoder.feed(channel.encode({}, b"", 1))
    with pytest.raises(CorruptData, match="announces 1 descriptors, and 0 came"):
        decoder.next()
