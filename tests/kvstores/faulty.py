"""``FaultyKvStore``: wraps a driver and lets chosen operations go wrong."""

import enum
import threading
from dataclasses import dataclass, field

from gpustore.errors import StoreIOError
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import ReadRequest, WriteRequest

__all__ = ["Fault", "FaultyKvStore", "Rule"]


class Fault(enum.Enum):
    """Kinds of failure of one key."""

    ERROR = "nothing happens and an error is reported"
    LOST_REPLY = "it happens and an error is reported"
    SHORT_READ = "half of the bytes are returned, as if they were all"
    STALE = "what the last read of the key before the last write saw is returned"


@dataclass
class Rule:
    """When something goes wrong.

    Attributes
    ----------
    fault : Fault
    operation : str
        ``"read"``, ``"write"``, ``"list"``, ``"delete_range"`` or ``"locate"``.
    key : str
        Only keys that end so.
    skip, times : int
        How many matching operations go right first, and how many then go wrong.
    injected : int
        How many went wrong so far.
    """

    fault: Fault
    operation: str = "read"
    key: str = ""
    skip: int = 0
    times: int = 1
    injected: int = field(default=0, init=False)

    def applies(self, operation, key):
        if operation != self.operation or not key.endswith(self.key):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.injected == self.times:
            return False
        self.injected += 1
        return True


class FaultyKvStore(KvStoreDriver):
    """A driver that works like `driver` except where a rule says otherwise. Thread-safe.

    Parameters
    ----------
    driver : KvStoreDriver
    rules : sequence of Rule
        The first that applies to an operation on a key decides.
    """

    id = "faulty"

    def __init__(self, driver, rules=()):
        self.driver = driver
        # A list is shared, so that rules can be added later.
        self.rules = rules if isinstance(rules, list) else list(rules)
        self._lock = threading.Lock()
        self._seen = {}  # key -> (state, generation, value, total) of the last read
        self._stale = {}  # the same, of before the last write
        for name in ("can_write", "can_list", "atomic_single_key", "is_local", "executor"):
            setattr(self, name, getattr(driver, name))

    @property
    def spec(self):
        return self.driver.spec

    @property
    def resources(self):
        return self.driver.resources

    def rooted(self, path):
        return FaultyKvStore(self.driver.rooted(path), self.rules)

    def check_key(self, key):
        self.driver.check_key(key)

    def describe(self, key):
        return self.driver.describe(key)

    def _fault(self, operation, key):
        with self._lock:
            for rule in self.rules:
                if rule.applies(operation, key):
                    return rule.fault
        return None

    def _error(self, operation, key):
        return StoreIOError(
            f"injected failure to {operation} {self.describe(key)}", status="UNAVAILABLE", key=key
        )

    def read_many(self, request: ReadRequest):
        faults = [self._fault("read", key) for key in request.keys]
        columns = self.driver.read_many(request)
        for i, (key, fault) in enumerate(zip(request.keys, faults, strict=True)):
            if fault in (Fault.ERROR, Fault.LOST_REPLY):
                columns.error[i] = self._error("read", key)
                columns.value[i] = None
                columns.generation[i] = b""
                columns.state[i] = type(columns.state[i]).UNSPECIFIED
            elif fault is Fault.SHORT_READ and columns.value[i] is not None:
                columns.value[i] = columns.value[i][: len(columns.value[i]) // 2]
            elif fault is Fault.STALE and key in self._stale:
                row = self._stale[key]
                columns.state[i], columns.generation[i], columns.value[i], columns.total[i] = row
            elif i not in columns.error and request.start is None and request.stop is None:
                value = columns.value[i]
                self._seen[key] = (
                    columns.state[i],
                    columns.generation[i],
                    None if value is None else bytes(value),
                    columns.total[i],
                )
        return columns

    def write_many(self, request: WriteRequest):
        faults = [self._fault("write", key) for key in request.keys]
        columns = self.driver.write_many(
            WriteRequest(
                [k for k, f in zip(request.keys, faults, strict=True) if f is not Fault.ERROR],
                [v for v, f in zip(request.values, faults, strict=True) if f is not Fault.ERROR],
                request.if_equal
                and [
                    g for g, f in zip(request.if_equal, faults, strict=True) if f is not Fault.ERROR
                ],
            )
        )
        result = type(columns).blank(len(request.keys))
        done = 0
        for i, (key, fault) in enumerate(zip(request.keys, faults, strict=True)):
            if fault is not Fault.ERROR:
                result.generation[i] = columns.generation[done]
                if done in columns.error:
                    result.error[i] = columns.error[done]
                done += 1
                if key in self._seen:
                    self._stale[key] = self._seen[key]
            if fault is not None:
                result.error[i] = self._error("write", key)
                result.generation[i] = b""
        return result

    def delete_range(self, inclusive_min="", exclusive_max=None):
        fault = self._fault("delete_range", inclusive_min)
        count = (
            0 if fault is Fault.ERROR else self.driver.delete_range(inclusive_min, exclusive_max)
        )
        if fault is not None:
            raise self._error("delete range from", inclusive_min)
        return count

    def list(self, inclusive_min="", exclusive_max=None):
        if self._fault("list", inclusive_min) is not None:
            raise self._error("list from", inclusive_min)
        return self.driver.list(inclusive_min, exclusive_max)

    def list_directories(self, prefix):
        if self._fault("list", prefix) is not None:
            raise self._error("list from", prefix)
        return self.driver.list_directories(prefix)

    def locate_many(self, keys):
        columns = self.driver.locate_many(keys)
        for i, key in enumerate(keys):
            if self._fault("locate", key) is not None:
                columns.error[i] = self._error("locate", key)
        return columns
