"""Does the device still answer, and rightly?"""

import numpy as np


def run(findings, gpu, variant):
    del variant
    words = np.random.default_rng(6).integers(0, 1 << 60, 1 << 16, dtype=np.uint64)
    memory = gpu.upload(words)
    right = gpu.count_different(memory.ptr, words, words.nbytes) == 0
    findings.note("answers", right and gpu.count_different(memory.ptr, words + 1, words.nbytes) > 0)
