"""Write the committed code of the ``.proto`` files below this folder, or with ``--check`` compare it.

Messages become ``*_pb2.py`` and ``*_pb2.pyi``; a ``*_service.proto`` becomes ``*_pb2_grpc.py`` and ``*_pb2_grpc.pyi``
too.
The generators are old on purpose: generated code runs on its own runtime and newer ones, never on older ones.
"""

import argparse
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

GENERATORS = {"grpcio-tools": "1.76.0", "mypy-protobuf": "5.1.0"}
PACKAGE = "phalanx_proto"
SERVICE = "_service.proto"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


class GenerationError(Exception):
    """The code could not be generated; the message says what to do."""


def sources(root: Path) -> list[str]:
    """Every ``.proto`` path below ``root``, relative to it and sorted: generation order is part of the result."""
    return sorted(path.relative_to(root).as_posix() for path in (root / PACKAGE).rglob("*.proto"))


def compile_protos(root: Path, output: Path, protos: Sequence[str], generators: Sequence[str]) -> None:
    """Run protoc over ``protos`` once; each generator is the name in ``--NAME_out``."""
    scripts = Path(sysconfig.get_path("scripts"))
    arguments = ["protoc", f"--proto_path={root}", f"--proto_path={files('grpc_tools') / '_proto'}"]
    arguments += [f"--plugin=protoc-gen-{name}={scripts / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
    arguments += [f"--{name}_out={'quiet:' if name.startswith('mypy') else ''}{output}" for name in generators]
    if protoc.main([*arguments, *protos]) != 0:
        raise GenerationError(f"protoc refused {', '.join(protos)}; its reasons are above.")


def generated(root: Path) -> dict[str, bytes]:
    """What the ``.proto`` files ask for: relative path to bytes."""
    protos = sources(root)
    services = [proto for proto in protos if proto.endswith(SERVICE)]
    if not protos:
        raise GenerationError(f"There is no .proto file below {root / PACKAGE}.")
    with tempfile.TemporaryDirectory(prefix="generated-") as folder:
        compile_protos(root, Path(folder), protos, ["python", "mypy"])
        if services:
            compile_protos(root, Path(folder), services, ["grpc_python", "mypy_grpc"])
        return committed(Path(folder))


def committed(root: Path) -> dict[str, bytes]:
    """The generated code that lies below ``root``: relative path to bytes."""
    found = (path for path in (root / PACKAGE).rglob("*_pb2*") if path.name.endswith(SUFFIXES))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def differences(wanted: Mapping[str, bytes], present: Mapping[str, bytes]) -> list[str]:
    """One line for each file that is missing, out of step, or an orphan (its ``.proto`` is gone)."""
    lines = []
    for name in sorted({*wanted, *present}):
        if name not in present:
            lines.append(f"{name} is missing")
        elif name not in wanted:
            lines.append(f"{name} is an orphan: no .proto asks for it")
        elif wanted[name] != present[name]:
            lines.append(f"{name} is out of step with its .proto")
    return lines


def write(root: Path, wanted: Mapping[str, bytes], present: Mapping[str, bytes]) -> None:
    """Make the files below ``root`` what is wanted; what is in step is not touched."""
    for name in present.keys() - wanted.keys():
        (root / name).unlink()
    for name, code in wanted.items():
        if present.get(name) != code:
            (root / name).write_bytes(code)


def check_generators() -> None:
    """Refuse other generators: they would write other bytes."""
    wrong = [f"{name} {version(name)} (wanted {pin})" for name, pin in GENERATORS.items() if version(name) != pin]
    if wrong:
        raise GenerationError(f"Other generators are installed: {', '.join(wrong)}. Run: make setup")


def run(root: Path, check: bool) -> int:
    """Write or check; returns the exit code."""
    check_generators()
    wanted, present = generated(root), committed(root)
    changed = differences(wanted, present)
    if check and changed:
        print("The generated code is not in step:", *changed, "Run: make proto", sep="\n  ", file=sys.stderr)
        return 1
    if not check:
        write(root, wanted, present)
    return 0


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="Generate the code of the .proto files, or check that it is in step.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is out of step")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent, help="the folder that holds phalanx_proto")
    arguments = parser.parse_args()
    try:
        return run(arguments.root.resolve(), arguments.check)
    except GenerationError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
