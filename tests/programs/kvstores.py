"""Random programs of the methods of ``KvStore``, over kvstores of each kind."""

import copy
import math
import pickle

from tests.programs.machine import Draw, Machine

FORMS = ("memory", "separately", "file", "zip", "ocdbt", "kvstack")
KEYS = ("a", "b", "dir/x", "dir/y", "dir/sub/z", "e\u00e9", "other")
ENDS = ("", "a", "b", "dir/", "dir/x", "dir/y", "dir0", "f", "other\0", "z", b"\xff")
OPERATORS = ("__add__", "__truediv__")
VALUES = (b"", b"1", b"value", "text", bytes(9), b"longer than the others")


def spec(form, folder, name):
    """JSON of a kvstore."""
    return {
        "memory": {"driver": "memory", "path": f"{name}/"},
        "separately": {"driver": "memory", "path": f"{name}/", "atomic": False},
        "file": {"driver": "file", "path": f"{folder}/{name}/", "file_io_sync": False},
        "zip": {"driver": "zip", "base": {"driver": "memory", "path": f"{name}.zip"}},
        "ocdbt": {"driver": "ocdbt", "base": {"driver": "memory", "path": f"{name}/"}},
        "kvstack": {
            "driver": "kvstack",
            "layers": [
                {"base": f"memory://{name}/base/"},
                {"base": f"memory://{name}/dir/", "prefix": "dir/", "strip_prefix": 0},
                {"base": f"memory://{name}/one/a", "exact": "a"},
            ],
        },
    }[form]


def drawn(seed):
    """Program number `seed`."""
    draw = Draw(seed)
    form = draw.choice(FORMS)
    key = lambda: draw.choice(KEYS)  # noqa: E731
    store = lambda: draw.one((5, 0), (1, draw.randrange(6)))  # noqa: E731

    def generation():
        known = None if form == "zip" else draw.randrange(8)  # See `missing`.
        return draw.one((3, None), (1, known), (1, "\0nope"))

    steps = []
    for _ in range(draw.randint(4, 16)):
        end = [draw.choice(ENDS), draw.choice(ENDS)]
        if form not in ("file", "zip", "ocdbt") or draw.random() < 0.7:
            # Ranges from the last key to the first one end a process with TensorStore in memory.
            end.sort(key=lambda one: one if isinstance(one, bytes) else one.encode())
        ends = draw.one((2, None), (3, tuple(end)))
        steps.append(
            draw.one(
                (6, ("write", store(), key(), draw.choice((*VALUES, None)), generation())),
                (2, ("set", store(), key(), draw.choice((*VALUES, None)))),
                (1, ("delete", store(), key())),
                (4, ("read", store(), key(), generation(), draw.choice(BOUNDS), byte_range(draw))),
                (2, ("get", store(), key())),
                (1, ("contains", store(), key())),
                (3, ("list", store(), ends, draw.one((4, 0), (1, draw.randint(0, 5))))),
                (1, ("delete_range", store(), tuple(end) if form != "zip" else (end[0], "z"))),
                (1, ("copy_range", store(), draw.randrange(6), ends)),
                (1, ("describe", store())),
                (1, ("base", store())),
                (
                    2,
                    (
                        "derive",
                        store(),
                        draw.choice(("__add__", "__truediv__")),
                        suffix(draw, form),
                    ),
                ),
                (1, ("path", store(), suffix(draw, form))),
                (1, ("again", store(), draw.choice(("copy", "shallow", "retain", "context")))),
                (1, ("pickled", store())),
                (1, ("wrong", store(), draw.randrange(len(WRONG)))),
            )
        )
    return form, steps


BOUNDS = (None, None, None, 0, 0.0, math.inf, 1e9, -math.inf)


def byte_range(draw):
    ends = (None, 0, 1, 3, 5, 6, -1, -3, -6)
    return draw.one(
        (3, None),
        (3, (draw.choice(ends), draw.choice(ends), draw.one((9, None), (1, 1), (1, 2)))),
    )


def suffix(draw, form):
    """Of a path. In archives and files no key begins with a slash; files lie below no others."""
    others = {"file": (), "zip": ("a/", "a")}.get(form, ("a/", "a", "/", "/dir/"))
    return draw.choice(("dir", "dir/", "sub/", b"dir/", "\u00e9/", *others))


def as_text(path):
    return path.decode() if isinstance(path, bytes) else path


WRONG = (
    lambda one, kv: one.read(3),
    lambda one, kv: one.read(None),
    lambda one, kv: one.read("a", byte_range=3),
    lambda one, kv: one.read("a", byte_range=slice("a", None)),
    lambda one, kv: one.read("a", if_not_equal=3),
    lambda one, kv: one.read("a", staleness_bound="now"),
    lambda one, kv: one.read("a", None),
    lambda one, kv: one.write("a", 3),
    lambda one, kv: one.write("a", 1.5),
    lambda one, kv: one.write("a", b"", b""),
    lambda one, kv: one.write("a", b"", if_equal=3),
    lambda one, kv: one.list("a"),
    lambda one, kv: one.list(strip_prefix_length=-1),
    lambda one, kv: one.list(strip_prefix_length="a"),
    lambda one, kv: one.list(None, 0, 0),
    lambda one, kv: one.delete_range(None),
    lambda one, kv: one.delete_range(),
    lambda one, kv: one.experimental_copy_range_to("memory://"),
    lambda one, kv: one / 3,
    lambda one, kv: one + None,
    lambda one, kv: one[3],
    lambda one, kv: one.__setitem__("a", 3),
    lambda one, kv: one.__delitem__(3),
    lambda one, kv: one.__contains__(3),
    lambda one, kv: iter(one),
    lambda one, kv: len(one),
    lambda one, kv: setattr(one, "path", 3),
    lambda one, kv: setattr(one, "transaction", 3),
    lambda one, kv: one.with_transaction(3),
    lambda one, kv: one.spec(unbind_context=True, retain_context=True),
    lambda one, kv: one.write(b"\xff", b"1"),
    lambda one, kv: one.read(b"\xff"),
    lambda one, kv: hash(one) == hash(one),
    lambda one, kv: one == one,
    lambda one, kv: one == one.copy(),
    lambda one, kv: kv.open(one),
    lambda one, kv: kv(),
    lambda one, kv: kv.open(one.spec(), context=3),
)
"""Calls with arguments that are not allowed, and a few that are."""


class KvStores(Machine):
    """Kvstores of which the first one is opened and the others are made of those before."""

    def __init__(self, library, setup, folder):
        super().__init__(library, setup, folder)
        self.kv = library.KvStore
        self.context = library.Context()
        one = spec(setup, folder, "a")
        self.stores = [self.kv.open(one, context=self.context).result()]

    def end(self):
        return [("content", 0)]

    def store(self, index):
        return self.stores[index % len(self.stores)]

    def keep(self, store):
        """Keep a store for the steps that follow; none of them leaves the folder."""
        assert self.setup != "file" or store.path.startswith(f"{self.folder}/a")
        self.stores.append(store)
        return store.path

    def condition(self, given):
        if isinstance(given, int):
            return self.generations[given % len(self.generations)]
        return given

    def range(self, ends):
        return None if ends is None else self.kv.KeyRange(*ends)

    def stamp(self, stamp):
        """In an archive TensorStore's are those of the archive."""
        return bool(stamp.generation) if self.setup == "zip" else super().stamp(stamp)

    # ------------------------------------------------------------------ steps

    def write(self, store, key, value, condition):
        found = self.store(store).write(key, value, if_equal=self.condition(condition))
        stamp = self.result(found)
        return self.missing() if value is None and stamp.generation else self.stamp(stamp)

    def missing(self):
        """Of a missing key: in an archive TensorStore's is that of the archive."""
        return self.generations.index(b"\x02")

    def set(self, store, key, value):
        self.store(store)[key] = value

    def delete(self, store, key):
        del self.store(store)[key]

    def read(self, store, key, condition, bound, byte_range):
        if self.setup in ("zip", "ocdbt"):
            bound = (
                None  # With one, either library may miss a write of another store, or of its own.
            )
        found = self.result(
            self.store(store).read(
                key,
                if_not_equal=self.condition(condition),
                staleness_bound=bound,
                byte_range=None if byte_range is None else slice(*byte_range),
            )
        )
        is_missing = found.state == "missing"
        return found.state, found.value, self.missing() if is_missing else self.stamp(found.stamp)

    def get(self, store, key):
        return self.store(store)[key]

    def contains(self, store, key):
        return key in self.store(store)

    def list(self, store, ends, strip):
        if self.setup in ("kvstack", "zip"):
            strip = 0  # docs/differences.py
        one = self.store(store if self.setup != "kvstack" else 0)
        if self.setup == "file":
            # If a key is shorter, TensorStore ends the process.
            strip = min(strip, 1 if one.path.endswith("/") else 0)
        return sorted(self.result(one.list(self.range(ends), strip)))

    def delete_range(self, store, ends):
        return self.result(self.store(store).delete_range(self.range(ends)))

    def copy_range(self, store, target, ends):
        """Copy into a kvstore beside it; TensorStore copies databases alone."""
        one = self.store(store if self.setup != "kvstack" else 0)
        other = self.stores[0] / f"copy{target}/"
        if self.setup in ("file", "zip") and one.path and not one.path.endswith("/"):
            return None  # Keys would have two slashes.
        if self.is_ours or self.setup == "ocdbt":
            return self.result(one.experimental_copy_range_to(other, self.range(ends)))
        values = {key: one[key] for key in one.list(self.range(ends)).result()}
        for key, value in values.items():
            other[key] = value
        return None

    def describe(self, store):
        one = self.store(store)
        specs = [one.spec(), one.spec(unbind_context=True)]
        shown = [repr(one), *map(repr, specs), *(each.to_json() for each in specs)]
        # A database has random numbers in its JSON, and one resource less.
        return [one.url, one.path, *([] if self.setup == "ocdbt" else shown)]

    def base(self, store):
        base = self.store(store).base
        return base if base is None else (base.url, base.path, repr(base))

    def derive(self, store, name, suffix):
        return self.keep(getattr(self.store(store), name)(suffix))

    def path(self, store, path):
        other = self.store(store).copy()
        other.path = f"{self.folder}/a/{as_text(path)}" if self.setup == "file" else path
        return self.keep(other)

    def again(self, store, how):
        one = self.store(store)
        return self.keep(
            {
                "copy": lambda: one.copy(),
                "shallow": lambda: copy.copy(one),
                "retain": lambda: self.kv.open(one.spec(retain_context=True)).result(),
                "context": lambda: self.kv.open(one.spec(), context=self.context).result(),
            }[how]()
        )

    def pickled(self, store):
        one = self.store(store)
        again = pickle.loads(pickle.dumps(one))
        shown = "" if self.setup == "ocdbt" else repr(again)
        return again.url, again.path, shown, sorted(again.list().result())

    def wrong(self, store, number):
        found = WRONG[number](self.store(store), self.kv)
        if hasattr(found, "result"):
            found = self.result(found)
        if isinstance(found, self.kv.Spec):
            return found.to_json() if self.setup != "ocdbt" else None
        return found if isinstance(found, bool) else type(found).__name__

    def content(self, store):
        one = self.store(store)
        return [(key, one[key]) for key in sorted(one.list().result())]
