"""``make demo`` as a newcomer runs it."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_demo_shows_that_all_places_agree() -> None:
    ran = subprocess.run([sys.executable, "-m", "phalanx.demo"], capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "bit for bit" in ran.stdout
    rows = [line for line in ran.stdout.splitlines() if line.startswith(("this CPU", "2 workers"))]
    assert len(rows) >= 2
    assert len({row.split()[-2] for row in rows}) == 1
