"""Does the device still answer, and rightly?"""

import numpy as np


def run(findings, target, variant):
    del variant
    words = np.random.default_rng(6).integers(0, 1 << 60, 1 << 16, dtype=np.uint64)
    array = target.copied(words)
    right = target.equal([array], words) and not target.equal([array], words + 1)
    findings.note("answers", right)
