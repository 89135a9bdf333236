"""Hosts that ssh reaches: an sshd each, with keys of the tests' own. ``open_lab`` is for any test that needs real ones.

With root and namespaces the hosts alpha, beta and gamma are machines apart (``machines.py``); gamma can also be reached
through alpha alone, as ``gamma-inside``. Without them all three are one sshd on loopback, as this user, and ``isolated`` is
False: what cannot be shown there is skipped.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import psutil

from phalanx_coordinator.cluster.record import WorkerRecord
from tests.hosts import machines
from tests.hosts.machines import Machine

NAMES = ("alpha", "beta", "gamma")
OURS = "PHALANX_TEST_LAB"
"""In the environment of what runs on a host."""
DELAY = Path(__file__).with_name("delay.py")
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def no_hosts() -> str:
    """Why no host can be made here at all; empty where one can."""
    if SSHD is None:
        return "sshd is not installed (apt-get install openssh-server)"
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "ssh is not installed"
    return ""


@dataclass
class Host:
    """One host as ssh sees it."""

    name: str
    address: str
    port: int
    user: str
    machine: Machine | None
    """None where it is this machine."""
    tmp: Path
    """Where its workers make their directories, from here."""

    def processes(self) -> list[psutil.Process]:
        """What runs of Phalanx there."""
        if self.machine is not None:
            everything = self.machine.processes()
        else:
            everything = [p for p in psutil.process_iter() if p.pid != os.getpid()]
        found = []
        for process in everything:
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if self.machine is None and process.environ().get(OURS) != str(self.tmp):
                    continue  # somebody else's on this machine
                if any(word.startswith("phalanx_worker") for word in command):
                    found.append(process)
        return found

    def leftovers(self) -> list[str]:
        """Processes and folders of Phalanx there."""
        folders = [str(path) for place in (self.tmp, self.shared) if place for path in place.glob("phalanx*")]
        return [*(str(process) for process in self.processes()), *folders]

    @property
    def shared(self) -> Path | None:
        """Its /dev/shm, from here; None where it is everybody's."""
        return None if self.machine is None else self.machine.path("/dev/shm")


@dataclass
class Lab:
    """All hosts, and the ssh configuration that reaches them."""

    folder: Path
    isolated: bool
    hosts: dict[str, Host] = field(default_factory=dict)
    servers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def config(self) -> Path:
        """What ``ssh -F`` reads."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The host keys that ssh trusts."""
        return self.folder / "known_hosts"

    def record(self, host: str = "alpha", *options: str, name: str | None = None, **changed: object) -> WorkerRecord:
        """A record of a worker there; options for ssh before the others."""
        values: dict[str, object] = {
            "name": name or host, "transport": "ssh", "host": host, "python": sys.executable,
            "ssh_options": (*options, "-F", str(self.config)),
            "directory": None if self.isolated else str(self.hosts["alpha"].tmp),
        }  # fmt: skip
        return WorkerRecord(**{**values, **changed})  # type: ignore[arg-type]

    def delayed(self, milliseconds: float = 0.0, rate: float = 0.0, silent_when: Path | None = None) -> tuple[str, ...]:
        """Options for ssh: a round trip takes so long, at so many bytes a second, until the file is there."""
        settings = f"--milliseconds {milliseconds / 2} --rate {rate}"
        if silent_when is not None:
            settings += f" --silent-when {silent_when}"
        return ("-o", f"ProxyCommand={sys.executable} {DELAY} {settings} %h %p")

    @contextlib.contextmanager
    def server(self, host: str = "alpha", **settings: str) -> Iterator[tuple[str, ...]]:
        """Another sshd on a host, with other settings; gives the options that lead to it."""
        port = free_port() if not self.isolated else 2200 + secrets.randbelow(20_000)
        found = self.hosts[host]
        serve(self, found, port, settings)
        trusted = self.known_hosts.read_text()
        key = (self.folder / f"{host}_key.pub").read_text()
        self.known_hosts.write_text(f"{trusted}[{found.address}]:{port} {key}")
        try:
            yield ("-o", f"Port={port}")
        finally:
            end(self.servers.pop())
            self.known_hosts.write_text(trusted)

    def logs(self) -> str:
        """The last lines of every sshd, for whoever must find out why a test failed."""
        files = sorted(self.folder.glob("sshd-*.log"), key=lambda file: file.stat().st_mtime)
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-4000:]}" for file in files[-3:])

    def leftovers(self) -> dict[str, list[str]]:
        """What is left on each host, after a moment to end."""
        deadline = time.monotonic() + 10
        while True:
            left = {name: what for name, host in self.hosts.items() if (what := host.leftovers())}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make_key(path: Path) -> None:
    """A key without a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True)


def serve(lab: Lab, host: Host, port: int, settings: "dict[str, str] | None" = None) -> None:
    """Start an sshd and wait until it answers."""
    assert SSHD is not None
    chosen = {
        "Port": str(port), "ListenAddress": host.address, "HostKey": f"{lab.folder}/{host.name}_key", "PidFile": "none",
        "AuthorizedKeysFile": f"{lab.folder}/authorized_keys", "StrictModes": "no", "UsePAM": "no",
        "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no", "PermitRootLogin": "prohibit-password",
        "PrintMotd": "no", "LogLevel": "DEBUG1", "MaxStartups": "1000", "LoginGraceTime": "0", **(settings or {}),
    }  # fmt: skip
    run = os.environ.get("PHALANX_TEST_RUN", "")
    chosen.setdefault("SetEnv", f"PHALANX_TEST_RUN={run} {OURS}={host.tmp}")
    file = lab.folder / f"sshd-{host.name}-{port}"
    file.write_text("".join(f"{name} {value}\n" for name, value in chosen.items()))
    enter = [] if host.machine is None else host.machine.enter()
    with (lab.folder / f"{file.name}.log").open("wb") as log:
        server = subprocess.Popen([*enter, SSHD, "-D", "-e", "-f", str(file)], stdout=log, stderr=log, start_new_session=True)
    lab.servers.append(server)
    deadline = time.monotonic() + 10
    while "Server listening on" not in (said := (lab.folder / f"{file.name}.log").read_text()):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"sshd does not start: {said}")
        time.sleep(0.005)


def end(server: "subprocess.Popen[bytes]") -> None:
    """End an sshd, with the sessions it serves."""
    for child in psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []:
        with contextlib.suppress(psutil.Error):
            child.kill()
    server.kill()
    server.wait()


def networks() -> Iterator[tuple[IPv4Address, IPv4Address]]:
    """Pairs of addresses from the range for benchmarks of networks, which nobody routes."""
    base = int(IPv4Address("198.18.0.0")) + 4 * secrets.randbelow((1 << 15) - 64)
    while True:
        yield IPv4Address(base + 1), IPv4Address(base + 2)
        base += 4


@contextlib.contextmanager
def open_lab(isolated: bool | None = None) -> Iterator[Lab]:
    """Boot the hosts; everything of them is gone afterwards."""
    apart = isolated if isolated is not None else not machines.missing() and os.environ.get("PHALANX_TEST_HOSTS") != "loopback"
    folder = machines.temporary_folder()
    lab = Lab(folder, apart)
    umask = os.umask(0o022)  # the accounts of the machines read our keys and lists, whatever a person's own umask is
    try:
        for name in (*NAMES, "client"):
            make_key(folder / f"{name}_key")
        shutil.copy(folder / "client_key.pub", folder / "authorized_keys")
        (boot_machines if apart else boot_loopback)(lab)
        configure(lab)
        os.umask(umask)
        yield lab
    finally:
        os.umask(umask)
        for server in lab.servers:
            end(server)
        for host in lab.hosts.values():
            if host.machine is not None:
                host.machine.stop()
        shutil.rmtree(folder)


def boot_machines(lab: Lab) -> None:
    """Three machines, and a cable from alpha to gamma."""
    lab.folder.chmod(0o755)
    pairs = networks()
    for name in NAMES:
        near, far = next(pairs)
        machine = Machine.start(name, near, far, lab.folder, (*machines.NEEDED, lab.folder))
        lab.hosts[name] = Host(name, str(far), 22, "ada", machine, machine.path("/tmp"))
        serve(lab, lab.hosts[name], 22)
    alpha, gamma = lab.hosts["alpha"].machine, lab.hosts["gamma"].machine
    assert alpha is not None and gamma is not None
    near, far = next(pairs)
    gamma.connect(near, far, "eth1", alpha)
    lab.hosts["gamma-inside"] = Host("gamma", str(far), 2222, "ada", gamma, gamma.path("/tmp"))
    serve(lab, lab.hosts["gamma-inside"], 2222)


def boot_loopback(lab: Lab) -> None:
    """One sshd, known by three names."""
    port = free_port()
    (lab.folder / "far").mkdir()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in NAMES:
        lab.hosts[name] = Host(name, "127.0.0.1", port, getpass.getuser(), None, lab.folder / "far")
    serve(lab, lab.hosts["alpha"], port)


def configure(lab: Lab) -> None:
    """What the person's ssh configuration would say."""
    lines, known = [], []
    for name, host in lab.hosts.items():
        lines += [f"Host {name}", f"    HostName {host.address}", f"    Port {host.port}", f"    User {host.user}"]
        lines += ["    ProxyJump alpha"] if name.endswith("-inside") else []
        key = host.name if lab.isolated else "alpha"
        shown = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
        known.append(f"{shown} {(lab.folder / f'{key}_key.pub').read_text()}")
    lines += [
        "Host *", f"    IdentityFile {lab.folder}/client_key", "    IdentitiesOnly yes", "    IdentityAgent none",
        f"    UserKnownHostsFile {lab.known_hosts}", "    GlobalKnownHostsFile /dev/null",
    ]  # fmt: skip
    lab.config.write_text("\n".join(lines) + "\n")
    lab.known_hosts.write_text("".join(known))


def stop_or_kill(processes: Sequence[psutil.Process], how: signal.Signals) -> None:
    """Send a signal to processes that must be there."""
    assert processes
    for process in processes:
        process.send_signal(how)
