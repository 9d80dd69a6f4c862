"""Sources of the memory of an emulated device."""

from tests.emulator.queue import Breach


class EmulatedPool:
    """The memory of the device itself."""

    def __init__(self, device):
        self._device = device

    def allocate(self, nbytes, stream):
        return self._device._allocate(nbytes, stream)

    def free(self, allocation, stream):
        self._device._free(allocation, stream)

    def kept_nbytes(self):
        return 0


class EmulatedTorch:
    """What ``torch.cuda`` has for memory, on an emulated device, with a record of the calls.

    As PyTorch's, memory that is deleted is free for what its stream is asked for next.

    Attributes
    ----------
    allocated : list of (int, int, int)
        Size, device and stream of each allocation.
    """

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, device, *, has_gpu=True):
        self._device = device
        self._has_gpu = has_gpu
        self._live = {}
        self._is_initialized = False
        self.allocated = []

    def is_available(self):
        return self._has_gpu

    def init(self):
        self._is_initialized = True

    def caching_allocator_alloc(self, size, device=None, stream=None):
        assert self._is_initialized
        self.allocated.append((size, device, stream))
        (found,) = [one for one in self._device._queue.streams if one.number == stream]
        try:
            allocation = self._device._allocate(size, found)
        except MemoryError as error:
            raise self.OutOfMemoryError(str(error)) from error
        self._live[allocation.address] = allocation, found
        return allocation.address

    def caching_allocator_delete(self, mem_ptr):
        if mem_ptr not in self._live:
            raise Breach(f"{mem_ptr:#x} is no memory of PyTorch's")
        self._device._free(*self._live.pop(mem_ptr))

    def memory_allocated(self, device):
        return sum(allocation.nbytes for allocation, _ in self._live.values())

    def memory_reserved(self, device):
        return self.memory_allocated(device)
