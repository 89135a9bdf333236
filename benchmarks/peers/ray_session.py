"""A private Ray on this machine's two cores that leaves nothing behind."""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CPUS = 2
STORE_BYTES = 1_500_000_000


@contextmanager
def session() -> Iterator[Any]:
    """The ``ray`` module, started; shut down and its folder removed at the end."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=CPUS,
            num_gpus=0,
            include_dashboard=False,
            configure_logging=True,
            logging_level=logging.ERROR,
            log_to_driver=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        try:
            yield ray
        finally:
            ray.shutdown()
