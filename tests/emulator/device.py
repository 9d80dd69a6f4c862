"""A device that is emulated by the host, to test everything above gpustore.device.protocol without
a GPU.

It proves the order of what is asked, descriptors, tables, addresses, and what kernels compute. It
proves nothing about CUDA, CuPy, nvcomp, kvikio, nor about speed. Never a product path.

* Memory (:mod:`tests.emulator.memory`) is poisoned and guarded, and the host cannot look into it.
* Streams (:mod:`tests.emulator.queue`) run when they are waited for.
* Kernels are the sources of ``kernels/``, compiled by g++ (:mod:`tests.emulator.host_build`). Each
  launch runs their threads in another one of three orders.
* Streams of codecs are decoded by the host's libraries (:mod:`tests.emulator.codecs`).
* :class:`Faults` says what goes wrong.

A breach of the protocol raises :class:`~tests.emulator.queue.Breach` where it is found, and again
in :meth:`EmulatedDevice.close`, in case somebody has swallowed it.
"""

import ctypes
import functools
import os
import threading
import weakref
import zlib
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from gpustore.backends.device.foreign import ForeignArray, foreign_array, stream_handle
from gpustore.backends.device.torch_allocator import TorchAllocator
from gpustore.device.decoders import ProvenDecoders
from gpustore.device.image_decoders import ProvenImageDecoders
from gpustore.device.kernels import instance
from gpustore.device.protocol import CodecBatch, MemoryInfo, PinnedMemoryError, Spans
from gpustore.device.self_test import library_failure, own_kernel_failure
from gpustore.errors import DeviceError
from tests.emulator import codecs, host_build
from tests.emulator.allocators import EmulatedPool, EmulatedTorch
from tests.emulator.images import PillowLibrary
from tests.emulator.memory import FRESH, PINNED, Memory
from tests.emulator.queue import Breach, EmulatedEvent, EmulatedStream, Queue, Ranges


@dataclass
class Faults:
    """What goes wrong, by number of the call, from 0.

    Attributes
    ----------
    allocations : set of int
        Calls of ``allocate`` and ``empty`` that find no memory.
    pinned : set of int
        Calls of ``allocate_pinned`` that find no memory.
    statuses : dict of (int, int) to int
        Status of a stream, by number of the call of ``decompress`` and of the stream in it.
    compressions : dict of (int, int) to int
        Status of a stream, by number of the call of ``compress`` and of the stream in it.
    nonsense : set of (int, int)
        Streams that decode to nonsense, with status 0 and the right size.
    sizes : dict of (int, int) to int
        Size that is reported for a stream, with status 0.
    overruns : dict of (int, int) to int
        Bytes behind the output of a stream that are changed when all are decoded, or before it if
        negative.
    short_reads : dict of int to int
        Bytes that a ``read_file`` returns less than it should.
    images : set of (int, int)
        Images that are not decoded, by number of the call of ``decode_images`` and in it.
    strange_images : set of (int, int)
        Images that decode to other elements.
    failed_reads : set of int
        Calls of ``read_file`` that end with an OSError.
    failed_opens : set of int
        Calls of ``open_file`` for which the process has too many open files.
    meanwhile : callable or None
        Called when a ``read_file`` runs, before it reads, with its number.
    lost_at : int or None
        Launch or codec call that loses the device, with everything in its memory.
    failing : dict of (str, int) to bool
        Calls of operations, by name and number, that fail with a DeviceError; true: for ever.
    lacking : set of (str, int)
        Calls of operations, by name and number, that fail with a MemoryError.
    before_wait : callable or None
        Called by each thread before it waits for an event: how long a device takes.
    """

    allocations: set = field(default_factory=set)
    pinned: set = field(default_factory=set)
    statuses: dict = field(default_factory=dict)
    compressions: dict = field(default_factory=dict)
    nonsense: set = field(default_factory=set)
    sizes: dict = field(default_factory=dict)
    overruns: dict = field(default_factory=dict)
    short_reads: dict = field(default_factory=dict)
    images: set = field(default_factory=set)
    strange_images: set = field(default_factory=set)
    failed_reads: set = field(default_factory=set)
    failed_opens: set = field(default_factory=set)
    meanwhile: object = None
    lost_at: int | None = None
    failing: dict = field(default_factory=dict)
    lacking: set = field(default_factory=set)
    before_wait: object = None


class EmulatedPinned:
    """Host memory that copies read and write late."""

    def __init__(self, nbytes):
        self._array = np.full(nbytes, PINNED, np.uint8)
        self.view = self._array.data
        self.address = self._array.ctypes.data
        self.nbytes = nbytes
        self.is_freed = False


class EmulatedArray:
    """An array of the user's. Like CuPy's it cannot be turned into a NumPy array by accident."""

    def __init__(self, allocation, shape, dtype, strides):
        self.allocation = allocation
        self.shape = shape
        self.dtype = dtype
        self.strides = strides

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.allocation.address, False),
            "strides": self.strides,
            "version": 3,
        }

    def __array__(self, *_, **__):
        raise TypeError("device memory cannot be read by the host; download it")

    @property
    def ndim(self):
        return len(self.shape)

    def __getitem__(self, index):
        """The array itself for slices of all of it, which xarray and dask ask for."""
        terms = [t for t in index if t is not Ellipsis] if isinstance(index, tuple) else [index]
        whole = [slice(0, size, 1) for size in self.shape]
        asked = [slice(*t.indices(n)) for t, n in zip(terms, self.shape, strict=True)]
        if asked != whole:
            raise TypeError(f"the emulated device takes no parts of an array: {index}")
        return self

    def __array_ufunc__(self, *_, **__):
        """Tell other libraries, as CuPy does, that this is an array which computes itself."""
        return NotImplemented

    def __array_function__(self, *_, **__):
        return NotImplemented


@dataclass(frozen=True)
class EmulatedKernel:
    family: str
    expression: str


class EmulatedFile:
    """A file whose bytes go to device memory in whole pages."""

    def __init__(self, path, alignment, *, is_direct):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path = path
        self.alignment = alignment
        self.is_direct = is_direct
        self.reads = 0


class EmulatedRead:
    """A read on its way; under the order ``lazy`` it happens when somebody waits for it."""

    def __init__(self, device, run):
        self._device = device
        self._run = run
        self._found = None

    def result(self):
        with self._device._asked("file_result"):
            if self._found is None:
                try:
                    self._found = self._run()
                except OSError as error:
                    self._found = error
            if isinstance(self._found, OSError):
                raise self._found
            return self._found


class EmulatedEngine:
    """Library with some of the codecs."""

    name = "emulated library"

    def __init__(self, decodes, reads_tables):
        self._decodes = decodes
        self._reads_tables = reads_tables

    def codec(self, name):
        if name not in self._decodes:
            return None
        return replace(codecs.CODECS[name], reads_table=self._reads_tables)


class EmulatedDecoders(ProvenDecoders):
    """Decoders whose self-test changes no counts and numbers of a test.

    Where nothing is to go wrong in it, it was run before in this process, by another device.
    """

    def __init__(self, device, engine, shortcoming):
        super().__init__(device, engine if engine._decodes else None, shortcoming)
        self._emulated = device

    def _failures(self, codecs):
        if self._emulated.knows_self_test():
            return dict(_failures_once(tuple(codec.name for codec in codecs)))
        with self._emulated.apart():
            return super()._failures(codecs)

    def _own_failure(self, codec):
        if self._emulated.knows_self_test():
            return _own_failure_once(codec)
        with self._emulated.apart():
            return super()._own_failure(codec)


class EmulatedImageDecoders(ProvenImageDecoders):
    """Decoders of images, whose self-test changes no counts and numbers of a test either."""

    def _failure(self, name):
        with self._device.apart():
            return super()._failure(name)


@functools.cache
def _failures_once(names):
    device = EmulatedDevice()
    found = {name: library_failure(device, name) for name in names}
    device.close()
    return {name: reason for name, reason in found.items() if reason is not None}


@functools.cache
def _own_failure_once(codec):
    device = EmulatedDevice()
    found = own_kernel_failure(device, codec)
    device.close()
    return found


class EmulatedDevice:
    """See the module. Implements :class:`gpustore.device.protocol.Device`.

    Parameters
    ----------
    order : str
        One of :data:`tests.emulator.queue.ORDERS`.
    seed : int
        Of the order ``random``.
    total_nbytes, multiprocessors : int
        Figures that decisions read; by default those of an H100. Memory is taken when it is used.
    file_alignment : int
        What reads of files want offsets, lengths and addresses to be multiples of.
    direct_files : bool
        Whether files say that their bytes do not pass host memory.
    decodes : tuple of str
        Codecs of its library; none as a GPU without nvcomp.
    reads_tables : bool
        Whether its library needs no more than tables, as nvcomp's Python package does not.
    shortcoming : str or None
        What its libraries lack; by default that there is none, if there is none.
    images : callable
        Returns its library of images, or raises a DeviceError.
    allocator : str
        Source of its memory, a value of ``device_allocator``.

    Attributes
    ----------
    faults : Faults
    test_faults : Faults
        What goes wrong in the self-test of the decoders, whose calls are counted apart.
    counts : Counter
        Calls of each operation, ``upload_nbytes`` and ``download_nbytes``.
    decompressed : list of int
        Streams of each call of ``decompress``.
    files : list of EmulatedFile
        Those that are open.
    torch : EmulatedTorch
        Its source of memory if the allocator is ``"torch"``.
    repeats_self_tests : bool
        Whether it runs each self-test itself, also where nothing goes wrong in it.
    """

    repeats_self_tests = False

    def __init__(
        self,
        order="lazy",
        *,
        seed=0,
        total_nbytes=78 << 30,
        multiprocessors=132,
        file_alignment=4096,
        direct_files=True,
        decodes=codecs.DECODED,
        reads_tables=True,
        shortcoming=None,
        images=PillowLibrary,
        allocator="default",
    ):
        self.name = "emulated"
        self.order = order
        self.faults = Faults()
        self.counts = Counter()
        self.decompressed = []
        self.lock = threading.RLock()
        self.breaches = []
        self._queue = Queue(order, seed)
        self._memory = Memory(total_nbytes)
        self.multiprocessors = multiprocessors
        self._file_alignment = file_alignment
        self.direct_files = direct_files
        self.files = []
        self._file_reads = []
        if not decodes and shortcoming is None:
            shortcoming = "no library is emulated"
        self._decoders = EmulatedDecoders(self, EmulatedEngine(decodes, reads_tables), shortcoming)
        self._images = EmulatedImageDecoders(self, images)
        self.test_faults = Faults()
        self._lost = None
        self._pinned = []
        self._dropped = deque()
        self._current = threading.local()
        self.torch = EmulatedTorch(self)
        self.allocator = allocator
        self._allocator = (
            TorchAllocator(self, 0, self.torch) if allocator == "torch" else EmulatedPool(self)
        )

    # ------------------------------------------------------------- memory and budget

    def memory(self):
        with self._asked("memory"):
            free = self._memory.total_nbytes - self._memory.live_nbytes
            return MemoryInfo(self._memory.total_nbytes, free + self._allocator.kept_nbytes())

    def allocate(self, nbytes, stream):
        with self._asked("allocate"):
            return self._allocator.allocate(nbytes, stream)

    def _allocate(self, nbytes, stream):
        if nbytes <= 0:
            raise Breach(f"allocation of {nbytes} bytes")
        number = self.counts["allocations"]
        self.counts["allocations"] += 1
        if number in self.faults.allocations:
            raise MemoryError(f"{nbytes} bytes of device memory: injected")
        allocation = self._memory.allocate(nbytes)
        spans = _span(allocation.address, nbytes)

        def run():
            allocation.poison(FRESH)
            allocation.is_ready = True

        self._submit(stream, f"allocation of {nbytes} bytes", run, writes=[spans])
        return allocation

    def free(self, allocation, stream):
        with self._asked("free"):
            self._allocator.free(allocation, stream)

    def _free(self, allocation, stream):
        self._memory.give_back(allocation)
        self._submit(
            stream,
            f"free of {allocation.nbytes} bytes",
            lambda: self._memory.freed(allocation),
            writes=[_span(allocation.address, allocation.nbytes)],
            is_free=True,
        )

    def allocate_pinned(self, nbytes):
        with self._asked("allocate_pinned"):
            if self.counts["allocate_pinned"] - 1 in self.faults.pinned:
                raise PinnedMemoryError(f"{nbytes} bytes of pinned memory: injected")
            pinned = EmulatedPinned(nbytes)
            self._pinned.append(pinned)
            return pinned

    def free_pinned(self, pinned):
        with self._asked("free_pinned"):
            if pinned.is_freed:
                raise Breach("pinned memory freed twice")
            whole = Ranges([pinned.address], [pinned.nbytes])
            for task in self._queue.pending():
                if any(whole.meet(used) is not None for used in (*task.reads, *task.writes)):
                    raise Breach(f"pinned memory freed before {task.name} on {task.stream} ran")
            pinned.is_freed = True
            pinned.view[:] = bytes([PINNED]) * pinned.nbytes
            self._pinned.remove(pinned)

    def empty(self, shape, dtype, order, stream):
        with self._asked("empty"):
            dtype = np.dtype(dtype)
            sizes = [dtype.itemsize]
            for extent in shape if order == "F" else reversed(shape):
                sizes.append(sizes[-1] * extent)
            strides = tuple(sizes[:-1] if order == "F" else reversed(sizes[:-1]))
            allocation = self._allocator.allocate(max(1, sizes[-1]), stream)
            array = EmulatedArray(allocation, tuple(shape), dtype, strides)
            # Collected in any thread at any time: freed by the next operation.
            weakref.finalize(array, self._dropped.append, (allocation, stream)).atexit = False
            return ForeignArray(array, allocation.address, strides, tuple(shape), dtype)

    def wrap(self, array):
        with self._asked("wrap"):
            found = foreign_array(array, self.caller_stream().number)
            if found is not None and found.address and self._memory.find(found.address) is None:
                raise TypeError(f"memory at {found.address:#x} is not on device {self.name}")
            return found

    # ------------------------------------------------------------- queue

    def stream(self):
        with self._asked("stream"):
            return self._queue.new_stream()

    def caller_stream(self, stream=None):
        with self._asked("caller_stream"):
            if isinstance(stream, EmulatedStream):
                return stream
            if stream is not None:
                address = stream_handle(stream).address
                found = [known for known in self._queue.streams if known.number == address]
                if not found:
                    raise TypeError(f"stream: expected a stream of this device, got {stream!r}")
                return found[0]
            if not hasattr(self._current, "stream"):
                self._current.stream = self._queue.new_stream()
            return self._current.stream

    def record(self, stream):
        with self._asked("record"):
            return EmulatedEvent(stream)

    def wait(self, stream, event):
        with self._asked("wait"):
            self._queue.wait(stream, event)

    def synchronize(self, event):
        if self.faults.before_wait is not None:
            self.faults.before_wait()
        with self._asked("synchronize"):
            for task in event.tasks:
                self._run(lambda task=task: self._queue.finish(task))

    def upload(self, src, start, dst, nbytes, stream):
        with self._asked("upload"):
            self.counts["upload_nbytes"] += nbytes
            source, target = self._copied(src, start, dst, nbytes, "upload")
            data = src.view[start : start + nbytes]
            before = zlib.crc32(data)

            def run():
                if src.is_freed or zlib.crc32(data) != before:
                    raise Breach("pinned memory was changed before its upload had run")
                self._memory.require(target, "upload", running=True)
                _at(dst, nbytes)[:] = data

            self._submit(stream, "upload", run, reads=[source], writes=[target])

    def download(self, src, dst, start, nbytes, stream):
        with self._asked("download"):
            self.counts["download_nbytes"] += nbytes
            target, source = self._copied(dst, start, src, nbytes, "download")
            data = dst.view[start : start + nbytes]
            data[:] = bytes([PINNED]) * nbytes
            before = zlib.crc32(data)

            def run():
                if dst.is_freed or zlib.crc32(data) != before:
                    raise Breach("pinned memory was changed before a download to it had run")
                self._memory.require(source, "download", running=True)
                data[:] = _at(src, nbytes)

            self._submit(stream, "download", run, reads=[source], writes=[target])

    def _copied(self, pinned, start, address, nbytes, name):
        if pinned.is_freed:
            raise Breach(f"{name}: pinned memory was freed")
        if nbytes <= 0 or start < 0 or start + nbytes > pinned.nbytes:
            raise Breach(
                f"{name}: bytes [{start}, {start + nbytes}) of {pinned.nbytes} pinned ones"
            )
        spans = _span(address, nbytes)
        self._memory.require(spans, name, running=False)
        return _span(pinned.address + start, nbytes), spans

    def fill(self, dst, value, nbytes, stream):
        with self._asked("fill"):
            target = _span(dst, nbytes)
            self._memory.require(target, "fill", running=False)

            def run():
                self._memory.require(target, "fill", running=True)
                _at(dst, nbytes)[:] = bytes([value]) * nbytes

            self._submit(stream, "fill", run, writes=[target])

    # ------------------------------------------------------------- kernels

    def kernel(self, family, expression):
        with self._asked("kernel"):
            if expression not in instance.INSTANCES.get(family, ()):
                raise Breach(f"kernel {expression} is not listed in family {family}")
            return EmulatedKernel(family, expression)

    def launch(self, kernel, blocks, arguments, stream):
        with self._asked("launch"):
            if not 0 < blocks < 2**31:
                raise Breach(f"{kernel.expression}: {blocks} blocks")
            addresses = []
            for argument in arguments:
                if not isinstance(argument, np.generic | np.ndarray):
                    raise Breach(f"{kernel.expression}: argument {argument!r}")
                if isinstance(argument, np.uint64) and self._memory.find(int(argument)):
                    addresses.append(argument)
            pointers = Spans(np.array(addresses, np.uint64), np.ones(len(addresses), np.uint64))
            self._memory.require(pointers, kernel.expression, running=False)
            values = [argument.copy() for argument in arguments]
            number = self.counts["calls"]
            self.counts["calls"] += 1

            def run():
                self._lose(number)
                self._memory.require(pointers, kernel.expression, running=True)
                module = host_build.load(kernel.family)
                order = host_build.ORDERS[number % len(host_build.ORDERS)]
                module.launch(kernel.expression, blocks, values, order=order)
                self._memory.check_guards()

            self._submit(stream, kernel.expression, run, reads=[pointers])

    # ------------------------------------------------------------- codecs

    def codec(self, name):
        with self._asked("codec"):
            return self._decoders.codec(name)

    def decoders(self):
        with self._asked("decoders"):
            return self._decoders.state()

    def own_kernel_failure(self, codec):
        with self._asked("own_kernel_failure"):
            return self._decoders.own_kernel_failure(codec)

    def knows_self_test(self):
        """Whether its self-tests are those of a device of which nothing is known but its memory."""
        return not self.repeats_self_tests and self.test_faults == Faults()

    @contextmanager
    def apart(self):
        """Count calls and take faults apart from those of a test."""
        kept = self.counts, self.decompressed, self.faults
        self.counts, self.decompressed, self.faults = Counter(), [], self.test_faults
        try:
            yield
        finally:
            self.counts, self.decompressed, self.faults = kept

    def decompress_temp_nbytes(self, codec, count, max_nbytes, total_nbytes):
        with self._asked("decompress_temp_nbytes"):
            if max_nbytes > codecs.CODECS[codec].decoded_max_nbytes:
                raise Breach(f"{codec}: a stream of {max_nbytes} bytes")
            assert 0 < count <= max(1, total_nbytes)
            return codecs.decompress_temp_nbytes(codec, total_nbytes)

    def decompress(self, batch, stream):
        with self._asked("decompress"):
            call = self.counts["decompress"] - 1
            self.decompressed.append(len(batch))
            temp_nbytes = codecs.decompress_temp_nbytes(batch.codec, int(batch.dst.nbytes.sum()))

            def run(batch):
                sizes, statuses = [], []
                for i, (src, nbytes, dst, capacity) in enumerate(_rows(batch)):
                    encoded = _at(src, nbytes).tobytes()
                    decoded, status = codecs.decompress(batch.codec, encoded, capacity)
                    size = len(decoded)
                    if (call, i) in self.faults.nonsense:
                        size, status = capacity, 0
                        decoded = bytes(255 - byte for byte in decoded.ljust(capacity))
                    status = self.faults.statuses.get((call, i), status)
                    _at(dst, len(decoded))[:] = decoded
                    sizes.append(self.faults.sizes.get((call, i), size))
                    statuses.append(status)
                for i, (_, _, dst, capacity) in enumerate(_rows(batch)):
                    extra = self.faults.overruns.get((call, i))
                    if extra:
                        around = _at(dst + (capacity if extra > 0 else extra), abs(extra))
                        around[:] = bytes(255 - byte for byte in around)
                return sizes, statuses

            self._submit_codec(batch, stream, "decompress", temp_nbytes, run)

    def compress_nbytes(self, codec, count, max_nbytes):
        with self._asked("compress_nbytes"):
            if max_nbytes > codecs.CODECS[codec].encodes_max_nbytes:
                raise Breach(f"{codec}: a stream of {max_nbytes} bytes")
            return codecs.compressed_bound(codec, max_nbytes), 1024 * count

    def compress(self, batch, stream):
        with self._asked("compress"):
            call = self.counts["compress"] - 1
            _require_alignment("compress", [*batch.src.address, *batch.dst.address], 16)
            longest = int(batch.src.nbytes.max())
            if (batch.dst.nbytes < codecs.compressed_bound(batch.codec, longest)).any():
                raise Breach("compress: less room than compress_nbytes says")

            def run(batch):
                sizes, statuses = [], []
                for i, (src, nbytes, dst, _) in enumerate(_rows(batch)):
                    encoded = codecs.compress(batch.codec, _at(src, nbytes).tobytes())
                    _at(dst, len(encoded))[:] = encoded
                    sizes.append(len(encoded))
                    statuses.append(self.faults.compressions.get((call, i), codecs.SUCCESS))
                return sizes, statuses

            self._submit_codec(batch, stream, "compress", 1024 * len(batch), run)

    def _submit_codec(self, batch, stream, verb, temp_nbytes, work):
        name = f"{verb} of {len(batch)} {batch.codec} streams"
        codec = codecs.CODECS[batch.codec]
        table = _span(batch.table, 32 * len(batch))
        result = _span(batch.result, 12 * len(batch))
        temp = Spans.contiguous(batch.temp, [batch.temp_nbytes] if batch.temp_nbytes else [])
        _require_alignment(name, table.address, 8)
        _require_alignment(name, result.address, 8)
        _require_alignment(name, temp.address, codec.temp_alignment)

        def require(batch, temp_nbytes, *, running):
            encoded, decoded = (
                (batch.src, batch.dst) if verb == "decompress" else (batch.dst, batch.src)
            )
            _require_alignment(f"{name}, encoded", encoded.address, codec.src_alignment)
            _require_alignment(f"{name}, decoded", decoded.address, codec.dst_alignment)
            if batch.temp_nbytes < temp_nbytes:
                raise Breach(
                    f"{name}: {batch.temp_nbytes} of {temp_nbytes} bytes of scratch memory"
                )
            if not Ranges(batch.dst.address, batch.dst.nbytes).are_disjoint:
                raise Breach(f"{name}: destinations overlap")
            used = _joined(table, result, temp, batch.src, batch.dst)
            self._memory.require(used, name, running=running)

        require(batch, temp_nbytes, running=False)
        columns = CodecBatch.columns(batch.src, batch.dst)
        number = self.counts["calls"]
        self.counts["calls"] += 1

        def run():
            self._lose(number)
            self._memory.require(_joined(table, result, temp), name, running=True)
            found = batch
            if batch.count:  # The device has written the table.
                if not self._decoders.codec(batch.codec).reads_table:
                    raise Breach(f"{name}: the library wants to know them")
                found = _with_columns(batch)
                nbytes = codecs.decompress_temp_nbytes(batch.codec, int(found.dst.nbytes.sum()))
                require(found, nbytes, running=True)
            else:
                require(batch, temp_nbytes, running=True)
                _require_table(name, table, columns)
            if batch.temp_nbytes:
                _at(batch.temp, batch.temp_nbytes)[:] = bytes([FRESH]) * batch.temp_nbytes
            sizes, statuses = work(found)
            _at(batch.result, 8 * len(batch))[:] = np.array(sizes, np.uint64).tobytes()
            _at(batch.result + 8 * len(batch), 4 * len(batch))[:] = np.array(
                statuses, np.int32
            ).tobytes()

        self._submit(stream, name, run, reads=[table, batch.src], writes=[batch.dst, result, temp])

    # ------------------------------------------------------------- images

    def image_decoder(self, name):
        with self._asked("image_decoder"):
            return self._images.state(name)

    def decode_images(self, batch, stream):
        with self._asked("decode_images"):
            call = self.counts["decode_images"] - 1
            library = self._images.library()
            name = f"decoding of {len(batch)} images of {batch.format}"
            nbytes = [height * width * channels for height, width, channels in batch.shapes]
            dst = Spans(batch.dst, np.array(nbytes, np.uint64))
            result = _span(batch.result, 4 * len(batch))
            _require_alignment(name, result.address, 4)
            if not Ranges(dst.address, dst.nbytes).are_disjoint:
                raise Breach(f"{name}: destinations overlap")
            if len({shape[2] for shape in batch.shapes}) != 1:
                raise Breach(f"{name}: images of {batch.shapes}")
            used = _joined(dst, result)
            self._memory.require(used, name, running=False)
            before = [zlib.crc32(encoded) for encoded in batch.encoded]
            number = self.counts["calls"]
            self.counts["calls"] += 1

            def run():
                self._lose(number)
                self._memory.require(used, name, running=True)
                if before != [zlib.crc32(encoded) for encoded in batch.encoded]:
                    raise Breach(f"{name}: a file was changed before it was decoded")
                for i, image in enumerate(library.decode(batch, 0)):
                    if image is None or (call, i) in self.faults.images:
                        continue
                    if image.shape != batch.shapes[i]:
                        raise Breach(f"{name}: an image of {image.shape}")
                    image = 255 - image if (call, i) in self.faults.strange_images else image
                    _at(int(batch.dst[i]), nbytes[i])[:] = image.tobytes()
                    _at(batch.result + 4 * i, 4)[:] = bytes(4)

            self._submit(stream, name, run, writes=[dst, result])

    # ------------------------------------------------------------- files

    def open_file(self, path):
        with self._asked("open_file"):
            if self.counts["open_file"] - 1 in self.faults.failed_opens:
                raise OSError(24, "injected", str(path))
            file = EmulatedFile(path, self._file_alignment, is_direct=self.direct_files)
            self.files.append(file)
            return file

    def read_file(self, file, start, nbytes, dst):
        with self._asked("read_file"):
            number = self.counts["read_file"] - 1
            name = f"read of bytes [{start}, {start + nbytes}) of {file.path}"
            _require_alignment(name, [start, nbytes, dst], file.alignment)
            target = _span(dst, nbytes)
            self._memory.require(target, name, running=True)
            ranges = Ranges(target.address, target.nbytes)
            for task in self._queue.pending():
                if any(ranges.meet(used) is not None for used in (*task.reads, *task.writes)):
                    raise Breach(f"{name}: {task.name} on {task.stream} still uses its destination")
            file.reads += 1
            self._file_reads.append((name, ranges))

            def run():
                file.reads -= 1
                self._file_reads.remove((name, ranges))
                if self.faults.meanwhile is not None:
                    self.faults.meanwhile(number)
                if number in self.faults.failed_reads:
                    raise OSError(5, "injected", str(file.path))
                self._memory.require(target, name, running=True)
                wanted = nbytes - self.faults.short_reads.get(number, 0)
                return os.preadv(file.descriptor, [_at(dst, wanted)], start)

            read = EmulatedRead(self, run)
            if self.order == "early_frees":
                try:
                    read.result()
                except OSError:
                    pass  # Said to whoever waits for it.
            return read

    def close_file(self, file):
        with self._asked("close_file"):
            if file.reads:
                raise Breach(
                    f"{file.path} was closed before {file.reads} reads of it were waited for"
                )
            os.close(file.descriptor)
            self.files.remove(file)

    # ------------------------------------------------------------- for tests

    def close(self):
        """Breach if anything is left: work nobody waited for, memory nobody freed."""
        with self.lock:
            self._free_dropped()
            for task in self._queue.pending():
                if not task.name.startswith(("free", "allocation")) and self._lost is None:
                    self.breaches.append(Breach(f"nobody waited for {task.name} on {task.stream}"))
            try:
                while self._lost is None and self._queue.run_any():
                    pass  # Once a device is lost it runs nothing any more.
                self._memory.check()
            except Breach as breach:
                self.breaches.append(breach)
            except DeviceError:
                pass  # Lost: said before.
            left = [f"not freed: {found!r}" for found in self._memory.live()]
            left += [
                f"not freed: {pinned.nbytes} bytes of pinned memory" for pinned in self._pinned
            ]
            left += [f"not closed: {file.path}" for file in self.files]
            self.breaches += map(Breach, left if self._lost is None else [])
            if self.breaches:
                raise self.breaches[0]

    # ------------------------------------------------------------- within

    def _asked(self, operation):
        return _Asked(self, operation)

    def _free_dropped(self):
        while self._dropped:
            allocation, stream = self._dropped.popleft()
            self._allocator.free(allocation, stream)

    def _submit(self, stream, name, run, *, reads=(), writes=(), is_free=False):
        if stream not in self._queue.streams:
            raise Breach(f"{name}: {stream!r} is no stream of this device")
        reads, writes = (
            [Ranges(spans.address, spans.nbytes) for spans in some] for some in (reads, writes)
        )
        for read, ranges in self._file_reads:
            if any(used.meet(ranges) is not None for used in (*reads, *writes)):
                raise Breach(f"{name}: nobody has waited for the {read}, whose bytes it uses")
        self._run(
            lambda: self._queue.submit(
                stream, name, run, reads=reads, writes=writes, is_free=is_free
            )
        )

    def _run(self, work):
        try:
            work()
        except DeviceError as error:
            self._lost = error.text  # The error itself keeps what the test's frames have.
            raise

    def _lose(self, number):
        if number == self.faults.lost_at:
            raise DeviceError(f"device {self.name}: an illegal memory access was encountered")


class _Asked:
    """One operation at a time; counted, refused once the device is lost, breaches recorded."""

    def __init__(self, device, operation):
        self._device = device
        self._operation = operation

    def __enter__(self):
        device = self._device
        device.lock.acquire()
        try:
            device.counts[self._operation] += 1
            if device._lost is not None:
                raise DeviceError(device._lost)
            call = (self._operation, device.counts[self._operation] - 1)
            if call in device.faults.failing:
                error = DeviceError(f"device {device.name}: {call[0]} failed: injected")
                if device.faults.failing[call]:
                    device._lost = error.text
                raise error
            if call in device.faults.lacking:
                kind = PinnedMemoryError if call[0] == "allocate_pinned" else MemoryError
                raise kind(f"device {device.name}: {call[0]}: injected")
            device._free_dropped()
        except BaseException as error:
            if isinstance(error, Breach):
                device.breaches.append(error)
            device.lock.release()
            raise

    def __exit__(self, kind, error, traceback):
        if isinstance(error, Breach):
            self._device.breaches.append(error)
        self._device.lock.release()


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200


def _at(address, nbytes):
    """Bytes of device memory; only what the emulator itself does may look at them."""
    return _view(address, nbytes, _WRITABLE)


def _span(address, nbytes):
    """One range of memory."""
    return Spans(np.array([address], np.uint64), np.array([nbytes], np.uint64))


def _with_columns(batch):
    """A batch with the streams of its table."""
    words = np.frombuffer(_at(batch.table, 32 * len(batch)), np.uint64).reshape(4, -1).copy()
    return replace(batch, src=Spans(*words[:2]), dst=Spans(*words[2:]), count=0)


def _rows(batch):
    return CodecBatch.columns(batch.src, batch.dst).T.tolist()


def _joined(*spans):
    return Spans(
        np.concatenate([part.address for part in spans]),
        np.concatenate([part.nbytes for part in spans]),
    )


def _require_alignment(name, addresses, alignment):
    wrong = [int(address) for address in addresses if int(address) % alignment]
    if wrong:
        raise Breach(f"{name}: {wrong[0]:#x} is no multiple of {alignment}")


def _require_table(name, table, columns):
    if _at(int(table.address[0]), int(table.nbytes[0])).tobytes() != columns.tobytes():
        raise Breach(f"{name}: the table on the device is not that of the batch")
