"""The index says what the logs say, whatever was written and deleted meanwhile."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rath.errors import PersistenceError
from rath.session.log.index import SessionFilter, SessionSummary, StoreIndex
from rath.session.outcome import NeedsInput
from rath.session.persistence.store import StoredLog
from tests.support.logs import DAY, LogMaker, MemoryStore, made_logs


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def all_told(index: StoreIndex) -> list[object]:
    """All that can be asked of an index."""
    summaries = index.summaries()
    ids = [each.id for each in summaries]
    return [
        summaries,
        [(index.children(each), index.ancestors(each), index.descendants(each)) for each in ids],
        [sorted(map(repr, index.search(word))) for word in ("fix", "parser", "修复")],
        index.calls(ids),
        index.given_tokens(ids),
        index.runs(),
    ]


@given(st.data())
def test_it_equals_one_that_is_made_anew(data: st.DataObject) -> None:
    store, known = MemoryStore(), list[LogMaker]()
    index = StoreIndex(store)
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["write", "write", "append", "delete", "ask"])):
            case "write":
                made = data.draw(made_logs(known=tuple(known)))
                # A shorter log in the place of a longer one is damage, of which a new index that
                # never saw the longer one cannot know.
                if all(made.session != each.session for each in known):
                    known.append(made)
                    store.put(made)
            case "append" if known:
                store.put(data.draw(st.sampled_from(known)).reopened().said("more of the parser"))
            case "delete" if known:
                store.delete(data.draw(st.sampled_from(known)).session)
            case _:
                index.summaries()
    index.refresh()
    assert all_told(index) == all_told(StoreIndex(store.copy()))


def test_only_what_has_changed_is_read_again(store: MemoryStore) -> None:
    logs = [LogMaker().said("one").ended() for _ in range(5)]
    index = StoreIndex(store.put(*logs))
    index.refresh()
    assert store.n_reads == 5
    store.put(logs[0].decided(NeedsInput(uuid4(), "?")))
    index.refresh()
    assert store.n_reads == 6
    assert index.summary(logs[0].session) is not None
    assert store.n_reads == 6


def test_progress_is_told(store: MemoryStore) -> None:
    store.put(*[LogMaker() for _ in range(120)])
    told: list[tuple[int, int]] = []
    StoreIndex(store).refresh(lambda done, of: told.append((done, of)))
    assert told == [(50, 120), (100, 120), (120, 120)]


def test_nothing_to_read_is_no_progress(store: MemoryStore) -> None:
    told: list[int] = []
    StoreIndex(store).refresh(lambda done, of: told.append(done))
    assert told == []


def test_a_summary_says_what_a_run_took(store: MemoryStore) -> None:
    run = uuid4()
    log = LogMaker(sandbox_backend="local").begun(path="Team.coder", ordinal=2, run=run)
    log.said("Fix  the\nparser").answered("calling", model="m-1", usd="0.1")
    log.intended("a").ran("a").answered("done", model="m-2", usd="0.2").ended()
    (found,) = StoreIndex(store.put(log)).summaries()
    assert found == SessionSummary(
        id=log.session,
        created_at=DAY,
        updated_at=found.updated_at,
        operator="implicit",
        kind=found.kind,
        parents=(),
        run=run,
        path="Team.coder",
        ordinal=2,
        title="Fix the parser",
        n_rows=4,
        n_calls=2,
        n_tool_runs=1,
        tokens=220,
        usd=Decimal("0.3"),
        is_priced=True,
        models=("m-1", "m-2"),
        backend="local",
        state="completed",
        problem="",
        size=len(log.data),
    )
    assert found.updated_at > DAY


def test_what_is_written_now_is_running(store: MemoryStore) -> None:
    log = LogMaker().begun().said("go")
    store.put(log)
    store.writers.add(log.session)
    index = StoreIndex(store)
    assert [each.state for each in index.summaries()] == ["running"]
    store.writers.clear()
    assert [each.state for each in index.summaries()] == ["cut_off"]


def test_a_log_without_a_line_is_running_while_it_is_written(store: MemoryStore) -> None:
    session = uuid4()
    store.put_bytes(session, b"")
    store.writers.add(session)
    (found,) = StoreIndex(store).summaries()
    assert (found.state, found.problem) == ("running", "")


def test_an_ended_run_is_not_running_however_long_somebody_holds_its_log(
    store: MemoryStore,
) -> None:
    log = LogMaker().ended()
    store.put(log)
    store.writers.add(log.session)
    assert [each.state for each in StoreIndex(store).summaries()] == ["completed"]


def test_a_log_that_cannot_be_read_is_damaged(store: MemoryStore) -> None:
    class Broken(MemoryStore):
        def read(self, session: UUID) -> StoredLog | None:
            raise PersistenceError("the disk is gone")

    broken = Broken().put(LogMaker())
    (found,) = StoreIndex(broken).summaries()
    assert (found.state, found.problem) == ("damaged", "the disk is gone")


def test_a_log_that_goes_while_it_is_read_is_forgotten(store: MemoryStore) -> None:
    class Fleeting(MemoryStore):
        def read(self, session: UUID) -> StoredLog | None:
            return None

    assert StoreIndex(Fleeting().put(LogMaker())).summaries() == ()


@pytest.fixture
def family(store: MemoryStore) -> dict[str, LogMaker]:
    """A user's words, two runs on them, one of them failed, and a merge of these."""
    run = uuid4()
    user = LogMaker(at=DAY).said("Fix the parser").ended()
    begins = (user.part(),)
    left = LogMaker(at=DAY + timedelta(hours=1), parents=(user.session,), begins_with=begins)
    left.begun(path="Team.left", run=run).answered("Straße", model="gpt-5-mini").ended()
    right = LogMaker(at=DAY + timedelta(hours=2), parents=(user.session,), begins_with=begins)
    right.begun(path="Team.right", run=run).answered("nothing", model="claude").failed()
    both = LogMaker(
        at=DAY + timedelta(hours=3), parents=(left.session, right.session), operator="merge"
    ).ended()
    agent = LogMaker(at=DAY + timedelta(hours=4)).ended()
    store.put(user, left, right, both, agent)
    return {"user": user, "left": left, "right": right, "both": both, "agent": agent}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (SessionFilter(), "agent both right left user"),
        (SessionFilter(order="oldest"), "user left right both agent"),
        (SessionFilter(limit=2), "agent both"),
        (SessionFilter(states=("failed",)), "right"),
        (SessionFilter(states=("completed", "failed"), limit=3), "agent both right"),
        (SessionFilter(since=DAY + timedelta(hours=2)), "agent both right"),
        (SessionFilter(until=DAY + timedelta(hours=1)), "user"),
        (SessionFilter(operator="merge"), "both"),
        (SessionFilter(operator="op_session_loop", limit=1), "both"),
        (SessionFilter(model="GPT"), "left"),
        (SessionFilter(text="strasse"), ""),
        (SessionFilter(text="straße"), "left"),
        (SessionFilter(text="fix pars"), "user"),
        (SessionFilter(text="fix nothing"), ""),
        (SessionFilter(text="---"), ""),
        (SessionFilter(is_said=True), "both right left user"),
    ],
    ids=repr,
)
def test_filters(
    store: MemoryStore, family: dict[str, LogMaker], asked: SessionFilter, names: str
) -> None:
    by_id = {log.session: name for name, log in family.items()}
    index = StoreIndex(store)
    found = [by_id[each.id] for each in index.summaries(asked)]
    assert " ".join(found) == names
    if asked.limit is None:
        assert index.count(asked) == len(found)


def test_parents_and_runs_are_filters_too(store: MemoryStore, family: dict[str, LogMaker]) -> None:
    index = StoreIndex(store)
    (run,) = index.runs()
    made = [family[name].session for name in ("left", "right")]
    assert [each.id for each in index.made_in(run)] == made
    of_user = SessionFilter(parent=family["user"].session, order="oldest")
    assert [each.id for each in index.summaries(of_user)] == made


def test_lineage(store: MemoryStore, family: dict[str, LogMaker]) -> None:
    user, left, right, both = (family[name].session for name in ("user", "left", "right", "both"))
    index = StoreIndex(store)
    assert index.children(user) == (left, right)
    assert index.ancestors(both) == (left, right, user)
    assert index.descendants(user) == (left, right, both)
    assert {each.id for each in index.known([user, uuid4()])} == {user}
    assert index.summary(uuid4()) is None


def test_ancestors_without_a_log_are_known_by_their_ids(store: MemoryStore) -> None:
    lost = uuid4()
    log = LogMaker(parents=(lost,))
    assert StoreIndex(store.put(log)).ancestors(log.session) == (lost,)


def test_a_session_that_came_from_itself_ends_no_walk_late(store: MemoryStore) -> None:
    one, other = uuid4(), uuid4()
    store.put(LogMaker(one, parents=(other,)), LogMaker(other, parents=(one,)))
    assert StoreIndex(store).ancestors(one) == (other,)


def test_a_title_is_what_was_said_first_wherever_it_stands(
    store: MemoryStore, family: dict[str, LogMaker]
) -> None:
    titles = {each.id: each.title for each in StoreIndex(store).summaries()}
    assert titles[family["left"].session] == "Fix the parser"
    assert titles[family["both"].session] == ""


def test_a_title_is_of_the_rows_that_a_session_begins_with(store: MemoryStore) -> None:
    first = LogMaker().answered("I begin").said("late words").ended()
    part = first.part(0, 1)
    cut = LogMaker(parents=(first.session,), begins_with=(part,)).said("own words").ended()
    again = LogMaker(parents=(cut.session,), begins_with=(replace(part, session=cut.session),))
    titles = {each.id: each.title for each in StoreIndex(store.put(first, cut, again)).summaries()}
    assert titles == {first.session: "late words", cut.session: "own words", again.session: ""}


def test_a_title_of_sessions_that_begin_with_each_other_is_found_too(store: MemoryStore) -> None:
    one, other = LogMaker().said("one"), LogMaker().said("other")
    first = LogMaker(one.session, begins_with=(other.part(),))
    second = LogMaker(other.session, begins_with=(one.part(),))
    assert [each.title for each in StoreIndex(store.put(first, second)).summaries()] == ["", ""]


def test_a_row_is_found_where_it_was_said(store: MemoryStore, family: dict[str, LogMaker]) -> None:
    (hit,) = StoreIndex(store).search("PARSER")
    assert (hit.session, hit.row, hit.kind) == (family["user"].session, 0, "user")
    assert hit.snippet == "Fix the parser"


@pytest.mark.parametrize(
    ("question", "n_hits"),
    [("修复", 1), ("复修", 0), ("请", 1), ("ARGER", 1), ('"the parser"', 1), ('"parser the"', 0)],
)
def test_search_folds_accents_and_finds_within_unspaced_scripts(
    store: MemoryStore, question: str, n_hits: int
) -> None:
    index = StoreIndex(store.put(LogMaker().said("Ärger mit the parser, 请修复 bug")))
    hits = index.search(question)
    assert len(hits) == n_hits
    assert all("请修复" in hit.snippet for hit in hits)


@given(st.text(max_size=20))
def test_any_question_can_be_asked(question: str) -> None:
    store = MemoryStore().put(LogMaker().said("a word").ended())
    with StoreIndex(store) as index:
        index.search(question)
        index.summaries(SessionFilter(text=question))


def test_a_call_of_two_logs_is_told_with_both(store: MemoryStore) -> None:
    call = uuid4()
    inner = LogMaker().answered("x", entry_id=call)
    outer = LogMaker().answered(None, entry_id=call)
    index = StoreIndex(store.put(inner, outer))
    found = index.calls([inner.session, outer.session])
    assert {session for session, _ in found} == {inner.session, outer.session}
    assert {facts.id for _, facts in found} == {call}


def test_more_sessions_than_fit_into_one_statement(store: MemoryStore) -> None:
    logs = [LogMaker().answered("x") for _ in range(600)]
    index = StoreIndex(store.put(*logs))
    ids = [log.session for log in logs]
    assert len(index.known(ids)) == len(index.calls(ids)) == 600


def test_tokens_that_came_without_a_call_are_kept(store: MemoryStore, tmp_path: Path) -> None:
    file = Path(__file__).parents[3] / "data" / "v1" / "tools.jsonl"
    session = UUID("9531c84d-17b6-47a6-b9ad-3e625f957dac")
    store.put_bytes(session, file.read_bytes())
    index = StoreIndex(store)
    assert index.given_tokens([session]) == {session: 75}
    assert [each.is_priced for each in index.summaries()] == [False]
