"""Phalanx: fits and simulations in lockstep on the machines a researcher already reaches over SSH.

    parts = phalanx.datasets.iris().partition(validation=0.2, test=0.2, seed=42)
    model = phalanx.classifier(phalanx.mlp(4, [8], 3, seed=42), standardize=True, optimizer="adam")
    config = phalanx.training(epochs=40, batch=32, rate=0.01, seed=42, validation=parts.validation)
    fitted = phalanx.fit(model, parts.train, config)

An *execution* says where: ``local``, ``device``, ``cluster``. It never changes the result.
"""

from phalanx import datasets
from phalanx.api import fit, inventory, monte_carlo, regression, shutdown
from phalanx.background import job, jobs, load, resume, submit_fit, submit_simulation
from phalanx.connection import connect
from phalanx.dataset import Dataset
from phalanx.executions import cluster, device, local
from phalanx.job_handles import Job
from phalanx.models import classifier, mlp, regressor, sequential
from phalanx.results import Evaluation, Fitted, Simulation
from phalanx.training import training
from phalanx_proto.errors import PhalanxError
from phalanx_proto.version import VERSION as __version__

__all__ = [
    "Dataset", "Evaluation", "Fitted", "Job", "PhalanxError", "Simulation", "__version__", "classifier", "cluster", "connect",
    "datasets", "device", "fit", "inventory", "job", "jobs", "load", "local", "mlp", "monte_carlo", "regression", "regressor",
    "resume", "sequential", "shutdown", "submit_fit", "submit_simulation", "training",
]  # fmt: skip
