import json
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from phalanx_proto.errors import EngineFailed
from phalanx_worker import selftest
from phalanx_worker.environment import engine_environment


def test_this_machine_sums_rightly() -> None:
    checks = selftest.run()
    assert [check for check in checks if not check.passed] == []
    assert len({check.name for check in checks}) == len(checks) == 7
    selftest.require()


def test_a_device_without_doubles_is_tested_in_single_precision() -> None:
    assert {check.name.endswith("(float32)") for check in selftest.run(float64=False)} == {True}


@pytest.mark.parametrize("name", ["_broadcast_sum", "_square_sum", "_rank_seven"])
def test_one_wrong_element_is_a_failure_with_its_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            result = np.array(function(*arguments)).reshape(-1)
            result[-1] += 1
            return result

        return call

    monkeypatch.setattr(jax, "jit", broken)
    check = getattr(selftest, name)("float64")
    assert not check.passed
    wanted, found = (int(text.split()[0].rstrip(",")) for text in (check.wanted, check.found))
    assert found == wanted + 1


def test_a_failure_names_the_case_and_what_to_do() -> None:
    checks = [
        selftest.Check(name="first", passed=True, wanted="1", found="1"),
        selftest.Check(name="second", passed=False, wanted="3", found="4"),
    ]
    with pytest.raises(EngineFailed, match=r"'second' failed: wanted 3, found 4, with jaxlib \d.*Install a jaxlib"):
        selftest.refuse_failures(checks)


def test_a_process_that_lost_its_doubles_is_refused() -> None:
    script = (
        "import json; from phalanx_worker import selftest; print(json.dumps([c.found for c in selftest.run()[:1]]))\n"
        "selftest.require()"
    )
    environment = {**engine_environment("cpu"), "JAX_ENABLE_X64": "0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == ["float32"]
    assert done.returncode == 1
    assert "'float64 stays float64' failed: wanted float64, found float32" in done.stderr
