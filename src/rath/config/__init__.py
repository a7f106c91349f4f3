"""The user's and the project's configuration: files, environment and where both are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rath._core.lazy_imports import lazy_names
from rath.config.paths import (
    CONFIG_FILENAME,
    OPENRATH_HOME_ENV,
    PROJECT_MARKER_DIR,
    USER_DIR_NAME,
    is_project_local,
    resolve_config_dir,
    resolve_config_path,
)

if TYPE_CHECKING:
    from rath.config.layers import (
        Found,
        config_layers,
        find_backend_provider,
        find_llm_provider,
        find_mcp_server,
        find_memory_provider,
        llm_default,
    )
    from rath.config.schema import (
        SCHEMA_VERSION,
        LLMConfig,
        LLMProviderConfig,
        MCPConfig,
        MCPOAuthConfig,
        MCPServerConfig,
        MemoryConfig,
        MemoryProviderConfig,
        RathConfig,
    )
    from rath.config.store import ConfigError, ConfigStore, default_store
    from rath.config.trust import (
        GuardedEntry,
        check_trusted,
        guarded_entries,
        guarded_entry,
        project_of,
        revoke_trust,
        trust_entries,
        untrusted_entries,
    )
else:
    # The schema, and pydantic with it, is loaded when a config is really used.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "layers": (
                "Found", "config_layers", "find_backend_provider", "find_llm_provider",
                "find_mcp_server", "find_memory_provider", "llm_default",
            ),
            "schema": (
                "SCHEMA_VERSION", "LLMConfig", "LLMProviderConfig", "MCPConfig", "MCPOAuthConfig",
                "MCPServerConfig", "MemoryConfig", "MemoryProviderConfig", "RathConfig",
            ),
            "store": ("ConfigError", "ConfigStore", "default_store"),
            "trust": (
                "GuardedEntry", "check_trusted", "guarded_entries", "guarded_entry", "project_of",
                "revoke_trust", "trust_entries", "untrusted_entries",
            ),
        },
    )  # fmt: skip

__all__ = [
    "CONFIG_FILENAME",
    "OPENRATH_HOME_ENV",
    "PROJECT_MARKER_DIR",
    "SCHEMA_VERSION",
    "USER_DIR_NAME",
    "ConfigError",
    "ConfigStore",
    "Found",
    "GuardedEntry",
    "LLMConfig",
    "LLMProviderConfig",
    "MCPConfig",
    "MCPOAuthConfig",
    "MCPServerConfig",
    "MemoryConfig",
    "MemoryProviderConfig",
    "RathConfig",
    "check_trusted",
    "config_layers",
    "default_store",
    "find_backend_provider",
    "find_llm_provider",
    "find_mcp_server",
    "find_memory_provider",
    "guarded_entries",
    "guarded_entry",
    "is_project_local",
    "llm_default",
    "project_of",
    "resolve_config_dir",
    "resolve_config_path",
    "revoke_trust",
    "trust_entries",
    "untrusted_entries",
]
