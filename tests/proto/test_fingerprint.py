import string
import subprocess
import sys

from phalanx_proto import fingerprint


def test_the_numeric_sources_are_covered_and_nothing_else() -> None:
    names = set(fingerprint.numeric_sources())
    assert {"phalanx_proto/reduction.py", "phalanx_proto/philox.py", "phalanx_proto/v1/__init__.py"} <= names
    assert not [name for name in names if "_pb2" in name or not name.endswith(".py")]
    worker = {name for name in names if name.startswith("phalanx_worker/")}
    assert worker <= {f"phalanx_worker/{name}" for name in fingerprint.WORKER_SOURCES}
    assert all(name.startswith(("phalanx_proto/", "phalanx_worker/")) for name in names)


def test_the_fingerprint_is_one_sha256_for_every_process() -> None:
    found = fingerprint.source_fingerprint()
    assert len(found) == 64 and set(found) <= set(string.hexdigits.lower())
    program = (
        "import sys; from phalanx_proto.fingerprint import source_fingerprint as f; print(f(), 'phalanx_worker' in sys.modules)"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert other.stdout.split() == [found, "False"]


def test_line_ends_and_order_do_not_matter_but_names_and_bytes_do() -> None:
    base = {"p/a.py": b"x = 1\ny = 2\n", "p/b.py": b""}
    same = {"p/b.py": b"", "p/a.py": b"x = 1\r\ny = 2\r\n"}
    assert fingerprint.fingerprint_of(base) == fingerprint.fingerprint_of(same)
    others = [
        {"p/a.py": b"x = 1\ny = 3\n", "p/b.py": b""},
        {"p/c.py": b"x = 1\ny = 2\n", "p/b.py": b""},
        {"p/a.py": b"x = 1\ny = 2\n"},
        {"p/a.py": b"", "p/b.py": b"x = 1\ny = 2\n"},
    ]
    assert len({fingerprint.fingerprint_of(sources) for sources in [base, *others]}) == 5
