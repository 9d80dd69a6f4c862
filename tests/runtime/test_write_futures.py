import asyncio

import pytest

from gpustore.runtime.promise import Promise
from gpustore.runtime.write_futures import WriteFutures


def test_write_futures_behave_as_the_commit():
    copy_promise, copy = Promise.new()
    commit_promise, commit = Promise.new()
    write = WriteFutures(copy, commit)
    assert write.copy is copy
    assert write.commit is commit
    seen = []
    write.add_done_callback(seen.append)
    write.add_done_callback(print)
    assert write.remove_done_callback(print) == 1
    copy_promise.set_result(None)
    assert not write.done()
    with pytest.raises(TimeoutError):
        write.result(timeout=0)
    write.force()
    commit_promise.set_result(None)
    assert write.done()
    assert write.result() is None
    assert write.exception() is None
    assert write.cancel() is False
    assert not write.cancelled()
    assert seen == [commit]
    assert asyncio.run(_await(write)) is None


async def _await(write):
    return await write
