"""Tools by which an agent works with a running loop: typed, with scopes, as Python, MCP and OpenAI schemas.

    async with Toolbox(scopes={"read", "train"}) as box:
        answer = await box.call("start_training", {"sample_size": 10_000, "days": 30})

Light: an agent's process may import it. What a tool needs is imported at its first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.tools.catalogue import TOOLS
    from onward.tools.schemas import mcp_tools, openai_tools
    from onward.tools.tool import SCOPES, Scope, Tool
    from onward.tools.toolbox import Answer, Toolbox, UnknownToolError

__all__ = [
    "SCOPES",
    "TOOLS",
    "Answer",
    "Scope",
    "Tool",
    "Toolbox",
    "UnknownToolError",
    "mcp_tools",
    "openai_tools",
]
__getattr__ = attributes(
    __name__,
    {
        "onward.tools.catalogue": "TOOLS",
        "onward.tools.schemas": "mcp_tools openai_tools",
        "onward.tools.tool": "SCOPES Scope Tool",
        "onward.tools.toolbox": "Answer Toolbox UnknownToolError",
    },
)
