"""Where each token's time and bytes went: the profiler's results. docs/profile.md documents the schema."""

from expertree.profile.profile import Profile
from expertree.profile.tables import (
    KINDS,
    PURPOSES,
    READ_REASONS,
    SCHEMA,
    ZONES,
    Events,
    Experts,
    Layers,
    Nodes,
    Reads,
    Routing,
    Steps,
)

__all__ = [
    "KINDS",
    "PURPOSES",
    "READ_REASONS",
    "SCHEMA",
    "ZONES",
    "Events",
    "Experts",
    "Layers",
    "Nodes",
    "Profile",
    "Reads",
    "Routing",
    "Steps",
]
