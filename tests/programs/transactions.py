"""Random programs of transactions: several are open over keys and arrays of one kvstore."""

import asyncio

from tests.programs.machine import TIMEOUT, Draw, Machine

FORMS = {
    "memory": "memory://a/",
    "separately": {"driver": "memory", "path": "a/", "atomic": False},
    "ocdbt": "memory://a/|ocdbt:",
}
ARRAYS = {
    "x": ("zarr3", {"codecs": ["bytes"]}, {"dtype": "uint8", "shape": [7]}, [3]),
    "y": ("zarr", {"compressor": None}, {"dtype": "int16", "shape": [3, 4]}, [2, 2]),
}
MODES = ((False, False), (True, False), (False, True))
KEYS = ("k", "l", "m/1", "m/2", "x/c/0")
ENDS = (("", "x"), ("k", "l"), ("m/", "m0"), ("m/1", "m/2"))
VALUES = (b"", b"1", b"abc", b"longer than the others")


class Stop(Exception):
    """Error that a program raises in a block."""


def drawn(seed):
    """Program number `seed`."""
    draw = Draw(seed)
    form = draw.choice(sorted(FORMS))
    mode = draw.one((5, MODES[0]), (2, MODES[1]), (2, MODES[2]))
    # An atomic transaction in a kvstore without atomic changes reads metadata in gpustore alone.
    array_weight = 0 if form == "separately" and mode[0] else draw.choice((0, 4))
    steps = []
    for _ in range(draw.randint(4, 18)):
        steps.append(draw.one((12, block_step(draw, array_weight)), *ends(draw, array_weight)))
    return (form, mode, array_weight > 0), steps


def block_step(draw, array_weight):
    """A step that is allowed in a block, too."""
    who = draw.choice((None, 0, 0, 1, 1, 2))
    key = draw.choice(KEYS if not array_weight else KEYS[:4])
    condition = draw.one((4, None), (1, draw.randrange(6)), (1, b"\0nope"))
    value = draw.choice(VALUES if condition is not None and who is not None else (*VALUES, None))
    name = draw.choice(sorted(ARRAYS))
    return draw.one(
        (4, ("write", who, key, value, condition)),
        (4, ("read", who, key, condition, draw.choice((None, None, slice(1, None), slice(0, 2))))),
        (1, ("get", who, key)),
        (1, ("contains", who, key)),
        (2, ("list", who, draw.choice(ENDS))),
        (2, ("delete_range", who, draw.choice(ENDS))),
        (array_weight, ("array_write", who, name, span(draw), draw.randrange(4))),
        (array_weight, ("array_read", who, name, span(draw))),
    )


def ends(draw, array_weight):
    """Steps that end a transaction or look at it, with their weights."""
    who = draw.choice((0, 0, 1, 2))
    inner = [block_step(draw, array_weight) for _ in range(draw.randint(0, 3))]
    return (
        (1, ("commit", who, draw.choice(("commit_sync", "commit_async", "future", "await")))),
        (1, ("abort", who)),
        (1, ("again", who)),
        (2, ("properties", who)),
        (1, ("future", who)),
        (1, ("block", who, inner, draw.choice((None, None, "Stop", "abort")), draw.choice("sa"))),
        (1, ("bind", who, draw.choice((None, 0, 1)), draw.choice(("kvstore", "x", "y")))),
        (1, ("wrong", who, draw.randrange(len(WRONG)))),
    )


def span(draw):
    start, stop = sorted([draw.randint(0, 3), draw.randint(0, 3)])
    return start, stop if draw.random() < 0.8 else None


WRONG = (
    lambda lib, one, store: lib.Transaction(3, 4, 5),
    lambda lib, one, store: lib.Transaction("yes"),
    lambda lib, one, store: setattr(one, "atomic", True),
    lambda lib, one, store: setattr(one, "open", False),
    lambda lib, one, store: one.commit_sync(1),
    lambda lib, one, store: one == one,
    lambda lib, one, store: hash(one) == hash(one),
    lambda lib, one, store: one == lib.Transaction(),
    lambda lib, one, store: store.with_transaction(3),
    lambda lib, one, store: store.with_transaction(),
    lambda lib, one, store: setattr(store, "transaction", 3),
    lambda lib, one, store: lib.KvStore.open("memory://", transaction=3),
    lambda lib, one, store: lib.open("memory://|zarr3:", transaction=True),
    lambda lib, one, store: one.__enter__() is one,
)
"""Calls that are not allowed, and a few that are."""


class Transactions(Machine):
    """Three transactions, which are made anew by steps, and a kvstore with two arrays."""

    def __init__(self, library, setup, folder):
        super().__init__(library, setup, folder)
        form, (atomic, repeatable_read), has_arrays = setup
        self.mode = {"atomic": atomic, "repeatable_read": repeatable_read}
        context = library.Context()
        self.kvstore = library.KvStore.open(FORMS[form], context=context).result()
        self.arrays = {name: self.made(name) for name in ARRAYS if has_arrays}
        self.transactions = [library.Transaction(**self.mode) for _ in range(3)]
        self.futures = []
        self.changed = [set(), set(), set()]
        """Keys that each transaction has changed by themselves."""
        self.conditional = [set(), set(), set()]
        """Those on which it has set a condition."""
        self.is_over = False

    def made(self, name):
        driver, raw, options, chunks = ARRAYS[name]
        return self.library.open(
            {"driver": driver, "metadata": raw},
            kvstore=self.kvstore / f"{name}/",
            create=True,
            chunk_layout=self.library.ChunkLayout(chunk_shape=chunks),
            **options,
        ).result()

    def end(self):
        commits = [("commit", who, "commit_sync") for who in range(3)]
        return [*commits, *(("properties", who) for who in range(3)), ("content",)]

    def outcome(self, name, *arguments):
        return None if self.is_over else super().outcome(name, *arguments)

    def bound(self, store, who):
        return store if who is None else store.with_transaction(self.transactions[who])

    def kv(self, who):
        return self.bound(self.kvstore, who)

    def note(self, who, *keys):
        if who is not None:
            self.changed[who].update(keys)

    def staged(self, who, stamp):
        """The generation of what is staged means nothing."""
        return self.stamp(stamp) if who is None else None

    def condition(self, given):
        if isinstance(given, int):
            return self.generations[given % len(self.generations)]
        return given

    # ------------------------------------------------------------------ keys

    def write(self, who, key, value, condition):
        store = self.kv(who)
        if who is not None and (key in self.conditional[who] or (condition and self.changed[who])):
            return None  # TensorStore stores what it must not; docs/differences.py.
        if who is not None and condition is not None:
            self.conditional[who].add(key)
        self.note(who, key)
        stamp = self.result(store.write(key, value, if_equal=self.condition(condition)))
        return self.staged(who, stamp)

    def is_read_back(self, who):
        """Whether a transaction reads what it has changed; see docs/differences.py."""
        return who is not None and self.mode["repeatable_read"] and bool(self.changed[who])

    def read(self, who, key, condition, byte_range):
        if self.is_read_back(who):
            return None
        found = self.result(
            self.kv(who).read(key, if_not_equal=self.condition(condition), byte_range=byte_range)
        )
        return found.state, found.value, self.staged(who, found.stamp)

    def get(self, who, key):
        return None if self.is_read_back(who) else self.kv(who)[key]

    def contains(self, who, key):
        return None if self.is_read_back(who) else key in self.kv(who)

    def list(self, who, ends):
        if who is not None and self.mode["repeatable_read"]:
            return None
        if who is not None and "range" in self.changed[who] and self.setup[0] == "ocdbt":
            ends = ("", "")  # Of a part of a deleted range TensorStore lists all keys.
        return sorted(self.result(self.kv(who).list(self.library.KvStore.KeyRange(*ends))))

    def delete_range(self, who, ends):
        if who is not None and self.conditional[who]:
            return None
        self.note(who, "range")
        return self.result(self.kv(who).delete_range(self.library.KvStore.KeyRange(*ends)))

    # ------------------------------------------------------------------ arrays

    def part(self, who, name, span):
        store = self.bound(self.arrays[name], who)
        return store[(Ellipsis, slice(*span))] if name == "y" else store[slice(*span)]

    def array_write(self, who, name, span, value):
        futures = self.part(who, name, span).write(value)
        self.result(futures.copy)
        self.result(futures)

    def array_read(self, who, name, span):
        if who is not None and self.changed[who]:
            return None  # docs/differences.py
        return self.result(self.part(who, name, span).read())

    # ------------------------------------------------------------------ transactions

    def commit(self, who, how):
        one = self.transactions[who]

        async def wait():
            return await one.future

        was_open = one.open
        try:
            if how == "commit_sync" and self.is_ours:
                return one.commit_sync()
            if how == "await" and self.is_ours:
                return asyncio.run(wait())
            return self.result(one.future if how == "future" else one.commit_async())
        except ValueError as error:
            # TensorStore may have stored some of the keys.
            self.is_over = was_open
            if "Generation mismatch" not in str(error):
                raise
            return "Generation mismatch"  # Of one of several keys.

    def abort(self, who):
        return self.transactions[who].abort()

    def again(self, who):
        self.transactions[who] = self.library.Transaction(**self.mode)
        self.changed[who].clear()
        self.conditional[who].clear()

    def properties(self, who):
        one = self.transactions[who]
        return [one.open, one.aborted, one.commit_started, one.atomic]

    def future(self, who):
        """Whether Futures are done; those of a transaction that has ended are, after a while."""
        self.futures.append((self.transactions[who], self.transactions[who].future))
        return [future.done() if one.open else self.ended(future) for one, future in self.futures]

    def ended(self, future):
        error = future.exception(timeout=TIMEOUT)
        return error is None or str(error)

    def block(self, who, steps, how, kind):
        """The steps in a block, which may end by an error or an abort."""
        one, found = self.transactions[who], []

        def body(entered):
            found.append(entered is one)
            found.extend(self.outcome(*step) for step in steps)
            if how == "Stop":
                raise Stop
            if how == "abort":
                one.abort()

        async def run():
            async with one as entered:
                body(entered)

        was_open = one.open
        try:
            if not self.is_ours and how is None:
                found.append(True)
                found.extend(self.outcome(*step) for step in steps)
                self.result(one.commit_async())
            elif kind == "a":
                asyncio.run(run())
            else:
                with one as entered:
                    body(entered)
        except Stop:
            found.append("stopped")
        except ValueError as error:
            is_known = "Generation mismatch" in str(error)
            found.append(is_known or ("error", ("ValueError",), str(error)))
            self.is_over = was_open
        return [*found, self.properties(who)]

    def bind(self, who, other, what):
        """Bind what is bound already."""
        if who is not None and self.transactions[who].commit_started:
            return None  # TensorStore's is committed a little later than its Future is done.
        store = self.arrays.get(what, self.kvstore)
        again = (
            self.bound(self.bound(store, who), other)
            if other is not None
            else (self.bound(store, who).with_transaction(None))
        )
        return again.transaction is (None if other is None else self.transactions[other])

    def wrong(self, who, number):
        found = WRONG[number](self.library, self.transactions[who], self.kvstore)
        if hasattr(found, "result"):
            found = self.result(found)
        return found if isinstance(found, bool) else type(found).__name__

    def content(self):
        stored = [key for key in sorted(self.kvstore.list().result()) if not is_document(key)]
        return [(key, self.kvstore[key]) for key in stored]


def is_document(key):
    """Whether a key has metadata in JSON, which libraries print in other ways."""
    return key.endswith((b"zarr.json", b".zarray"))
