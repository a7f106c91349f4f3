"""Where the parts of a local store lie, and which URI belongs to which file.

<store>/meta.json
<store>/index.sqlite                                    derived; may be deleted
<store>/index.sqlite.lock                               held while the index is opened
<store>/.drafts/                                        notes on their way to their places
<store>/.forgotten/                                     what is being removed
<store>/<scope>/<...>/<leaf>.md                         a note, its exact text in UTF-8
<store>/<scope>/<...>/<leaf>.meta.json                  where it comes from, when it expires
<store>/session/<sid>/commits/<stamp>/messages.json     a transcript
<store>/resources/<16 hex sha256>/source<ext>, meta.md  what was taken in
"""

from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from rath.config.paths import PROJECT_MARKER_DIR, user_config_dir
from rath.memory.driver import InvalidUri, place_of
from rath.memory.uri import MEMORY_URI_PREFIX, to_public_uri

Kind = Literal["note", "transcript"]
"""What can be found in a store."""

logger: logging.Logger = logging.getLogger("rath.memory.local")
"""For the work of a store on its own: an index that was built again, a file left out."""

NOTE_SUFFIX = ".md"
METADATA_SUFFIX = ".meta.json"
VECTOR_SUFFIX = ".vec"
"""Of the files in which OpenRath 1.3 kept the vector of a note."""

META_NAME = "meta.json"
INDEX_NAME = "index.sqlite"
DRAFTS_NAME = ".drafts"
FORGOTTEN_NAME = ".forgotten"
TRANSCRIPT_NAME = "messages.json"

_PROJECT_MARKERS = (".git", "pyproject.toml", PROJECT_MARKER_DIR)
_TRANSCRIPT_DIRECTORY = re.compile(r"session/[^/]+/commits/[^/]+")
_RESOURCE_DIRECTORY = re.compile(r".+/[0-9a-f]{16}")
_RESOURCE = re.compile(r"source\.\w{1,16}")
_DRAFT = re.compile(r"\.atomic_.*\.tmp")
_HIDDEN = re.compile(r"\.atomic_.*\.tmp|meta\.json|.*\.meta\.json|.*\.vec")


def relative_path(uri: str) -> str:
    """Return the place of a URI below the store, as in "user/memories/x".

    Raises:
        InvalidUri: It has no memory scheme, no known scope, or a segment that is empty, `.` or
            `..` or cannot be a file name.
    """
    place = place_of(uri)
    if any(each in {"", ".", ".."} or not can_name_a_file(each) for each in place.split("/")):
        raise InvalidUri(
            f"{uri!r} has a segment that cannot be a file name; leave out empty ones, . and .., "
            "and a slash at the end"
        )
    return place


def locate(root: Path, relative: str) -> Path:
    """Return a place below `root`, which is a resolved path, without symbolic links in it.

    Raises:
        InvalidUri: A symbolic link on the way leads out of the store.
    """
    path = root / relative
    # Much quicker than `Path.resolve`, which looks at the parents of the root too.
    place = str(root)
    for segment in relative.split("/"):
        place = f"{place}/{segment}"
        try:
            mode = os.lstat(place).st_mode
        except OSError:
            break
        if stat.S_ISLNK(mode):
            resolved = Path(os.path.realpath(path))
            if not resolved.is_relative_to(root):
                raise InvalidUri(f"{relative!r} leads out of the store through a symbolic link")
            return resolved
    return path


def note_path(relative: str) -> str:
    """Return the file of a note: its place with the suffix `.md`, which it may have already."""
    return relative if relative.endswith(NOTE_SUFFIX) else relative + NOTE_SUFFIX


def metadata_name(name: str) -> str:
    """Return the name of the metadata file of a note of this name."""
    return name.removesuffix(NOTE_SUFFIX) + METADATA_SUFFIX


def uri_of(relative: str) -> str:
    """Return the URI of a file or directory below the store; notes are named without suffix."""
    return MEMORY_URI_PREFIX + relative.removesuffix(NOTE_SUFFIX)


def child_uri(uri: str, name: str) -> str:
    """Return the URI of a child of `uri`."""
    return f"{to_public_uri(uri)}/{name}"


def kind_of(directory: str, name: str) -> Kind | None:
    """Return what a file is, by its directory below the store and its name; None for neither."""
    if name.endswith(NOTE_SUFFIX):
        return "note"
    if name == TRANSCRIPT_NAME and is_archive(directory):
        return "transcript"
    if _RESOURCE.fullmatch(name) and _RESOURCE_DIRECTORY.fullmatch(directory):
        return "note"
    return None


def is_archive(directory: str) -> bool:
    """Return whether a directory below the store is that of one commit."""
    return _TRANSCRIPT_DIRECTORY.fullmatch(directory) is not None


def session_of(directory: str) -> str:
    """Return the session whose transcript lies in a directory."""
    return PurePosixPath(directory).parts[1]


def is_hidden(name: str) -> bool:
    """Return whether listings leave a file out: the store's own ones, and names without a URI."""
    return _HIDDEN.fullmatch(name) is not None or not can_name_a_file(name)


def is_draft(name: str) -> bool:
    """Return whether a file is one that is about to be renamed, or was left behind so."""
    return _DRAFT.fullmatch(name) is not None


def can_name_a_file(segment: str) -> bool:
    """Return whether a segment is text that a file system takes; foreign file names may not be."""
    try:
        return b"\0" not in segment.encode()
    except UnicodeEncodeError:
        return False


def project_root(directory: Path) -> Path:
    """Return the nearest directory, from `directory` upwards, that is the root of a project.

    It holds `.git`, `pyproject.toml` or `.openrath`, other than the one of the user's home; where
    there is none, the project is `directory` itself.
    """
    start = directory.resolve()
    try:
        own = user_config_dir().resolve()
    except OSError:
        own = None
    for place in (start, *start.parents):
        if any((place / name).exists() and place / name != own for name in _PROJECT_MARKERS):
            return place
    return start


def store_id(root: Path, namespace: str | None = None) -> UUID:
    """Return the stable id of a project's store, or of one of its namespaces."""
    project = uuid5(NAMESPACE_URL, root.as_uri())
    return project if namespace is None else uuid5(project, namespace)
