"""gRPC is loaded without its EventEngine, by whichever of our modules comes first, and nobody else is told."""

import os
import subprocess
import sys
from pathlib import Path

from phalanx_proto.rpc import UNWANTED, VARIABLE

import pytest

CHOICE = "-event_engine_client,-event_engine_listener"
ASK = f"print(repr(__import__('os').environ.get({VARIABLE!r})))\n"
"""Prints what the environment says when this line is reached."""


def answers(code: str, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, check=True, text=True, timeout=60
    )
    return ran.stdout.split()


def library(folder: Path, text: str) -> str:
    """Code that finds another gRPC, which says how it was loaded and whose binary part holds ``text``."""
    (folder / "grpc" / "_cython").mkdir(parents=True)
    (folder / "grpc" / "__init__.py").write_text(ASK)
    (folder / "grpc" / "aio.py").touch()
    (folder / "grpc" / "_cython" / "cygrpc.abi3.so").write_text(text)
    return f"import sys; sys.path.insert(0, {str(folder)!r})\nimport phalanx_proto.rpc\n{ASK}"


def test_the_environment_says_so_while_it_is_loaded_and_not_afterwards(tmp_path: Path) -> None:
    assert answers(library(tmp_path, " ".join(UNWANTED))) == [repr(CHOICE), "None"]


def test_a_release_that_does_not_know_the_names_is_told_nothing(tmp_path: Path) -> None:
    assert answers(library(tmp_path, UNWANTED[0])) == ["None", "None"]


def test_a_choice_of_the_persons_own_stands(tmp_path: Path) -> None:
    found = answers(library(tmp_path, " ".join(UNWANTED)), GRPC_EXPERIMENTS="tcp_frame_size_tuning")
    assert found == ["'tcp_frame_size_tuning'"] * 2


@pytest.mark.parametrize(
    "module",
    [
        "phalanx.calls", "phalanx.embedded", "phalanx_coordinator.service.serve", "phalanx_coordinator.service.service",
        "phalanx_coordinator.jobs.runner", "phalanx_worker.service",
    ],
)  # fmt: skip
def test_nothing_of_ours_loads_it_another_way(module: str) -> None:
    code = f"""
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc._cython.cygrpc":
            print(os.environ.get({VARIABLE!r}))
sys.meta_path.insert(0, Watch())
import {module}
"""
    assert answers(code) == [CHOICE]
