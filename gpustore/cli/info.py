"""``gpustore info``: description of an array, as text or, with ``--json``, for programs.

:mod:`gpustore.cli.group_info` describes a group. The description of an array has four steps:

1. Open the array, which reads its metadata only.
2. List the stored values, with sizes where the kvstore is a folder of files.
3. Estimate a read and a write of the array: the decoders and encoders here and on a GPU.
   ``--explain`` prints the whole estimates.
4. Print the facts. All but the last step are those of ``store.info_complete()``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gpustore
from gpustore.cli import group_info
from gpustore.cli.failure import CommandError
from gpustore.cli.retries import few_retries
from gpustore.cli.screen import Screen
from gpustore.copying.elements import open_whole

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    context = few_retries()
    try:
        store = open_whole(arguments.array, context=context)
    except gpustore.GpustoreError as error:
        group = group_info.find_group(arguments.array, error, context=context)
        return group_info.run(arguments, group)
    if store.spec().to_json()["driver"] == "json":
        raise CommandError(f"{arguments.array} is a JSON value: `gpustore cat` prints it")
    info = store.info_complete()
    if arguments.json:
        facts = info.to_json()
        if arguments.explain:
            facts["explanation"] = store.explain().to_json()
            facts["write_explanation"] = store.explain_write().to_json()
        print(json.dumps(facts, indent=2))
    else:
        screen = Screen()
        screen.facts(arguments.array, info.facts(gpu=True))
        if arguments.explain:
            screen.line(f"\n{store.explain()}\n\n{store.explain_write()}")
    return 0
