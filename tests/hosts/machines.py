"""Machines of our own: network, processes, mounts and users apart from this one's, and gone with their first process.

A machine is a set of Linux namespaces. It sees this file system, but has its own /tmp, /home, /run, /dev/shm and accounts,
and one network interface, a veth whose other end is here. It needs root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
NEEDED = (ROOT, Path(sys.prefix), Path(sys.base_prefix))
"""What the Python of a far worker is made of; every account of a machine can read it."""
TOOLS = ("ip", "unshare", "nsenter", "mount")
UIDS = {"ada": 61001, "eve": 61002}
"""The accounts: one that workers run under, and another one."""
LONG_HOME = "/home/" + "/".join(["a-very-long-name-of-a-folder"] * 6)


def missing() -> str:
    """Why there can be no machines here; empty where there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} is not installed"
    tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "this system allows no namespaces"


def hidden_ancestors(path: Path) -> Iterator[Path]:
    """The folders above ``path`` that other users cannot pass."""
    yield from (folder for folder in path.resolve().parents if not folder.stat().st_mode & 0o001)


def covering(kept: Sequence[Path]) -> str:
    """Shell lines that put empty folders over what is private here, with ``kept`` still in its place."""
    covered = {Path("/tmp")} | {folder for path in kept for folder in hidden_ancestors(path)}
    outermost = sorted(folder for folder in covered if not covered & set(folder.parents))
    lines = []
    for folder in outermost:
        inside = sorted({path.resolve() for path in kept if folder in path.resolve().parents})
        inside = [path for path in inside if not set(path.parents) & set(inside)]
        lines += [f"mkdir -p /run/kept{n} && mount --bind '{path}' /run/kept{n}" for n, path in enumerate(inside)]
        mode = "1777" if folder == Path("/tmp") else "0755"
        lines.append(f"mount -t tmpfs -o mode={mode},size=256m tmpfs '{folder}'")
        lines += [f"mkdir -p '{path}' && mount --move /run/kept{n} '{path}'" for n, path in enumerate(inside)]
    return "\n".join(lines)


def accounts(folder: Path) -> None:
    """Files of accounts: this system's, and ours."""
    passwd, shadow = Path("/etc/passwd").read_text(), Path("/etc/shadow").read_text()
    for name, uid in UIDS.items():
        passwd += f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n"
        shadow += f"{name}:*:19000:0:99999:7:::\n"
    passwd += f"long:x:{UIDS['ada']}:{UIDS['ada']}::{LONG_HOME}:/bin/bash\n"
    passwd += f"nobody-home:x:{UIDS['ada']}:{UIDS['ada']}::/home/ada:/usr/sbin/nologin\n"
    shadow += "long:*:19000:0:99999:7:::\nnobody-home:*:19000:0:99999:7:::\n"
    (folder / "passwd").write_text(passwd)
    (folder / "shadow").write_text(shadow)


SCRIPT = """set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/sshd /run/lab
mount --bind '{folder}' /run/lab
{covering}
mount -t tmpfs -o mode=0755 tmpfs /home
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind /run/lab/passwd /etc/passwd
mount --bind /run/lab/shadow /etc/shadow
for home in /home/ada:ada {long}:ada /home/eve:eve; do
    install -d "${{home%:*}}" && chown "${{home#*:}}:" "${{home%:*}}" && chmod 0700 "${{home%:*}}"
done
chmod 0755 /home/*
mkdir /tmp/full /tmp/nearly-full
mount -t tmpfs -o mode=1777,nr_inodes=1 tmpfs /tmp/full
mount -t tmpfs -o mode=1777,nr_inodes=2 tmpfs /tmp/nearly-full
echo '{name}' > /proc/sys/kernel/hostname
ip link set lo up
trap '' CHLD
touch /run/lab/{name}.up
exec sleep infinity
"""


@dataclass
class Machine:
    """One machine, running."""

    name: str
    address: IPv4Address
    folder: Path
    process: "subprocess.Popen[bytes]"
    init: int = 0
    """The number that its first process has here."""

    @classmethod
    def start(cls, name: str, near: IPv4Address, far: IPv4Address, folder: Path, kept: Sequence[Path]) -> "Machine":
        """Boot it, and lay a cable from ``near`` here to ``far`` there."""
        accounts(folder)
        up = folder / f"{name}.up"
        up.unlink(missing_ok=True)
        text = SCRIPT.format(folder=folder, name=name, covering=covering(kept), long=LONG_HOME)
        script = folder / f"{name}.sh"
        script.write_text(text)
        flags = ["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        with (folder / f"{name}.boot").open("wb") as log:
            process = subprocess.Popen(["unshare", *flags, "sh", str(script)], stdout=log, stderr=log, start_new_session=True)
        found = cls(name, far, folder, process)
        deadline = time.monotonic() + 20
        while not up.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                found.stop()
                raise RuntimeError(f"machine {name} does not start: {(folder / f'{name}.boot').read_text()}")
            time.sleep(0.005)
        found.init = psutil.Process(process.pid).children()[0].pid
        found.connect(near, far, "eth0")
        return found

    def connect(self, near: IPv4Address, far: IPv4Address, interface: str, other: "Machine | None" = None) -> None:
        """A cable between here (or ``other``) and the machine."""
        ours, theirs = (f"px{os.urandom(4).hex()}" for _ in range(2))
        shell(["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs])
        shell(["ip", "link", "set", theirs, "netns", str(self.init)])
        if other is not None:
            shell(["ip", "link", "set", ours, "netns", str(other.init)])
        here = [] if other is None else other.enter("--net")
        there = self.enter("--net")
        shell([*there, "ip", "link", "set", theirs, "name", interface])
        for command, name, address in ((here, ours, near), (there, interface, far)):
            shell([*command, "ip", "address", "add", f"{address}/30", "dev", name])
            shell([*command, "ip", "link", "set", name, "up"])

    def enter(self, *namespaces: str) -> list[str]:
        """The beginning of a command line that goes on inside."""
        return ["nsenter", f"--target={self.init}", *(namespaces or ("--mount", "--net", "--pid", "--uts", "--ipc"))]

    def run(self, *command: str, user: str = "root", check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command inside, to its end."""
        switch = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={UIDS[user]}", "--clear-groups"]
        return subprocess.run([*self.enter(), *switch, *command], capture_output=True, text=True, timeout=60, check=check)

    def path(self, inside: str) -> Path:
        """A path of the machine, as root reaches it from here."""
        return Path(f"/proc/{self.init}/root{inside}")

    def cable(self, up: bool) -> None:
        """Plug the network cable in, or out: what is sent is dropped without a word."""
        shell([*self.enter("--net"), "ip", "link", "set", "eth0", "up" if up else "down"])

    def processes(self) -> list[psutil.Process]:
        """Everything that runs inside, but its first process."""
        own = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if process.pid != self.init and os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                    found.append(process)
        return found

    def stop(self) -> None:
        """Power off."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + 5
        while self.init and Path(f"/proc/{self.init}").exists() and time.monotonic() < deadline:
            time.sleep(0.005)


def shell(command: Sequence[str]) -> str:
    """Run a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def temporary_folder() -> Path:
    """A folder for the machines' own files, that no test counts as left behind."""
    return Path(tempfile.mkdtemp(prefix="lab-"))
