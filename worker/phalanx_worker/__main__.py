"""``python -m phalanx_worker`` runs a worker."""

import sys

from phalanx_worker.environment import enter_for

enter_for(sys.argv[1:])  # before anything large is loaded, since it starts this process anew

from phalanx_worker.daemon import main  # noqa: E402

main()
