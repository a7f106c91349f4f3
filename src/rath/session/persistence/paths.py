"""Where session files are: the documented path of these names."""

from rath.session.log.paths import SESSION_FILE_SUFFIX as SESSION_FILE_SUFFIX
from rath.session.log.paths import SESSION_PARTIAL_SUFFIX as SESSION_PARTIAL_SUFFIX
from rath.session.log.paths import SESSIONS_DIR_NAME as SESSIONS_DIR_NAME
from rath.session.log.paths import ensure_sessions_dir as ensure_sessions_dir
from rath.session.log.paths import session_file as session_file
from rath.session.log.paths import session_partial_file as session_partial_file
from rath.session.log.paths import sessions_dir as sessions_dir
