"""How stores are opened, counted, described and closed."""

from __future__ import annotations

from rath.conformance.memory.samples import samples
from rath.conformance.memory.subject import Check, Place, shown
from rath.conformance.report import Unlike, expect
from rath.errors import MemoryStoreClosed, UnsupportedMemoryOp
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpTree,
    MemoryOpWrite,
)

__all__ = ["CHECKS"]


def an_open_store_has_a_handle_and_no_holder(place: Place) -> None:
    expect(bool(place.store.handle), "a handle that is not empty")
    expect(not place.store.closed, "an open store")
    expect(place.store.refcount == 0, f"refcount 0, got {place.store.refcount}")
    expect(place.backend.store_count() >= 1, "store_count to count it")


def a_lazy_store_opens_on_first_use(place: Place) -> None:
    lazy = place.backend.lazy(place.spec)
    expect(lazy.handle == "", f"no handle before the first use, got {lazy.handle!r}")
    for op in samples(place)[:1]:
        lazy.dispatch(op)
        expect(bool(lazy.handle), "a handle after the first use")
    place.backend.close(lazy)


def closing_twice_is_closing_once(place: Place) -> None:
    before = place.backend.store_count()
    place.backend.close(place.store)
    place.backend.close(place.store)
    expect(place.store.closed, "a closed store")
    after = place.backend.store_count()
    expect(after == before - 1, f"store_count {before - 1} afterwards, got {after}")


def a_closed_store_refuses_work(place: Place) -> None:
    ops = samples(place)
    place.backend.close(place.store)
    for op in ops:
        try:
            result = place.store.dispatch(op)
        except MemoryStoreClosed:
            continue
        raise Unlike(f"expected MemoryStoreClosed for {shown(op)}, got {result!r}")


def the_last_holder_closes(place: Place) -> None:
    with place.store as store, store:
        expect(store.refcount == 2, f"refcount 2, got {store.refcount}")
    # A blocking `close` of a backend runs soon after; closing again waits for it.
    place.backend.close(place.store)
    expect(place.store.closed, "a closed store after the last release")


def capabilities_and_supported_ops_agree(place: Place) -> None:
    offers, ops = place.backend.capabilities(), place.backend.supported_ops()
    for flag, op in (
        (offers.supports_write, MemoryOpWrite),
        (offers.supports_read, MemoryOpRead),
        (offers.supports_list, MemoryOpList),
        (offers.supports_tree, MemoryOpTree),
        (offers.supports_resource_ingest, MemoryOpResource),
        (offers.supports_session_commit, MemoryOpCommit),
        (offers.supports_forget, MemoryOpForget),
    ):
        expect(flag == (op in ops), f"the flag of {op.__name__} to say whether it is supported")


def an_unknown_operation_raises(place: Place) -> None:
    class Unknown(MemoryOp):
        pass

    try:
        result = place.store.dispatch(Unknown())
    except UnsupportedMemoryOp:
        return
    raise Unlike(f"expected UnsupportedMemoryOp, got {result!r}")


_FEATURE = "Opening, counting, closing"

CHECKS = (
    Check(_FEATURE, an_open_store_has_a_handle_and_no_holder),
    Check(_FEATURE, a_lazy_store_opens_on_first_use),
    Check(_FEATURE, closing_twice_is_closing_once),
    Check(_FEATURE, a_closed_store_refuses_work),
    Check(_FEATURE, the_last_holder_closes),
    Check(_FEATURE, capabilities_and_supported_ops_agree),
    Check(_FEATURE, an_unknown_operation_raises),
)
