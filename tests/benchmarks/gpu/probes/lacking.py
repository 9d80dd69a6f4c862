"""Needs what is not installed."""

import importlib


def run(findings, target, variant):
    importlib.import_module("no_such_package_anywhere")
