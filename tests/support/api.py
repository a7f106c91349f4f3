"""The one place through which tests reach inner names of `rath.session`.

Code that moves within the package changes its line here and no test. A test imports a name from
here unless it is public, or belongs to the module that the test is named after.
"""

from __future__ import annotations

from rath.session import record as record_module
from rath.session.autosave import is_autosaving as is_autosaving
from rath.session.autosave import look_again as look_again
from rath.session.base import with_late as with_late
from rath.session.body import Body as Body
from rath.session.body import Unfinished as Unfinished
from rath.session.body import sum_costs as sum_costs
from rath.session.calls.oneshot import MAX_QUEUED as MAX_QUEUED
from rath.session.calls.requests import CONTEXT_OPENING as CONTEXT_OPENING
from rath.session.calls.requests import HANDOVER as HANDOVER
from rath.session.calls.requests import Context as Context
from rath.session.calls.requests import OwnAnswers as OwnAnswers
from rath.session.calls.requests import ProviderCandidate as ProviderCandidate
from rath.session.calls.requests import Renderer as Renderer
from rath.session.calls.requests import RequestBuilder as RequestBuilder
from rath.session.calls.requests import RequestFrame as RequestFrame
from rath.session.calls.requests import context_message as context_message
from rath.session.calls.requests import last_user_index as last_user_index
from rath.session.calls.requests import side_request as side_request
from rath.session.calls.requests import turn_request as turn_request
from rath.session.calls.results import EDITED as EDITED
from rath.session.chunk import MANY_ROWS as MANY_ROWS
from rath.session.content import MAX_RESULT_CHARS as MAX_RESULT_CHARS
from rath.session.content import MAX_STREAM_CHARS as MAX_STREAM_CHARS
from rath.session.content import ResultText as ResultText
from rath.session.content import decode_content as decode_content
from rath.session.content import encode_content as encode_content
from rath.session.content import encode_result as encode_result
from rath.session.content import rows_digest as rows_digest
from rath.session.events import Event as Event
from rath.session.files.changes import net_changes as net_changes
from rath.session.files.merge import FileMerge as FileMerge
from rath.session.files.merge import all_or_none as all_or_none
from rath.session.files.merge import apply_changes as apply_changes
from rath.session.files.merge import merge_trees as merge_trees
from rath.session.graph.recording import LineageStamp as LineageStamp
from rath.session.graph.recording import lineage_extras_to_jsonable as lineage_extras_to_jsonable
from rath.session.hooks import PassedOn as PassedOn
from rath.session.hooks import note_output as note_output
from rath.session.loading import save as save
from rath.session.loading import session_of as session_of
from rath.session.log import ancestors as ancestors_module
from rath.session.log import blobs as blobs_module
from rath.session.log import format as format_module
from rath.session.log import header as header_module
from rath.session.log import writer as log_writer_module
from rath.session.log.ancestors import open_logs_of as open_logs_of
from rath.session.log.ancestors import writer_of as writer_of
from rath.session.log.blobs import BlobStore as BlobStore
from rath.session.log.build import LogSource as LogSource
from rath.session.log.build import ParsedLog as ParsedLog
from rath.session.log.build import build as build
from rath.session.log.build import closure as closure
from rath.session.log.build import parse_log as parse_log
from rath.session.log.build import sharing_effects as sharing_effects
from rath.session.log.header import Identity as Identity
from rath.session.log.header import RangeSource as RangeSource
from rath.session.log.header import beginning as beginning
from rath.session.log.header import count_in_ranges as count_in_ranges
from rath.session.log.header import entry_parts as entry_parts
from rath.session.log.header import header_of as header_of
from rath.session.log.header import provider_from_jsonable as provider_from_jsonable
from rath.session.log.header import provider_without_secrets as provider_without_secrets
from rath.session.log.header import row_parts as row_parts
from rath.session.log.index.database import INDEX_VERSION as INDEX_VERSION
from rath.session.log.index.database import UNKNOWN_TIME as UNKNOWN_TIME
from rath.session.log.index.database import Database as Database
from rath.session.log.index.decode import facts_of as facts_of
from rath.session.log.json_lines import CURRENT_SCHEMA_VERSION as CURRENT_SCHEMA_VERSION
from rath.session.log.json_lines import chained as chained
from rath.session.log.json_lines import dump as dump
from rath.session.log.paths import INDEX_FILE_NAME as INDEX_FILE_NAME
from rath.session.log.paths import PARTIAL_SUFFIX as PARTIAL_SUFFIX
from rath.session.log.paths import partial_path_of as partial_path_of
from rath.session.log.reader import decode_header as decode_header
from rath.session.log.store import Log as Log
from rath.session.log.writer import find_log as find_log
from rath.session.log.writer import index_queue as index_queue
from rath.session.log.writer import read_log as read_log
from rath.session.loop import call_site as call_site
from rath.session.open_calls import open_calls as open_calls
from rath.session.open_calls import own_operation as own_operation
from rath.session.outcome import Outcome as Outcome
from rath.session.outcome import Suspended as Suspended
from rath.session.output import output_form as output_form
from rath.session.output import plain_answer as plain_answer
from rath.session.output_schema import Unfit as Unfit
from rath.session.output_schema import output_spec as output_spec
from rath.session.provider_builtin import resolve_executor as resolve_executor
from rath.session.questions.comparison import preview as preview
from rath.session.questions.comparison import texts_of as texts_of
from rath.session.questions.lineage import sessions_of as sessions_of
from rath.session.questions.requests import rows_seen as rows_seen
from rath.session.recall import HoldingRecall as HoldingRecall
from rath.session.recall import n_tokens as n_tokens
from rath.session.record import CHECK_ORIGIN as CHECK_ORIGIN
from rath.session.record import Entry as Entry
from rath.session.record import OperationKind as OperationKind
from rath.session.record import Record as Record
from rath.session.run import budget as prices_module
from rath.session.run import driver as round_results_module
from rath.session.run import hook_calls as hook_answers_module
from rath.session.run import recorder as recorder_module
from rath.session.run.budget import load_prices as load_prices
from rath.session.run.cassette import Playback as Playback
from rath.session.run.cassette import ReplayedClient as ReplayedClient
from rath.session.run.recorded import history_of as history_of
from rath.session.run.recorder import default_durability as default_durability
from rath.session.run.rounds import FULL as FULL
from rath.session.run.rounds import ContentCache as ContentCache
from rath.session.run.run_log import WRITE_CHARS as WRITE_CHARS
from rath.session.run.run_log import RunLog as RunLog
from rath.session.run.run_log import watched as watched
from rath.session.run.stored_programs import program_of as program_of
from rath.session.scope import recording_scope as recording_scope
from rath.session.tooling import ArgumentChecker as ArgumentChecker
from rath.session.tooling import builtin_tools as builtin_tools
from rath.session.tooling import offer as offer
from rath.session.tooling import tool_registry as tool_registry
from rath.session.tooling import tool_table as tool_table
from rath.session.view.page import Feed as Feed
from rath.session.view.page import LiveServer as LiveServer
from rath.session.view.page_data import Catalogue as Catalogue
from rath.session.view.page_data import PageEncoder as PageEncoder
from rath.session.view.page_data import PageNode as PageNode
from rath.session.view.page_data import Range as Range
from rath.session.view.page_data import cut_text as cut_text
from rath.session.view.page_data import encode_plain as encode_plain
from rath.session.view.page_data import harmless as harmless
from rath.session.view.page_data import nodes_of as nodes_of
from rath.session.view.page_data import own_entries as own_entries
from rath.session.view.page_data import totals as totals

# `name as name` exports a name; these have another one here, or stand for a whole module.
__all__ = [
    "CLOCK_READERS",
    "LogSource",
    "RangeSource",
    "blobs_module",
    "format_module",
    "hook_answers_module",
    "log_writer_module",
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
