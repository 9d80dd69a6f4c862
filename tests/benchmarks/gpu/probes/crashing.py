"""Three steps; the first ends the process, the second never ends."""

import os
import signal


def run(findings, target, variant):
    findings.note("started", variant)
    for step in ("crash", "hang", "answer"):
        if findings.begin(step, 1):
            if step == "crash":
                os.abort()
            if step == "hang":
                signal.pause()
            findings.note(step, 1)
