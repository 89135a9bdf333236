"""Taking over a job that nobody works on, and carrying out what its directory asks for."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phalanx_coordinator.job_directory.directory import JobDirectory
from phalanx_coordinator.session import Coordinator
from phalanx_coordinator.waiting import on_thread
from phalanx_proto import job_files
from phalanx_proto.errors import InvalidJob
from phalanx_proto.execution import Execution
from phalanx_proto.jobs import FitRequest, Listener
from phalanx_proto.outcomes import Outcome


async def take_over(coordinator: Coordinator, path: Path, execution: Execution | None = None) -> JobDirectory:
    """The directory of a job, held by this process; its request is to be carried out elsewhere if ``execution`` is given.

    Raises ``InvalidJob``, ``JobBusy``, and what the request is refused for; then nothing is changed.
    """
    directory = await on_thread(lambda: JobDirectory.open(path), JobDirectory.close)
    try:
        request = await asyncio.to_thread(directory.request)
        if execution is not None:
            request = replace(request, execution=execution)
        _require_same_experiment(directory, await coordinator.described(request, directory))
        if execution is not None:
            directory.change_execution(execution)
    except BaseException:
        directory.close()
        raise
    return directory


def _require_same_experiment(directory: JobDirectory, described: Mapping[str, Any]) -> None:
    """Raises ``InvalidJob`` where the request is another experiment than the one that the job's manifest tells of."""
    assert directory.path is not None
    told = job_files.read_json(directory.path, job_files.MANIFEST).get("experiment")
    if told is not None and told != described["experiment"]:
        raise InvalidJob(
            f"{job_files.REQUEST} of {directory.path} asks for another experiment than its {job_files.MANIFEST} tells of; "
            "nothing was changed there; put the right file back, or submit the job again with a new --output"
        )


async def carry_out(coordinator: Coordinator, directory: JobDirectory, listener: Listener) -> Outcome:
    """Carry the directory's request out; however it ends, the directory says so."""
    try:
        request = await asyncio.to_thread(directory.request)
        if isinstance(request, FitRequest):
            return await coordinator.fit(request, listener, directory)
        return await coordinator.simulate(request, listener, directory)
    except BaseException as error:
        if not directory.ended:  # it was refused before the work began
            directory.fail(error)
        raise
    finally:
        directory.close()


async def carry_on(coordinator: Coordinator, path: Path, execution: Execution | None, listener: Listener) -> Outcome:
    """Resume a job in this process and wait for its outcome; that of a complete job is read."""
    path = job_files.require_job(path)
    if job_files.confirmed_status(path).state == "COMPLETE":
        return await asyncio.to_thread(job_files.read_outcome, path)
    return await carry_out(coordinator, await take_over(coordinator, path, execution), listener)
