"""The tests of the kernels notice a changed kernel: every mutant of a line must fail them.

Each mutant replaces one text, which must stand in its file exactly once. Its family's tests run in
a process of their own; what survives them must not survive them under AddressSanitizer.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpustore.device.kernels import source
from tests.emulator import host_build
from tests.kernels import execution, sanitized
from tests.matrix import each

ROOT = Path(__file__).parents[2]

# File, text, its replacement.
MUTANTS = [
    ("gs_common.cuh", "if (descriptors[middle].first_tile <= tile)",
     "if (descriptors[middle].first_tile < tile)"),
    ("gs_common.cuh", "const i64 index = item - rest * dim.extent;",
     "const i64 index = item - rest * (dim.extent - (k == 3));"),
    ("gs_common.cuh", "sum.dst += index * dim.dst_stride;",
     "sum.dst += (u32)index * (u32)dim.dst_stride;"),
    ("gs_common.cuh", "unit == 2 ? 0x2301 : 0x0123", "unit == 2 ? 0x2301 : 0x1032"),
    ("gs_common.cuh", "unit == 8 ? low << 32 | high : high << 32 | low", "low << 32 | high"),
    ("gs_common.cuh", "unit == 8 ? u128{y, x, w, z}", "unit == 8 ? u128{w, z, y, x}"),
    ("copy.cu", "const u32 item = first + k * THREADS_PER_BLOCK;\n    if (item < run.items)",
     "const u32 item = first + k * THREADS_PER_BLOCK;\n    if (item <= run.items)"),
    ("copy.cu", "  __syncthreads();\n", ""),
    ("copy.cu", "if (at.x0 + i < x.extent && at.y0 + j < y.extent)",
     "if (at.x0 + i <= x.extent && at.y0 + j < y.extent)"),
    ("copy.cu", "if (at.x0 + j < x.extent && at.y0 + i < y.extent)",
     "if (at.x0 + j < x.extent && at.y0 + i <= y.extent)"),
    ("copy.cu", "for (int d = R - 1; d >= 0; d--)", "for (int d = R - 1; d > 0; d--)"),
    ("gs_common.cuh", "for (int k = R - 3; k >= 0; k--)", "for (int k = R - 3; k > 0; k--)"),
    ("gs_common.cuh", "for (int k = R - 1; k > 0; k--) {",
     "for (int k = R - 1; k > (R > 8); k--) {"),
    ("gs_common.cuh", "tile.y0 = (number - rest * tiles_y) * side;",
     "tile.y0 = (number - rest * tiles_y) * 32;"),
    ("copy.cu", "if (item >= run.items) return;", "if (item + 1 >= run.items) return;"),
    ("copy.cu", "dim.indexed & 1 ? offsets[dim.src_stride + index]",
     "dim.indexed & 1 ? offsets[dim.src_stride]"),
    ("fill.cu", "if (item < run.items)", "if (item + 1 < run.items)"),
    ("stream.cu", "line + 16 + (apart ? 4 - apart : 0) <= nbytes", "line + 16 <= nbytes"),
    ("stream.cu", "if (line - apart >= 0 &&", "if (true &&"),
    ("stream.cu", "i64 i = line < 0 ? 0 : line;", "i64 i = line;"),
    ("stream.cu", "value.z = __funnelshift_r(value.z, value.w, 8 * apart);",
     "value.z = __funnelshift_r(value.z, value.x, 8 * apart);"),
    ("shuffle.cu", "if (element >= block.elements) return;",
     "if (element > block.elements) return;"),
    ("shuffle.cu", "__byte_perm(ab_low, cd_low, 0x7632)", "__byte_perm(ab_low, cd_low, 0x7623)"),
    ("shuffle.cu", "    }\n    __syncthreads();\n    for (u32 i = threadIdx.x; i < elements",
     "    }\n    for (u32 i = threadIdx.x; i < elements"),
    ("shuffle.cu", "tile[element * PITCH + j];\n    }\n    __syncthreads();\n",
     "tile[element * PITCH + j];\n    }\n"),
    ("shuffle.cu", "PITCH = PLANES + 1;", "PITCH = PLANES - 1;"),
    ("shuffle.cu", "(x ^ (x >> 14)) & 0x0000cccc0000ccccull",
     "(x ^ (x >> 14)) & 0x0000cccc00008cccull"),
    ("shuffle.cu", "words[to / 8] |= (x >> (8 * i) & 0xff)",
     "words[to / 8] |= (x >> (8 * i) & 0x7f)"),
    ("shuffle.cu", "if (first >= block.elements) return;", "if (first > block.elements) return;"),
    ("shuffle.cu", "__byte_perm(in.at[0], in.at[1], 0x7531)",
     "__byte_perm(in.at[0], in.at[1], 0x6531)"),
    ("shuffle.cu", "src[(u64)i * block.typesize + plane + j];\n    }\n    __syncthreads();\n",
     "src[(u64)i * block.typesize + plane + j];\n    }\n"),
    ("shuffle.cu", "if (i < elements) dst[", "if (i <= elements) dst["),
    ("shuffle.cu", "in.at[from / 4] >> (8 * (from % 4))", "in.at[from / 4] >> (8 * (from % 2))"),
    ("shuffle.cu", "for (u32 bit = 0; bit < 8; bit++) dst[",
     "for (u32 bit = 0; bit < 7; bit++) dst["),
    ("pattern.cu", "(item.w ^ wanted.w)", "0"),
    ("pattern.cu", "if (place >= period)", "if (place > period)"),
    ("pattern.cu", "(begin / 16 + threadIdx.x) % period", "threadIdx.x % period"),
    ("pattern.cu", "[(begin + at) % (16 * (u64)period)]", "[at % (16 * (u64)period)]"),
    ("pattern.cu", "if (threadIdx.x < nbytes - 16 * items)",
     "if (threadIdx.x < nbytes - 16 * items - 1)"),
    ("pattern.cu", "= differs;\n  __syncthreads();\n", "= differs;\n"),
    ("crc32c.cu", "POWERS<POLYNOMIAL>.at[4 + step]", "POWERS<POLYNOMIAL>.at[5 + step]"),
    ("crc32c.cu", "warps[thread / 32] = crc;\n  __syncthreads();\n",
     "warps[thread / 32] = crc;\n"),
    ("crc32c.cu", "crc = moved_on<POLYNOMIAL>(crc, nbytes - begin - length);", ""),
    ("crc32c.cu", "if (begin >= nbytes && !is_first) return;",
     "if (begin >= nbytes) return;"),
    ("crc32c.cu", "slots ? 16 * slots - before : 0", "16 * slots - before"),
    ("crc32c.cu", "add_segment<CRC32>", "add_segment<CRC32C>"),
    ("adler32.cu", "warps[threadIdx.x / 32] = value;\n  __syncthreads();\n",
     "warps[threadIdx.x / 32] = value;\n"),
    ("adler32.cu", "(nbytes - i) * byte) % ADLER_MODULUS", "(nbytes - i) * byte)"),
    ("element.cu", "apart < nbytes ? apart : nbytes", "apart"),
    ("element.cu", "(item.x | item.y | item.z | item.w)", "(item.x | item.y | item.z)"),
    ("element.cu", "item.w & ~illegal", "item.w"),
    ("element.cu", "16 * items + threadIdx.x", "16 * items + head"),
    ("element.cu", "left < segment_nbytes ? left", "left <= segment_nbytes ? segment_nbytes"),
    ("element.cu", "= found;\n  __syncthreads();\n", "= found;\n"),
    ("element.cu", "if (place >= period)", "if (place > period)"),
    ("element.cu", "(begin + threadIdx.x) % period", "(2 * begin + threadIdx.x) % period"),
    ("element.cu", "(u8)(data[i] ^ bits)", "(u8)bits"),
    ("guard.cu", "i < nbytes; i += 32) data[i]", "i + 1 < nbytes; i += 32) data[i]"),
    ("guard.cu", "found |= data[i] ^ value", "found = data[i] ^ value"),
    ("guard.cu", "step = 16; step > 0", "step = 8; step > 0"),
    ("replace_damaged.cu", "i < empty_nbytes ?", "i <= empty_nbytes ?"),
    ("replace_damaged.cu", "i < nbytes; i += 32", "i + 1 < nbytes; i += 32"),
    ("replace_damaged.cu", "number == NONE || ", ""),
    ("replace_damaged.cu", "if (stream >= count) return;", "if (stream > count) return;"),
    ("lz.cu", "  __syncwarp(ALL_LANES);", "  "),
    ("lz.cu", "from[distance < length ? i % distance : i]", "from[i]"),
    ("lz.cu", "if (!has(length) || length > dst_nbytes - out) return false;",
     "if (length > dst_nbytes - out) return false;"),
    ("lz.cu", "if (!has(length) || length > dst_nbytes - out) return false;",
     "if (!has(length)) return false;"),
    ("lz.cu", "if (distance > out || length", "if (length"),
    ("lz.cu", "if (distance > out || length > dst_nbytes - out)", "if (distance > out)"),
    ("lz.cu", "      if (!has(1)) return false;\n      more", "      more"),
    ("lz.cu", "      if (!stream.has(2)) return false;\n      distance", "      distance"),
    ("lz.cu", "    if (!stream.has(2)) return false;\n    const", "    const"),
    ("lz.cu", "distance += 8191;", "distance += 8192;"),
    ("lz.cu", "if (distance == 0 || !stream.match", "if (!stream.match"),
    ("cast.cu", "(rest == half && (whole & 1))", "rest == half"),
    ("cast.cu", "if (shift > SM + 1) return sign;", "if (shift > SM) return sign;"),
    ("cast.cu", "if (exponent >= (1 << DE) - 1) return", "if (exponent >= (1 << DE)) return"),
    ("cast.cu", "if (magnitude > INFINITE) return", "if (magnitude > INFINITE + 1) return"),
    ("cast.cu", "(112u << 23)", "(111u << 23)"),
    ("cast.cu", "(magnitude << up & 0x3ff)", "(magnitude << up & 0x1ff)"),
    ("cast.cu", "  __syncthreads();\n", ""),
    ("cast.cu", "swapped(__ldcs((const Bits*)(at.src + from)), unit)",
     "swapped(__ldcs((const Bits*)(at.src + from)), sizeof(In) > 2 ? unit : 1)"),
    ("cast.cu", "if (at.x0 + i < x.extent && at.y0 + j < y.extent)",
     "if (at.x0 + i < x.extent && at.y0 + j <= y.extent)"),
    ("value.cu", "(rest == half && (whole & 1))", "rest == half"),
    ("value.cu", "format.kind == SIGNED ? (u32)(word >> (format.bits - 1)) : 0", "0"),
    ("value.cu", "!(number.magnitude >> 51)", "false"),
    ("value.cu", "highest > least ? highest : least", "highest"),
    ("value.cu", "if (found < infinity) return", "if (found <= infinity) return"),
    ("value.cu", "outside |= found > most;", ""),
    ("value.cu", "UNSIGNED && too_large ? 0", "UNSIGNED && !too_large ? 0"),
    ("value.cu", "format.kind == SIGNED || beyond == LEAST ? least : 0",
     "format.kind == SIGNED ? least : 0"),
    ("value.cu", "  word = converted(bits, wide, step.from, NEAREST_EVEN, TO_INFINITY, failed);\n"
     "  bits = converted(word, step.from, wide, NEAREST_EVEN, TO_INFINITY, failed);\n",
     ""),
    ("value.cu", "& (step.offset ^ sum)) >> 63", "& (step.offset ^ sum)) >> 63 & 0"),
    ("value.cu", " || (u64)quotient * step.scale != (u64)value", ""),
    ("value.cu", "if (map[0] && step.from.kind >= FLOAT)", "if (step.from.kind >= FLOAT)"),
    ("value.cu", "i < dst_stride; i += dst_nbytes", "i < dst_nbytes; i += dst_nbytes"),
    ("value.cu", "if (element >= run.elements) break;\n    u64 word",
     "if (element > run.elements) break;\n    u64 word"),
    ("value.cu", "if (failed) atomicAdd(failures, 1u);\n  __syncthreads();\n",
     "if (failed) atomicAdd(failures, 1u);\n"),
    ("value.cu", "if (lane >= step) value += before;", "value += before;"),
    ("value.cu", "(format.bias + 1023) << 52", "(format.bias + 1024) << 52"),
    ("value.cu", "of_warps[warp] = inside;\n      __syncthreads();\n",
     "of_warps[warp] = inside;\n"),
    ("value.cu", "is_big ? 7 - bit : bit", "is_big ? 8 - bit : bit"),
    ("value.cu", "have < nbits; have += 8", "have <= nbits; have += 8"),
]  # fmt: skip


class _Forking:
    """A process that forks one for each run of pytest (``forked.py``)."""

    def __init__(self, sanitizer):
        # No plugin of pytest is needed here, and importing those that are installed takes longest.
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment |= sanitized.environment(sanitizer) if sanitizer else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.forked"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.communicate()

    def run(self, folder, family):
        """Whether a family's tests pass with the kernels of this folder, and what they printed."""
        file = folder / "printed"
        tests = f"tests/kernels/test_{family}.py"
        # A sanitizer's report goes to the standard error itself, which pytest must not keep.
        arguments = ["--capture=sys", "-x", "-q", "--matrix", "whole", tests]
        line = json.dumps([str(folder), str(file), arguments])
        print(line, file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        printed = file.read_text(encoding="utf-8", errors="replace")
        if status == 0:
            return True, printed
        # A test failed, or a sanitizer or a signal ended it, as that of a run that hung; not: it
        # could not be run or compiled.
        killed = " failed" in printed or "Sanitizer" in printed or status < 0
        assert killed or "runtime error" in printed, printed[-3000:]
        assert "error: command" not in printed, printed[-3000:]
        assert ": error: " not in printed, printed[-3000:]
        return False, printed


@pytest.fixture(scope="module")
def forking():
    """Processes that run tests, by sanitizer."""
    assert not host_build.SANITIZER
    with ExitStack() as stack:
        yield {sanitizer: stack.enter_context(_Forking(sanitizer)) for sanitizer in ("", "address")}


def _changed_folder(target, file, text, replacement):
    for path in source.folder().glob("*.cu*"):
        (target / path.name).write_bytes(path.read_bytes())
    content = (target / file).read_text(encoding="utf-8")
    assert content.count(text) == 1, f"{file} has {content.count(text)} times: {text}"
    (target / file).write_text(content.replace(text, replacement), encoding="utf-8")


def _name(value):
    return " ".join(value.split())[:60]


@each(("file", "text", "replacement"), MUTANTS)
def test_the_line_of_a_mutant_is_there(file, text, replacement, tmp_path):
    _changed_folder(tmp_path, file, text, replacement)


@execution.needs_compiler
@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize(("file", "text", "replacement"), MUTANTS, ids=_name)
def test_a_mutant_is_killed(forking, file, text, replacement, tmp_path):
    _changed_folder(tmp_path, file, text, replacement)
    family = "copy" if file == source.HEADER else Path(file).stem
    # These write outside when changed, and without the sanitizer that may do anything, also hang
    # or pass.
    unsafe = family in ("lz", "stream") or ".extent" in text
    for sanitizer in ("address",) if unsafe else ("", "address"):
        if not forking[sanitizer].run(tmp_path, family)[0]:
            return
    pytest.fail("the mutant survived")


@execution.needs_compiler
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sanitizer", ["", "address"])
def test_unchanged_kernels_pass(forking, sanitizer, tmp_path):
    _changed_folder(tmp_path, "guard.cu", "namespace gs {", "namespace gs {  // the same")
    passed, printed = forking[sanitizer].run(tmp_path, "guard")
    assert passed, printed
