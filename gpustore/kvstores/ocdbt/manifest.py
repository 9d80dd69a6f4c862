"""The manifest of an OCDBT database: its configuration and references to its versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpustore.errors import GpustoreError
from gpustore.kvstores.ocdbt.config import Config
from gpustore.kvstores.ocdbt.envelope import MANIFEST, open_body, seal
from gpustore.kvstores.ocdbt.location import FileTable, read_files
from gpustore.kvstores.ocdbt.time import format_time
from gpustore.kvstores.ocdbt.version_tree import (
    encode_subtrees,
    encode_versions,
    read_subtrees,
    read_versions,
    subtree_ranges,
)

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.columns import Reader
    from gpustore.kvstores.ocdbt.version_tree import Version, VersionSubtree
    from gpustore.runtime.buffer import Buffer


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decoded manifest.

    Attributes
    ----------
    config : Config
    versions : tuple of Version
        The latest versions; none in ``manifest.ocdbt`` of a database with numbered manifests.
    subtrees : tuple of VersionSubtree
        Subtrees of the older versions, ascending.
    """

    config: Config
    versions: tuple[Version, ...]
    subtrees: tuple[VersionSubtree, ...]

    @property
    def latest(self) -> Version:
        """Newest version."""
        return self.versions[-1]

    def encode(self) -> bytes:
        """Return the bytes of a manifest with all versions."""
        locations = [version.root for version in self.versions]
        locations += [subtree.location for subtree in self.subtrees]
        table = FileTable(location.file for location in locations)
        body = b"".join(
            (
                # Also a numbered manifest says that it has versions.
                self.config.encode(kind="single"),
                table.encoded,
                encode_versions(self.versions, table),
                encode_subtrees(self.subtrees, table, in_manifest=True),
            )
        )
        return seal(MANIFEST, body, self.config.compression.level)


def encode_config(config: Config) -> bytes:
    """Return the bytes of ``manifest.ocdbt`` for a database with numbered manifests."""
    return seal(MANIFEST, config.encode(), config.compression.level)


def read_manifest(data: Buffer, *, max_nbytes: int) -> Manifest:
    """Decode and check a manifest.

    Parameters
    ----------
    data : Buffer
    max_nbytes : int
        Largest decoded length, in bytes.

    Raises
    ------
    CorruptChunkError, LimitError
    """
    try:
        reader = open_body(data, MANIFEST, max_nbytes=max_nbytes)
        config = Config.read(reader)
        if config.manifest_kind == "numbered":
            reader.finish()
            return Manifest(config, (), ())
        files = read_files(reader, b"", max_nbytes=max_nbytes)
        arity_log2 = config.version_tree_arity_log2
        versions = read_versions(reader, files, arity_log2)
        subtrees = read_subtrees(reader, files, arity_log2, None)
        _check_subtrees(reader, versions[0], subtrees, arity_log2)
        reader.finish()
    except GpustoreError as error:
        raise error.prefixed("Error decoding manifest") from error.__cause__
    return Manifest(config, versions, subtrees)


def _check_subtrees(
    reader: Reader, first_inline: Version, subtrees: tuple[VersionSubtree, ...], arity_log2: int
) -> None:
    if subtrees and subtrees[-1].commit_time >= first_inline.commit_time:
        raise reader.error(
            f"version_tree_nodes.back().commit_time={format_time(subtrees[-1].commit_time)} >= "
            f"versions.front().commit_time={format_time(first_inline.commit_time)}"
        )
    ranges = {
        height: (first, last)
        for height, first, last in subtree_ranges(first_inline.generation, arity_log2)
    }
    for i, subtree in enumerate(subtrees):
        first, last = ranges.get(subtree.height, (1, 0))
        if not first <= subtree.generation <= last:
            raise reader.error(
                f"generation_number[{i}]={subtree.generation} of height {subtree.height} is "
                f"outside valid range [{first}, {last}]"
            )
