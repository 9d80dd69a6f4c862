"""Frames of a traceback, which keep alive what their functions used."""

from __future__ import annotations

import traceback


def without_locals(error: BaseException) -> BaseException:
    """Clear the local variables in the traceback of `error` and its causes; line numbers stay.

    Otherwise a failed Future would keep alive all arrays its task had in local variables. Closures
    keep theirs: a frame does not release its function. The outermost frame, which caught the error
    and still runs, is taken off the traceback.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    return error
