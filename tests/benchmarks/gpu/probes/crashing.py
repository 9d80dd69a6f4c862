"""Three steps; the first ends the process, the second never ends."""

import os
import time


def run(findings, target, variant):
    findings.note("started", variant)
    for step in ("crash", "hang", "answer"):
        if findings.begin(step, 1):
            if step == "crash":
                os.abort()
            if step == "hang":
                time.sleep(600)
            findings.note(step, 1)
