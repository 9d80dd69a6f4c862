"""Pictures of planes: contrast, a drawing for the terminal, and a PNG file.

Pixels are uint8 arrays of shape (height, width), or (height, width, 3) with red, green and blue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gpustore.cli.failure import CommandError
from gpustore.cli.screen import missing_library

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

Pixels: TypeAlias = "npt.NDArray[np.uint8]"


@dataclass(frozen=True, slots=True)
class Picture:
    """A slice to show.

    Attributes
    ----------
    pixels : ndarray of uint8
    name : str
        Path or URL of the array.
    array : str
        Shape and data type of the array.
    slice : str
        The slice, as ``--index`` takes it.
    about : str
        Contrast or channels.
    """

    pixels: Pixels
    name: str
    array: str
    slice: str
    about: str


_STRIP = 8
"""Height of the picture of a slice of one dimension, in pixels."""

_RAMP = np.array(list(" .:-=+*#%@"))
_PERCENTILES = (1, 99.8)


def numbers_of(elements: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return elements as numbers to be shown: the modulus of complex ones, ticks of times.

    Raises
    ------
    CommandError
        If the elements are no numbers.
    """
    kind = elements.dtype.kind
    if kind in "Mm":
        ticks = elements.view(np.int64).astype(np.float64)
        ticks[np.isnat(elements)] = np.nan
        return ticks
    if kind in "OSUT" or elements.dtype.type is np.void:
        raise CommandError(f"elements of {elements.dtype} cannot be shown as a picture")
    numbers: npt.NDArray[np.float64] = np.abs(elements) if kind == "c" else elements
    return numbers.astype(np.float64)


def contrast_of(numbers: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the values to show black and white: the 1st and the 99.8th percentile."""
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return 0.0, 1.0
    dark, bright = (float(value) for value in np.percentile(finite, _PERCENTILES))
    if dark < bright:
        return dark, bright
    # Nearly all have one value: show the others.
    dark, bright = float(finite.min()), float(finite.max())
    return (dark, bright) if dark < bright else (dark - 1, bright)


def stretch(numbers: npt.NDArray[np.float64], dark: float, bright: float) -> Pixels:
    """Return pixels from black at `dark` to white at `bright`; NaN is black."""
    with np.errstate(invalid="ignore", over="ignore"):
        share = (numbers - dark) / (bright - dark)
    scaled: Pixels = (np.nan_to_num(share.clip(0, 1)) * 255 + 0.5).astype(np.uint8)
    return scaled


def save_png(path: Path, pixels: Pixels) -> None:
    """Write pixels to a PNG file.

    Raises
    ------
    CommandError
        pillow is not installed.
    """
    require_pillow()
    from PIL import Image

    with path.open("wb") as file:
        Image.fromarray(pixels).save(file, "PNG")


def require_pillow() -> None:
    """Raise CommandError if pillow is not installed; before the work, not after it."""
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_library(error) from error


def pixels_of(
    elements: npt.NDArray[Any], wanted: tuple[float, float] | None, *, is_colour: bool
) -> tuple[Pixels, tuple[float, float] | None]:
    """Return pixels, and the values shown black and white; None for colours as they are."""
    if is_colour:
        elements = elements[..., :3]
        if wanted is None:
            return elements, None
    elif elements.ndim < 2:
        elements = np.broadcast_to(elements.reshape(1, -1), (_STRIP, elements.size))
    numbers = numbers_of(elements)
    dark, bright = wanted or contrast_of(numbers)
    return stretch(numbers, dark, bright), (dark, bright)


def size_of(
    rows: float, columns: float, width: int, height: int, *, enlarge: bool
) -> tuple[int, int]:
    """Return height and width of a picture that fits in `width` and `height`.

    With `enlarge` a small picture becomes up to 8 times as large.
    """
    factor = min(height / rows, width / columns, 8 if enlarge else 1)
    if factor > 1:
        factor = int(factor)
    return max(1, int(rows * factor)), max(1, int(columns * factor))


def fitted(
    pixels: Pixels,
    width: int,
    height: int,
    *,
    enlarge: bool,
    steps: tuple[float, float] = (1.0, 1.0),
) -> Pixels:
    """Choose or repeat pixels so that the picture fits in `width` and `height`.

    Parameters
    ----------
    pixels : ndarray of uint8
    width, height : int
        Largest size of the picture.
    enlarge : bool
        Whether a small picture becomes up to 8 times as large.
    steps : (float, float)
        Distances of two rows and of two columns, in any unit.
    """
    rows, columns = pixels.shape[:2]
    least = min(steps)
    tall, wide = size_of(
        rows * steps[0] / least, columns * steps[1] / least, width, height, enlarge=enlarge
    )
    chosen: Pixels = pixels[np.arange(tall) * rows // tall][:, np.arange(wide) * columns // wide]
    return chosen


def half_blocks(pixels: Pixels) -> Any:
    """Draw pixels for a terminal with colours: a character is two pixels, one above the other.

    Returns
    -------
    rich.segment.Segments
    """
    from rich.color import Color
    from rich.segment import Segment, Segments
    from rich.style import Style

    rgb = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    segments = []
    for top in range(0, len(rgb), 2):
        lower = rgb[top + 1] if top + 1 < len(rgb) else None
        for column, upper in enumerate(rgb[top].tolist()):
            background = None if lower is None else Color.from_rgb(*lower[column].tolist())
            style = Style(color=Color.from_rgb(*upper), bgcolor=background)
            segments.append(Segment("▀", style))
        segments.append(Segment.line())
    return Segments(segments)


def ramp_lines(pixels: Pixels) -> list[str]:
    """Draw pixels for a terminal without colours: a character is the mean of two pixels."""
    grey = pixels.mean(axis=2) if pixels.ndim == 3 else pixels.astype(np.float64)
    if len(grey) % 2:
        grey = np.concatenate([grey, grey[-1:]])
    means = grey.reshape(-1, 2, grey.shape[1]).mean(axis=1)
    characters = _RAMP[(means / 256 * len(_RAMP)).astype(np.intp)]
    return ["".join(row).rstrip() for row in characters]
