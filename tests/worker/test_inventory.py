"""What the machine offers, told from fake folders and environments; and once from the real machine."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from phalanx_proto.errors import InvalidRequest, Unavailable
from phalanx_worker import accelerators, cgroups
from phalanx_worker.accelerators import Plugin, Probe, find_accelerators, list_plugins, probe_platform
from phalanx_worker.allocation import Allocation, discover, require_slots
from phalanx_worker.inventory import inventory
from phalanx_worker.processor import read_processor

V2 = "30 1 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def fake(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_v2_smallest_quota_up_to_the_root_wins(tmp_path: Path) -> None:
    root = fake(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job/step\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/user/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user/job/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/user/job/step/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user/job/memory.max": "1073741824\n",
            "sys/fs/cgroup/user/memory.max": "max\n",
        },
    )
    assert cgroups.cpu_quota(root) == 1.5
    assert cgroups.memory_limit(root) == 2**30


def test_v1_quota_and_memory(tmp_path: Path) -> None:
    root = fake(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job/step\n0::/\n",
            "proc/self/mountinfo": V1,
            "sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cgroups.cpu_quota(root) == 2.5
    assert cgroups.memory_limit(root) is None


@pytest.mark.parametrize("group", ["/docker/abc", "/docker/abc/inner", "/elsewhere", "/../other"])
def test_a_container_sees_its_own_group_at_the_mount_point(tmp_path: Path, group: str) -> None:
    root = fake(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{group}\n",
            "proc/self/mountinfo": "30 1 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "sys/fs/cgroup/cpu.max": "300000 100000\n",
        },
    )
    assert cgroups.cpu_quota(root) == 3.0


@pytest.mark.parametrize("text", ["", "rubbish", "0 100000", "100000 0", "-1 100000", "max 100000"])
def test_an_unreadable_quota_sets_no_limit(tmp_path: Path, text: str) -> None:
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2, "sys/fs/cgroup/cpu.max": text}
    assert cgroups.cpu_quota(fake(tmp_path, files)) is None


def test_no_control_groups_set_no_limit(tmp_path: Path) -> None:
    assert cgroups.cpu_quota(tmp_path) is None
    assert cgroups.memory_limit(tmp_path) is None


def allot(logical: int | None = 8, affinity: int | None = 8, quota: float | None = None, **environment: str) -> Allocation:
    return discover(logical_cpus=logical, affinity=affinity, cgroup_quota=quota, environment=environment)


@pytest.mark.parametrize(
    ("found", "slots", "word"),
    [
        (allot(), 8, "logical"),
        (allot(affinity=3), 3, "affinity"),
        (allot(affinity=None), 8, "logical"),
        (allot(quota=2.9), 2, "quota is 2.9"),
        (allot(quota=0.4), 1, "quota is 0.4"),
        (allot(SLURM_CPUS_PER_TASK="2", SLURM_CPUS_ON_NODE="4"), 2, "SLURM_CPUS_PER_TASK=2"),
        (allot(SLURM_CPUS_ON_NODE="4"), 4, "SLURM_CPUS_ON_NODE=4"),
        (allot(PBS_NCPUS="5"), 5, "PBS_NCPUS"),
        (allot(NCPUS="5"), 5, "NCPUS"),
        (allot(LSB_DJOB_NUMPROC="6"), 6, "LSF"),
        (allot(NSLOTS="7"), 7, "NSLOTS"),
        (allot(NSLOTS="700"), 8, "logical"),
        (allot(logical=None, affinity=None), 1, "unknown"),
    ],
)
def test_the_smallest_limit_decides_and_is_named(found: Allocation, slots: int, word: str) -> None:
    assert found.slots == slots
    assert word in found.reason


def test_threads_of_openmp_are_a_note_and_no_limit() -> None:
    found = allot(OMP_NUM_THREADS="1")
    assert found.slots == 8
    assert any("OMP_NUM_THREADS=1" in note for note in found.notes)


@pytest.mark.parametrize("text", ["many", "0", "-3", "4(x2)"])
def test_a_scheduler_value_that_cannot_be_read_is_a_note(text: str) -> None:
    found = allot(SLURM_CPUS_PER_TASK=text)
    assert (found.slots, found.scheduler_limits) == (8, {})
    assert any("SLURM_CPUS_PER_TASK" in note for note in found.notes)


def test_no_affinity_is_none_with_a_note() -> None:
    found = allot(affinity=None)
    assert found.affinity is None
    assert any("affinity" in note for note in found.notes)


def test_slots_above_the_allocation_are_refused_with_the_reason() -> None:
    require_slots(2, allot(quota=2.5), "atlas-01")
    with pytest.raises(Unavailable, match=r"atlas-01: asked for 3 slots, found 2, because .* quota is 2\.5") as caught:
        require_slots(3, allot(quota=2.5), "atlas-01")
    assert (caught.value.details["asked"], caught.value.details["found"]) == (3, 2)
    with pytest.raises(InvalidRequest, match="at least 1"):
        require_slots(0, allot(), "atlas-01")


V2_FLAGS = "fpu sse sse2 cx16 popcnt pni sse4_1 sse4_2 ssse3"
V3_FLAGS = V2_FLAGS + " avx avx2 bmi1 bmi2 f16c fma abm movbe"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("fpu sse sse2", "x86-64"),
        (V2_FLAGS, "x86-64-v2"),
        (V3_FLAGS, "x86-64-v3"),
        (V3_FLAGS.replace("fma", ""), "x86-64-v2"),
        (V3_FLAGS + " avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v4"),
    ],
)
def test_x86_level(tmp_path: Path, flags: str, level: str) -> None:
    text = f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: none\n"
    cpu = read_processor(fake(tmp_path, {"proc/cpuinfo": text}), "Linux", "x86_64", lambda name: None)
    assert (cpu.model, cpu.level) == ("A CPU", level)
    assert "fpu" not in cpu.features and list(cpu.features) == sorted(cpu.features)
    assert cpu.text.startswith(f"{level}: ")


def test_arm_on_linux(tmp_path: Path) -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes bf16 sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    cpu = read_processor(fake(tmp_path, {"proc/cpuinfo": text}), "Linux", "aarch64", lambda name: None)
    assert (cpu.level, cpu.features) == ("arm64", ("asimd", "bf16", "fp", "sve"))
    assert cpu.model == "ARM implementer 0x41 part 0xd40"


def test_arm_on_a_mac() -> None:
    answers = {
        "machdep.cpu.brand_string": "machdep.cpu.brand_string: Apple M4\n",
        "hw.optional": "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\nhw.optional.floatingpoint: 1\n",
    }
    cpu = read_processor(Path("/nowhere"), "Darwin", "arm64", answers.get)
    assert (cpu.model, cpu.level, cpu.features) == ("Apple M4", "arm64", ("feat_bf16",))


def test_x86_on_a_mac() -> None:
    answers = {
        "machdep.cpu.features": "x: SSE SSE2 CX16 POPCNT SSE3 SSE4.1 SSE4.2 SSSE3 AVX1.0 F16C FMA MOVBE",
        "machdep.cpu.leaf7_features": "machdep.cpu.leaf7_features: AVX2 BMI1 BMI2",
        "machdep.cpu.extfeatures": "machdep.cpu.extfeatures: SYSCALL LZCNT",
    }
    assert read_processor(Path("/nowhere"), "Darwin", "x86_64", answers.get).level == "x86-64-v3"


def test_an_unreadable_cpu_is_none(tmp_path: Path) -> None:
    cpu = read_processor(tmp_path, "Linux", "x86_64", lambda name: None)
    assert (cpu.model, cpu.level, cpu.features) == (None, None, ())
    assert cpu.text == "N/A: N/A"


CUDA = Plugin(name="xla_cuda12", target="jax_plugins.xla_cuda12")


def find(
    *plugins: Plugin, system: str = "Linux", driver: bool = False, answers: Mapping[str, Probe] | None = None
) -> dict[str, accelerators.Accelerator]:
    machine = "arm64" if system == "Darwin" else "x86_64"
    probe = None if answers is None else answers.__getitem__
    found = find_accelerators(plugins, system=system, machine=machine, driver=driver, probe=probe)
    return {accelerator.backend: accelerator for accelerator in found}


def test_without_plugins_nothing_is_probed_and_the_reason_is_told() -> None:
    found = find(answers={})
    assert "no CUDA plugin" in found["cuda"].reason and "no NVIDIA driver" in found["cuda"].reason
    assert "Mac" in found["mps"].reason
    assert "install jax[cuda12]" in find(driver=True, answers={})["cuda"].reason
    assert "install jax-mps" in find(system="Darwin", answers={})["mps"].reason


def test_a_plugin_is_proved_by_its_probe() -> None:
    found = find(CUDA, answers={"cuda": Probe(devices=("H200", "H200"))})["cuda"]
    assert (found.platform, found.devices, found.reason) == ("cuda", ("H200", "H200"), "")
    broken = find(CUDA, answers={"cuda": Probe(reason="no driver")})["cuda"]
    assert broken.devices == () and "xla_cuda12" in broken.reason and "no driver" in broken.reason
    assert "not probed" in find(CUDA)["cuda"].reason


@pytest.mark.parametrize(
    ("plugin", "platform"),
    [
        (Plugin(name="mps", target="jax_plugins.mps"), "mps"),
        (Plugin(name="metaljax", target="jax_plugins.metal"), "metal"),
        (Plugin(name="mtl", target="jax_graft"), "mtl"),
        (Plugin(name="silicon", target="jax_plugins.silicon"), "mps"),
    ],
)
def test_metal_plugins_register_under_several_names(plugin: Plugin, platform: str) -> None:
    found = find(plugin, system="Darwin", answers={platform: Probe(devices=("M4",))})["mps"]
    assert (found.platform, found.devices) == (platform, ("M4",))


def test_the_dead_metal_plugin_is_not_probed() -> None:
    found = find(Plugin(name="metal_plugin", target="jax_plugins.metal_plugin"), system="Darwin", answers={})["mps"]
    assert "jax-metal" in found.reason


def test_plugins_are_listed_without_import(tmp_path: Path) -> None:
    (tmp_path / "jax_cuda12_plugin-0.10.1.dist-info").mkdir()
    fake(tmp_path, {"jax_plugins/mps/__init__.py": "raise RuntimeError"})
    assert [plugin.name for plugin in list_plugins([str(tmp_path)])] == ["jax_cuda12_plugin", "mps"]


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


def test_the_probe_of_this_cpu_gives_the_known_answer() -> None:
    found = probe_platform("cpu", {**os.environ, "XLA_FLAGS": "--no_such_flag=1"})
    assert found.reason == ""
    assert len(found.devices) == 1


def test_a_platform_that_is_not_there_tells_why() -> None:
    found = probe_platform("no_such_platform", os.environ)
    assert found.devices == () and found.reason.startswith("JAX could not use it")


def test_a_silent_probe_is_ended_with_its_children(tmp_path: Path) -> None:
    # Whoever lives of the probe holds the pipe's writing end, so its end of file proves that all are gone.
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    python = script(tmp_path, f"exec 3>{pipe}\necho started >&3\nsleep 600 &\nwait")
    found = probe_platform("cuda", os.environ, deadline=timedelta(seconds=2), python=python)
    assert "did not answer within 2 seconds" in found.reason
    assert os.read(reader, 100) == b"started\n"
    assert select.select([reader], [], [], 30)[0] and os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("kill -SEGV $$", "signal 11"),
        (
            "echo 'cannot load /home/somebody/lib/libcuda.so: no such file' >&2; exit 3",
            "status 3: cannot load libcuda.so",
        ),
        ("echo banner; echo '[1]'; exit 0", "status 0"),
        (
            """echo '{"phalanx_probe": [{"kind": "X", "answer": 1.0}], "error": ""}'; echo bye""",
            "wrong on device 0 (X)",
        ),
        ("""echo '{"phalanx_probe": [], "error": ""}'""", "no device"),
    ],
)
def test_a_probe_that_fails_says_how(tmp_path: Path, body: str, reason: str) -> None:
    found = probe_platform("cuda", os.environ, python=script(tmp_path, body))
    assert found.devices == () and reason in found.reason
    assert "somebody" not in found.reason


def test_a_missing_interpreter_is_a_reason(tmp_path: Path) -> None:
    assert "could not be started" in probe_platform("cuda", {}, python=str(tmp_path / "none")).reason


def test_the_real_machine() -> None:
    found = inventory(probe_accelerators=False)
    document = json.loads(json.dumps(found.to_dict()))
    assert 1 <= found.slots <= (os.cpu_count() or 1)
    assert document["slots"] == found.slots and document["slots_reason"]
    assert document["memory"]["total"] > 0
    assert document["platform"]["versions"]["jax"]
    assert {a["backend"] for a in document["accelerators"]} == {"cuda", "mps"}
    assert all(a["devices"] or a["reason"] for a in document["accelerators"])
    assert f"slots={found.slots}" in repr(found)
    assert "slots" in found.summary() and "cuda" in found.summary()


def test_missing_values_are_null_and_never_zero(tmp_path: Path) -> None:
    found = inventory(probe_accelerators=False, environment={}, root=tmp_path)
    document = found.to_dict()
    assert document["cgroup_quota"] is None and document["memory"]["cgroup_limit"] is None
    if sys.platform == "linux":
        assert document["processor"]["level"] is None
        assert any("instruction sets" in note for note in document["notes"])
        assert "N/A" in found.summary()


def test_the_environment_is_an_argument() -> None:
    assert inventory(probe_accelerators=False, environment={"NSLOTS": "1"}).slots == 1


def test_looking_does_not_load_jax() -> None:
    code = "import sys; from phalanx_worker.inventory import inventory; inventory(False); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
