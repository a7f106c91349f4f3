"""The user's and the project's configuration: files, environment and where both are found."""

from __future__ import annotations

from rath.config.paths import (
    CONFIG_FILENAME,
    OPENRATH_HOME_ENV,
    PROJECT_MARKER_DIR,
    USER_DIR_NAME,
    is_project_local,
    resolve_config_dir,
    resolve_config_path,
)
from rath.config.schema import (
    SCHEMA_VERSION,
    LLMConfig,
    LLMProviderConfig,
    MCPConfig,
    MCPServerConfig,
    MemoryConfig,
    MemoryProviderConfig,
    RathConfig,
)
from rath.config.store import ConfigError, ConfigStore, default_store

__all__ = [
    "CONFIG_FILENAME",
    "OPENRATH_HOME_ENV",
    "PROJECT_MARKER_DIR",
    "SCHEMA_VERSION",
    "USER_DIR_NAME",
    "ConfigError",
    "ConfigStore",
    "LLMConfig",
    "LLMProviderConfig",
    "MCPConfig",
    "MCPServerConfig",
    "MemoryConfig",
    "MemoryProviderConfig",
    "RathConfig",
    "default_store",
    "is_project_local",
    "resolve_config_dir",
    "resolve_config_path",
]
