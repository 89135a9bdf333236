"""``python -m phalanx_worker`` runs a worker."""

from phalanx_worker.daemon import main

main()
