"""Shared by all tests: peers that import torchvision need the guard before anything else, and no
example of a property fails because the machine is busy."""

import ctypes
import gc
import signal
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from torch.utils.data._utils import signal_handling

from tests.sampling import mark_others_slow
from vitrail.core.torchvision import mend_torchvision

mend_torchvision()
settings.register_profile("thorough", deadline=None)  # `make test-all` has this one
settings.register_profile("quick", deadline=None, max_examples=40)
settings.load_profile("quick")


@pytest.fixture(autouse=True, scope="session")
def _shard_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Shards of remote storage that tests read are kept in a directory of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_SHARD_CACHE", str(tmp_path_factory.mktemp("shards")))
        yield


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A verb that is called with `threads` sets those of its process: the next test has its own."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _child_signals() -> Iterator[None]:
    """A loader with workers installs a handler for SIGCHLD and leaves it, on a signal stack that
    other libraries change: the next test that ends a process would die in it (docs/log.md)."""
    before = signal.getsignal(signal.SIGCHLD)
    disable_signal_stack()
    yield
    if signal.getsignal(signal.SIGCHLD) is not before:
        signal.signal(signal.SIGCHLD, before)
        signal_handling._SIGCHLD_handler_set = False  # it is installed again when needed


class SignalStack(ctypes.Structure):
    _fields_ = (("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def disable_signal_stack() -> None:
    """Handlers of Python run on the alternate stack, where there is one. Some library that tests
    import sets one that is gone later; without it they run on the stack of the thread."""
    if sys.platform == "linux":
        disable = SignalStack(None, 2, 0)  # SS_DISABLE
        ctypes.CDLL(None).sigaltstack(ctypes.byref(disable), None)


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_others_slow(items)


def pytest_collection_finish() -> None:
    """The garbage collector leaves imported modules alone, millions of objects, and looks at those
    of tests less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
