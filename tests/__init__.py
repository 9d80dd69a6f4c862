"""Tests of gpustore; a package so that suites shared between tests can be imported."""

import os

# A process that imports NumPy would start a thread on each core, which at first waits in a loop: a
# third of what the import takes of the processor. No test multiplies matrices that are worth it.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
