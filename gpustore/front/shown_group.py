"""Texts of a group for people: :class:`ShownGroup`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore import registry
from gpustore.errors import GpustoreError

if TYPE_CHECKING:
    from gpustore.display.group_info import GroupInfo


class ShownGroup:
    """A group with texts of itself, for a terminal or a notebook."""

    __slots__ = ()

    @property
    def url(self) -> str:
        """URL that opens the group again, with the root of the hierarchy."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Path from the root of the hierarchy, with a leading slash."""
        raise NotImplementedError

    def keys(self) -> list[str]:
        """Return the names of the members, sorted, unreadable ones included."""
        raise NotImplementedError

    @property
    def info(self) -> GroupInfo:
        """Facts on one screen: format, attributes, and the members at any depth as a tree.

        >>> import gpustore
        >>> group = gpustore.open_group("memory://gi/|zarr3:", create=True).result()
        >>> _ = group.create_array("raw", dtype="uint8", shape=[4]).result()
        >>> group.info
        memory://gi/|zarr3:
          format      Zarr v3 group
          attributes  none
          below it    1 array, 0 groups
        <BLANKLINE>
        /
        └── raw (4,) uint8
        """
        info: GroupInfo = registry.find("display", "group_info")(self)
        return info

    def __repr__(self) -> str:
        try:
            return f"<gpustore.Group at {self.url}>"
        except GpustoreError:  # No URL names the place.
            return f"<gpustore.Group {self.name}>"

    def _repr_html_(self) -> str:
        """Return the facts and the members as a table and a tree."""
        html: str = registry.find("display", "group_html")(self)
        return html

    def _ipython_key_completions_(self) -> list[str]:
        """Return what IPython and Jupyter offer behind ``group["``."""
        return self.keys()
