"""Tries many programs by hand: ``python -m tests.programs.many kvstores 0 10000``.

It prints one small program for each kind of difference: the steps of the shortest that shows it.
"""

import argparse
import os
from collections import Counter

import gpustore
from tests.programs import kinds
from tests.programs.machine import difference
from tests.tensorstore_process import TensorStoreProcess

BATCH = 50


def shrunk(process, program, differs):
    """The program without the steps without which it has the same difference, too."""
    kind, (setup, steps) = program
    at = 0
    while at < len(steps):
        fewer = kind, (setup, steps[:at] + steps[at + 1 :])
        theirs = process.ask(fewer)
        if theirs is not None and differs(kinds.outcome(gpustore, fewer), theirs):
            steps = fewer[1][1]
        else:
            at += 1
    return kind, (setup, steps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=kinds.DRAWN)
    parser.add_argument("start", type=int)
    parser.add_argument("stop", type=int)
    parser.add_argument("--shown", type=int, default=10)
    given = parser.parse_args()
    process, other_process = (TensorStoreProcess(kinds.__name__) for _ in "ab")
    seen, crashes, tried = Counter(), [], 0
    for start in range(given.start, given.stop, BATCH):
        programs = [
            kinds.drawn(given.kind, seed) for seed in range(start, min(start + BATCH, given.stop))
        ]
        left = programs
        while left:
            process.send(left)
            found = []
            ours = [kinds.outcome(gpustore, program) for program in left]
            found = process.receive(len(left))
            for program, one, other in zip(left, ours, found):
                tried += 1
                if other is None:
                    crashes.append(program)
                    continue
                at = difference(one, other)
                if at is None:
                    continue
                steps = program[1][1]
                name = steps[at][0] if at < len(steps) else "end"
                seen[name] += 1
                if seen[name] > 3 or len(seen) > given.shown:
                    continue

                def differs(a, b):
                    return difference(a, b) is not None

                small = shrunk(other_process, program, differs)
                steps = small[1][1]
                one = kinds.outcome(gpustore, small)
                other = other_process.ask(small)
                print("-----", name, start, small[1][0])
                if other is None or difference(one, other) is None:
                    print("   not the same each time", program)
                    continue
                for number, (a, b) in enumerate(zip(one, other)):
                    if number >= len(steps) and number != difference(one, other):
                        continue
                    step = steps[number] if number < len(steps) else "end"
                    mark = "" if number != difference(one, other) else "<<<<"
                    print("  ", step, "\n      ours  ", a, "\n      theirs", b, mark)
                print(flush=True)
            left = left[len(found) :]
    print("tried", tried, "different", dict(seen), "crashes", len(crashes))
    for program in crashes[:3]:
        print("crash", program)
    os._exit(0)


if __name__ == "__main__":
    main()
