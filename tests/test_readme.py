"""Every command and every line of Python in the README is run, and prints what the README says it prints.

Digests, times and the names of devices are this machine's, so they are compared as words: any number stands for any
other, any long hexadecimal word for any other.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """(command, what it prints) of every console block."""
    found: list[tuple[str, str]] = []
    for block in blocks("console"):
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append((line[2:].strip(), ""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def write_files(folder: Path) -> None:
    """Files that the README shows: blocks with ``# NAME`` as their first or second line. They are their owner's alone."""
    for block in blocks("(?:toml|text)"):
        name = re.search(r"\A(?:.*\n)?# ([a-z-]+\.(?:toml|aner))\n", block)
        if name is not None:
            (folder / name[1]).touch(mode=0o600)
            (folder / name[1]).write_text(block, encoding="utf-8")


def words(text: str) -> list[str]:
    """The text with its numbers and digests as words, so that only what the machine decides may differ."""
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "DIGEST", text)
    text = re.sub(r"[+-]?\d[\d,._]*(e[+-]?\d+)?", "NUMBER", text)
    return text.split()


def test_words_tell_other_outputs_apart() -> None:
    assert words("hits 7,852,403 of 10") == words("hits 9 of 12,000")
    assert words("hits 7") != words("misses 7")


def test_python_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks("pycon"))
    example = doctest.DocTestParser().get_doctest(source, {}, "README.md", "README.md", 0)
    assert len(example.examples) >= 15
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    runner.run(example, out=report.append)
    phalanx.shutdown()
    assert not runner.failures, "".join(report)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run, one after another: later ones use what earlier ones made."""
    found = tmp_path_factory.mktemp("readme")
    write_files(found)
    return found


@pytest.mark.parametrize(("command", "output"), [c for c in commands() if c[0].startswith("phalanx ")])
def test_command_line_of_the_readme(command: str, output: str, folder: Path) -> None:
    arguments = shlex.split(command)[1:]
    ran = subprocess.run(
        [sys.executable, "-m", "phalanx", *arguments], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    printed = ran.stdout + "".join(line + "\n" for line in ran.stderr.splitlines() if line.startswith("error"))
    assert words(printed) == words(output)


def test_demo_of_the_readme() -> None:
    (output,) = (output for command, output in commands() if command.endswith("-m phalanx.demo"))
    ran = subprocess.run([sys.executable, "-m", "phalanx.demo"], capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    shown = output if os.cpu_count() != 1 else output.replace("this CPU, 2 engines", "")
    assert set(words(ran.stdout)) == set(words(shown))


def test_make_targets_of_the_readme_exist() -> None:
    named = {line.split()[1] for line, _ in commands() if line.startswith("make ")} | set(
        re.findall(r"`make ([a-z-]+)`", README)
    )
    assert {"demo", "test"} <= named
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named), named


def test_files_that_the_readme_links_to_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert all((ROOT / link).exists() for link in links if "://" not in link), links
