"""The worker's ready line in what comes on its standard output, where a login shell may print before it. Takes a stream."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

MOST_NOISE = 8 << 20
"""Bytes on standard output before the ready line, from banners and profiles."""
LONGEST = 1 << 16
"""Bytes of a line that are kept: its last ones, where a ready line may follow what lacks a newline."""


class TooMuchNoise(Exception):
    """So many bytes came, and no ready line."""


async def ready_line(stream: asyncio.StreamReader, noise: Callable[[bytes], None]) -> dict[str, Any] | None:
    """The values of the ready line; None where the output ended first. What else comes is told to ``noise``, line by line.

    Some of the beats that follow may be read with it. Raises TooMuchNoise; a deadline is the caller's.
    """
    rest, heard = b"", 0
    while piece := await stream.read(LONGEST):
        heard += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[-LONGEST:]
        for line in lines:
            found = ready_in(line)
            if found is not None:
                return found
            if _is_beat(line):  # its ready line was missed: that is no noise, and the deadline tells of it
                heard -= len(line) + 1
            elif line.strip():
                noise(line if len(line) < LONGEST else b"...")
        if heard > MOST_NOISE:
            raise TooMuchNoise
    if rest.strip():
        noise(rest if len(rest) < LONGEST else b"...")
    return None


def ready_in(line: bytes) -> dict[str, Any] | None:
    """The values of a ready line, also behind text that did not end its own line; None where there is none."""
    start = line.rfind(b'{"ready"')
    found = None if start < 0 else _json(line[start:])
    whole = found is not None and ("socket" in found or not found["ready"])
    return found if whole else None


def _is_beat(line: bytes) -> bool:
    found = _json(line) if line.startswith(b"{") else None
    return found is not None and "beat" in found


def _json(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
