"""gpustore.url: syntax of pipelines, its round trip, and TensorStore's words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import GpustoreError, InvalidKeyError, MetadataError
from gpustore.strict_json.parsing import quote
from gpustore.url import (
    UrlComponent,
    check_segments,
    encode_path,
    parse_pipeline,
)
from tests.matrix import each

unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def pipeline(components):
    """The text of a pipeline in canonical form."""
    return "|".join(map(str, components))


def has_dots(path):
    return ".." in path.replace("\\", "/").split("/")


paths = unicode_text | st.text("ab/%:|?#@. \\é", max_size=12)
paths = paths.filter(lambda path: not has_dots(path))
raw = st.none() | st.text("ab=&%/:@ ?é", max_size=6)
schemes = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_+.-]{1,6}", fullmatch=True)
roots = st.builds(UrlComponent, schemes, paths, st.just(True), raw, raw)
slashless_roots = st.builds(UrlComponent, schemes, paths, st.just(False), raw, raw)
applied = st.builds(UrlComponent, schemes, paths, st.booleans(), raw, raw)
plain_roots = st.builds(
    UrlComponent,
    st.just("file"),
    st.text("ab/%:?#@. \\é", min_size=1, max_size=12).filter(
        lambda p: not has_dots(p) and "://" not in p and ":" not in p[2:]
    ),
    plain=st.just(True),
).filter(lambda root: ":" not in root.path or not root.path.split(":")[0].isalpha())


def test_pipeline_is_split_into_components():
    assert parse_pipeline("file:///tmp/x.zarr/|zarr3:a/b|cast:float32") == (
        UrlComponent("file", "/tmp/x.zarr/", slashes=True),
        UrlComponent("zarr3", "a/b"),
        UrlComponent("cast", "float32"),
    )


ROOTS = {
    "memory://": UrlComponent("memory", "", True),
    "memory://a b%20c": UrlComponent("memory", "a b c", True),
    "memory:///a": UrlComponent("memory", "/a", True),
    "memory:a": UrlComponent("memory", "a"),
    "memory://a%2Fb%7cc": UrlComponent("memory", "a/b|c", True),
    "memory://%C3%A9é": UrlComponent("memory", "éé", True),
    "memory://a:b@c": UrlComponent("memory", "a:b@c", True),
    "memory://a.../..b/c..": UrlComponent("memory", "a.../..b/c..", True),
    "file://tmp/x": UrlComponent("file", "tmp/x", True),
    "FILE:///x": UrlComponent("FILE", "/x", True),
    "file:/tmp/x": UrlComponent("file", "/tmp/x"),
    "http://h:80/p%3Fq?a=b%20c&d=%zz": UrlComponent("http", "h:80/p?q", True, "a=b%20c&d=%zz"),
    "http://h/p?": UrlComponent("http", "h/p", True, ""),
    "http://h/p?a#b?c": UrlComponent("http", "h/p", True, "a", "b?c"),
    "http://h/p#": UrlComponent("http", "h/p", True, None, ""),
    "gs+x-1.0_z://b": UrlComponent("gs+x-1.0_z", "b", True),
    "zarr3:memory": UrlComponent("zarr3", "memory"),
}


@each(("url", "component"), ROOTS.items(), ids=ROOTS.keys())
def test_root_is_parsed(url, component):
    (root,) = parse_pipeline(url)
    assert root == component
    assert root.raw == url


PLAIN = [
    *("x.zarr", "/tmp/x y.zarr", "./a", ".", "a/b", "50%.zarr", "a%2e%2e/b", "x?y#z", "~/x", "/"),
    *(
        "C:\\data\\x",
        "C:/data/x",
        "c:x",
        "C:\\",
        "\\\\host\\share\\x",
        "é/ü",
        "a b",
        "/a:b/c",
        "..x",
    ),
    *("memory", "1:2", ":x", "/x:"),
]


@each("path", PLAIN)
def test_plain_path_is_taken_literally(path):
    assert parse_pipeline(path) == (UrlComponent("file", path, plain=True),)
    root, driver = parse_pipeline(f"{path}|zarr3:")
    assert root == UrlComponent("file", path, plain=True)
    assert driver == UrlComponent("zarr3")
    assert f"{root}|{driver}" == f"{path}|zarr3:"


APPLIED = {
    "zarr3": UrlComponent("zarr3"),
    "zarr3:": UrlComponent("zarr3"),
    "zarr3:a/b": UrlComponent("zarr3", "a/b"),
    "zarr3:/a": UrlComponent("zarr3", "/a"),
    "zarr3://b": UrlComponent("zarr3", "b", True),
    "zip:p%7Cq r": UrlComponent("zip", "p|q r"),
    "zip:/%2Fx": UrlComponent("zip", "//x"),
    "ocdbt:@v5/p": UrlComponent("ocdbt", "@v5/p"),
    "ocdbt:@2024-01-02T03:04:05Z/p": UrlComponent("ocdbt", "@2024-01-02T03:04:05Z/p"),
    "json:/a%20b%7Cc/~1": UrlComponent("json", "/a b|c/~1"),
    "cast:float32:": UrlComponent("cast", "float32:"),
    "zarr3:b?x=1": UrlComponent("zarr3", "b", False, "x=1"),
    "zarr3?x=1": None,
    " zarr3:": None,
    "": None,
    ":a": None,
    "3d:": None,
}


@each(("text", "component"), APPLIED.items(), ids=APPLIED.keys())
def test_applied_component_is_parsed(text, component):
    if component is None:
        with pytest.raises(MetadataError, match=r"^unsupported URL scheme: "):
            parse_pipeline(f"memory://a|{text}")
    else:
        assert parse_pipeline(f"memory://a|{text}")[1] == component


@given(roots | slashless_roots | plain_roots, st.lists(applied, max_size=3))
def test_parsing_is_the_inverse_of_printing(root, rest):
    components = (root, *rest)
    printed = pipeline(components)
    assert parse_pipeline(printed) == components
    assert pipeline(parse_pipeline(printed)) == printed


@given(st.text("ab:/|%2eE.?#@\\ é", max_size=20) | unicode_text)
def test_any_text_parses_or_raises_a_typed_error_and_holds_no_dots(text):
    try:
        components = parse_pipeline(text)
    except (MetadataError, InvalidKeyError):
        return
    assert not any(has_dots(part.path) for part in components if not part.plain)
    assert parse_pipeline(pipeline(components)) == components


DOTS = [
    *("memory://..", "memory://../x", "memory://a/../b", "memory://a/..", "memory://%2E%2E/x"),
    *("memory://a%2F..%2fb", "memory://a/.%2e/b", "file:///a/../b", "file://../b", "http://h/../x"),
    *("memory://a|zip:../x", "memory://a|zarr3:%2e%2E", "memory://a%5C..%5Cb", "memory://a\\..\\b"),
]


@each("url", DOTS)
def test_dots_are_refused_and_never_normalised_away(url):
    with pytest.raises(InvalidKeyError, match=r'^Invalid key: ".*": "\.\." is not allowed'):
        parse_pipeline(url)


def test_check_segments_lets_other_dots_pass():
    for path in ("", "a", ".", "...", "..a", "a..", "a../b", "./a"):
        check_segments(path)
    with pytest.raises(InvalidKeyError):
        check_segments("a/..")


ERRORS = {
    "": "URL must be non-empty",
    "|zarr3:": 'unsupported URL scheme: ""',
    "memory://a|": 'unsupported URL scheme: ""',
    "||": 'unsupported URL scheme: ""',
    " memory://a": 'unsupported URL scheme: " memory"',
    "é://a": 'unsupported URL scheme: "\\xc3\\xa9"',
    "memory://a%ff": 'Invalid kvstore URL component "memory://a%ff": '
    'Invalid UTF-8 percent-encoding sequence: "a%ff"',
    "memory://a%ED%A0%80": 'Invalid kvstore URL component "memory://a%ED%A0%80": '
    'Invalid UTF-8 percent-encoding sequence: "a%ED%A0%80"',
    "memory://a%": 'Invalid kvstore URL component "memory://a%": '
    'Invalid percent-encoding at position 1: "a%"',
    "memory://a%2": 'Invalid kvstore URL component "memory://a%2": '
    'Invalid percent-encoding at position 1: "a%2"',
    "memory://a|zarr3:%zz": 'Invalid TensorStore URL component "zarr3:%zz": '
    'Invalid percent-encoding at position 0: "%zz"',
}


@each(("url", "message"), ERRORS.items(), ids=ERRORS.keys())
def test_wrong_syntax_is_explained(url, message):
    with pytest.raises(MetadataError) as caught:
        parse_pipeline(url)
    assert str(caught.value) == message


def parse_and_require_paths(url):
    root, *rest = parse_pipeline(url)
    root.require_path_only("kvstore")
    for component in rest:
        component.require_path_only("TensorStore")


@each("url", [*ERRORS, "memory://a?x", "memory://a#x", "memory://a|zarr3:b?x"])
def test_errors_are_those_of_tensorstore(url):
    ts = pytest.importorskip("tensorstore")
    with pytest.raises(ValueError, match=r"URL") as theirs:
        ts.Spec(url)
    with pytest.raises(MetadataError) as ours:
        parse_and_require_paths(url)
    expected = str(theirs.value).removeprefix(f"Parsing spec from url: {quote(url)}: ")
    # TensorStore does not find the position.
    assert re.sub(r"position -?\d+", "", str(ours.value)) == re.sub(r"position -?\d+", "", expected)


def test_require_path_only_names_the_component_as_typed():
    (root,) = parse_pipeline("memory://a%20b#f")
    with pytest.raises(MetadataError) as caught:
        root.require_path_only("kvstore")
    assert str(caught.value) == (
        'Invalid kvstore URL component "memory://a%20b#f": Fragment identifier not supported'
    )
    parse_pipeline("memory://a")[0].require_path_only("kvstore")


@given(paths)
def test_encoding_is_that_of_tensorstore(path):
    ts = pytest.importorskip("tensorstore")
    assert (
        f"memory://{encode_path(path)}" == ts.KvStore.Spec({"driver": "memory", "path": path}).url
    )


def test_encoding_of_all_ascii_characters_is_that_of_tensorstore():
    ts = pytest.importorskip("tensorstore")
    path = "".join(map(chr, range(1, 128)))
    assert (
        f"memory://{encode_path(path)}" == ts.KvStore.Spec({"driver": "memory", "path": path}).url
    )


@given(st.text("ab/%25|@: é.", max_size=12).filter(lambda path: not has_dots(path)))
def test_decoding_is_that_of_tensorstore(text):
    ts = pytest.importorskip("tensorstore")
    url = "memory://" + text.replace("|", "")
    try:
        expected = ts.KvStore.Spec(url).path
    except ValueError:
        with pytest.raises(GpustoreError):
            parse_pipeline(url)
    else:
        try:
            assert parse_pipeline(url)[0].path == expected
        except InvalidKeyError:
            assert has_dots(expected)


def test_encode_path_refuses_what_is_not_unicode():
    with pytest.raises(InvalidKeyError, match=r"^Invalid key: .*: not Unicode$"):
        encode_path("a\ud800")
    with pytest.raises(MetadataError, match="UTF-8"):
        parse_pipeline("memory://a\ud800")


@pytest.mark.parametrize("text", ["../x.zarr", "a/../b", ".."])
def test_a_plain_path_may_go_up_because_a_person_typed_it(text):
    (root,) = parse_pipeline(text)
    assert (root.plain, root.path) == (True, text)
