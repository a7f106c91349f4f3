# shellcheck shell=bash
# What .ci/demo, .ci/test and .ci/run share: a Python, and uv in a virtual environment of its own
# (inside the project's environment, `uv sync` would remove uv).

set -euo pipefail
# Many checks start a process for each case: each module is compiled once, not once for each.
unset PYTHONDONTWRITEBYTECODE
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# Nothing that was released later is installed; the same date stands in pyproject.toml.
newest_release=2026-11-20T00:00:00Z

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Print the path of a Python that is new enough; RATH_PYTHON names a preferred one.
find_python() {
    local name
    for name in ${RATH_PYTHON:+"$RATH_PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    die "no Python >= 3.11 was found; install one, or name it: RATH_PYTHON=/path/to/python"
}

# Print the path of a Python of this version, such as 3.12: of the path, of pyenv, or of uv.
find_python_of() {
    local version=$1 candidate
    for candidate in "python$version" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python \
        "$(env -u UV_PYTHON "$uv" python find --no-project "$version" 2>/dev/null || true)"; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
            >/dev/null 2>&1; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

need_git() {
    command -v git >/dev/null 2>&1 || die "git was not found; install it"
}

# Set `uv` to a working uv, installed by pip on the first call.
need_uv() {
    local python home
    python=$(find_python)
    home=$root/.ci/.tools/uv
    uv=$home/bin/uv
    export UV_PYTHON=$python UV_PYTHON_DOWNLOADS=never
    if "$uv" --version >/dev/null 2>&1; then
        return
    fi
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        die "$python lacks venv or ensurepip; on Debian and Ubuntu: apt-get install python3-venv"
    rm -rf "$home"
    "$python" -m venv "$home" || die "$python could not create a virtual environment in $home"
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1' ||
        die "pip could not install uv (its words are above); is there a network?"
}

# Bring the project's environment to what the arguments ask for.
sync() {
    "$uv" sync "$@" || die "uv sync $* failed (its words are above); is there a network?"
}

# Write what a release consists of below a directory: dist/ with the source archive and the wheel that
# is built from it, and the list of what they depend on (CycloneDX).
build_release() {
    rm -rf "$1/dist" && mkdir -p "$1" &&
        "$uv" build --quiet --out-dir "$1/dist" &&
        "$uv" export --quiet --no-dev --all-extras --preview-features sbom-export \
            --format cyclonedx1.5 --output-file "$1/sbom.cdx.json"
}

# Install Debian packages where that takes no questions; what fails is named by the caller.
apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get --yes --quiet --quiet)
    if [[ $(id -u) -ne 0 ]]; then
        apt=(sudo -n "${apt[@]}")
    fi
    command -v apt-get >/dev/null 2>&1 || return 0
    "${apt[@]}" install --no-install-recommends "$@" >/dev/null 2>&1 ||
        { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "$@"; } \
            >/dev/null 2>&1 || true
}

# Install bubblewrap, which the tests of its backend need. Elsewhere they are skipped and say why.
want_bubblewrap() {
    if [[ $(uname -s) != Linux ]] || command -v bwrap >/dev/null 2>&1; then
        return
    fi
    apt_install bubblewrap
    command -v bwrap >/dev/null 2>&1 || printf 'note: %s\n' \
        "bwrap was not found and not installed: the tests of the bubblewrap backend are skipped" >&2
}

# Tell whether a PostgreSQL server is there, on the path or where Debian puts it.
has_postgres() {
    command -v postgres >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null
}

# Install the PostgreSQL server and PgBouncer, which the tests of its store start in a directory of
# their own: only in CI, as the packages also start services. Elsewhere they are skipped and say why.
want_postgres() {
    if [[ -z ${CI:-} || $(uname -s) != Linux ]]; then
        return
    fi
    has_postgres || apt_install postgresql
    has_postgres || printf 'note: %s\n' \
        "PostgreSQL was not found and not installed: the tests on its server are skipped" >&2
    command -v pgbouncer >/dev/null 2>&1 || apt_install pgbouncer
    command -v pgbouncer >/dev/null 2>&1 || printf 'note: %s\n' \
        "PgBouncer was not found and not installed: the tests behind a pooler are skipped" >&2
}

# Install the browser in which the pages of `rath view` are tested and measured, like PostgreSQL.
want_chromium() {
    if [[ -z ${CI:-} || $(uname -s) != Linux ]] || command -v chromium >/dev/null 2>&1; then
        return
    fi
    apt_install chromium fonts-dejavu-core
    command -v chromium >/dev/null 2>&1 || printf 'note: %s\n' \
        "chromium was not found and not installed: the tests in a browser are skipped" >&2
}

# Make the environment of the OpenViking server, once for all clones: 1.3 GB and some minutes. Its
# tests find it where it is, or in RATH_OPENVIKING_ENV; without it they are skipped and say why.
want_openviking() {
    local version=0.5.2 home
    if [[ -n ${RATH_OPENVIKING_ENV:-} ]]; then
        return
    fi
    home=${XDG_CACHE_HOME:-$HOME/.cache}/openrath/openviking-$version
    mkdir -p "$(dirname "$home")"
    (
        # macOS has no flock: there two runs at once may do the work twice.
        if command -v flock >/dev/null 2>&1; then
            flock 9
        fi
        # --python, since UV_PYTHON counts more than VIRTUAL_ENV.
        if [[ ! -e $home/complete ]]; then
            printf 'note: making the environment of the OpenViking server in %s\n' "$home" >&2
            if "$uv" venv --quiet --clear "$home" &&
                "$uv" pip install --quiet --python "$home" --compile-bytecode \
                    --exclude-newer "$newest_release" "openviking==$version"; then
                touch "$home/complete"
            else
                printf 'note: %s\n' \
                    "OpenViking could not be installed: the tests on its server are skipped" >&2
            fi
        fi
    ) 9>"$home.lock"
}

# Install the MCP servers that are not ours, once for all clones: 90 MB and some seconds. Their tests
# find them where they are, or in RATH_MCP_SERVERS; without them they are skipped and say why.
want_mcp_servers() {
    local everything=2026.8.31 filesystem=2026.8.31 git=2026.10.19 time=2026.10.19 home
    local before=$newest_release
    if [[ -n ${RATH_MCP_SERVERS:-} ]]; then
        return
    fi
    home=${XDG_CACHE_HOME:-$HOME/.cache}/openrath/mcp-servers-${before%T*}
    mkdir -p "$home" || return 0
    (
        # macOS has no flock: there two runs at once may do the work twice.
        if command -v flock >/dev/null 2>&1; then
            flock 9
        fi
        if [[ ! -e $home/python.complete ]]; then
            printf 'note: installing MCP servers in %s\n' "$home" >&2
            if "$uv" venv --quiet --clear "$home/python" &&
                "$uv" pip install --quiet --python "$home/python" --compile-bytecode \
                    --exclude-newer "$before" "mcp-server-git==$git" "mcp-server-time==$time"; then
                touch "$home/python.complete"
            else
                printf 'note: %s\n' \
                    "the MCP servers of PyPI were not installed: the tests on them are skipped" >&2
            fi
        fi
        # No script that a package brings for its installation is run.
        if [[ ! -e $home/node.complete ]]; then
            if command -v npm >/dev/null 2>&1 &&
                npm install --prefix "$home/node" --before "$before" --ignore-scripts \
                    --no-audit --no-fund --no-update-notifier --loglevel error \
                    --fetch-retries 1 --fetch-timeout 60000 \
                    "@modelcontextprotocol/server-everything@$everything" \
                    "@modelcontextprotocol/server-filesystem@$filesystem" >/dev/null; then
                touch "$home/node.complete"
            else
                printf 'note: %s\n' \
                    "the MCP servers of npm were not installed: the tests on them are skipped" >&2
            fi
        fi
    ) 9>"$home.lock"
}

# Install axe-core, which looks for faults of pages that keep people out, like the MCP servers. Its
# tests find it where it is, or in RATH_AXE; without it they are skipped and say why.
want_axe() {
    local version=4.11.0 home
    if [[ -n ${RATH_AXE:-} ]]; then
        return
    fi
    home=${XDG_CACHE_HOME:-$HOME/.cache}/openrath/axe-$version
    mkdir -p "$home" || return 0
    (
        if command -v flock >/dev/null 2>&1; then
            flock 9
        fi
        if [[ ! -e $home/complete ]]; then
            if command -v npm >/dev/null 2>&1 &&
                npm install --prefix "$home" --ignore-scripts --no-audit --no-fund \
                    --no-update-notifier --loglevel error --fetch-retries 1 --fetch-timeout 60000 \
                    "axe-core@$version" >/dev/null; then
                touch "$home/complete"
            else
                printf 'note: %s\n' \
                    "axe-core was not installed: the tests of pages with it are skipped" >&2
            fi
        fi
    ) 9>"$home.lock"
}
