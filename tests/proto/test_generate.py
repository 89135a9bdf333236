"""proto/generate.py: writes, compares, finds orphans; and the committed code is in step."""

import subprocess
import sys
from pathlib import Path

import pytest

GENERATE = Path(__file__).parents[2] / "proto" / "generate.py"

MESSAGES = """syntax = "proto3";
package phalanx_proto.v1;
// A tensor's shape.
message Shape { repeated uint64 sizes = 1; }
"""
SERVICE = """syntax = "proto3";
package phalanx_proto.v1;
import "phalanx_proto/v1/shape.proto";
message CountRequest { Shape shape = 1; }
message CountResponse { uint64 count = 1; }
// Counts.
service CountService { rpc Count(CountRequest) returns (CountResponse); }
"""
EXPECTED = {
    "count_service_pb2.py",
    "count_service_pb2.pyi",
    "count_service_pb2_grpc.py",
    "count_service_pb2_grpc.pyi",
    "shape_pb2.py",
    "shape_pb2.pyi",
}


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package folder whose code is generated and in step."""
    package = tmp_path / "phalanx_proto" / "v1"
    package.mkdir(parents=True)
    for path in (package, package.parent):
        (path / "__init__.py").touch()
    (package / "shape.proto").write_text(MESSAGES)
    (package / "count_service.proto").write_text(SERVICE)
    assert generate("--root", str(tmp_path)).returncode == 0
    return package


def refusal(folder: Path) -> str:
    result = generate("--root", str(folder.parents[1]), "--check")
    assert result.returncode == 1
    assert "make proto" in result.stderr
    return result.stderr


def test_writes_service_code_for_services_alone(folder: Path) -> None:
    assert {path.name for path in folder.glob("*_pb2*")} == EXPECTED
    assert generate("--root", str(folder.parents[1]), "--check").returncode == 0


def test_check_names_a_changed_file(folder: Path) -> None:
    (folder / "shape.proto").write_text(MESSAGES.replace("sizes", "extents"))
    text = refusal(folder)
    assert "shape_pb2.py is out of step" in text
    assert "count_service_pb2.py is" not in text


def test_check_names_a_missing_file(folder: Path) -> None:
    (folder / "shape_pb2.pyi").unlink()
    assert "shape_pb2.pyi is missing" in refusal(folder)
    assert not (folder / "shape_pb2.pyi").exists()


def test_check_finds_an_orphan_and_writing_removes_it(folder: Path) -> None:
    (folder / "count_service.proto").unlink()
    assert "count_service_pb2_grpc.py is an orphan" in refusal(folder)
    assert generate("--root", str(folder.parents[1])).returncode == 0
    assert {path.name for path in folder.glob("*_pb2*")} == {"shape_pb2.py", "shape_pb2.pyi"}


def test_a_proto_with_a_fault_is_named(folder: Path) -> None:
    (folder / "shape.proto").write_text(MESSAGES.replace("uint64", "unit64"))
    result = generate("--root", str(folder.parents[1]), "--check")
    assert result.returncode == 1
    assert "shape.proto" in result.stderr


def test_generated_code_warns_nothing(folder: Path) -> None:
    # A fresh interpreter: the repository's own phalanx_proto must not answer for this one.
    code = f"""import sys; sys.path.insert(0, {str(folder.parents[1])!r})
from phalanx_proto.v1 import count_service_pb2_grpc as module; print(module.__file__)"""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert Path(result.stdout.strip()) == folder / "count_service_pb2_grpc.py"


def test_the_committed_code_is_in_step() -> None:
    result = generate("--check")
    assert (result.returncode, result.stderr) == (0, "")
