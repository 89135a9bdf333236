"""The wheel of the Phalanx that is running: repacked from its installed or editable files, without any build tool.

The same sources give the same bytes: names are sorted and times fixed.
"""

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from phalanx_proto.errors import Unavailable
from phalanx_proto.version import VERSION

PACKAGES = ("phalanx", "phalanx_coordinator", "phalanx_proto", "phalanx_worker")
_WHEEL = "Wheel-Version: 1.0\nGenerator: phalanx\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_wheel(folder: Path) -> Path:
    """Write the wheel into ``folder`` and return its path. Raises ``Unavailable`` where Phalanx is not installed."""
    path = folder / f"phalanx-{VERSION}-py3-none-any.whl"
    path.write_bytes(b"")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in wheel_files().items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return path


def wheel_files() -> dict[str, bytes]:
    """Name to content, in the order of the archive; RECORD, with every digest, comes last."""
    try:
        installed = distribution("phalanx")
    except PackageNotFoundError:
        raise Unavailable(
            "this Phalanx is not installed, so its metadata is missing: run pip install -e . in its folder first"
        ) from None
    info = f"phalanx-{VERSION}.dist-info"
    files = {name: content for package in PACKAGES for name, content in _package(package)}
    files = dict(sorted(files.items()))
    files |= {f"{info}/{name}": content for name, content in sorted(_metadata(installed).items())}
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    return {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}


def _package(package: str) -> Iterator[tuple[str, bytes]]:
    """The files of one package as they lie on disk, without what Python makes of them."""
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        root = Path(place)
        for path in sorted(root.rglob("*")):
            parts = path.relative_to(root).parts
            ours = not any(part == "__pycache__" or part.startswith(".") for part in parts) and path.suffix != ".pyc"
            if ours and path.is_file():
                yield "/".join((package, *parts)), path.read_bytes()


def _metadata(installed: Distribution) -> Mapping[str, bytes]:
    """The files of the dist-info folder that an installer reads; the version is the source's, whatever was installed."""
    text = installed.read_text("METADATA") or ""
    text = re.sub(r"^Version: .*$", f"Version: {VERSION}", text, count=1, flags=re.MULTILINE)
    found = {"METADATA": text.encode(), "WHEEL": _WHEEL.encode()}
    entry_points = installed.read_text("entry_points.txt")
    if entry_points:
        found["entry_points.txt"] = entry_points.encode()
    for file in installed.files or ():
        parts = file.parts
        if len(parts) > 2 and parts[0].endswith(".dist-info") and parts[1] == "licenses":
            located = Path(str(file.locate()))
            if located.is_file():
                found["/".join(parts[1:])] = located.read_bytes()
    return found


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
