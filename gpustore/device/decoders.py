"""Decoders of a device that have passed a self-test: its library, and the package's own kernels.

A codec of the library that fails is treated as absent: own kernels decode it, or the host. The
first question for a codec runs the test, and tells by a :class:`~gpustore.errors.DeviceWarning`
what is missing or fails; ``explain`` and ``gpustore info`` tell it always. A kernel takes its test
at the first question for it, since it is compiled for that.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpustore.device.own_kernels import NO_KERNEL, OWN_KERNELS
from gpustore.device.protocol import DecoderState, Device, DeviceCodec
from gpustore.device.self_test import STREAMS, SelfTests, library_failure, own_kernel_failure
from gpustore.errors import DeviceWarning


class Engine(Protocol):
    """Library that decodes streams on a device."""

    @property
    def name(self) -> str:
        """Name of the library, for messages."""

    def codec(self, name: str) -> DeviceCodec | None:
        """Return the library's abilities for streams of this kind, None if it has none."""


class ProvenDecoders:
    """Codecs of the library of a device. The first question runs the self-test. Thread-safe.

    Parameters
    ----------
    device : Device
        Device whose operations decode with `engine`.
    engine : Engine or None
        The library; None if there is none.
    shortcoming : str or None
        What is wrong with the installed libraries, and what to install; None if nothing is.
    """

    def __init__(self, device: Device, engine: Engine | None, shortcoming: str | None) -> None:
        self._device = device
        self._engine = engine
        self._shortcoming = shortcoming
        self._lock = threading.Lock()
        self._state: DecoderState | None = None
        self._own = SelfTests(
            device,
            "the package's own kernel fails its self-test ({codec}: {reason}); "
            "the host decodes {codec}",
        )

    def codec(self, name: str) -> DeviceCodec | None:
        """Return the abilities for streams of this kind, None if they are not decoded."""
        is_proved = name in self.state().codecs
        return self._engine.codec(name) if is_proved and self._engine is not None else None

    def own_kernel_failure(self, codec: str) -> str | None:
        """Return why no kernel of the package decodes these streams, None if one does.

        Without memory for the test it counts as passed, and the next call repeats it.
        """
        if codec not in OWN_KERNELS:
            return NO_KERNEL
        try:
            reason = self._own.failure(codec, self._own_failure)
        except MemoryError:
            return None
        return None if reason is None else f"own kernels fail their self-test: {reason}"

    def _own_failure(self, codec: str) -> str | None:
        return own_kernel_failure(self._device, codec)

    def state(self) -> DecoderState:
        """Return what is known of the library after the self-test.

        Without memory for the test all codecs count as proved, and the next call repeats it.
        """
        state = self._state
        if state is None:
            with self._lock:
                state = self._state or self._tested()
        if not self._own.shortcomings:
            return state
        told = filter(None, (state.shortcoming, *self._own.shortcomings))
        return replace(state, shortcoming="; ".join(told))

    def _tested(self) -> DecoderState:
        engine = self._engine
        known = [] if engine is None else [engine.codec(name) for name in STREAMS]
        codecs = [codec for codec in known if codec is not None]
        try:
            failed = self._failures(codecs)
        except MemoryError:
            return self._state_of(codecs, {})
        state = self._state = self._state_of(codecs, failed)
        if state.shortcoming is not None:
            warnings.warn(f"{self._device.name}: {state.shortcoming}", DeviceWarning, stacklevel=2)
        return state

    def _state_of(self, codecs: Sequence[DeviceCodec], failed: Mapping[str, str]) -> DecoderState:
        engine, shortcomings = self._engine, [self._shortcoming] if self._shortcoming else []
        if engine is None:
            missing = dict.fromkeys(STREAMS, self._shortcoming or "the device has no library")
            return DecoderState(None, (), missing, _told(shortcomings, missing))
        missing = {
            name: f"{engine.name} fails its self-test: {reason}" for name, reason in failed.items()
        }
        if failed:
            named = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
            shortcomings.append(
                f"{engine.name} fails its self-test ({named}): install it again, or another version"
            )
        passed = tuple(codec.name for codec in codecs if codec.name not in failed)
        absent = STREAMS.keys() - failed.keys() - {*passed}
        missing |= dict.fromkeys(absent, f"{engine.name} does not decode it")
        return DecoderState(engine.name, passed, missing, _told(shortcomings, missing))

    def _failures(self, codecs: Sequence[DeviceCodec]) -> dict[str, str]:
        found = {codec.name: library_failure(self._device, codec.name) for codec in codecs}
        return {name: reason for name, reason in found.items() if reason is not None}


def _told(shortcomings: list[str], missing: Iterable[str]) -> str | None:
    """Return the text of a warning: what is wrong, and who decodes instead; None if nothing is."""
    if not shortcomings:
        return None
    own = [name for name in missing if name in OWN_KERNELS]
    host = [name for name in missing if name not in OWN_KERNELS]
    texts = [*shortcomings]
    texts += [f"own kernels decode {', '.join(own)}"] * bool(own)
    texts += [f"the host decodes {', '.join(host)}"] * bool(host)
    return "; ".join(texts)
