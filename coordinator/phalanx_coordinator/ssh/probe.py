"""Whether a Unix socket leads to an HTTP/2 server: ssh accepts connections to a forward that its server refuses."""

import asyncio
import contextlib
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEADER, _TYPE, _SETTINGS = 9, 3, 4


async def carries(socket: Path, seconds: float) -> bool:
    """Say hello as every HTTP/2 client does, and see whether the server's settings come back within ``seconds``."""
    writer = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            writer.write(PREFACE + EMPTY_SETTINGS)
            header = await reader.readexactly(_FRAME_HEADER)
    except (OSError, asyncio.IncompleteReadError):  # TimeoutError is an OSError
        return False
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return header[_TYPE] == _SETTINGS
