"""The five questions that a session answers, and blame: typed answers from its record alone."""

from rath.session.questions.answered import AnsweredCall, WhoAnswered, who_answered
from rath.session.questions.appearance import Appearance, Blame, blame
from rath.session.questions.changed import ToldChange, WhatChanged, what_changed
from rath.session.questions.comparison import Comparison, Counts, RowPair, compare
from rath.session.questions.missing import NEEDS, EvidenceKind, Missing, Question
from rath.session.questions.origin import Ancestor, BornRow, WhereFrom, where_from
from rath.session.questions.seen import SeenCall, WhatWasSeen, what_was_seen
from rath.session.questions.where import PlacedRun, UntoldCall, WhereToolsRan, where_tools_ran

__all__ = [
    "NEEDS",
    "Ancestor",
    "AnsweredCall",
    "Appearance",
    "Blame",
    "BornRow",
    "Comparison",
    "Counts",
    "EvidenceKind",
    "Missing",
    "PlacedRun",
    "Question",
    "RowPair",
    "SeenCall",
    "ToldChange",
    "UntoldCall",
    "WhatChanged",
    "WhatWasSeen",
    "WhereFrom",
    "WhereToolsRan",
    "WhoAnswered",
    "blame",
    "compare",
    "what_changed",
    "what_was_seen",
    "where_from",
    "where_tools_ran",
    "who_answered",
]
