"""Counters of the process as metrics, in the forms in which TensorStore gives its own.

The names are ``/tensorstore/gpustore/<counter>``, one for each of
:data:`~gpustore.runtime.statistics.COUNTERS`.

Source: TensorStore ``python/tensorstore/metrics.cc`` and ``internal/metrics/prometheus.cc``.
"""

from __future__ import annotations

import base64
import re
import warnings
from collections.abc import Sequence
from typing import Any

from gpustore.errors import MetadataError, StoreIOError
from gpustore.runtime.executor import shared
from gpustore.runtime.future import Future
from gpustore.runtime.statistics import COUNTERS, STATISTICS

_ROOM = "/tensorstore/gpustore/"
_TIMEOUT_S = 60.0


def experimental_collect_matching_metrics(
    metric_prefix: str = "", include_zero_metrics: bool = False
) -> list[Any]:
    """Return the counters of the process.

    Parameters
    ----------
    metric_prefix : str
        Beginning of the names, e.g. ``"/tensorstore/"``.
    include_zero_metrics : bool
        Include counters that are 0.

    Returns
    -------
    list of dict
        ``{"name": str, "values": [{"value": int}]}``, sorted by name. The names are those of
        :data:`gpustore.statistics` behind ``/tensorstore/gpustore/``.
    """
    return [
        {"name": name, "values": [{"value": value}]}
        for name, value, _ in _counters(metric_prefix)
        if value or include_zero_metrics
    ]


def experimental_collect_prometheus_format_metrics(metric_prefix: str = "") -> list[str]:
    """Return the counters of the process as lines of the text format of Prometheus.

    Parameters
    ----------
    metric_prefix : str
        Beginning of the names, e.g. ``"/tensorstore/"``.

    Returns
    -------
    list of str
        For each counter a ``# HELP`` line, a ``# UNIT`` line if it counts bytes, and its value.
    """
    lines = []
    for name, value, text in _counters(metric_prefix):
        legal = name.strip("/").replace("/", "_")
        lines.append(f"# HELP {legal} {text}")
        if "bytes" in name:
            lines.append(f"# UNIT {legal} bytes")
        lines.append(f"{legal} {value}")
    return lines


def experimental_push_metrics_to_prometheus(
    pushgateway: str = "", job: str = "", instance: str = "", metric_prefix: str = ""
) -> Future[int]:
    """Send the counters of the process to a push gateway of Prometheus, by HTTP ``PUT``.

    Parameters
    ----------
    pushgateway : str
        URL of the gateway, ``http://host:port/``.
    job, instance : str
        Labels of the counters there; `job` is required.
    metric_prefix : str
        Beginning of the names to send.

    Returns
    -------
    Future of int
        Status code of the response.

    Raises
    ------
    MetadataError
        Through the Future, for a missing job or another URL.
    StoreIOError
        Through the Future, if the gateway cannot be reached.
    """

    def push() -> int:
        if not job:
            raise MetadataError("PushGatewayConfig bad job")
        if not pushgateway.startswith(("http://", "https://")):
            raise MetadataError("PushGatewayConfig bad host")
        url = pushgateway.removesuffix("/") + "/metrics" + _label("job", job)
        if instance:
            url += _label("instance", instance)
        return _put(url, "".join(f"{line}\n" for line in lines))

    lines = experimental_collect_prometheus_format_metrics(metric_prefix)
    return shared().submit(push)


def experimental_update_verbose_logging(flags: str = "", overwrite: bool = False) -> None:
    """Warn that there is no verbose log.

    The ``statistics`` of a Future and ``store.explain()`` tell what a read does.

    Parameters
    ----------
    flags : str
        TensorStore's names of logs; without any there is no warning.
    overwrite : bool
        Without effect.
    """
    del overwrite
    if not isinstance(flags, str):
        raise TypeError(f"flags: expected a string, but received: {flags!r}")
    if flags:
        _warn(f"experimental_update_verbose_logging({flags!r})")


def parse_tensorstore_flags(argv: Sequence[str]) -> None:
    """Warn of flags of TensorStore among the arguments of a program: none has an effect.

    Parameters
    ----------
    argv : sequence of str
        Arguments such as ``sys.argv``; those that are no flags of TensorStore are passed over.
    """
    arguments = [argv] if isinstance(argv, str) else list(argv)
    if isinstance(argv, str) or not all(isinstance(one, str) for one in arguments):
        raise TypeError(f"argv: expected a sequence of strings, but received: {argv!r}")
    found = [one for one in arguments[1:] if re.match("--?tensorstore_", one)]
    if found:
        _warn(" ".join(found))


def _counters(prefix: str) -> list[tuple[str, int, str]]:
    """Return name, value and description of the counters whose names begin with `prefix`."""
    names = [name for name in sorted(COUNTERS) if (_ROOM + name).startswith(prefix)]
    now = STATISTICS.snapshot()
    return [(_ROOM + name, now.get(name, 0), COUNTERS[name]) for name in names]


def _label(name: str, value: str) -> str:
    """Return a label as components of the path of a URL."""
    if re.fullmatch(r"[A-Za-z0-9_.~()-]+", value):
        return f"/{name}/{value}"
    return f"/{name}@base64/{base64.urlsafe_b64encode(value.encode()).decode()}"


def _put(url: str, text: str) -> int:
    # On use: a program that sends nothing need not import it.
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(url, text.encode(), method="PUT"), timeout=_TIMEOUT_S) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code
    except OSError as error:
        raise StoreIOError(
            f"cannot send metrics to {url}: {error}", status="UNAVAILABLE"
        ) from error


def _warn(what: str) -> None:
    warnings.warn(
        f"{what} has no effect: gpustore has no verbose log; the `statistics` of a Future and "
        "store.explain() tell what a read does",
        UserWarning,
        stacklevel=3,
    )
