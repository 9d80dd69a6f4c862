"""Finds one thing and never ends, without a step that anybody could pass over."""

import time


def run(findings, target, variant):
    findings.note("first", 1)
    time.sleep(600)
