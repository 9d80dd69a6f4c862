"""What is staged for one key: readers see it, and it changes while its value is made."""

from gpustore import KvStore, Transaction
from gpustore.kvstores.transaction.stage import Stage


class Appending:
    """Overlayer whose layers are bytes at the end of the value; `before` runs in an encoding."""

    max_nbytes = 100

    def __init__(self):
        self.laid, self.before = [], None

    def merge(self, layers):
        return None

    def cover(self, layers):
        return None

    def is_whole(self, layer):
        return layer.isupper()

    def encode(self, values):
        if self.before is not None:
            self.before()
        self.laid += [layer for layers, _ in values for layer in layers]
        return [(value or b"") + b"".join(layers) for layers, value in values]


def made(stage):
    return bytes(stage.values(["k"])["k"].value)


def test_layers_are_laid_over_what_readers_saw():
    base = KvStore.open("memory://").result()
    stage, first, second = Stage(base._driver, Transaction()), Appending(), Appending()
    for overlayer, layer in [(first, b"a"), (first, b"b"), (second, b"c")]:
        stage.lay("k", overlayer, layer)
    assert made(stage) == b"abc"
    seen = stage.entries["k"].last_seen.generation
    assert made(stage) == b"abc"
    assert stage.entries["k"].last_seen.generation == seen
    stage.lay("k", second, b"d")
    assert stage.entries["k"].last_seen.generation == b""
    stage.lay("k", first, b"e")
    assert made(stage) == b"abcde"
    assert (first.laid, second.laid) == ([b"a", b"b", b"e"], [b"c", b"d"])
    base.write("k", b"-").result()  # What others store below is seen.
    assert made(stage) == b"-abcde"
    stage.lay("k", first, b"F")
    assert made(stage) == b"F"


def test_change_while_the_value_is_made_is_kept():
    base = KvStore.open("memory://").result()
    stage, overlayer = Stage(base._driver, Transaction()), Appending()
    stage.lay("k", overlayer, b"A")
    overlayer.before = lambda: stage.lay("k", overlayer, b"B")
    made(stage)
    overlayer.before = None
    assert made(stage) == b"B"
