"""Takes a step, and then fails outside of any."""


def run(findings, target, variant):
    if findings.begin("one"):
        findings.note("one", 1)
    raise RuntimeError("outside of all steps")
