"""What tests share."""

import os

# Tests run in several processes, servers in more: BLAS threads that spin for each other on an
# oversubscribed machine cost minutes. Before anything loads BLAS.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
