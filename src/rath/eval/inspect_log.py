"""Evaluations as logs of Inspect: a `.eval` file that its viewer and its readers open.

The format is version 2 of https://inspect.aisi.org.uk/eval-logs.html: a ZIP file of JSON documents,
`header.json`, `summaries.json`, and one document for each run in `samples/`.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import rath
from rath._core.files import atomic_write_bytes
from rath.eval.evaluation import Evaluation
from rath.eval.report import ScoredItem, ScoreSummary
from rath.llm.evidence import CallEvidence
from rath.session import Session
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn, SystemText, ToolFeedback, UserText
from rath.session.loading import load
from rath.session.record import ItemRun, ModelCall

__all__ = ["export_inspect"]

FORMAT_VERSION = 2


def export_inspect(evaluation: Evaluation, path: str | os.PathLike[str]) -> Path:
    """Write an evaluation as a log of Inspect, and return where it is; blocks.

    Messages, answers, scores, tokens, errors and expected answers are in it.

    Args:
        evaluation: What is exported.
        path: The file, which ends in `.eval`; an earlier one is replaced.

    Raises:
        ValueError: The path ends otherwise, or the evaluation has no run.
    """
    target = Path(path)
    if target.suffix != ".eval":
        raise ValueError(f"{target} is no log of Inspect: expected a path that ends in .eval")
    if not evaluation.runs:
        raise ValueError(f"evaluation {evaluation.job!r} has no run, so there is nothing to export")
    scores: dict[tuple[str, int], list[ScoredItem]] = defaultdict(list)
    for item in evaluation.items:
        scores[item.key, item.epoch].append(item)
    samples = [_sample(each, scores[each.key, each.epoch], evaluation) for each in evaluation.runs]
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for sample in samples:
            name = f"{quote(sample['id'], safe='')}_epoch_{sample['epoch']}"
            archive.writestr(f"samples/{name}.json", json.dumps(sample))
        archive.writestr("summaries.json", json.dumps([_summary(each) for each in samples]))
        archive.writestr("header.json", json.dumps(_header(evaluation, samples)))
    atomic_write_bytes(target, data.getvalue())
    return target


def _header(evaluation: Evaluation, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    report = evaluation.report()
    started = min(each.at - timedelta(seconds=float(each.seconds)) for each in evaluation.runs)
    ended = max(each.at for each in evaluation.runs)
    keys = list(dict.fromkeys(each.key for each in evaluation.runs))
    models = list(dict.fromkeys(name for each in samples for name in each["model_usage"]))
    n_epochs = 1 + max(each.epoch for each in evaluation.runs)
    return {
        "version": FORMAT_VERSION,
        "status": "success",
        "eval": {
            "created": _time(started),
            "task": evaluation.job,
            "task_id": evaluation.job,
            "dataset": {"samples": len(keys), "sample_ids": keys, "shuffled": False},
            "model": models[0] if models else "none",
            "config": {"epochs": n_epochs},
            "packages": {"openrath": rath.__version__},
            "scorers": [{"name": each.scorer} for each in report.scores],
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples) - report.n_failed,
            "scores": [_score(each) for each in report.scores],
        },
        "stats": {
            "started_at": _time(started),
            "completed_at": _time(ended),
            "model_usage": _sum_usage(each["model_usage"] for each in samples),
        },
    }


def _score(summary: ScoreSummary) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    if summary.mean is not None:
        metrics["mean"] = {"name": "mean", "value": summary.mean}
    for k, value in summary.pass_at.items():
        metrics[f"pass_at_{k}"] = {"name": f"pass_at_{k}", "value": value}
    return {
        "name": summary.scorer,
        "scorer": summary.scorer,
        "scored_samples": summary.n_scores,
        "unscored_samples": summary.n_errors,
        "metrics": metrics,
    }


def _sample(run: ItemRun, scores: Sequence[ScoredItem], evaluation: Evaluation) -> dict[str, Any]:
    session = None if run.session is None else load(evaluation.store, run.session).session
    expected = next((each.expected for each in scores if each.expected is not None), "")
    problems = [each.error for each in scores if each.error is not None]
    error = run.error if run.status != "done" else (problems[0] if problems else None)
    rows = () if session is None else tuple(session.chunk_table)
    answer = "" if session is None else session.text()
    first = next((each.content for each in rows if isinstance(each.content, UserText)), None)
    usage = {} if session is None else _usage(session)
    model = next(iter(usage), "none")
    sample: dict[str, Any] = {
        "id": run.key,
        "epoch": run.epoch + 1,
        "input": "" if first is None else first.text,
        "target": expected,
        "messages": [message for row in rows for message in _messages(row, model)],
        "output": {"model": model, "choices": _choices(answer, model), "completion": answer},
        "scores": {
            each.scorer: {"value": each.value, "answer": answer, "explanation": each.reasons}
            for each in scores
            if each.value is not None
        },
        "metadata": {"session": None if run.session is None else str(run.session)},
        "store": {},
        "events": [],
        "attachments": {},
        "model_usage": usage,
        "total_time": float(run.seconds),
        "uuid": f"{run.run}",
    }
    if error is not None:
        sample["error"] = {"message": error, "traceback": "", "traceback_ansi": ""}
    return sample


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "epoch", "input", "target", "scores", "model_usage", "total_time", "uuid")
    error = sample.get("error")
    return {
        **{name: sample[name] for name in names},
        "metadata": sample["metadata"],
        "completed": True,
        "message_count": len(sample["messages"]),
        **({} if error is None else {"error": error["message"]}),
    }


def _messages(row: ChunkRow, model: str) -> Iterable[dict[str, Any]]:
    match row.content:
        case SystemText(text):
            yield {"role": "system", "content": text}
        case UserText() as said:
            yield {"role": "user", "content": said.text, "source": "input"}
        case AssistantTurn() as turn:
            yield {
                "role": "assistant",
                "content": turn.text or "",
                "source": "generate",
                "model": model,
                "tool_calls": [
                    {"id": call.id, "function": call.name, "arguments": _arguments(call.arguments)}
                    for call in turn.calls
                ],
            }
        case ToolFeedback() as result:
            yield {"role": "tool", "content": result.body, "tool_call_id": result.call_id}
        case _:
            return


def _arguments(text: str) -> dict[str, Any]:
    try:
        found: object = json.loads(text or "{}")
    except ValueError:
        found = None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"text": text}


def _choices(answer: str, model: str) -> list[dict[str, Any]]:
    message = {"role": "assistant", "content": answer, "source": "generate", "model": model}
    return [{"message": message, "stop_reason": "stop"}] if answer else []


def _usage(session: Session) -> dict[str, dict[str, int]]:
    calls = [each.evidence for each in session.record if isinstance(each, ModelCall)]
    return _sum_usage({_model(each): _tokens(each)} for each in calls if each.usage is not None)


def _model(evidence: CallEvidence) -> str:
    return evidence.served_model or evidence.requested_model or "none"


def _tokens(evidence: CallEvidence) -> dict[str, int]:
    usage = evidence.usage
    assert usage is not None, "the caller leaves these out"
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _sum_usage(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for part in parts:
        for model, tokens in part.items():
            known = total.setdefault(model, dict.fromkeys(tokens, 0))
            for name, number in tokens.items():
                known[name] = known.get(name, 0) + number
    return total


def _time(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
