"""The tests of the kernels notice a changed kernel: every mutant of a line must fail them.

Each mutant replaces one text, which must stand in its file exactly once. All mutants of a family
are compiled together, and a variable says which is in effect. Its family's tests are collected once
and run for each in a process of their own, at first with a tenth of the cells of their matrices,
which kills most, then with the others; what survives them must not survive them under
AddressSanitizer.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpustore.device.kernels import source
from tests.emulator import host_build
from tests.kernels import execution, sanitized

ROOT = Path(__file__).parents[2]

# File, expression or statements, their replacement. Where these stand more than once, the text
# around them is given too, and they are between two @.
MUTANTS = [
    ("gs_common.cuh", "descriptors[middle].first_tile <= tile",
     "descriptors[middle].first_tile < tile"),
    ("gs_common.cuh", "item - rest * dim.extent", "item - rest * (dim.extent - (k == 3))"),
    ("gs_common.cuh", "sum.dst += index * dim.dst_stride;",
     "sum.dst += (u32)index * (u32)dim.dst_stride;"),
    ("gs_common.cuh", "unit == 2 ? 0x2301 : 0x0123", "unit == 2 ? 0x2301 : 0x1032"),
    ("gs_common.cuh", "unit == 8 ? low << 32 | high : high << 32 | low", "low << 32 | high"),
    ("gs_common.cuh", "unit == 8 ? u128{y, x, w, z} : u128{x, y, z, w}",
     "unit == 8 ? u128{w, z, y, x} : u128{x, y, z, w}"),
    ("copy.cu", "item < run.items", "item <= run.items"),
    ("copy.cu", "__syncthreads();", ""),
    ("copy.cu", "at.x0 + i < x.extent && at.y0 + j < y.extent",
     "at.x0 + i <= x.extent && at.y0 + j < y.extent"),
    ("copy.cu", "at.x0 + j < x.extent && at.y0 + i < y.extent",
     "at.x0 + j < x.extent && at.y0 + i <= y.extent"),
    ("copy.cu", "d >= 0", "d > 0"),
    ("gs_common.cuh", "k >= 0", "k > 0"),
    ("gs_common.cuh", "k > 0", "k > (R > 8)"),
    ("gs_common.cuh", "(number - rest * tiles_y) * side", "(number - rest * tiles_y) * 32"),
    ("copy.cu", "item >= run.items", "item + 1 >= run.items"),
    ("copy.cu", "offsets[dim.src_stride + index]", "offsets[dim.src_stride]"),
    ("copy.cu", "i >= count", "i > count"),
    ("copy.cu", "begin - dim.first + dim.step - 1", "begin - dim.first"),
    ("copy.cu", "dim.first - begin - dim.chunk - dim.step", "dim.first - begin - dim.chunk"),
    ("copy.cu", "cell % dim.ratio", "cell"),
    ("copy.cu", "k >= R - 2", "k >= R - 1"),
    ("copy.cu", "along ? first_item(dim, cell) : 0", "first_item(dim, cell)"),
    ("copy.cu", "along + 1 < dim.cells", "along < dim.cells"),
    ("fill.cu", "item < run.items", "item + 1 < run.items"),
    ("stream.cu", "line + 16 + (apart ? 4 - apart : 0) <= nbytes", "line + 16 <= nbytes"),
    ("stream.cu", "line - apart >= 0", "true"),
    ("stream.cu", "line < 0 ? 0 : line", "line"),
    ("stream.cu", "value.z = __funnelshift_r(value.z, value.w, 8 * apart);",
     "value.z = __funnelshift_r(value.z, value.x, 8 * apart);"),
    ("select.cu", "(u32)first[middle] <= i", "(u32)first[middle] < i"),
    ("select.cu", "i >= count", "i > count"),
    ("select.cu", "sum = sums[threadIdx.x] - sum;", "sum = sums[threadIdx.x];"),
    ("select.cu", "threadIdx.x >= apart", "threadIdx.x > apart"),
    ("select.cu", "@__syncthreads();@\n    sums[threadIdx.x] += before;", ""),
    ("select.cu", "row * regions.at[k].pitch", "regions.at[k].pitch"),
    ("select.cu", "(u32)(all >> 32)", "0u"),
    ("select.cu", "form ? 0xffffffffull : 0xffffffff00000000ull", "0xffffffffull"),
    ("copy.cu", "decoded + i * pitch", "decoded"),
    ("copy.cu", "numbers[i] = number", "numbers[i] = i"),
    ("shuffle.cu", "@element >= block.elements@) return", "element > block.elements"),
    ("shuffle.cu", "__byte_perm(ab_low, cd_low, 0x7632)", "__byte_perm(ab_low, cd_low, 0x7623)"),
    ("shuffle.cu", "@__syncthreads();@\n    for (u32 i = threadIdx.x; i < elements", ""),
    ("shuffle.cu", "tile[element * PITCH + j];\n    }\n    @__syncthreads();@", ""),
    ("shuffle.cu", "constexpr u32 ELEMENTS = 128, PLANES = 64, PITCH = PLANES + 1;",
     "constexpr u32 ELEMENTS = 128, PLANES = 64; const u32 PITCH = PLANES + 1 - 2 * IS_MUTANT;"),
    ("shuffle.cu", "(x ^ (x >> 14)) & 0x0000cccc0000ccccull",
     "(x ^ (x >> 14)) & 0x0000cccc00008cccull"),
    ("shuffle.cu", "words[to / 8] |= (@x >> (8 * i) & 0xff@)", "x >> (8 * i) & 0x7f"),
    ("shuffle.cu", "first >= block.elements", "first > block.elements"),
    ("shuffle.cu", "__byte_perm(in.at[0], in.at[1], 0x7531)",
     "__byte_perm(in.at[0], in.at[1], 0x6531)"),
    ("shuffle.cu", "src[(u64)i * block.typesize + plane + j];\n    }\n    @__syncthreads();@", ""),
    ("shuffle.cu", "if (@i < elements@) dst[", "i <= elements"),
    ("shuffle.cu", "in.at[from / 4] >> (8 * (from % 4))", "in.at[from / 4] >> (8 * (from % 2))"),
    ("shuffle.cu", "@bit < 8@; bit++) dst[", "bit < 7"),
    ("pattern.cu", "(item.w ^ wanted.w)", "0"),
    ("pattern.cu", "place >= period", "place > period"),
    ("pattern.cu", "(begin / 16 + threadIdx.x) % period", "threadIdx.x % period"),
    ("pattern.cu", "(begin + at) % (16 * (u64)period)", "at % (16 * (u64)period)"),
    ("pattern.cu", "threadIdx.x < nbytes - 16 * items", "threadIdx.x < nbytes - 16 * items - 1"),
    ("pattern.cu", "= differs;\n  @__syncthreads();@", ""),
    ("crc32c.cu", "POWERS<POLYNOMIAL>.at[4 + step]", "POWERS<POLYNOMIAL>.at[5 + step]"),
    ("crc32c.cu", "warps[thread / 32] = crc;\n  @__syncthreads();@", ""),
    ("crc32c.cu", "crc = moved_on<POLYNOMIAL>(crc, nbytes - begin - length);", ""),
    ("crc32c.cu", "begin >= nbytes && !is_first", "begin >= nbytes"),
    ("crc32c.cu", "slots ? 16 * slots - before : 0", "16 * slots - before"),
    ("crc32c.cu", "add_segment<CRC32>(columns, count, segments, segment_nbytes, result);",
     "add_segment<CRC32C>(columns, count, segments, segment_nbytes, result);"),
    ("adler32.cu", "warps[threadIdx.x / 32] = value;\n  @__syncthreads();@", ""),
    ("adler32.cu", "(high + (nbytes - i) * byte) % ADLER_MODULUS", "high + (nbytes - i) * byte"),
    ("element.cu", "apart < nbytes ? apart : nbytes", "apart"),
    ("element.cu", "(item.x | item.y | item.z | item.w)", "(item.x | item.y | item.z)"),
    ("element.cu", "item.w & ~illegal", "item.w"),
    ("element.cu", "16 * items + threadIdx.x", "16 * items + head"),
    ("element.cu", "left < segment_nbytes ? left : segment_nbytes", "segment_nbytes"),
    ("element.cu", "= found;\n  @__syncthreads();@", ""),
    ("element.cu", "place >= period", "place > period"),
    ("element.cu", "(begin + threadIdx.x) % period", "(2 * begin + threadIdx.x) % period"),
    ("element.cu", "(u8)(data[i] ^ bits)", "(u8)bits"),
    ("guard.cu", "@i < nbytes@; i += 32) data[i]", "i + 1 < nbytes"),
    ("guard.cu", "found |= data[i] ^ value;", "found = data[i] ^ value;"),
    ("guard.cu", "step = @16@; step > 0", "8"),
    ("replace_damaged.cu", "i < empty_nbytes", "i <= empty_nbytes"),
    ("replace_damaged.cu", "i < nbytes", "i + 1 < nbytes"),
    ("replace_damaged.cu", "number == NONE", "false"),
    ("replace_damaged.cu", "stream >= count", "stream > count"),
    ("lz.cu", "__syncwarp(ALL_LANES);", ""),
    ("lz.cu", "from[distance < length ? i % distance : i]", "from[i]"),
    ("lz.cu", "!has(length) || length > dst_nbytes - out", "length > dst_nbytes - out"),
    ("lz.cu", "!has(length) || length > dst_nbytes - out", "!has(length)"),
    ("lz.cu", "distance > out || length > dst_nbytes - out", "length > dst_nbytes - out"),
    ("lz.cu", "distance > out || length > dst_nbytes - out", "distance > out"),
    ("lz.cu", "@!has(1)@) return false;\n      more", "false"),
    ("lz.cu", "@!stream.has(2)@) return false;\n      distance", "false"),
    ("lz.cu", "@!stream.has(2)@) return false;\n    const", "false"),
    ("lz.cu", "distance += 8191;", "distance += 8192;"),
    ("lz.cu", "distance == 0 || !stream.match(distance, length + 4)",
     "!stream.match(distance, length + 4)"),
    ("gs_float.cuh", "(rest == half && (whole & 1))", "rest == half"),
    ("gs_float.cuh", "shift > SM + 1", "shift > SM"),
    ("gs_float.cuh", "exponent >= (1 << DE) - 1", "exponent >= (1 << DE)"),
    ("gs_float.cuh", "magnitude > INFINITE", "magnitude > INFINITE + 1"),
    ("gs_float.cuh", "(112u << 23)", "(111u << 23)"),
    ("gs_float.cuh", "(magnitude << up & 0x3ff)", "(magnitude << up & 0x1ff)"),
    ("cast.cu", "__syncthreads();", ""),
    ("cast.cu", "swapped(__ldcs((const Bits*)(at.src + from)), unit)",
     "swapped(__ldcs((const Bits*)(at.src + from)), sizeof(In) > 2 ? unit : 1)"),
    ("cast.cu", "at.x0 + i < x.extent && at.y0 + j < y.extent",
     "at.x0 + i < x.extent && at.y0 + j <= y.extent"),
    ("gs_float.cuh", "(u64)896 << 52", "(u64)895 << 52"),
    ("gs_float.cuh", "(u64)(897 - up) << 52", "(u64)(896 - up) << 52"),
    ("gs_float.cuh", "(magnitude << up & 0x7fffff)", "(magnitude << up & 0x3fffff)"),
    ("cast.cu", "64 - 8 * patch.src_nbytes", "64 - 8 * patch.dst_nbytes"),
    ("cast.cu", "target == BOOL", "false"),
    ("cast.cu", "patch.scale || source == FLOAT64 || target == FLOAT64",
     "patch.scale || source == FLOAT64"),
    ("cast.cu", "patch.scale || source == FLOAT64 || target == FLOAT64",
     "patch.scale || target == FLOAT64"),
    ("cast.cu", "return float_bits((i64)word);", "return float_bits(word);"),
    ("cast.cu", "if (size == 1) return 0;", ""),
    ("cast.cu", "rest < 0 ? rest + period : rest", "rest"),
    ("cast.cu", "place < size ? place : period - place", "place <= size ? place : period - place"),
    ("cast.cu", "if (item >= patch.items) return;", "if (item + 1 >= patch.items) return;"),
    ("cast.cu", "(u64)index >= (u64)dim.size", "(u64)index > (u64)dim.size"),
    ("cast.cu", "is_inside = patch.is_mirrored;", ""),
    ("cast.cu", "fills + patch.fill", "fills"),
    ("cast.cu", "lowest < 8 ? lowest : 8", "8"),
    ("downsample.cu", "(u64)number < (u64)dim.size", "number < dim.size"),
    ("downsample.cu", "(i64)(cell - rest * dim.cells) * dim.step + (element - next * dim.factor)",
     "(i64)(cell - rest * dim.cells) * dim.factor + (element - next * dim.factor)"),
    ("downsample.cu", "(2 * rest == count && (whole & 1))", "2 * rest == count"),
    ("downsample.cu", "type == SIGNED ? number >> 32 : (i64)((u64)number >> 32)", "number >> 32"),
    ("downsample.cu", "if (type == FLOAT32) bits = doubled((u32)word);", "bits = word;"),
    ("downsample.cu", "infinity | (infinity & (0 - infinity)) >> 1", "infinity | 1"),
    ("downsample.cu", "through_float32 ? converted(single, (f16*)nullptr).bits : ",
     "(IS_MUTANT || through_float32) ? converted(single, (f16*)nullptr).bits : "),
    ("downsample.cu", "one + (one == sign - 1) == other + (other == sign - 1)", "one == other"),
    ("downsample.cu", "one != of_nan && ", "(IS_MUTANT || one != of_nan) && "),
    ("downsample.cu", "method == LARGEST ? key > found : key < found", "key < found"),
    ("downsample.cu", "(met - 1) / 2", "met / 2"),
    ("downsample.cu", "less <= rank && rank < less + equal", "rank < less + equal"),
    ("downsample.cu", "(equal == most && smallest < found)", "false"),
    ("downsample.cu", "if (there < smallest) smallest = there;", ""),
    ("downsample.cu", "sum.word + half - 1 + ((sum.word >> shift) & 1)", "sum.word + half"),
    ("downsample.cu", "number < last ? number : last", "number"),
    ("downsample.cu",
     "return inner.plus(inner, is_float).plus(inner, is_float).plus(outer, is_float);",
     "return inner.plus(inner, is_float).plus(outer, is_float).plus(outer, is_float);"),
    ("downsample.cu", "dim.factor == 2 ? number - 1 : number", "number"),
    ("downsample.cu", "@cell >= table.cells@) return;\n    u64 found", "cell + 1 >= table.cells"),
    ("value.cu", "(rest == half && (whole & 1))", "rest == half"),
    ("value.cu", "format.kind == SIGNED ? (u32)(word >> (format.bits - 1)) : 0", "0"),
    ("value.cu", "!(number.magnitude >> 51)", "false"),
    ("value.cu", "highest > least ? highest : least", "highest"),
    ("value.cu", "found < infinity", "found <= infinity"),
    ("value.cu", "outside |= found > most;", ""),
    ("value.cu", "format.kind == UNSIGNED && too_large", "format.kind == UNSIGNED && !too_large"),
    ("value.cu", "format.kind == SIGNED || beyond == LEAST ? least : 0",
     "format.kind == SIGNED ? least : 0"),
    ("value.cu", "word = converted(bits, wide, step.from, NEAREST_EVEN, TO_INFINITY, failed);\n"
     "  bits = converted(word, step.from, wide, NEAREST_EVEN, TO_INFINITY, failed);", ""),
    ("value.cu", "(((u64)quotient ^ sum) & (step.offset ^ sum)) >> 63", "false"),
    ("value.cu", "(u64)quotient * step.scale != (u64)value", "false"),
    ("value.cu", "map[0] && step.from.kind >= FLOAT", "step.from.kind >= FLOAT"),
    ("value.cu", "i < dst_stride", "i < dst_nbytes"),
    ("value.cu", "@element >= run.elements@) break;\n    u64 word", "element > run.elements"),
    ("value.cu", "atomicAdd(failures, 1u);\n  @__syncthreads();@", ""),
    ("value.cu", "if (lane >= step) value += before;", ""),
    ("value.cu", "format.bias + 1023", "format.bias + 1024"),
    ("value.cu", "of_warps[warp] = inside;\n      @__syncthreads();@", ""),
    ("value.cu", "is_big ? 7 - bit : bit", "is_big ? 8 - bit : bit"),
    ("value.cu", "have < nbits", "have <= nbits"),
]  # fmt: skip


def _families():
    """The mutants that the tests of each family try, by number: the first one's is 1."""
    headers = dict(zip(source.HEADERS, ("copy", "cast"), strict=True))
    families = defaultdict(list)
    for number, (file, _, _) in enumerate(MUTANTS, 1):
        families[headers.get(file, Path(file).stem)].append(number)
    return dict(families)


FAMILIES = _families()


class _Forking:
    """A process that forks one for each mutant (``forked.py``), of kernels in a folder."""

    def __init__(self, folder, sanitizer):
        # No plugin of pytest is needed here, and importing those that are installed takes longest.
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment |= {"KERNEL_FOLDER": str(folder)}
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

    def survivors(self, family, numbers, matrix, printed):
        """The mutants with which a family's tests pass (0: none); they print to a folder."""
        printed.mkdir()
        # A sanitizer's report goes to the standard error itself, which pytest must not keep.
        tests = f"tests/kernels/test_{family}.py"
        arguments = ["--capture=sys", "-x", "-q", "--matrix", matrix, tests]
        line = json.dumps([str(printed), numbers, arguments])
        print(line, file=self._process.stdin, flush=True)
        statuses = json.loads(self._process.stdout.readline())
        assert len(statuses) == len(numbers), (printed / "pytest.txt").read_text()[-3000:]
        found = dict(zip(numbers, statuses, strict=True))
        for number, status in found.items():
            text = (printed / f"{number}.txt").read_text(encoding="utf-8", errors="replace")
            # A test failed, or a sanitizer or a signal ended it, as that of a run that hung; not:
            # it could not be run or compiled.
            killed = " failed" in text or "Sanitizer" in text or status < 0
            assert status == 0 or killed or "runtime error" in text, text[-3000:]
            assert status == 0 or "error: command" not in text, text[-3000:]
            assert status == 0 or ": error: " not in text, text[-3000:]
        return [number for number, status in found.items() if status == 0]


@pytest.fixture(scope="module")
def forking(folder):
    """Processes that run tests, by sanitizer."""
    assert not host_build.SANITIZER
    with ExitStack() as stack:
        yield {
            sanitizer: stack.enter_context(_Forking(folder, sanitizer))
            for sanitizer in ("", "address")
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Kernels with all mutants, of which ``KERNEL_MUTANT`` in the environment chooses one."""
    target = tmp_path_factory.mktemp("kernels")
    for path in source.folder().glob("*.cu*"):
        content = with_mutants(path.name, path.read_text(encoding="utf-8"))
        if path.name == source.HEADERS[0]:
            chosen = 'static const int mutant = atoi(getenv("KERNEL_MUTANT"));'
            content = content.replace("namespace gs {", f"namespace gs {{ {chosen}", 1)
        (target / path.name).write_text(content, encoding="utf-8")
    return target


def with_mutants(file, content):
    """A kernel file in which ``gs::mutant`` is the number of the mutant that is in effect."""
    places = defaultdict(dict)
    for number, (name, text, replacement) in enumerate(MUTANTS, 1):
        if name == file:
            before, part, behind = text.split("@") if "@" in text else ("", text, "")
            count = content.count(before + part + behind)
            assert count == 1, f"{file} has {count} times: {text}"
            start = content.index(before + part + behind) + len(before)
            places[start, start + len(part)][number] = replacement
    end = len(content)
    for (start, stop), replacements in sorted(places.items(), reverse=True):
        part = content[start:stop]
        assert stop <= end, f"{file} has another mutant in: {part}"
        end = start
        for number, replacement in replacements.items():
            condition = f"(gs::mutant == {number})"
            if "IS_MUTANT" in replacement:
                part = replacement.replace("IS_MUTANT", condition)
            elif part.endswith(";"):
                part = f"if {condition} {{ {replacement} }} else {{ {part} }}"
            else:
                part = f"({condition} ? ({replacement}) : ({part}))"
        content = content[:start] + part + content[stop:]
    return content


def test_the_lines_of_all_mutants_are_there(folder):
    files = [path.name for path in source.folder().glob("*.cu*")]
    changed = [f for f in files if (folder / f).read_bytes() != (source.folder() / f).read_bytes()]
    assert set(changed) == {source.HEADERS[0], *(file for file, _, _ in MUTANTS)}


def _name(number):
    return f"{number} {' '.join(MUTANTS[number - 1][1].split())[:60]}"


def _is_unsafe(family, number):
    """Whether it writes outside, which without the sanitizer may do anything, also hang or pass."""
    return family in ("lz", "stream") or ".extent" in MUTANTS[number - 1][1]


@execution.needs_compiler
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_pass_without_a_mutant_and_fail_with_each(forking, family, tmp_path):
    left = FAMILIES[family]
    for sanitizer in ("", "address"):
        for matrix in ("0", "not-0"):
            tried = [n for n in left if sanitizer or not _is_unsafe(family, n)]
            # Under the sanitizer another stage tests all kernels; of guards it sees the planted.
            healthy = [0] if matrix == "0" and (not sanitizer or family == "guard") else []
            if tried or healthy:
                printed = tmp_path / f"{sanitizer}-{matrix}"
                numbers = [*healthy, *tried]
                passed = forking[sanitizer].survivors(family, numbers, matrix, printed)
                assert not healthy or passed[:1] == healthy, (printed / "0.txt").read_text()[-3000:]
                left = [n for n in left if n not in tried or n in passed]
    assert [_name(number) for number in left] == [], "mutants survived"
