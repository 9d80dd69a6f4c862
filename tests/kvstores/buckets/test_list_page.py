"""What is looked at in a page of a list before obstore reads it."""

import pytest

from gpustore.errors import StoreIOError
from gpustore.kvstores.buckets.list_page import ListPages


def page(*keys, token="", names=()):
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    entries += "".join(f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in names)
    if token:
        entries += f"<NextContinuationToken>{token}</NextContinuationToken>"
    return f"<ListBucketResult><Prefix></Prefix>{entries}</ListBucketResult>".encode()


def ask(pages, count, make, query="list-type=2"):
    token = ""
    for number in range(count):
        pages.checked(f"{query}&continuation-token={token}" if token else query, make(number))
        token = f"t{number}"


def test_list_that_gets_on_may_be_long():
    ask(ListPages(), 3000, lambda number: page(f"k{number:05}", token=f"t{number}"))
    ask(ListPages(), 3000, lambda number: page(names=[f"k{number:05}/"], token=f"t{number}"))
    ask(ListPages(), 90, lambda number: page(token=f"t{number}"))


@pytest.mark.parametrize("keys", [[], ["same"]], ids=str)
def test_list_that_does_not_get_on_is_an_error(keys):
    for query in ("list-type=2", "list-type=2&prefix=a%2Fb&delimiter=%2F"):
        with pytest.raises(StoreIOError, match="the list of keys does not get on"):
            ask(ListPages(), 110, lambda number: page(*keys, token=f"t{number}"), query)
        with pytest.raises(StoreIOError, match="the list of keys does not get on"):
            ask(ListPages(), 110, lambda number: page(names=keys, token=f"t{number}"), query)


def test_lists_are_told_apart():
    pages = ListPages()
    for number in range(300):
        for prefix in ("a", "b"):
            asked = f"&continuation-token=t%26{number - 1}" if number else ""
            answer = page(f"{prefix}{number:03}", token=f"t&amp;{number}")
            pages.checked(f"list-type=2&prefix={prefix}{asked}", answer)
    for _ in range(300):  # The same list again and again.
        pages.checked("list-type=2", page(token="t"))
    assert len(pages._known) < 1025


def test_token_is_not_longer_than_a_request_can_be():
    with pytest.raises(StoreIOError, match="does not get on"):
        ListPages().checked("list-type=2", page("a", token="t" * (1 << 15)))


def test_keys_that_stand_for_directories_are_left_out():
    assert ListPages().checked("", page("a/", "a/b", "c/d/", "e")) == page("a/b", "e")
    unchanged = page("a/b", "c", names=["d/"])
    assert ListPages().checked("", unchanged) is unchanged


def test_key_that_would_be_changed_is_an_error():
    with pytest.raises(StoreIOError, match='has the key "/a&b", which begins with a slash'):
        ListPages().checked("", page("/a&amp;b", "c"))


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"</Key>",
        b"<Key>",
        b"/</Key>",
        b"<Contents>" * 100_000 + b"/</Key>",
        b"<Key>" * 100_000,
        b"</NextContinuationToken><NextContinuationToken>",
        b"\xff/</Key><NextContinuationToken>\xff</NextContinuationToken>",
    ],
    ids=lambda one: repr(one[:30]),
)
def test_what_is_no_list_is_left_to_who_reads_it(page):
    assert isinstance(ListPages().checked("list-type=2", page), bytes)
