"""The five questions that a session answers, and blame: typed answers from its record alone."""

from rath.session.questions.comparison import (
    Appearance,
    Blame,
    Comparison,
    Counts,
    RowPair,
    blame,
    compare,
)
from rath.session.questions.lineage import NEEDS, EvidenceKind, Missing, Question
from rath.session.questions.origin import (
    Ancestor,
    AnsweredCall,
    BornRow,
    ToldChange,
    WhatChanged,
    WhereFrom,
    WhoAnswered,
    what_changed,
    where_from,
    who_answered,
)
from rath.session.questions.requests import (
    PlacedRun,
    SeenCall,
    UntoldCall,
    WhatWasSeen,
    WhereToolsRan,
    what_was_seen,
    where_tools_ran,
)

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
