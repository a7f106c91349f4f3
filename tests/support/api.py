"""The one place through which tests reach inner names of `rath.session`.

Code that moves within the package changes its line here and no test. A test imports a name from
here unless it is public, or belongs to the module that the test is named after.
"""

from __future__ import annotations

from rath.session import record as record_module
from rath.session.arguments import ArgumentChecker as ArgumentChecker
from rath.session.autosave import look_again as look_again
from rath.session.body import Body as Body
from rath.session.body import GivenUsage as GivenUsage
from rath.session.branching import with_late as with_late
from rath.session.cost import sum_costs as sum_costs
from rath.session.decode import decode_content as decode_content
from rath.session.encode import MAX_RESULT_CHARS as MAX_RESULT_CHARS
from rath.session.encode import MAX_STREAM_CHARS as MAX_STREAM_CHARS
from rath.session.encode import ResultText as ResultText
from rath.session.encode import encode_content as encode_content
from rath.session.encode import encode_result as encode_result
from rath.session.encode import rows_digest as rows_digest
from rath.session.entry import call_site as call_site
from rath.session.file_changes.changes import net_changes as net_changes
from rath.session.file_changes.kept import FULL as FULL
from rath.session.file_changes.kept import KeptContents as KeptContents
from rath.session.file_changes.merge_text import merge_lines as merge_lines
from rath.session.file_changes.merging import Merge as Merge
from rath.session.file_changes.merging import merge_trees as merge_trees
from rath.session.hooks import answers as hook_answers_module
from rath.session.hooks.asked import note_output as note_output
from rath.session.hooks.values import PassedOn as PassedOn
from rath.session.log.blobs import BlobStore as BlobStore
from rath.session.log.store import Log as Log
from rath.session.loop import resolve_executor as resolve_executor
from rath.session.outcome import Outcome as Outcome
from rath.session.outcome import Suspended as Suspended
from rath.session.output.form import output_form as output_form
from rath.session.output.form import plain_answer as plain_answer
from rath.session.output.schema import Unfit as Unfit
from rath.session.output.schema import output_spec as output_spec
from rath.session.persistence.chain import chained as chained
from rath.session.persistence.codec import decode as codec_module
from rath.session.persistence.codec.kinds import ENTRY_KINDS as ENTRY_KINDS
from rath.session.persistence.index.database import INDEX_VERSION as INDEX_VERSION
from rath.session.persistence.index.database import Database as Database
from rath.session.persistence.index.facts import UNKNOWN_TIME as UNKNOWN_TIME
from rath.session.persistence.lines import Line as Line
from rath.session.persistence.loading.build import build as build
from rath.session.persistence.loading.closure import closure as closure
from rath.session.persistence.loading.content import Content as Content
from rath.session.persistence.loading.content import content_of as content_of
from rath.session.persistence.loading.load import session_of as session_of
from rath.session.persistence.loading.sources import Source as LogSource
from rath.session.persistence.paths import INDEX_FILE_NAME as INDEX_FILE_NAME
from rath.session.persistence.paths import PARTIAL_SUFFIX as PARTIAL_SUFFIX
from rath.session.persistence.paths import partial_beside as partial_beside
from rath.session.questions.hooked import sessions_of as sessions_of
from rath.session.questions.texts import preview as preview
from rath.session.questions.texts import texts_of as texts_of
from rath.session.reasoning import OwnAnswers as OwnAnswers
from rath.session.recall import HoldingRecall as HoldingRecall
from rath.session.recall import n_tokens as n_tokens
from rath.session.record import CHECK_ORIGIN as CHECK_ORIGIN
from rath.session.record import Entry as Entry
from rath.session.record import OperationKind as OperationKind
from rath.session.record import Record as Record
from rath.session.recorder import ancestors as ancestors_module
from rath.session.recorder import header as header_module
from rath.session.recorder import prices as prices_module
from rath.session.recorder import recorder as recorder_module
from rath.session.recorder import round_results as round_results_module
from rath.session.recorder.beside import recorded_in as recorded_in
from rath.session.recorder.beside import store_beside as store_beside
from rath.session.recorder.durability import default_durability as default_durability
from rath.session.recorder.encode import provider_without_secrets as provider_without_secrets
from rath.session.recorder.header import Identity as Identity
from rath.session.recorder.header import beginning as beginning
from rath.session.recorder.partials import WRITE_CHARS as WRITE_CHARS
from rath.session.recorder.partials import watched as watched
from rath.session.recorder.plan import RecordingPlan as RecordingPlan
from rath.session.recorder.prices import load_prices as load_prices
from rath.session.recorder.ranges import Source as RangeSource
from rath.session.recorder.ranges import entry_parts as entry_parts
from rath.session.recorder.ranges import n_told as n_told
from rath.session.recorder.ranges import row_parts as row_parts
from rath.session.recorder.reading import find_log as find_log
from rath.session.recorder.reading import read_log as read_log
from rath.session.recorder.recorder import Recorder as Recorder
from rath.session.recorder.shelf import begin_writing as begin_writing
from rath.session.recorder.shelf import being_written as being_written
from rath.session.recorder.shelf import end_writing as end_writing
from rath.session.recorder.shelf import shelf_of as shelf_of
from rath.session.recorder.shelf import writer_of as writer_of
from rath.session.replay.client import ReplayedClient as ReplayedClient
from rath.session.replay.history import history_of as history_of
from rath.session.replay.playback import Playback as Playback
from rath.session.request import CONTEXT_OPENING as CONTEXT_OPENING
from rath.session.request import HANDOVER as HANDOVER
from rath.session.request import Renderer as Renderer
from rath.session.request import context_message as context_message
from rath.session.request import last_user_index as last_user_index
from rath.session.rerender import rerender_call as rerender_call
from rath.session.resume.going_on import exchange_of as exchange_of
from rath.session.resume.open_calls import entries_since as entries_since
from rath.session.resume.open_calls import last_interrupt as last_interrupt
from rath.session.resume.open_calls import open_calls as open_calls
from rath.session.resume.open_calls import own_operation as own_operation
from rath.session.resume.products import selection_before as selection_before
from rath.session.resume.products import verdict_before as verdict_before
from rath.session.resume.program import program_of as program_of
from rath.session.resume.serving import serving as serving
from rath.session.resume.stored import Stored as Stored
from rath.session.running.aside import MANY_ROWS as MANY_ROWS
from rath.session.running.calls import Context as Context
from rath.session.running.candidates import Candidate as Candidate
from rath.session.running.candidates import side_request as side_request
from rath.session.running.candidates import turn_request as turn_request
from rath.session.running.conversation import Frame as Frame
from rath.session.running.conversation import Rendition as Rendition
from rath.session.running.events import MAX_QUEUED as MAX_QUEUED
from rath.session.running.finished import EDITED as EDITED
from rath.session.saving import add_late as add_late
from rath.session.saving import save as save
from rath.session.tooling import builtin_tools as builtin_tools
from rath.session.tooling import offer as offer
from rath.session.tooling import tool_registry as tool_registry
from rath.session.tooling import tool_table as tool_table
from rath.session.view.encode import PageEncoder as PageEncoder
from rath.session.view.evidence.encode import encode_plain as encode_plain
from rath.session.view.live.feed import Feed as Feed
from rath.session.view.live.server import LiveServer as LiveServer
from rath.session.view.nodes import nodes_of as nodes_of

# `name as name` exports a name; these have another one here, or stand for a whole module.
__all__ = [
    "CLOCK_READERS",
    "LogSource",
    "RangeSource",
    "codec_module",
    "hook_answers_module",
    "prices_module",
    "recorder_module",
]

CLOCK_READERS = (
    ancestors_module,
    header_module,
    record_module,
    recorder_module,
    round_results_module,
)
"""The modules that ask `datetime` what time it is while a run is recorded."""
